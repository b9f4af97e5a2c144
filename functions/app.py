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
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from typing import Any

import flask
import uvloop
import waitress

from functions import applications
from functions.serving import heap, live_settings
from functions.serving.server import FunctionServer, ServerSettings
from functions.serving.settings import FunctionSettings, SettingsError, from_environment
from functions.serving.starting import Starting, become_ready
from functions.wire.messages import (
    CALL_ID,
    REQUEST_ID,
    Body,
    Reply,
    Request,
    error_reply,
    no_room_reply,
    set_deadline,
)
from moe.errors import MoeError

log = logging.getLogger("functions.app")
CLOSE_S = 5.0
"""Time in which cancelled work has to end."""
LOOK_S = 0.02
"""While draining: how often it is looked whether replies are sent."""
THREADS, SPARE_THREADS, MOST_THREADS = 32, 8, 1000
"""Least threads, those beyond calls that may be in flight (refusals, probes and scrapes want one, too), and most of
them: a cluster may bound the tasks of a pod."""
CONNECTIONS = 1000
"""Connections beyond the threads: what is more waits to be accepted, and is refused by nobody."""

_PROCESS = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
"""One thread computes. torch reads this when it is first imported; NumPy was imported already, by the same variable of
the image."""
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
ANSWER_TIMEOUT_S = 3600.0
"""Longest wait for an application that has taken a request; every one ends by its own deadline long before."""


class FunctionApp(flask.Flask):
    """Flask's side of one function. ``close`` ends the loop behind it."""

    def __init__(self, settings: FunctionSettings) -> None:
        """Serve at once, unready; become ready when files are there and proved."""
        super().__init__("functions", static_folder=None)
        self.function_settings = settings
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="function-loop", daemon=True)
        self._thread.start()
        bounds = ServerSettings(
            settings.max_inflight,
            drain_s=settings.write_timeout_s,
            idle_s=settings.idle_s,
            watched=watchdog_above(),
            caller_key=settings.caller_key(),
        )
        self.server = FunctionServer(Starting(lambda: self.server), bounds)
        self.server.ready = False
        self._tasks = [
            asyncio.run_coroutine_threadsafe(work, self._loop)
            for work in (
                become_ready(
                    self.server,
                    settings,
                    lambda provided: applications.build(provided, self._loop, bounds=bounds, forked=False),
                ),
                live_settings.follow(settings, self.server),
            )
        ]
        self.config["MAX_CONTENT_LENGTH"] = self.server.settings.max_body_bytes
        self._holding = threading.Lock()
        self.register_error_handler(413, self._too_large)
        for rule in ("/", "/<path:path>"):
            self.add_url_rule(rule, "answer", self._answer, methods=METHODS, provide_automatic_options=False)

    def close(self) -> None:
        """Close the application and its loop."""
        for task in self._tasks:
            task.cancel()
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def reload(self) -> None:
        """Read the live settings again (SIGHUP)."""
        live_settings.apply(self.function_settings, self.server)

    def drain(self) -> None:
        """Refuse nothing, answer ``/_/ready`` with 503, and return once nothing is in flight or time is up."""
        asyncio.run_coroutine_threadsafe(self.server.drain(), self._loop).result()

    async def _close(self) -> None:
        """Also wait for what is cancelled: a loop that is closed with calls under way may never come back."""
        self.server.application.close()
        cancelled = asyncio.all_tasks() - {asyncio.current_task()}
        if cancelled:
            await asyncio.wait(cancelled, timeout=CLOSE_S)

    def _answer(self, path: str = "") -> flask.Response:
        """Any request whose body there is room for."""
        size = flask.request.content_length or 0
        if size > self.server.settings.max_body_bytes:
            return self._too_large()
        with self._holding:
            held = self.server.hold(size)
        if not held:
            return self._response(no_room_reply())
        try:
            return self._asked(path)
        finally:
            with self._holding:
                self.server.let_go(size)

    def _asked(self, path: str) -> flask.Response:
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
        return self._response(reply, request)

    def _admit(self, request: Request, answer: Callable[[Reply], None]) -> None:
        """On the loop."""
        try:
            refusal = set_deadline(request)
            if refusal is not None:
                answer(refusal)
            else:
                self.server.admit(request, answer)
        except Exception:  # nobody else would answer: a thread of the server would wait for an hour
            log.exception("request %s failed", request.request_id)
            answer(error_reply(500, "internal", "the function failed; its log has the reason", platform=True))

    def _response(self, reply: Reply, request: Request | None = None) -> flask.Response:
        body = b"".join(reply.chunks) if reply.stream is None or request is None else self._pieces(reply, request)
        response = flask.Response(body, reply.status, dict(reply.headers), content_type=reply.content_type)
        response.headers[REQUEST_ID] = " ".join(request.request_id.split())[:256] if request else ""
        return response

    def _pieces(self, reply: Reply, request: Request) -> Iterator[bytes]:
        """A stream of the application's loop, for a thread of the server; closed early where the client is gone."""
        assert reply.stream is not None
        stream = reply.stream

        async def following() -> Body | None:
            return await anext(stream, None)

        ended = False
        try:
            while True:
                piece = asyncio.run_coroutine_threadsafe(following(), self._loop).result(ANSWER_TIMEOUT_S)
                if piece is None:
                    ended = True
                    return
                yield bytes(piece)
        finally:
            if not ended:
                self._loop.call_soon_threadsafe(request.abandon)
            self._loop.call_soon_threadsafe(reply.ended)

    def _too_large(self, error: Exception | None = None) -> flask.Response:
        limit = self.server.settings.max_body_bytes
        message = f"the body is larger than {limit} bytes"
        return self._response(error_reply(413, "too_large", message, platform=False))


def watchdog_above() -> Callable[[], bool]:
    """Whether the watchdog that started this process is still there; where something else did, always False."""
    parent = os.getppid()
    try:
        name = Path(f"/proc/{parent}/comm").read_text()
    except OSError:
        name = ""
    return (lambda: os.getppid() == parent) if "watchdog" in name else lambda: False


def threads_for(max_inflight: int) -> int:
    """A call holds a thread until its reply is sent: with fewer of them than calls that are let in, calls would wait
    where no limit refuses them and no metric counts them. 0, no limit, has the most."""
    return min(MOST_THREADS, max(THREADS, max_inflight + SPARE_THREADS)) if max_inflight else MOST_THREADS


def serve(app: FunctionApp, host: str, port: int, threads: int = 0) -> None:
    """Serve until SIGTERM, drain, return. Call on the main thread. ``threads`` 0: as many as calls may be in flight,
    more once more may be, never fewer: idle ones would end first, and probes wait for those with a call to end.

    The watchdog in front passes SIGTERM on at once and goes on taking calls and sending them; so this keeps answering
    until the watchdog has ended or the time is up; under anything else, until no call has come for a while.
    """
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    signal.signal(signal.SIGHUP, lambda *_: app.reload())
    connections: dict[int, Any] = {}
    grows, threads = not threads, threads or threads_for(app.server.settings.max_inflight)
    front = waitress.create_server(
        app,
        map=connections,
        host=host,
        port=port,
        threads=threads,
        connection_limit=threads + CONNECTIONS,
        asyncore_use_poll=True,  # select knows no file descriptor above 1023
        max_request_body_size=app.server.settings.max_body_bytes,
    )
    thread = threading.Thread(target=front.run, name="waitress", daemon=True)
    thread.start()
    log.info("listening on %s:%d", host, port)
    while not stop.wait(1.0):  # a signal that comes just before a wait without end would never be seen
        if grows and (wanted := threads_for(app.server.settings.max_inflight)) > threads:
            threads = wanted
            front.adj.connection_limit = threads + CONNECTIONS
            front.task_dispatcher.set_thread_count(threads)
    until_s = time.monotonic() + app.function_settings.write_timeout_s
    app.drain()
    while _unanswered(connections) and time.monotonic() < until_s:
        time.sleep(LOOK_S)
    front.close()
    app.close()


def _unanswered(connections: Mapping[int, Any]) -> bool:
    """Whether waitress has requests, or replies that are not sent whole: to the loop their calls are over once it has
    answered. Its listener and its trigger are among the connections and have neither."""
    return any(
        getattr(one, "requests", ()) or getattr(one, "total_outbufs_len", 0) for one in list(connections.values())
    )


def main() -> int:
    """Run from the environment: ``smoe_upstream_port`` (5000) behind the watchdog, ``smoe_threads`` (0)."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    heap.give_back_large_blocks()
    try:
        for name, value in _PROCESS.items():
            os.environ.setdefault(name, value)
        app = FunctionApp(from_environment({"smoe_engine": "numpy", **os.environ}, later=True))
        host = os.environ.get("smoe_host", "127.0.0.1")
        port, threads = (
            int(os.environ.get(key, default))
            for key, default in (("smoe_upstream_port", "5000"), ("smoe_threads", "0"))
        )
        app.reload()  # in a cluster the limit of calls is in the live settings alone
        serve(app, host, port, threads)
    except (SettingsError, MoeError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
