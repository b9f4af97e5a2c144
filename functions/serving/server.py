"""The HTTP/1.1 server of local workers: asyncio protocol, httptools parser, one write per reply.

Why not a framework: a pass has thirteen hops one after another, and a hop through Flask costs four times as much as one
through this protocol. In containers ``functions.app`` serves the same applications through Flask.

The function contract: ``/_/health``, ``/_/ready``, ``/metrics``, ``max_inflight`` → 429, ``X-Timeout-Ms``, and drain on
SIGTERM.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from hmac import compare_digest
from http import HTTPStatus

import httptools

from functions.wire.messages import (
    CALL_ID,
    REQUEST_ID,
    TIMEOUT_MS,
    Application,
    Body,
    Reply,
    Request,
    both,
    error_reply,
    header_name,
)
from platform_words.headers import CALLER_KEY

log = logging.getLogger(__name__)
REFUSALS_EVERY_S = 10.0

MAX_HEADER_BYTES = 64 * 1024
MAX_PIPELINED = 8
"""Requests read ahead on one connection; beyond that it is not read until replies are out."""
_OPEN_PATHS = ("/statistics",)
"""What is read without a key, as ``/metrics`` is."""
_REASONS = {status.value: status.phrase for status in HTTPStatus}


@dataclass
class ServerSettings:
    """Bounds of one function's server; ``max_inflight`` may change while it runs (0 = no limit)."""

    max_inflight: int = 0
    max_body_bytes: int = 64 * 1024 * 1024
    settle_s: float = 0.2
    """While draining: how long idle connections stay open for calls that are already on their way."""
    drain_s: float = 30.0
    """While draining: how long calls in flight may take."""
    idle_s: float = 0.0
    """While draining: end only once there was no call for this long, at most after ``drain_s``. Who passes calls on, as
    of-watchdog does, may go on for a while after it has passed on the signal."""
    caller_key: str = ""
    """What calls show in ``X-Smoe-Caller-Key``; empty: anybody may call."""


class FunctionServer:
    """Serves one application on a listening socket until :meth:`drain`."""

    def __init__(self, application: Application, settings: ServerSettings) -> None:
        self.application = application
        self.settings = settings
        self.in_flight = 0
        self.ready = True
        self.reason = ""
        """Why it is not ready, in words."""
        self.draining = False
        self.connections: set[Connection] = set()
        self._refused, self._refusals_logged_s = 0, -REFUSALS_EVERY_S
        self._server: asyncio.Server | None = None
        self._changed = asyncio.Event()
        self._called_s = 0.0
        """When the last call came, while draining."""

    async def start(self, listener: object) -> None:
        """Accept on ``listener`` (a bound socket)."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self, loop), sock=listener, backlog=512)  # type: ignore[call-overload]

    async def drain(self) -> None:
        """Finish every call that has arrived, then end; bounded by ``settle_s`` + ``drain_s``.

        For ``settle_s`` calls that were already on their way are still taken, with ``Connection: close`` in the reply
        and 503 from ``/_/ready``; then the listener and idle connections close, the others after their replies.
        """
        self.draining = True
        await asyncio.sleep(self.settings.settle_s)
        await self._idle()
        if self._server is not None:
            self._server.close()
        await asyncio.sleep(0)  # connections accepted last get their turn
        for connection in list(self.connections):
            connection.close_if_idle()
        try:
            async with asyncio.timeout(self.settings.drain_s):
                await self._all_closed()
        except TimeoutError:
            log.warning("draining: %d calls still in flight after %.0f s", self.in_flight, self.settings.drain_s)
        for connection in list(self.connections):
            connection.close()

    async def _idle(self) -> None:
        """Until no call has come for ``idle_s``."""
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        self._called_s = max(self._called_s, begun_s)
        while (left_s := self._called_s + self.settings.idle_s - loop.time()) > 0:
            if loop.time() - begun_s > self.settings.drain_s:
                return
            await asyncio.sleep(left_s)

    async def _all_closed(self) -> None:
        while self.connections or self.in_flight:
            self._changed.clear()
            await self._changed.wait()

    def closed(self, connection: Connection) -> None:
        """A connection has ended."""
        self.connections.discard(connection)
        self._changed.set()

    def _known_caller(self, given: str) -> bool:
        """Whether ``given`` is the key that callers are to have, if there is one. Compared as bytes: texts that are not
        ASCII cannot be compared in constant time, and raise TypeError."""
        key = self.settings.caller_key
        return not key or compare_digest(key.encode(), given.encode("utf-8", "surrogateescape"))

    def admit(self, request: Request, answer: Callable[[Reply], None]) -> None:
        """Route one request: the platform's own paths, the limit of calls in flight, then the application."""
        if request.path.startswith("/_/") or request.path == "/metrics":
            answer(self._platform_path(request))
            return
        if request.path not in _OPEN_PATHS and not self._known_caller(request.headers.get(CALLER_KEY, "")):
            message = "this worker takes calls of its gateway only; call the function there"
            answer(error_reply(403, "caller", message, platform=False))
            return
        limit = self.settings.max_inflight
        if limit and self.in_flight >= limit:
            self._note_refusal(limit)
            message = f"Concurrent request limit exceeded. Max concurrent requests: {limit}"
            answer(error_reply(429, "overloaded", message, platform=True, retry_after_s=1))
            return
        self.in_flight += 1
        if self.draining:
            self._called_s = request.arrived_s
        done = False

        def finish(reply: Reply) -> None:
            nonlocal done
            if done:
                return
            done = True
            if reply.stream is None:
                self._end_call()
            else:
                reply.ended = both(reply.ended, self._end_call)
            answer(reply)

        try:
            self.application.submit(request, finish)
        except Exception:
            log.exception("request %s failed", request.request_id)
            finish(error_reply(500, "internal", "the function failed; its log has the reason", platform=True))

    def _note_refusal(self, limit: int) -> None:
        """A line in the log at the first refusal, then at most one in ``REFUSALS_EVERY_S``."""
        self._refused += 1
        now_s = time.monotonic()
        if now_s >= self._refusals_logged_s + REFUSALS_EVERY_S:
            log.warning("refused %d calls with 429: %d were in flight, as many as allowed", self._refused, limit)
            self._refused, self._refusals_logged_s = 0, now_s

    def _end_call(self) -> None:
        self.in_flight -= 1
        if self.draining:
            self._changed.set()

    def _platform_path(self, request: Request) -> Reply:
        if request.method not in ("GET", "HEAD"):
            return error_reply(405, "method", f"{request.path} takes GET", platform=False)
        if request.path == "/_/health":
            return Reply(200, (b"OK",), "text/plain")
        if request.path == "/metrics":
            return Reply(200, (self.application.metrics(),), "text/plain; version=0.0.4; charset=utf-8")
        if request.path == "/_/ready":
            limit = self.settings.max_inflight
            if self.draining or not self.ready:
                words = "draining" if self.draining else self.reason or "starting"
                return Reply(503, (words.encode(),), "text/plain; charset=utf-8")
            return (
                Reply(429, (), "text/plain")
                if limit and self.in_flight >= limit
                else Reply(200, (b"OK",), "text/plain")
            )
        return error_reply(404, "not_found", f"there is no {request.path}", platform=False)


class Connection(asyncio.Protocol):
    """One client connection; pipelined requests are answered in order, one at a time."""

    def __init__(self, server: FunctionServer, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._queue: deque[tuple[Request, bool] | Reply] = deque()
        self._busy = False
        self._url = b""
        self._headers: dict[str, str] = {}
        self._header_bytes = 0
        self._body = bytearray()
        self._refused: Reply | None = None
        self._current: Request | None = None
        self._receiving = False
        self._paused = False
        self._looping = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._streaming: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "writelines")
        self._transport = transport  # type: ignore[assignment]
        self._server.connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._current is not None:
            self._current.abandon()
        if self._streaming is not None:
            self._streaming.cancel()
        self._queue.clear()
        self._server.closed(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail(400, "upgrade", "this server does not change protocols")
        except httptools.HttpParserError as error:
            if self._refused is None:
                self._fail(400, "bad_request", f"this is not HTTP: {error}")

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def close_if_idle(self) -> None:
        """Not while a request is being received, computed or answered."""
        if not self._busy and not self._queue and not self._receiving:
            self.close()

    def pause_writing(self) -> None:
        """The client does not read its replies: take no more requests from it, and no more of a stream."""
        self._writable.clear()
        self._pause_reading()

    def resume_writing(self) -> None:
        self._writable.set()
        self._resume_reading()

    def _pause_reading(self) -> None:
        if not self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()

    def _fail(self, status: int, code: str, message: str) -> None:
        """Answer once, after the replies that are due, and close: the rest of the stream cannot be understood."""
        self._refused = error_reply(status, code, message, platform=False)
        self._queue.append(self._refused)
        self._next()

    # httptools callbacks

    def on_message_begin(self) -> None:
        self._url, self._headers, self._header_bytes, self._body = b"", {}, 0, bytearray()
        self._receiving = True

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._count_header(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_header(len(name) + len(value))
        self._headers[header_name(name)] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        length = self._headers.get("content-length", "0")
        if length.isdigit() and int(length) > self._server.settings.max_body_bytes:
            self._too_large()
        if self._headers.get("expect", "").lower() == "100-continue" and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        self._body += data
        if len(self._body) > self._server.settings.max_body_bytes:
            self._too_large()

    def on_message_complete(self) -> None:
        if self._refused is not None:
            return
        now_s = self._loop.time()
        headers = self._headers
        request = Request(
            method=self._parser.get_method().decode("latin-1"),
            path=self._url.split(b"?", 1)[0].decode("latin-1"),
            headers=headers,
            body=self._body,
            arrived_s=now_s,
            request_id=headers.get(REQUEST_ID) or headers.get(CALL_ID) or uuid.uuid4().hex,
        )
        self._body = bytearray()
        self._receiving = False
        self._queue.append((request, self._parser.should_keep_alive()))
        if len(self._queue) > MAX_PIPELINED:
            self._pause_reading()
        self._next()

    def _count_header(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > MAX_HEADER_BYTES:
            self._fail(431, "headers", f"the headers are larger than {MAX_HEADER_BYTES} bytes")
            raise ValueError("headers too large")

    def _too_large(self) -> None:
        limit = self._server.settings.max_body_bytes
        self._fail(413, "too_large", f"the body is larger than {limit} bytes")
        raise ValueError("body too large")

    # answering

    def _next(self) -> None:
        """Serve what waits, one request at a time; replies that come at once do not nest."""
        if self._looping:
            return
        self._looping = True
        while self._queue and not self._busy:
            entry = self._queue.popleft()
            self._busy = True
            if len(self._queue) <= MAX_PIPELINED:
                self._resume_reading()
            if isinstance(entry, Reply):
                self._write(entry, "", keep_alive=False)
            else:
                self._serve(*entry)
        self._looping = False

    def _serve(self, request: Request, keep_alive: bool) -> None:
        self._current = request

        def answer(reply: Reply) -> None:
            keep = keep_alive and (bool(self._queue) or not self._server.draining)
            if reply.stream is not None:
                self._streaming = self._loop.create_task(self._stream(reply, request.request_id, keep))
                self._streaming.add_done_callback(lambda task: self._streamed(reply, task.cancelled()))
                return
            self._current = None
            self._write(reply, request.request_id, keep, head=request.method == "HEAD")
            self._next()

        refusal = set_deadline(request)
        if refusal is not None:
            answer(refusal)
        else:
            self._server.admit(request, answer)

    def _write(self, reply: Reply, request_id: str, keep_alive: bool, head: bool = False) -> None:
        self._busy = False
        if self._transport is None or self._transport.is_closing():
            return
        chunks: list[Body] = [head_bytes(reply, request_id, keep_alive)]
        if not head:
            chunks += reply.chunks
        self._transport.writelines(chunks)
        if not keep_alive:
            self._queue.clear()
            self._transport.close()

    async def _stream(self, reply: Reply, request_id: str, keep_alive: bool) -> None:
        """The body piece by piece, no faster than the client reads. One that breaks off cuts the connection."""
        assert reply.stream is not None
        if self._transport is not None:
            self._transport.write(head_bytes(reply, request_id, keep_alive))
        try:
            async for piece in reply.stream:
                if self._transport is None or self._transport.is_closing():
                    return
                self._transport.writelines([b"%x\r\n" % len(piece), piece, b"\r\n"])
                await self._writable.wait()
        except Exception:
            log.exception("request %s broke off in its reply", request_id)
            keep_alive = False
        else:
            if self._transport is not None:
                self._transport.write(b"0\r\n\r\n")
        if not keep_alive:
            self._queue.clear()
            self.close()

    def _streamed(self, reply: Reply, cancelled: bool) -> None:
        """A stream is over, or its client is gone."""
        self._streaming = self._current = None
        reply.ended()
        self._busy = False
        if not cancelled:
            self._next()
            if self._server.draining:  # which may have begun after the reply's head promised to keep the connection
                self.close_if_idle()


def set_deadline(request: Request) -> Reply | None:
    """Fill ``request.deadline_s`` from ``X-Timeout-Ms``; returns the refusal when that is malformed or spent."""
    text = request.headers.get(TIMEOUT_MS)
    if text is None:
        return None
    try:
        left_ms = float(text)
    except ValueError:
        left_ms = float("nan")
    if left_ms != left_ms or left_ms > 86_400_000:
        message = f"X-Timeout-Ms is {text[:40]!r}; it takes the milliseconds left, up to a day"
        return error_reply(400, "bad_timeout", message, platform=False)
    if left_ms <= 0:
        return error_reply(504, "deadline_exceeded", "the request's time was spent before it began", platform=True)
    request.deadline_s = request.arrived_s + left_ms / 1000
    return None


def head_bytes(reply: Reply, request_id: str, keep_alive: bool) -> bytes:
    """Status line and headers of a reply."""
    length = sum(len(chunk) for chunk in reply.chunks)
    lines = [
        f"HTTP/1.1 {reply.status} {_REASONS.get(reply.status, 'Status')}",
        f"content-type: {reply.content_type}",
        "transfer-encoding: chunked" if reply.stream is not None else f"content-length: {length}",
    ]
    if request_id:
        lines.append(f"x-request-id: {_header_safe(request_id)}")
    lines += [f"{name}: {_header_safe(value)}" for name, value in reply.headers.items()]
    if not keep_alive:
        lines.append("connection: close")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")


def _header_safe(value: str) -> str:
    return value.replace("\r", " ").replace("\n", " ")[:256]
