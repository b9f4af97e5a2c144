"""HTTP/1.1 client towards replicas, streaming both ways with back-pressure. One call at a time on each connection.

Own code because the gateway's added latency is a promise (``python -m benchmarks.gateway``): general clients cost more
than the whole of it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator

import httptools

from platform_words import liveness

CONNECT_TIMEOUT_S = 2.0
HIGH_WATER_BYTES = 256 * 1024
MAX_HEAD_BYTES = 256 * 1024
IDLE_S = 4.0
"""A connection that was not used for longer is not used again: many servers close theirs after 5 s, and a call sent in
that moment is lost."""
_EXPIRED = "timeout"


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
        self._head_size = 0
        self._keep_alive = False
        self._skip_body = False
        self._framed = False
        self._fault: Exception | None = None
        self._sender: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timeout_s = self._silence_s = 0.0
        self._socket: liveness.Socket | None = None
        self.headers: list[tuple[bytes, bytes]] = []
        self.status = 0
        self.idle_since_s = 0.0

    @property
    def usable(self) -> bool:
        """A new call may be sent."""
        return self._transport is not None and self._complete and self._ended is None

    # asyncio callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._socket = transport.get_extra_info("socket")
        if self._socket is not None:
            liveness.probe(self._socket)

    def connection_lost(self, error: Exception | None) -> None:
        if self._ended is None:
            self._ended = str(error) if error else "the connection was closed"
            if error is None and self._head_done and not self._framed:
                self._complete = True  # a body without length ends with its connection
        self._transport = None
        self._can_write.set()
        self._wake()

    def data_received(self, data: bytes) -> None:
        if self._complete:
            self.abort("the function sent what nobody asked for")
            return
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
        if self._complete:  # a second reply behind the one that was asked for
            self._keep_alive = False
            return
        self.headers = []
        self._head_size = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._complete or self._head_done:  # trailers are dropped
            return
        self._head_size += len(name) + len(value)
        if self._head_size > MAX_HEAD_BYTES:
            self.abort(f"the reply's head is larger than {MAX_HEAD_BYTES} bytes")
        else:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status == 101:
            self.abort("the function changed protocols")
        if self._complete or self._ended is not None or status < 200:
            return
        self.status = status
        self._framed = any(name in (b"content-length", b"transfer-encoding") for name, _ in self.headers)
        self._keep_alive = self._parser.should_keep_alive() and self._framed
        self._head_done = True
        self._stop_timer()
        if self._skip_body or status in (204, 304):
            self._complete = True
            self._keep_alive = False  # the parser expects a body that will not come
        self._wake()

    def on_body(self, data: bytes) -> None:
        if self._complete:
            return
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

    def begin(self, head: bytes, body: bytes, *, head_request: bool, timeout_s: float, silence_s: float = 0.0) -> None:
        """Send the head and the first part of the body. ``timeout_s``: for a reply to begin, once all is sent, and for
        the replica to take more of the body; ``silence_s``: for its machine to acknowledge what it receives (0: as
        long as it takes). Raises UpstreamError.
        """
        if self._transport is None or self._ended is not None:
            raise UpstreamError(self._ended or "the connection is closed", sent=False)
        self._complete = self._head_done = False
        self._skip_body = head_request
        self._timeout_s, self._silence_s = timeout_s, silence_s
        if len(body) <= HIGH_WATER_BYTES:
            self._transport.write(head + body)
        else:  # joined, a body that is not taken would be held twice
            self._transport.writelines((head, body))

    def send_rest(self, rest: AsyncIterator[bytes], *, chunked: bool) -> None:
        """Send more of the body while waiting for the reply. What ``rest`` raises, :meth:`head` or :meth:`body` do."""
        self._sender = self._loop.create_task(self._send(rest, chunked))

    async def _send(self, rest: AsyncIterator[bytes], chunked: bool) -> None:
        try:
            async for data in rest:
                await self._write(b"%x\r\n%b\r\n" % (len(data), data) if chunked else data)
            if chunked:
                await self._write(b"0\r\n\r\n")
        except Exception as error:
            self._fault = error
            self.abort(str(error))
        else:
            if not self._head_done:
                self._start_timer()

    async def _write(self, data: bytes) -> None:
        if not self._can_write.is_set():
            try:
                await asyncio.wait_for(self._can_write.wait(), self._timeout_s)
            except TimeoutError:
                raise UpstreamTimeoutError(f"the body was not taken within {self._timeout_s:g} s") from None
        if self._transport is None:
            raise UpstreamError(self._ended or "the connection is closed")
        self._transport.write(data)

    async def head(self) -> None:
        """Wait until status and headers are there. Raises UpstreamError, UpstreamTimeoutError."""
        if self._sender is None and not self._head_done:
            self._start_timer()
        watch = None
        if self._silence_s and self._socket is not None:
            watch = liveness.Watch(self._loop, self._socket, self._silence_s, self._fall_silent)
        try:
            while not self._head_done:
                self._raise_if_ended("no reply")
                await self._wait()
        finally:
            self._stop_timer()
            if watch is not None:
                watch.cancel()

    def _fall_silent(self, silent_s: float) -> None:
        self.abort(f"its machine has acknowledged nothing for {silent_s:.1f} s")

    def _raise_if_ended(self, what: str) -> None:
        if self._fault is not None:
            raise self._fault
        if self._ended == _EXPIRED:
            raise UpstreamTimeoutError(f"no reply within {self._timeout_s:g} s")
        if self._ended is not None:
            raise UpstreamError(f"{what}: {self._ended}", begun=self._head_done)

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
            self._raise_if_ended("the reply broke off")
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
        sender, self._sender = self._sender, None
        if sender is not None and not sender.done():  # replied without reading the whole body
            sender.cancel()
        elif self.usable and self._keep_alive and not self._chunks:
            return True
        self.abort("not kept")
        self._chunks.clear()  # parser and connection refer to each other: else they would stay until a collection
        return False

    def abort(self, reason: str) -> None:
        """Give the connection up; whoever waits on it gets an UpstreamError with ``reason``."""
        self._stop_timer()
        if self._sender is not None and self._sender is not asyncio.current_task():
            self._sender.cancel()
        if self._ended is None:
            self._ended = reason
        if self._transport is not None:
            self._transport.abort()
        self._wake()

    def _start_timer(self) -> None:
        self._timer = self._loop.call_later(self._timeout_s, self.abort, _EXPIRED)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class UpstreamPool:
    """Kept connections by address."""

    def __init__(self) -> None:
        self._idle: dict[str, list[UpstreamConnection]] = {}
        self.per_address = 256
        self.clock = time.monotonic

    async def take(self, address: str, *, fresh: bool = False) -> tuple[UpstreamConnection, bool]:
        """A connection, and whether it was kept from an earlier call. Raises UpstreamError (not sent)."""
        kept = self._idle.get(address, [])
        while kept and not fresh:
            connection = kept.pop()
            if connection.usable and self.clock() - connection.idle_since_s <= IDLE_S:
                return connection, True
            connection.abort("idle for too long")
        loop = asyncio.get_running_loop()
        host, _, port = address.rpartition(":")
        host = host.strip("[]")  # of an IPv6 address
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, connection = await loop.create_connection(lambda: UpstreamConnection(loop), host, int(port))
        except (OSError, TimeoutError, ValueError) as error:
            raise UpstreamError(f"cannot connect: {error or 'timed out'}", sent=False) from error
        return connection, False

    def give(self, address: str, connection: UpstreamConnection) -> None:
        """Give back after a call."""
        kept = self._idle.setdefault(address, [])
        if not connection.finish():
            return
        if len(kept) < self.per_address:
            connection.idle_since_s = self.clock()
            kept.append(connection)
        else:
            connection.abort("enough are kept")

    def forget(self, addresses: set[str]) -> None:
        """Close connections to addresses that are not in ``addresses``."""
        for address in [address for address in self._idle if address not in addresses]:
            for connection in self._idle.pop(address):
                connection.abort("replica gone")

    def close(self) -> None:
        self.forget(set())
