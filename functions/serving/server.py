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
from collections.abc import Callable
from dataclasses import dataclass
from hmac import compare_digest

from functions.serving.connection import Connection
from functions.wire.messages import (
    Application,
    Counting,
    Reply,
    Request,
    both,
    error_reply,
)
from platform_words import backlog
from platform_words.connections import KEEP_ALIVE_S, OpenConnections, allowed
from platform_words.headers import CALLER_KEY

log = logging.getLogger(__name__)
REFUSALS_EVERY_S = 10.0
SLOW_S = 5.0
"""A call that is answered later than this is logged, at most one in ``SLOW_EVERY_S``; of a stream, its begin counts."""
SLOW_EVERY_S = 10.0
HOLD_S = 0.05
"""While draining: how often it is looked whether anything is still kept."""


@dataclass
class ServerSettings:
    """Bounds of one function's server; ``max_inflight`` may change while it runs (0 = no limit)."""

    max_inflight: int = 0
    max_body_bytes: int = 64 * 1024 * 1024
    max_held_bytes: int = 0
    """Bodies that have come and replies that are not taken yet, of all connections together (0 = no limit)."""
    max_connections: int = 1024
    """Open connections; no more than a third of the files that the process may have open (0: just these)."""
    head_s: float = 10.0
    """From the first byte of a request until its head has come."""
    body_s: float = 60.0
    """From there until its body has come; one that brings ``SLOWEST_BYTES_S`` on average goes on for as long again."""
    keep_alive_s: float = KEEP_ALIVE_S
    """How long a connection may be idle."""
    settle_s: float = 0.2
    """While draining: how long idle connections stay open for calls that are already on their way."""
    drain_s: float = 30.0
    """While draining: how long calls in flight may take."""
    idle_s: float = 0.0
    """While draining: end only once there was no call for this long, at most after ``drain_s``. Who passes calls on, as
    of-watchdog does, may go on for a while after it has passed on the signal."""
    watched: Callable[[], bool] = lambda: False
    """While draining: whether such a one is known to be there still, which is then waited for, at most ``drain_s``."""
    holds: Callable[[], bool] = lambda: False
    """While draining: whether callers go on from what is kept here, which they are then served with as before, until
    ``drain_s``."""
    caller_key: str = ""
    """What calls show in ``X-Smoe-Caller-Key``; empty: anybody may call."""


class FunctionServer:
    """Serves one application on a listening socket until :meth:`drain`."""

    def __init__(self, application: Application, settings: ServerSettings) -> None:
        self.application = application
        self.settings = settings
        self.in_flight = 0
        self.held_bytes = 0
        self.ready = True
        self.reason = ""
        """Why it is not ready, in words."""
        self.draining = False
        self.closing = False
        """Replies close their connections."""
        self.clients: OpenConnections[Connection] = OpenConnections(allowed(settings.max_connections))
        self.connections = self.clients.open
        self._sweeping: asyncio.TimerHandle | None = None
        self._refused, self._refusals_logged_s = 0, -REFUSALS_EVERY_S
        self._slow, self._slow_logged_s = 0, -SLOW_EVERY_S
        self._server: asyncio.Server | None = None
        self._changed = asyncio.Event()
        self._called_s = 0.0
        """When the last call came, while draining."""

    async def start(self, listener: object) -> None:
        """Accept on ``listener`` (a bound socket)."""
        loop = asyncio.get_running_loop()
        self._sweep(loop)
        self._server = await loop.create_server(lambda: Connection(self, loop), sock=listener, backlog=512)  # type: ignore[call-overload]

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close connections that have been idle for too long; the next look is when the next one will have been."""
        keep_alive_s = self.settings.keep_alive_s
        begun_s = loop.time() - keep_alive_s
        for connection in [one for one, since_s in self.clients.waiting.items() if since_s <= begun_s]:
            connection.close_if_idle()
        oldest_s = next((since_s for since_s in self.clients.waiting.values() if since_s > begun_s), loop.time())
        self._sweeping = loop.call_at(oldest_s + keep_alive_s, self._sweep, loop)

    async def drain(self) -> None:
        """Finish every call that has arrived, then end; bounded by ``settle_s`` + ``drain_s``.

        For ``settle_s``, and as long as callers go on from what is kept here, calls are still taken, with 503 from
        ``/_/ready``, and ``Connection: close`` in replies once nothing is kept; then the listener and idle connections
        close, the others after their replies.
        """
        loop = asyncio.get_running_loop()
        self.draining = True
        self.closing = not self.settings.holds()
        await asyncio.sleep(self.settings.settle_s)
        await self._idle()
        until_s = loop.time() + self.settings.drain_s
        while loop.time() < until_s and self.settings.holds():
            await asyncio.sleep(HOLD_S)
        self.closing = True
        if self._sweeping is not None:
            self._sweeping.cancel()
        if self._server is not None:
            await backlog.take(self._server.sockets)
            self._server.close()
        for connection in list(self.connections):
            connection.close_if_idle()
        try:
            async with asyncio.timeout_at(until_s):
                await self._all_closed()
        except TimeoutError:
            log.warning("draining: %d calls still in flight after %.0f s", self.in_flight, self.settings.drain_s)
        for connection in list(self.connections):
            connection.close()

    async def _idle(self) -> None:
        """Until no call has come for ``idle_s``, and nobody is there to pass one on."""
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        self._called_s = max(self._called_s, begun_s)
        while (left_s := self._called_s + self.settings.idle_s - loop.time()) > 0 or self.settings.watched():
            if loop.time() - begun_s > self.settings.drain_s:
                return
            await asyncio.sleep(max(left_s, HOLD_S))

    async def _all_closed(self) -> None:
        while self.connections or self.in_flight:
            self._changed.clear()
            await self._changed.wait()

    def hold(self, size: int) -> bool:
        """Whether ``size`` more bytes of bodies have room, which are then held until they are let go."""
        most = self.settings.max_held_bytes
        if most and self.held_bytes + size > most:
            return False
        self.held_bytes += size
        return True

    def let_go(self, size: int) -> None:
        """Bytes that :meth:`hold` counted, or of a reply that was not taken at once, are gone."""
        self.held_bytes -= size

    def closed(self, connection: Connection) -> None:
        """A connection has ended."""
        self.clients.closed(connection)
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
        if not self._known_caller(request.headers.get(CALLER_KEY, "")):
            message = "this worker takes calls of its gateway only; call the function there"
            answer(error_reply(403, "caller", message, platform=False))
            return
        if self.clients.working > self.clients.most:
            message = f"{self.clients.most} connections have calls under way, as many as smoe_max_connections allows"
            self._count_refused(503)
            answer(error_reply(503, "connections", message, platform=True, retry_after_s=1))
            return
        limit = self.settings.max_inflight
        if limit and self.in_flight >= limit:
            self._note_refusal(limit)
            self._count_refused(429)
            message = f"Concurrent request limit exceeded. Max concurrent requests: {limit}"
            answer(error_reply(429, "overloaded", message, platform=True, retry_after_s=1))
            return
        self.in_flight += 1
        if self.draining:
            self._called_s = request.arrived_s
        done, begun_s = False, time.monotonic()

        def finish(reply: Reply) -> None:
            nonlocal done
            if done:
                return
            done = True
            if (seconds := time.monotonic() - begun_s) > SLOW_S:
                self._note_slow(request, reply, seconds)
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

    def _count_refused(self, status: int) -> None:
        if isinstance(self.application, Counting):
            self.application.refused(status)

    def _note_refusal(self, limit: int) -> None:
        """A line in the log at the first refusal, then at most one in ``REFUSALS_EVERY_S``."""
        self._refused += 1
        now_s = time.monotonic()
        if now_s >= self._refusals_logged_s + REFUSALS_EVERY_S:
            log.warning("refused %d calls with 429: %d were in flight, as many as allowed", self._refused, limit)
            self._refused, self._refusals_logged_s = 0, now_s

    def _note_slow(self, request: Request, reply: Reply, seconds: float) -> None:
        """A line in the log, with how many more there were since the last one."""
        now_s = time.monotonic()
        if now_s < self._slow_logged_s + SLOW_EVERY_S:
            self._slow += 1
            return
        others = f"; since the last such line {self._slow} others took more than {SLOW_S:g} s" if self._slow else ""
        log.info(
            "slow call %s: %s answered %d after %.1f s, %d more in flight%s",
            request.request_id, request.path, reply.status, seconds, self.in_flight - 1, others,
        )  # fmt: skip
        self._slow, self._slow_logged_s = 0, now_s

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
