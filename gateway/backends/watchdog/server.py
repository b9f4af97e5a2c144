"""The watchdog's HTTP server: one ASGI application on uvicorn, one command per request."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from hmac import compare_digest
from typing import Any

import uvicorn

# Which uvicorn would import when it serves; by then this process may be a user who cannot read where they are.
import uvicorn.lifespan.off
import uvicorn.loops.asyncio
import uvicorn.protocols.http.httptools_impl

from gateway.backends.watchdog import command
from gateway.backends.watchdog.settings import WatchdogSettings, from_environment, live_max_inflight
from gateway.draining import DrainingServer
from gateway.guard import RequestBounds, guarded
from platform_words.connections import KEEP_ALIVE_S
from platform_words.headers import CALLER_KEY

log = logging.getLogger("watchdog")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

ALIVE_PATHS = (b"/_/health", b"/_/ready")
SETTLE_S = 0.2
"""As workers; callers turned away before."""
_CALLER_KEY = CALLER_KEY.encode()
_TEXT: Headers = [(b"content-type", b"text/plain; charset=utf-8")]
_PLATFORM: Headers = [*_TEXT, (b"x-openfaas-internal", b"classic-watchdog")]


class Watchdog:
    """The ASGI application. ``max_inflight`` may change while it runs (0: no limit)."""

    def __init__(self, settings: WatchdogSettings, environment: Mapping[str, str]) -> None:
        self._settings = settings
        self._environment = environment
        self.max_inflight = live_max_inflight(settings.live_settings, settings.max_inflight)
        self.in_flight = 0
        self.draining = False

    def reload(self) -> None:
        """Take the limit from the live settings file (SIGHUP)."""
        max_inflight = live_max_inflight(self._settings.live_settings, self.max_inflight)
        if max_inflight != self.max_inflight:
            log.info("max_inflight is now %d", max_inflight)
            self.max_inflight = max_inflight

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path = scope["path"]
        if path == "/_/health":
            await _reply(send, 200, b"OK", _TEXT)
        elif path == "/_/ready":
            await self._ready(send)
        elif not self._may_call(scope):
            await _reply(send, 403, b"this worker takes calls of its gateway only; call the function there\n", _TEXT)
        elif self.max_inflight and self.in_flight >= self.max_inflight:
            text = f"Concurrent request limit exceeded. Max concurrent requests: {self.max_inflight}\n"
            await _reply(send, 429, text.encode(), [*_PLATFORM, (b"retry-after", b"1")])
        else:
            self.in_flight += 1
            try:
                await self._call(scope, receive, send)
            finally:
                self.in_flight -= 1

    def _may_call(self, scope: Scope) -> bool:
        key = self._settings.caller_key.encode()
        return not key or any(name == _CALLER_KEY and compare_digest(value, key) for name, value in scope["headers"])

    async def _ready(self, send: Send) -> None:
        if self.draining:
            await _reply(send, 503, b"draining", _TEXT)
        elif self.max_inflight and self.in_flight >= self.max_inflight:
            await _reply(send, 429, b"", _TEXT)
        else:
            await _reply(send, 200, b"OK", _TEXT)

    async def _call(self, scope: Scope, receive: Receive, send: Send) -> None:
        settings = self._settings
        body = await _body(receive, settings.max_body_bytes)
        if body is None:
            return
        if len(body) > settings.max_body_bytes:
            text = f"the body is larger than {settings.max_body_bytes} bytes\n"
            await _reply(send, 413, text.encode(), [*_TEXT, (b"connection", b"close")])
            return
        given = ((name, value) for name, value in scope["headers"] if name != _CALLER_KEY)
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in given]
        path, query = scope["raw_path"].decode("latin-1"), scope["query_string"].decode("latin-1")
        environment = self._environment
        if settings.cgi_headers:
            environment = command.call_environment(environment, scope["method"], path, query, headers)
        log.info("Forking fprocess.")
        outcome = await command.run(settings, body, environment)
        if outcome.errors:
            log.info("stderr: %s", outcome.errors.decode(errors="replace").rstrip())
        status, answer, content = self._answer(outcome)
        content_type = settings.content_type or dict(headers).get("content-type", "text/plain; charset=utf-8")
        reply_headers = list(content) or [(b"content-type", content_type.encode("latin-1"))]
        reply_headers.append((b"x-duration-seconds", f"{outcome.seconds:.6f}".encode()))
        await _reply(send, status, answer, reply_headers)
        if status == 200:
            log.info("Wrote %d Bytes - Duration: %.6f seconds", len(answer), outcome.seconds)

    def _answer(self, outcome: command.Outcome) -> tuple[int, bytes, Headers]:
        """Status, body, headers (none: the function's own content type)."""
        if outcome.code == 0:
            return 200, outcome.output, []
        if outcome.timed_out:
            text = f"the function ran longer than its exec_timeout of {self._settings.exec_timeout_s:g} s\n"
            log.error("Killed after exec_timeout of %g s", self._settings.exec_timeout_s)
            return 504, text.encode(), _TEXT
        if outcome.code is None:
            log.error("fprocess could not be started")
            return 500, b"the function's command could not be started; its log has the reason\n", _PLATFORM
        log.error("fprocess ended with %d; output: %s", outcome.code, outcome.output[-2000:].decode(errors="replace"))
        reason = f"exit status {outcome.code}" if outcome.code > 0 else f"signal {-outcome.code}"
        return 500, reason.encode() + b"\n" + outcome.output, _TEXT


async def _body(receive: Receive, limit: int) -> bytes | None:
    """The whole body, or more than ``limit`` bytes of it; None: the client left before it was whole."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit or not message.get("more_body"):
            return b"".join(parts)


async def _reply(send: Send, status: int, body: bytes, headers: Headers) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})


class _Server(DrainingServer):
    """Reports when it accepts and marks the application as draining."""

    def __init__(self, config: uvicorn.Config, watchdog: Watchdog, ready: Callable[[], None]) -> None:
        super().__init__(config, SETTLE_S)
        self._watchdog = watchdog
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._watchdog.reload)
        if self.started:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._watchdog.draining = True
        log.info("draining %d calls", self._watchdog.in_flight)
        await super().shutdown(sockets)


def main(environ: Mapping[str, str], listener: socket.socket, ready: Callable[[], None]) -> None:
    """Serve ``fprocess`` on ``listener`` until SIGTERM, drain, return. Raises WatchdogError."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    settings = from_environment(environ)
    watchdog = Watchdog(settings, dict(environ))
    bounds = RequestBounds(body_timeout_s=settings.read_timeout_s)
    config = uvicorn.Config(
        watchdog,
        loop="asyncio",
        http=guarded(bounds, settings.max_connections, ALIVE_PATHS),
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level=logging.WARNING,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=round(KEEP_ALIVE_S),
        timeout_graceful_shutdown=max(1, round(settings.write_timeout_s)),
    )
    _Server(config, watchdog, ready).run(sockets=[listener])
