"""Programs that stand for the images of OpenFaaS's certifier; see docs/conformance.md."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Mapping


def redirector(environ: Mapping[str, str], listener: socket.socket, ready: Callable[[], None]) -> None:
    """For ``theaxer/redirector``: answers 302 to the address in the variable ``destination``."""
    asyncio.run(_redirect(environ["destination"], listener, ready))


async def _redirect(destination: str, listener: socket.socket, ready: Callable[[], None]) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 302 Found\r\nlocation: {destination}\r\ncontent-length: 0\r\n".encode())
        writer.write(b"connection: close\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, sock=listener):
        ready()
        await stop.wait()
