"""Sockets and uvicorn servers of the gateway."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn

from gateway.draining import DrainingServer
from gateway.guard import RequestBounds, guarded
from gateway.settings import GatewaySettings
from platform_words.connections import KEEP_ALIVE_S

ALIVE_PATHS = (b"/healthz", b"/metrics")
"""Answered however many connections there are: who asks wants to know whether this server lives."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 picks a free one. Raises OSError.

    Connections inherit TCP_NODELAY: asyncio does not set it on them, and a reply's head and body are two writes, the
    second of which would wait for the client's delayed acknowledgement of the first (40 ms).
    """
    listener = socket.create_server((host, port), backlog=2048, reuse_port=False)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


class Server(DrainingServer):
    """Leaves signals to whoever runs several servers in one loop."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def build_server(app: Any, settings: GatewaySettings) -> Server:
    """A server for an ASGI application, to be run with ``serve(sockets=[…])`` until ``should_exit``."""
    bounds = RequestBounds(
        head_timeout_s=settings.request_head_timeout_s,
        body_timeout_s=settings.read_timeout_s,
        head_bytes=settings.max_head_bytes,
    )
    config = uvicorn.Config(
        app,
        http=guarded(bounds, settings.max_connections, ALIVE_PATHS, settings.untaken_bytes),
        loop="none",
        lifespan="off",
        access_log=False,
        log_level="warning",
        server_header=False,
        date_header=True,
        timeout_keep_alive=round(KEEP_ALIVE_S),
        timeout_graceful_shutdown=round(settings.drain_s),
        ws="none",
        proxy_headers=False,
    )
    return Server(config, settings.settle_s)
