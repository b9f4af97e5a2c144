"""What runs in a pod: a small HTTP server on an address of its own, and lines of log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_HEAD_END = b"\r\n\r\n"


class Container:
    """Answers every request with 200 and its pod's name, and logs method and path."""

    def __init__(self, pod: str, log: Callable[[str], None]) -> None:
        self._pod = pod
        self._log = log
        self._server: asyncio.Server | None = None

    async def start(self, address: str, port: int) -> None:
        self._server = await asyncio.start_server(self._serve, address, port)

    def stop(self) -> None:
        """Listen no longer; calls that are in are answered."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(_HEAD_END)).decode("latin-1")
                method, path, _ = head.split(" ", 2)
                headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
                await reader.readexactly(int(headers.get("content-length", "0")))
                self._log(f"{method} {path}")
                body = self._pod.encode()
                writer.write(f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
                await writer.drain()
                if headers.get("connection") == "close":
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()
