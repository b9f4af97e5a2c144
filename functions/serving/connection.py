"""One client's connection to a function's server: requests parsed as they come, answered in order, replies streamed."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import deque
from typing import TYPE_CHECKING

import httptools

from functions.wire.messages import (
    CALL_ID,
    REQUEST_ID,
    Body,
    Reply,
    Request,
    error_reply,
    head_bytes,
    header_name,
    no_room_reply,
    pieces,
    set_deadline,
)
from platform_words.connections import goes_on

if TYPE_CHECKING:
    from functions.serving.server import FunctionServer

log = logging.getLogger(__name__)
MAX_HEADER_BYTES = 64 * 1024
MAX_PIPELINED = 8
"""Requests read ahead on one connection; beyond that it is not read until replies are out."""
LOOK_AGAIN_S = 0.5
"""A client whose time is over gets so much more: what came while this process stood still is read first."""
LINGER_S = 2.0
"""A refused client may go on sending for so long."""
TAKEN_WITHIN_S = 60.0
"""A client that takes less than ``SLOWEST_BYTES_S`` of its replies for this long is cut off: what it leaves here is
memory."""


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
        self._held_bytes = 0
        """Bodies, from their arrival to the reply, and the head that is not whole."""
        self._head_held = self._head_seen = 0
        self._head_whole = self._ended_here = False
        self._deadline: asyncio.TimerHandle | None = None
        """When the head or body that has not come whole is late."""
        self._body_before = 0
        """What had come of the body when its time last began."""
        self._unsent_bytes = 0
        """What the client has not taken yet of replies."""
        self._untaken: asyncio.TimerHandle | None = None
        self._left_before = 0
        """What was left of replies when the time to take them last began, and what was added since."""
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
        # Any byte that the client does not take pauses writing: what is left of replies then counts, has its time and
        # holds streams back. And replies go out at once, as in HttpConnection.
        transport.set_write_buffer_limits(0)  # type: ignore[attr-defined]
        self._server.clients.made(self, self._loop.time())

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._current is not None:
            self._current.abandon()
        if self._streaming is not None:
            self._streaming.cancel()
        self._queue.clear()
        self._in_time()
        self._taken()
        self._let_go(self._held_bytes)
        self._server.closed(self)

    def data_received(self, data: bytes) -> None:
        if self._refused is not None:
            return
        self._ended_here = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail(400, "upgrade", "this server does not change protocols")
        except httptools.HttpParserError as error:
            if self._refused is None:
                self._fail(400, "bad_request", f"this is not HTTP: {error}")
        if self._receiving and self._refused is None:
            self._incomplete(len(data))

    def _incomplete(self, size: int) -> None:
        """A request has not come whole with these bytes: it has a deadline, and what came of its head takes room, which
        the parser holds until a header ends."""
        if self._head_whole:
            if self._deadline is None:
                self._arm_body(0)
            return
        if not self._ended_here:  # else these bytes are of an earlier request, too
            self._head_seen += size
        if self._head_seen > MAX_HEADER_BYTES:
            self._fail(431, "headers", f"the headers are larger than {MAX_HEADER_BYTES} bytes")
        elif not self._server.hold(size):
            self._refuse(no_room_reply())
        else:
            self._held_bytes += size
            self._head_held += size
            if self._deadline is None:
                self._deadline = self._loop.call_later(self._server.settings.head_s, self._look_again, "head")

    def _arm_body(self, before: int) -> None:
        self._body_before = before
        self._deadline = self._loop.call_later(self._server.settings.body_s, self._look_again, "body")

    def _look_again(self, part: str) -> None:
        self._deadline = self._loop.call_later(LOOK_AGAIN_S, self._late, part)

    def _late(self, part: str) -> None:
        settings = self._server.settings
        came = len(self._body) - self._body_before
        if part == "body" and (self._paused or goes_on(came, settings.body_s)):
            # this server itself does not read now, or the body is large
            self._arm_body(len(self._body))
            return
        seconds = settings.head_s if part == "head" else settings.body_s
        self._fail(408, "slow", f"the request's {part} did not come within {seconds:g} s")

    def _in_time(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def make_room(self) -> None:
        """Close although part of a request may have come: newer connections need the room."""
        if self._receiving and self._refused is None:
            message = "there are too many connections, and this request has been coming for longest"
            self._refuse(error_reply(503, "connections", message, platform=True, retry_after_s=1))
        self.close()

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
        self._arm_untaken()

    def resume_writing(self) -> None:
        self._writable.set()
        self._taken()
        self._resume_reading()

    def _arm_untaken(self) -> None:
        assert self._transport is not None
        self._left_before = self._transport.get_write_buffer_size()
        self._untaken = self._loop.call_later(TAKEN_WITHIN_S, self._look_at_untaken)

    def _look_at_untaken(self) -> None:
        if self._transport is None:
            return
        if goes_on(self._left_before - self._transport.get_write_buffer_size(), TAKEN_WITHIN_S):
            self._arm_untaken()
        else:
            self._transport.abort()

    def _taken(self) -> None:
        """Nothing of a reply is left here."""
        if self._untaken is not None:
            self._untaken.cancel()
            self._untaken = None
        self._server.let_go(self._unsent_bytes)
        self._unsent_bytes = 0

    def _let_go(self, size: int) -> None:
        self._held_bytes -= size
        self._server.let_go(size)

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
        self._refuse(error_reply(status, code, message, platform=False))

    def _refuse(self, reply: Reply) -> None:
        self._refused = reply
        self._in_time()
        self._let_go(len(self._body))
        self._body = bytearray()
        self._queue.append(self._refused)
        self._next()

    # httptools callbacks

    def on_message_begin(self) -> None:
        self._url, self._headers, self._header_bytes, self._body = b"", {}, 0, bytearray()
        self._receiving, self._head_whole, self._head_seen = True, False, 0
        if not self._busy and not self._queue:
            self._server.clients.waits(self, self._loop.time())

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._header_bytes += len(url)
        if self._header_bytes > MAX_HEADER_BYTES:
            self._too_many_headers()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > MAX_HEADER_BYTES:
            self._too_many_headers()
        if self._head_whole:  # a trailer
            return
        self._headers[header_name(name)] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._head_whole = True
        self._in_time()
        if self._head_held:
            self._let_go(self._head_held)
            self._head_held = 0
        length = self._headers.get("content-length", "0")
        if length.isdigit() and int(length) > self._server.settings.max_body_bytes:
            self._too_large()
        waits = self._headers.get("expect", "").lower() == "100-continue"
        if waits and self._transport is not None and not self._busy and not self._queue:  # else within another's reply
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        if len(self._body) + len(data) > self._server.settings.max_body_bytes:
            self._too_large()
        if not self._server.hold(len(data)):
            self._refuse(no_room_reply())
            raise ValueError("no room")
        self._held_bytes += len(data)
        self._body += data

    def on_message_complete(self) -> None:
        if self._refused is not None:
            return
        self._in_time()
        self._server.clients.works(self)
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
        self._receiving, self._ended_here = False, True
        self._queue.append((request, self._parser.should_keep_alive()))
        if len(self._queue) > MAX_PIPELINED:
            self._pause_reading()
        self._next()

    def _too_many_headers(self) -> None:
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
        size = len(request.body)

        def answer(reply: Reply) -> None:
            if self._held_bytes:  # else the connection is gone, which let go of everything
                self._let_go(size)
            keep = keep_alive and (bool(self._queue) or not self._server.closing)
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
        self._answered()
        if self._transport is None or self._transport.is_closing():
            return
        chunks: list[Body] = [head_bytes(reply, request_id, keep_alive)]
        if not head:
            chunks += reply.chunks
        if not self._writable.is_set():
            self._left_before += sum(map(len, chunks))
        self._transport.writelines(pieces(chunks))
        if not self._writable.is_set():
            size = sum(map(len, reply.chunks))
            self._unsent_bytes += size
            self._server.held_bytes += size
        if not keep_alive:
            self._queue.clear()
            self._end()

    def _answered(self) -> None:
        self._busy = False
        if not self._queue:
            self._server.clients.waits(self, self._loop.time())

    def _end(self) -> None:
        """Close; but what a refused client still sends is read and dropped for a while, since a connection that is
        closed with data unread is reset, often before the client has read why."""
        if self._refused is None or not self._receiving:
            self.close()
        else:
            self._loop.call_later(LINGER_S, self.close)

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
        self._answered()
        if not cancelled:
            self._next()
            if self._server.closing:  # which may have begun after the reply's head promised to keep the connection
                self.close_if_idle()
