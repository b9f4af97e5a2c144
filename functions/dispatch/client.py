"""HTTP client of the layer loop: kept-alive connections to replicas, one call in flight on each.

Written on asyncio's protocol because the latency of thirteen hops in a row decides the pipeline's: requests or httpx
cost 0.35 ms and more a call over it (what a hop costs: ``docs/decisions/0003-cost-of-a-hop.md``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import httptools

from functions.wire.messages import Body, header_name, pieces
from platform_words import liveness

CONNECT_TIMEOUT_S = 2.0
MAX_REPLY_BYTES = 256 * 1024 * 1024


class TransportError(Exception):
    """No reply. ``begun``: whether part of one had come; ``reason`` is a word for metrics."""

    def __init__(self, message: str, *, reason: str, begun: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.begun = begun


class SilentPeerError(TransportError):
    """The machine at the other end acknowledges nothing: neither would a fresh connection to it come about."""


class ReplyTimeoutError(TransportError):
    """The call's time was spent before a reply came."""


@dataclass(slots=True)
class RawReply:
    """Status, headers as they came, and body of a reply."""

    status: int
    raw_headers: list[tuple[bytes, bytes]]
    body: bytearray

    @property
    def headers(self) -> dict[str, str]:
        """By lower-case name. Only replies that are no success are asked for them."""
        return {header_name(name): value.decode("latin-1") for name, value in self.raw_headers}


class HttpConnection(asyncio.Protocol):
    """One connection; ``call`` may be used again once it has returned and ``usable`` holds."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[RawReply] | None = None
        self.usable = False
        self._begun = False
        self._socket: liveness.Socket | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._headers: list[tuple[bytes, bytes]] = []
        self._body = bytearray()

    def on_message_begin(self) -> None:
        self._headers, self._body = [], bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        # uvloop before 0.23 then writes at once, not when all that is ready has run
        transport.set_write_buffer_limits(0)  # type: ignore[attr-defined]
        self._socket = transport.get_extra_info("socket")
        if self._socket is not None:
            liveness.probe(self._socket)
        self.usable = True

    def connection_lost(self, error: Exception | None) -> None:
        self.usable = False
        self._transport = None
        self._end(
            TransportError(f"the connection ended before the reply did ({error})", reason="broken", begun=self._begun)
        )

    def data_received(self, data: bytes) -> None:
        if self._waiter is None:  # nothing was asked: whatever this is, the next reply could not be trusted
            self.close()
            return
        self._begun = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, ValueError) as error:
            self._end(TransportError(f"the reply is not HTTP ({error})", reason="broken", begun=True))
            self.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_body(self, data: bytes) -> None:
        if len(self._body) + len(data) > MAX_REPLY_BYTES:
            raise ValueError("reply too large")
        self._body += data

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            return
        if not self._parser.should_keep_alive():
            self.close()
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(RawReply(status, self._headers, self._body))

    def close(self) -> None:
        """Without what is left of a body: once the call has ended nobody needs it, and a peer that reads nothing would
        have it kept here."""
        self.usable = False
        if self._transport is not None:
            self._transport.abort()

    async def call(self, head: bytes, chunks: Sequence[Body], timeout_s: float, silence_s: float = 0.0) -> RawReply:
        """Send one request and wait for its reply, no longer than the other machine is silent for ``silence_s`` (0:
        however long). Raises TransportError."""
        if self._transport is None or not self.usable:
            raise TransportError("the connection is closed", reason="broken")
        waiter: asyncio.Future[RawReply] = self._loop.create_future()
        self._waiter = waiter
        self._begun = False
        self._transport.writelines(pieces([head, *chunks]))
        timer = self._loop.call_later(timeout_s, self._expire)  # while the other end is at work already
        watch = None
        if silence_s and self._socket is not None:
            watch = liveness.Watch(self._loop, self._socket, silence_s, self._fall_silent)
        try:
            return await waiter
        except asyncio.CancelledError:
            self.close()
            raise
        finally:
            timer.cancel()
            if watch is not None:
                watch.cancel()

    def _fall_silent(self, silent_s: float) -> None:
        message = f"the other machine has acknowledged nothing for {silent_s:.1f} s"
        self._end(SilentPeerError(message, reason="silent", begun=self._begun))
        self.close()

    def _expire(self) -> None:
        self._end(ReplyTimeoutError("no reply in time", reason="timeout"))
        self.close()

    def _end(self, error: TransportError) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)


class ConnectionPool:
    """Connections to one address (``host:port``)."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.address = address
        self._host = host.strip("[]")
        self._port = int(port)
        self._idle: list[HttpConnection] = []
        self._closed = False

    async def call(self, head: bytes, chunks: Sequence[Body], timeout_s: float, silence_s: float = 0.0) -> RawReply:
        """One request; ``silence_s`` as of a connection. Raises TransportError.

        A kept connection that the other end had closed meanwhile is no failure: the request goes again on a fresh one.
        """
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + timeout_s
        connection = self._take()
        if connection is not None:
            try:
                return await connection.call(head, chunks, timeout_s, silence_s)
            except ReplyTimeoutError:  # no time is left to send it again
                raise
            except SilentPeerError:
                self._drop_idle()
                raise
            except TransportError as error:
                if error.begun:
                    raise
                self._drop_idle()  # they have been idle as long: the other end will have closed them too
            finally:
                self._give(connection)
        timeout_s = ends_s - loop.time()
        connection = await self._connect(loop, min(timeout_s, CONNECT_TIMEOUT_S))
        try:
            return await connection.call(head, chunks, ends_s - loop.time(), silence_s)
        finally:
            self._give(connection)

    def _give(self, connection: HttpConnection) -> None:
        """Keep a connection that can be used again."""
        if connection.usable and not self._closed:
            self._idle.append(connection)
        elif connection.usable:
            connection.close()

    def close(self) -> None:
        """Close idle connections; those in use close when their call ends."""
        self._closed = True
        self._drop_idle()

    def _drop_idle(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    def _take(self) -> HttpConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None

    async def _connect(self, loop: asyncio.AbstractEventLoop, timeout_s: float) -> HttpConnection:
        try:
            async with asyncio.timeout(timeout_s):
                _, connection = await loop.create_connection(lambda: HttpConnection(loop), self._host, self._port)
        except (OSError, TimeoutError) as error:
            message = f"cannot connect to {self.address} ({error or 'timed out'})"
            raise TransportError(message, reason="connect") from error
        return connection


def request_head(path: str, host: str, content_type: str, length: int, headers: Sequence[tuple[str, str]]) -> bytes:
    """Request line and headers of a POST."""
    lines = [
        f"POST {path} HTTP/1.1",
        f"host: {host}",
        f"content-type: {content_type}",
        f"content-length: {length}",
    ]
    lines += [f"{name}: {value}" for name, value in headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")
