"""The least a function can do: answers 200 with the same 13 bytes. Used by ``benchmarks.gateway``."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Mapping

import httptools

REPLY = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 13\r\n\r\nHello, world!"


def main(environ: Mapping[str, str], listener: socket.socket, ready: Callable[[], None]) -> None:
    """Entry of a replica: serves until SIGTERM."""
    asyncio.run(_serve(listener, ready))


async def _serve(listener: socket.socket, ready: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    server = await loop.create_server(_Trivial, sock=listener)
    ready()
    await stop.wait()
    server.close()


class _Trivial(asyncio.Protocol):
    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        if self._transport is not None:
            self._transport.write(REPLY)
