"""A client on plain sockets for tests: what goes out is exactly what is given; replies are read by ``http.client``."""

from __future__ import annotations

import asyncio
import http.client
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

WAIT_S = 100.0


@dataclass(frozen=True)
class Reply:
    """Header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return json.loads(self.body)


class _Recorded:
    """What ``http.client`` wants of a socket."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self._data)


def parse(data: bytes, method: str = "GET") -> Reply:
    """A whole reply. Raises http.client errors (IncompleteRead, BadStatusLine) for one that is cut or no HTTP."""
    response = http.client.HTTPResponse(cast(Any, _Recorded(data)), method=method)
    response.begin()
    body = response.read()
    return Reply(response.status, {name.lower(): value for name, value in response.getheaders()}, body)


async def send_raw(address: str, data: bytes) -> bytes:
    """Everything the other side sends until it closes."""
    reader, writer = await connect(address)
    writer.write(data)
    try:
        async with asyncio.timeout(WAIT_S):
            return await reader.read()
    finally:
        writer.close()


async def connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port), limit=1 << 24)


def request(method: str, target: str, body: bytes = b"", *, close: bool = True, **headers: str) -> bytes:
    """Bytes of a request; ``_`` in header names stands for ``-``."""
    lines = [f"{method} {target} HTTP/1.1", "host: gateway.test"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if (body or method in ("POST", "PUT", "PATCH")) and "transfer_encoding" not in headers:
        lines.append(f"content-length: {len(body)}")
    if close:
        lines.append("connection: close")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


async def ask(address: str, method: str, target: str, body: bytes = b"", **headers: str) -> Reply:
    return parse(await send_raw(address, request(method, target, body, close=True, **headers)), method)
