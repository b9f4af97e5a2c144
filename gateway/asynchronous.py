"""``/async-function``: a bounded queue in this process, workers that forward, and callbacks.

The callback is a POST of the function's reply to ``X-Callback-Url`` with ``X-Call-Id``, ``X-Duration-Seconds``,
``X-Function-Status`` and ``X-Function-Name``, as OpenFaaS's queue worker sends it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from urllib.parse import urlsplit

import requests

from gateway.forwarding import Call, Forwarder, Outcome
from gateway.upstream import UpstreamError

log = logging.getLogger(__name__)

CALLBACK = b"x-callback-url"
CALLBACK_TRIES = 3


class AsyncQueue:
    """Accepts calls at once, runs them later; what is accepted is run before :meth:`close` returns, time allowing."""

    def __init__(
        self, forwarder: Forwarder, *, size: int, workers: int, body_bytes: int, callback_timeout_s: float
    ) -> None:
        self._forwarder = forwarder
        self._queue: asyncio.Queue[tuple[Call, str]] = asyncio.Queue(size)
        self._workers = workers
        self._body_bytes = body_bytes
        self._callback_timeout_s = callback_timeout_s
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._work()) for _ in range(self._workers)]

    async def close(self, timeout_s: float) -> None:
        """Run what is queued, at most ``timeout_s`` long; says in the log what was dropped."""
        try:
            await asyncio.wait_for(self._queue.join(), timeout_s)
        except TimeoutError:
            log.warning("%d queued calls were dropped at shutdown", self._queue.qsize())
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def put(self, call: Call) -> tuple[int, str] | None:
        """Queue a call; a refusal is (status, sentence)."""
        if call.rest is not None or len(call.body) > self._body_bytes:
            return 413, f"the body of an asynchronous call may have {self._body_bytes} bytes"
        callback = next((value.decode("latin-1") for name, value in call.headers if name == CALLBACK), "")
        if callback:
            parts = urlsplit(callback)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                return 400, "X-Callback-Url takes an http or https address"
        try:
            self._queue.put_nowait((call, callback))
        except asyncio.QueueFull:
            return 429, f"{self._queue.maxsize} asynchronous calls are waiting; try again later"
        return None

    async def _work(self) -> None:
        while True:
            call, callback = await self._queue.get()
            try:
                await self._run(call, callback)
            except Exception:
                log.exception("asynchronous call %s failed", call.call_id)
            finally:
                self._queue.task_done()

    async def _run(self, call: Call, callback: str) -> None:
        begun_s = time.perf_counter()
        outcome = await self._forwarder.forward(call)
        body = outcome.body
        if outcome.stream is not None:
            try:
                body = b"".join([data async for data in outcome.stream])
            except UpstreamError as error:
                outcome = Outcome(503, [], release=outcome.release)
                log.warning("the reply of asynchronous call %s broke off: %s", call.call_id, error)
            finally:
                outcome.release()
        if callback:
            await self._call_back(call, callback, outcome, body, time.perf_counter() - begun_s)

    async def _call_back(self, call: Call, url: str, outcome: Outcome, body: bytes, seconds: float) -> None:
        kept = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in outcome.headers
            if name == b"content-type" or name.startswith(b"x-")
        }
        own = {
            "X-Call-Id": call.call_id,
            "X-Duration-Seconds": f"{seconds:f}",
            "X-Function-Status": str(outcome.status),
            "X-Function-Name": call.function,
        }
        for attempt in range(CALLBACK_TRIES):
            try:
                reply = await asyncio.to_thread(
                    requests.post, url, data=body, headers={**kept, **own}, timeout=self._callback_timeout_s
                )
            except requests.RequestException as error:
                log.warning("callback of call %s failed (%s)", call.call_id, type(error).__name__)
            else:
                if reply.status_code < 500:
                    return
            await asyncio.sleep(0.2 * 4**attempt)
        log.error("callback of call %s was given up after %d tries", call.call_id, CALLBACK_TRIES)
