"""How the servers of the gateway and the watchdog end. uvicorn's would close at once, unannounced, with requests that
wait at the listener or have partly come."""

from __future__ import annotations

import asyncio
import socket
from typing import cast

import uvicorn

from gateway.guard import GuardedProtocol
from platform_words import backlog


class DrainingServer(uvicorn.Server):
    """A server of connections that :func:`gateway.guard.guarded` made.

    At its end it goes on for ``settle_s``, where anybody is connected, in which replies close their connections; takes
    the connections that the kernel has accepted; then closes idle ones, and the others after their replies.
    """

    def __init__(self, config: uvicorn.Config, settle_s: float) -> None:
        super().__init__(config)
        self._settle_s = settle_s

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        cast(type[GuardedProtocol], self.config.http_protocol_class).announce_end()
        if self.server_state.connections:
            await asyncio.sleep(self._settle_s)
        await backlog.take(sockets or ())
        await super().shutdown(sockets)
