"""A function as a Flask application, for containers: of-watchdog in http mode in front, waitress below.

The applications, limits and errors are those of the local worker (``functions.worker``), only the HTTP edge differs. An
application lives on an event loop of its own in a background thread; Flask's threads hand requests over and wait.

    python -m functions.app          # settings from the environment, see functions/serving/settings.py
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError

import flask
import torch
import uvloop
import waitress

from functions import applications
from functions.ingress.handler import Ingress
from functions.serving.live_settings import follow
from functions.serving.server import FunctionServer, ServerSettings, set_deadline
from functions.serving.settings import FunctionSettings, SettingsError, from_environment, live_max_inflight
from functions.serving.starting import Starting, become_ready
from functions.wire.messages import CALL_ID, REQUEST_ID, Application, Reply, Request, error_reply
from moe.errors import MoeError

log = logging.getLogger("functions.app")

METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
ANSWER_TIMEOUT_S = 3600.0
"""Longest wait for an application that has taken a request; every one ends by its own deadline long before."""


class FunctionApp(flask.Flask):
    """Flask's side of one function. ``close`` ends the loop behind it."""

    def __init__(self, settings: FunctionSettings, *, later: bool = False) -> None:
        """Start the loop and build the application. Raises SettingsError or MoeError.

        ``later``: serve at once, unready, and become ready when files are there and proved; nothing is raised then.
        """
        super().__init__("functions", static_folder=None)
        self.function_settings = settings
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="function-loop", daemon=True)
        self._thread.start()
        try:
            self.server: FunctionServer = asyncio.run_coroutine_threadsafe(self._build(later), self._loop).result()
        except BaseException:
            self._stop_loop()
            raise
        self._starting = (
            asyncio.run_coroutine_threadsafe(become_ready(self.server, settings, self._application), self._loop)
            if later
            else None
        )
        self._following: Future[None] | None = None
        if settings.live_settings is not None and settings.live_period_s:
            following = follow(settings.live_settings, settings.live_period_s, self.reload)
            self._following = asyncio.run_coroutine_threadsafe(following, self._loop)
        self.config["MAX_CONTENT_LENGTH"] = self.server.settings.max_body_bytes
        self.register_error_handler(413, self._too_large)
        for rule in ("/", "/<path:path>"):
            self.add_url_rule(rule, "answer", self._answer, methods=METHODS, provide_automatic_options=False)

    def close(self) -> None:
        """Close the application and its loop."""
        for task in (self._following, self._starting):
            if task is not None:
                task.cancel()
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
            self._stop_loop()

    def reload(self) -> None:
        """Read the live settings again (SIGHUP)."""
        path = self.function_settings.live_settings
        if path is not None:
            try:
                self.server.settings.max_inflight = live_max_inflight(path, self.server.settings.max_inflight)
            except SettingsError as error:
                log.warning("live settings left as they are: %s", error)

    def drain(self) -> None:
        """Refuse nothing, answer ``/_/ready`` with 503, and return once nothing is in flight or time is up."""
        asyncio.run_coroutine_threadsafe(self.server.drain(), self._loop).result()

    async def _build(self, later: bool) -> FunctionServer:
        settings = self.function_settings
        application = Starting(lambda: self.server) if later else self._application(settings)
        server = FunctionServer(application, ServerSettings(settings.max_inflight, drain_s=settings.write_timeout_s))
        server.ready = not later
        return server

    def _application(self, settings: FunctionSettings) -> Application:
        """On the loop."""
        application = applications.build(settings, self._loop)
        if isinstance(application, Ingress):
            application.follow(applications.resolver_for(settings, application.manifest))
        return application

    async def _close(self) -> None:
        self.server.application.close()
        await asyncio.sleep(0)

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _answer(self, path: str = "") -> flask.Response:
        """Any request: to the application's loop, and wait for its one answer."""
        sent = flask.request
        headers = {name.lower(): value for name, value in sent.headers.items()}
        request = Request(
            method=sent.method,
            path=f"/{path}",
            headers=headers,
            body=bytearray(sent.get_data(cache=False)),
            arrived_s=self._loop.time(),
            request_id=headers.get(REQUEST_ID) or headers.get(CALL_ID) or uuid.uuid4().hex,
        )
        answered: Future[Reply] = Future()
        self._loop.call_soon_threadsafe(self._admit, request, answered.set_result)
        try:
            reply = answered.result(ANSWER_TIMEOUT_S)
        except FutureTimeoutError:
            reply = error_reply(504, "deadline_exceeded", "the function did not answer", platform=True)
        return self._response(reply, request.request_id)

    def _admit(self, request: Request, answer: Callable[[Reply], None]) -> None:
        """On the loop."""
        refusal = set_deadline(request)
        if refusal is not None:
            answer(refusal)
        else:
            self.server.admit(request, answer)

    def _response(self, reply: Reply, request_id: str) -> flask.Response:
        response = flask.Response(
            b"".join(reply.chunks), reply.status, dict(reply.headers), content_type=reply.content_type
        )
        response.headers[REQUEST_ID] = " ".join(request_id.split())[:256]
        return response

    def _too_large(self, error: Exception) -> flask.Response:
        limit = self.server.settings.max_body_bytes
        message = f"the body is larger than {limit} bytes"
        return self._response(error_reply(413, "too_large", message, platform=False), "")


def create_app(environ: Mapping[str, str]) -> FunctionApp:
    """The Flask application of the function that ``environ`` describes. Raises SettingsError or MoeError."""
    torch.set_num_threads(1)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    return FunctionApp(from_environment(environ))


def serve(app: FunctionApp, host: str, port: int, threads: int) -> None:
    """Serve until SIGTERM, drain, return. Call on the main thread.

    The watchdog in front passes SIGTERM on at once and goes on sending what it has taken; so this keeps answering until
    nothing is in flight any more.
    """
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    signal.signal(signal.SIGHUP, lambda *_: app.reload())
    front = waitress.create_server(
        app, host=host, port=port, threads=threads, max_request_body_size=app.server.settings.max_body_bytes
    )
    thread = threading.Thread(target=front.run, name="waitress", daemon=True)
    thread.start()
    log.info("ready on %s:%d", host, port)
    stop.wait()
    app.drain()
    front.close()
    app.close()


def main() -> int:
    """Run from the environment: ``smoe_upstream_port`` (5000) behind the watchdog, ``smoe_threads`` (32)."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        torch.set_num_threads(1)
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        app = FunctionApp(from_environment(os.environ, later=True), later=True)
        host = os.environ.get("smoe_host", "127.0.0.1")
        port, threads = (
            int(os.environ.get(key, default))
            for key, default in (("smoe_upstream_port", "5000"), ("smoe_threads", "32"))
        )
        serve(app, host, port, threads)
    except (SettingsError, MoeError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
