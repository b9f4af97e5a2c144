"""HTTP/1.1 client towards replicas, streaming both ways with back-pressure. One call at a time on each connection.

Own code because the gateway's added latency is a promise (``python -m benchmarks.gateway``): general clients cost more
than the whole of it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

import httptools

CONNECT_TIMEOUT_S = 2.0
HIGH_WATER_BYTES = 256 * 1024


class UpstreamError(Exception):
    """No (whole) reply. ``sent``: the replica may have seen the call. ``begun``: its reply had begun."""

    def __init__(self, message: str, *, sent: bool = True, begun: bool = False) -> None:
        super().__init__(message)
        self.sent = sent
        self.begun = begun


class UpstreamTimeoutError(UpstreamError):
    """The reply did not begin in time."""


class UpstreamConnection(asyncio.Protocol):
    """A connection to one replica."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._chunks: deque[bytes] = deque()
        self._buffered = 0
        self._waiter: asyncio.Future[None] | None = None
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._paused = False
        self._complete = True
        self._ended: str | None = None
        self._head_done = False
        self._keep_alive = False
        self._skip_body = False
        self.headers: list[tuple[bytes, bytes]] = []
        self.status = 0

    @property
    def usable(self) -> bool:
        """A new call may be sent."""
        return self._transport is not None and self._complete and self._ended is None

    # asyncio callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, error: Exception | None) -> None:
        self._ended = str(error) if error else "the connection was closed"
        if self._head_done and not self._complete and not self._framed:
            self._complete = True  # a body without length ends with its connection
        self._transport = None
        self._can_write.set()
        self._wake()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.abort("the function changed protocols")
        except httptools.HttpParserError as error:
            self.abort(f"the reply is not HTTP ({error})")

    def pause_writing(self) -> None:
        self._can_write.clear()

    def resume_writing(self) -> None:
        self._can_write.set()

    # httptools callbacks

    def on_message_begin(self) -> None:
        self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200 and status != 101:
            return
        self.status = status
        self._framed = any(name in (b"content-length", b"transfer-encoding") for name, _ in self.headers)
        self._keep_alive = self._parser.should_keep_alive() and self._framed
        self._head_done = True
        if self._skip_body or status in (204, 304):
            self._complete = True
            self._keep_alive = False  # the parser expects a body that will not come
        self._wake()

    def on_body(self, data: bytes) -> None:
        self._chunks.append(data)
        self._buffered += len(data)
        if self._buffered > HIGH_WATER_BYTES and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def on_message_complete(self) -> None:
        if self._head_done:
            self._complete = True
            self._wake()

    # one call

    def begin(self, head: bytes, body: bytes, *, head_request: bool) -> None:
        """Send the head and the first part of the body. Raises UpstreamError."""
        if self._transport is None or self._ended is not None:
            raise UpstreamError(self._ended or "the connection is closed", sent=False)
        self._complete = self._head_done = False
        self._skip_body = head_request
        self._transport.write(head + body)

    async def write(self, data: bytes) -> None:
        """More of the body, waiting while the replica does not read."""
        await self._can_write.wait()
        if self._transport is None:
            raise UpstreamError(self._ended or "the connection is closed")
        self._transport.write(data)

    async def head(self, timeout_s: float) -> None:
        """Wait until status and headers are there. Raises UpstreamError, UpstreamTimeoutError."""
        if self._head_done:
            return
        timer = self._loop.call_later(timeout_s, self._expire)
        try:
            while not self._head_done:
                if self._ended is not None:
                    if self._ended == "timeout":
                        raise UpstreamTimeoutError(f"no reply within {timeout_s:g} s")
                    raise UpstreamError(f"no reply: {self._ended}")
                await self._wait()
        finally:
            timer.cancel()

    async def body(self) -> AsyncIterator[bytes]:
        """The reply's body, piece by piece. Raises UpstreamError when it breaks off."""
        while True:
            while self._chunks:
                data = self._chunks.popleft() if len(self._chunks) == 1 else b"".join(self._chunks)
                self._chunks.clear()
                self._buffered = 0
                if self._paused and self._transport is not None:
                    self._paused = False
                    self._transport.resume_reading()
                yield data
            if self._complete:
                return
            if self._ended is not None:
                raise UpstreamError(f"the reply broke off: {self._ended}", begun=True)
            await self._wait()

    def take_whole(self) -> bytes | None:
        """The body if it is all there already, else None."""
        if not self._complete:
            return None
        data = b"".join(self._chunks)
        self._chunks.clear()
        self._buffered = 0
        return data

    def finish(self) -> bool:
        """After a call: True when the connection may be kept for another."""
        if self.usable and self._keep_alive and not self._chunks:
            return True
        self.abort("not kept")
        return False

    def abort(self, reason: str) -> None:
        if self._ended is None:
            self._ended = reason
        if self._transport is not None:
            self._transport.abort()
        self._wake()

    def _expire(self) -> None:
        self.abort("timeout")

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    _framed = False


class UpstreamPool:
    """Kept connections by address."""

    def __init__(self, per_address: int = 256) -> None:
        self._idle: dict[str, list[UpstreamConnection]] = {}
        self._per_address = per_address

    async def take(self, address: str, *, fresh: bool = False) -> tuple[UpstreamConnection, bool]:
        """A connection, and whether it was kept from an earlier call. Raises UpstreamError (not sent)."""
        kept = self._idle.get(address, [])
        while kept and not fresh:
            connection = kept.pop()
            if connection.usable:
                return connection, True
        loop = asyncio.get_running_loop()
        host, _, port = address.rpartition(":")
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, connection = await loop.create_connection(lambda: UpstreamConnection(loop), host, int(port))
        except (OSError, TimeoutError, ValueError) as error:
            raise UpstreamError(f"cannot connect: {error or 'timed out'}", sent=False) from error
        return connection, False

    def give(self, address: str, connection: UpstreamConnection) -> None:
        """Give back after a call."""
        kept = self._idle.setdefault(address, [])
        if connection.finish() and len(kept) < self._per_address:
            kept.append(connection)

    def forget(self, addresses: set[str]) -> None:
        """Close connections to addresses that are not in ``addresses``."""
        for address in [known for known in self._idle if known not in addresses]:
            for connection in self._idle.pop(address):
                connection.abort("replica gone")

    def close(self) -> None:
        self.forget(set())
