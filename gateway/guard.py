"""uvicorn's HTTP protocol with the bounds it lacks: time for a request's head and body and for taking its reply, size
of the head, and connections of which an idle one ends for a newcomer.

A client that trickles its request (slow loris) or sends endless headers holds a connection for a bounded time only and
costs a bounded amount of memory. What a client does between requests is bounded by uvicorn's keep-alive timeout.

A request that offers another protocol (``Upgrade: h2c``, as some clients always do) is served as plain HTTP/1.1, as
RFC 9110 section 7.8 allows. The parser takes the body of such a request for the other protocol's bytes, so the request
is parsed again without the offer.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Literal, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from platform_words.connections import OpenConnections, allowed, goes_on

BEHIND_BYTES = 2 << 20
"""What waits in this process behind the bytes that a client does not take: pieces of the reply on their way here. By
the memory that 300 such clients took: 157 MiB at a bound of 128, with half of it 256."""
MOST_HEADERS = 256
"""Thousands of short ones would take twenty times their bytes."""
_PHRASES = {status: HTTPStatus(status).phrase.encode() for status in (400, 405, 408, 431, 503)}


@dataclass(frozen=True)
class RequestBounds:
    """How long a client may take to send a request, and how large its head may be."""

    head_timeout_s: float = 10.0
    """Time from the first byte (on a new connection: from connecting) until the head is complete."""
    body_timeout_s: float = 60.0
    """Time of a body; one that brings ``SLOWEST_BYTES_S`` on average goes on for as long again."""
    taken_within_s: float = 60.0
    """A client that takes less than ``SLOWEST_BYTES_S`` of its reply for so long is cut off."""
    head_bytes: int = 64 * 1024
    """Most bytes of request target and headers together."""
    linger_s: float = 0.5
    """How long a refused client may go on sending; what it sends is dropped. Closed at once, the kernel would reset the
    connection, and the client might never read why it was refused."""


class Untaken:
    """Replies that clients do not take now, of one server: where they are more than ``most`` bytes together (0: no
    limit), the connection that has taken nothing for longest ends."""

    def __init__(self, most: int) -> None:
        self._most, self._bytes = most, 0
        self._sizes: dict[GuardedProtocol, int] = {}

    def add(self, connection: GuardedProtocol, size: int) -> None:
        self._sizes[connection] = size
        self._bytes += size
        while self._most and self._bytes > self._most and len(self._sizes) > 1:
            longest = next(iter(self._sizes))
            self.remove(longest)
            longest.transport.abort()

    def remove(self, connection: GuardedProtocol) -> None:
        self._bytes -= self._sizes.pop(connection, 0)


class GuardedProtocol(HttpToolsProtocol):
    """One client connection; :func:`guarded` sets its bounds."""

    bounds = RequestBounds()
    clients: OpenConnections[GuardedProtocol]
    untaken: Untaken
    open_paths: tuple[bytes, ...] = ()
    """What is answered although there are too many connections: whether this server lives."""
    ending = False
    """The server ends soon: replies close their connections."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._part: Literal["idle", "head", "body"] = "idle"
        self._began_here = False
        self._head_size = 0
        self._refused = False
        self._offered = False
        self._offer_closes = False
        self._deadline: asyncio.TimerHandle | None = None
        self._body_size = 0
        """What came of a body since its time runs."""
        self._untaken: asyncio.TimerHandle | None = None
        self._left_before = 0
        """What was left of the reply when the time to take it last began."""
        self._closes: RequestResponseCycle | None = None
        """A reply that closes the connection because the server ends."""
        self._over = False

    @classmethod
    def announce_end(cls) -> None:
        """From now on replies close their connections, all those of this server."""
        cls.ending = True
        for connection in cls.clients.open:
            connection._close_after_reply()

    def _close_after_reply(self) -> None:
        """With the reply that comes last so far, if its head is not sent."""
        if self.cycle is None or self.cycle.response_started or not self.cycle.keep_alive:
            return
        self._closes = self.cycle
        self.cycle.keep_alive = False

    def shutdown(self) -> None:
        """Close, but not before what has partly come is answered or late; the rest of a body that was answered without
        it is nobody's."""
        self._over = True
        if self._part != "head" and (self.cycle is None or self.cycle.response_complete):
            self.transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))  # uvloop's does not derive from it
        self._arm(self.bounds.head_timeout_s)
        self.clients.made(self, self.loop.time())

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self._taken()
        self.clients.closed(self)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._arm_untaken()
        self.untaken.add(self, self.transport.get_write_buffer_size() + BEHIND_BYTES)

    def resume_writing(self) -> None:
        self._taken()
        super().resume_writing()

    def _arm_untaken(self) -> None:
        self._left_before = self.transport.get_write_buffer_size()
        self._untaken = self.loop.call_later(self.bounds.taken_within_s, self._look_at_untaken)

    def _look_at_untaken(self) -> None:
        taken = self._left_before - self.transport.get_write_buffer_size()
        if goes_on(taken, self.bounds.taken_within_s):
            self._arm_untaken()
        else:
            self.transport.abort()

    def _taken(self) -> None:
        self.untaken.remove(self)
        if self._untaken is not None:
            self._untaken.cancel()
            self._untaken = None

    def make_room(self) -> None:
        """Close although part of a request may have come: newer connections need the room."""
        if self._part != "idle":
            self._refuse(503, "there are too many connections, and this request has been coming for longest")
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._began_here = False
        if not self._feed(data):
            return
        if self._part == "head":
            # A head that began in this piece may follow another request's body in it, so the piece is not counted.
            self._head_size += 0 if self._began_here else len(data)
            if self._head_size > self.bounds.head_bytes:
                self._refuse_head()
            elif self._deadline is None:
                self._arm(self.bounds.head_timeout_s)
        elif self._part == "body":
            self._body_size += len(data)
            if self._deadline is None:
                self._arm(self.bounds.body_timeout_s)
        else:
            self._disarm()

    def _feed(self, data: bytes) -> bool:
        """False once the client is refused."""
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._feed_without_offer(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self._refuse(400, "Invalid HTTP request received.")
        return not self._refused

    def _feed_without_offer(self, body: bytes) -> None:
        """Parse the last head again, without its Connection and Upgrade, and then what followed it."""
        # After an offer to upgrade, httptools takes all that follows for the other protocol. Nobody here upgrades, and
        # RFC 9110 (7.8) lets a server ignore the offer, so the request is read as if there had been none.
        if self._refused:
            return
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (method, self.url, version)]
        lines += [b"%b: %b" % pair for pair in self.headers if pair[0] not in (b"connection", b"upgrade")]
        if self._offer_closes:
            lines.append(b"connection: close")
        self._offered = False
        self.parser = httptools.HttpRequestParser(self)
        self._feed(b"\r\n".join(lines) + b"\r\n\r\n" + body)

    def on_message_begin(self) -> None:
        self._part = "head"
        self._began_here = True
        self._head_size = self._body_size = 0
        if self.cycle is None or self.cycle.response_complete:
            self.clients.waits(self, self.loop.time())
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._part == "body" or self._refused:  # trailers are dropped
            return
        super().on_header(name, value)
        if len(self.headers) > MOST_HEADERS:
            self._refuse(431, f"the request has more than {MOST_HEADERS} headers")

    def on_headers_complete(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self.bounds.head_bytes:
            self._refuse_head()
        elif self.parser.get_method() == b"CONNECT":
            self._refuse(405, "")
        elif (hosts := sum(name == b"host" for name, _ in self.headers)) != 1 and (
            hosts or self.parser.get_http_version() == "1.1"
        ):  # RFC 9112, section 3.2
            self._refuse(400, f"the request has {hosts} Host headers; it takes one")
        elif self.clients.working >= self.clients.most and self.url not in self.open_paths:
            self._refuse(503, f"{self.clients.most} connections have calls under way, as many as are allowed")
        if self._refused:
            return
        if self.parser.should_upgrade():
            self._offered = True
            connection = b",".join(value for name, value in self.headers if name == b"connection").lower()
            self._offer_closes = b"close" in connection
            return
        self._part = "body"
        self._disarm()
        before = self.cycle
        super().on_headers_complete()
        if self.ending:
            if before is not None and before is self._closes and not before.response_started:
                before.keep_alive = True  # for this request, which was sent before that reply
            self._close_after_reply()

    def on_body(self, body: bytes) -> None:
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._offered:
            return
        self._part = "idle"
        if not self._refused:
            self._disarm()
            self.clients.works(self)
            super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._part != "head" and self.cycle.response_complete:
            if self._part == "idle":
                self.clients.waits(self, self.loop.time())
            if self._over:  # although the reply's head, sent earlier, promised to keep the connection
                self.transport.close()

    def _arm(self, timeout_s: float) -> None:
        self._disarm()
        self._deadline = self.loop.call_later(timeout_s, self._expire)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expire(self) -> None:
        self._deadline = None
        if self.transport.is_closing():
            return
        timeout_s = self.bounds.body_timeout_s
        if self._part == "body" and (self.flow.read_paused or goes_on(self._body_size, timeout_s)):
            self._body_size = 0  # the gateway itself does not read now, or the body is large
            self._arm(timeout_s)
        elif self._part != "idle":
            timeout_s = self.bounds.head_timeout_s if self._part == "head" else timeout_s
            self._refuse(408, f"the request's {self._part} did not come within {timeout_s:g} s")
        else:
            self.transport.close()

    def _refuse_head(self) -> None:
        message = f"the request's head is larger than {self.bounds.head_bytes} bytes"
        self._refuse(431, message)

    def _refuse(self, status: int, message: str) -> None:
        if self._refused:
            return
        self._refused = True
        if self.transport.is_closing() or not self._may_reply():
            return
        body = message.encode()
        lines = (
            b"HTTP/1.1 %d %b" % (status, _PHRASES[status]),
            b"content-type: text/plain; charset=utf-8",
            *([b"retry-after: 1"] if status == 503 else []),
            b"content-length: %d" % len(body),
            b"connection: close",
        )
        self.transport.write(b"\r\n".join(lines) + b"\r\n\r\n" + body)
        self.transport.write_eof()
        self._disarm()
        self._deadline = self.loop.call_later(self.bounds.linger_s, self.transport.close)

    def _may_reply(self) -> bool:
        """Whether nothing else was sent on this connection. Otherwise it is arranged that it ends."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            return True
        if self._part != "body":  # the request before this one is being answered: it is, and then the connection ends
            cycle.keep_alive = False
            return False
        if self.pipeline or cycle.response_started:
            self.transport.close()
            return False
        cycle.disconnected = True  # the broken request's own call is given up
        cycle.message_event.set()
        return True


def guarded(
    bounds: RequestBounds, most: int = 0, open_paths: tuple[bytes, ...] = (), untaken_bytes: int = 0
) -> type[GuardedProtocol]:
    """The class for ``uvicorn.Config(http=…)`` of one server with these bounds; ``most``: connections (0: no limit but
    that of files). uvicorn's own ``limit_concurrency`` counts idle connections and refuses health checks, too."""
    clients: OpenConnections[GuardedProtocol] = OpenConnections(allowed(most))
    shared = {"bounds": bounds, "clients": clients, "untaken": Untaken(untaken_bytes), "open_paths": open_paths}
    return type("BoundProtocol", (GuardedProtocol,), shared)
