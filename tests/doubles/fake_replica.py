"""Replicas of the fake backend: small HTTP servers in this process and event loop.

What a replica answers is a :class:`Program`, so a test can let one die within its reply.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

import httptools

from gateway.contract import (
    Replica,
)


@dataclass
class FakeRequest:
    """A request as a replica received it; header names in lower case."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


Program = Callable[[FakeRequest, "FakeConnection"], Awaitable[None]]
"""Answers a request on its connection."""


def reply(status: int, body: bytes = b"", **headers: str) -> bytes:
    """A whole HTTP/1.1 reply; ``_`` in header names stands for ``-``."""
    lines = [f"HTTP/1.1 {status} Fake", f"content-length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def echo(request: FakeRequest, connection: FakeConnection) -> None:
    """Answers with the request as JSON; 429 beyond ``max_inflight`` is the replica's own work."""
    request_seen = {
        "replica": connection.replica.id,
        "method": request.method,
        "target": request.target,
        "headers": request.headers,
        "body": request.body.decode("latin-1"),
    }
    body = json.dumps(request_seen).encode()
    answer = reply(200, body, content_type="application/json")
    connection.write(answer[: -len(body)] if request.method == "HEAD" else answer)


class FakeConnection(asyncio.Protocol):
    """One connection of a replica's server. Requests on it are answered one after the other."""

    def __init__(self, replica: FakeReplica) -> None:
        self.replica = replica
        self.transport: asyncio.Transport | None = None
        self.closed = asyncio.Event()
        self._parser = httptools.HttpRequestParser(self)
        self._queue: asyncio.Queue[FakeRequest] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._target = b""
        self._headers: dict[str, str] = {}
        self._body = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.replica.connections.add(self)
        self._task = asyncio.get_running_loop().create_task(self._answer())

    def connection_lost(self, error: Exception | None) -> None:
        self.replica.connections.discard(self)
        self.closed.set()
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.abort()

    def write(self, data: bytes) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def close(self) -> None:
        """Send what is written, then end."""
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """End at once."""
        if self.transport is not None:
            self.transport.abort()

    def on_message_begin(self) -> None:
        self._target, self._headers, self._body = b"", {}, bytearray()

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.replica.heads += 1
        if self.replica.on_head is not None:
            self.replica.on_head(self)

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        method = self._parser.get_method().decode()
        self._queue.put_nowait(FakeRequest(method, self._target.decode("latin-1"), self._headers, bytes(self._body)))

    async def _answer(self) -> None:
        while True:
            request = await self._queue.get()
            await self.replica.answer(request, self)


@dataclass(eq=False)
class FakeReplica:
    """A replica: its public face and its server."""

    id: str
    program: Program
    log: Callable[[str, str], None]
    max_inflight: int
    state: Replica
    requests: list[FakeRequest] = field(default_factory=list)
    heads: int = 0
    on_head: Callable[[FakeConnection], None] | None = None
    """Called when the head of a request is there, before its body."""
    in_flight: int = 0
    connections: set[FakeConnection] = field(default_factory=set)
    server: asyncio.Server | None = None

    async def listen(self) -> None:
        loop = asyncio.get_running_loop()
        self.server = await loop.create_server(lambda: FakeConnection(self), "127.0.0.1", 0)
        address = self.server.sockets[0].getsockname()
        self.state = replace(self.state, address=f"{address[0]}:{address[1]}")

    async def answer(self, request: FakeRequest, connection: FakeConnection) -> None:
        self.log(self.id, f"{request.method} {request.target}")
        if 0 < self.max_inflight <= self.in_flight:
            text = f"Concurrent request limit exceeded. Max concurrent requests: {self.max_inflight}".encode()
            connection.write(reply(429, text, content_type="text/plain", X_OpenFaaS_Internal="faas-middleware"))
            return
        self.requests.append(request)
        self.in_flight += 1
        try:
            await self.program(request, connection)
        finally:
            self.in_flight -= 1

    def end(self) -> None:
        """Stop listening and cut every connection."""
        if self.server is not None:
            self.server.close()
        for connection in list(self.connections):
            connection.abort()
