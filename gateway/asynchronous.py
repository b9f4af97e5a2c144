"""``/async-function``: a bounded queue in this process, and workers that forward.

A queue that outlives this process is in ``jetstream``.

The callback is a POST of the function's reply to ``X-Callback-Url`` with ``X-Call-Id``, ``X-Duration-Seconds``,
``X-Function-Status`` and ``X-Function-Name``, as OpenFaaS's queue worker sends it.
"""

from __future__ import annotations

import asyncio
import io
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from gateway.callbacks import Callback, Callbacks, CallbackTargets
from gateway.calls import Call, Outcome
from gateway.forwarding import Forwarder
from gateway.held import HeldBytes, TooMuchHeldError
from gateway.metrics import GatewayMetrics
from gateway.upstream import UpstreamError

log = logging.getLogger(__name__)

CALLBACK = b"x-callback-url"

Refusal = tuple[int, str]
"""HTTP status and sentence with which a call is refused."""


class AsyncCalls(ABC):
    """What every queue of asynchronous calls does with one: looks at it first, later runs it and calls back."""

    def __init__(
        self,
        forwarder: Forwarder,
        metrics: GatewayMetrics,
        *,
        body_bytes: int,
        held_bytes: int,
        held: HeldBytes,
        run_timeout_s: float,
        callback_timeout_s: float,
        callback_targets: Sequence[str] = (),
    ) -> None:
        """``held_bytes``: of all calls that wait, and of all replies for callbacks; both within ``held``."""
        self._forwarder = forwarder
        self._metrics = metrics
        self.body_bytes = body_bytes
        self._waiting, self._replies = HeldBytes(held_bytes, held), HeldBytes(held_bytes, held)
        self._run_timeout_s = run_timeout_s
        self._targets = CallbackTargets(callback_targets)
        self.callbacks = Callbacks(metrics, timeout_s=callback_timeout_s, held=self._replies)

    @abstractmethod
    async def start(self) -> None:
        """Begin to run calls."""

    @abstractmethod
    async def put(self, call: Call) -> Refusal | None:
        """Queue a call; None once it is accepted."""

    @abstractmethod
    async def close(self, timeout_s: float) -> None:
        """Accept no more calls, and run the accepted ones for at most ``timeout_s``."""

    def _refusal(self, call: Call) -> Refusal | None:
        """The refusal of a call that no queue accepts, or None."""
        if call.rest is not None or len(call.body) > self.body_bytes:
            return 413, f"the body of an asynchronous call may have {self.body_bytes} bytes"
        callback = callback_of(call)
        refused = self._targets.refusal(callback) if callback else ""
        return (400, refused) if refused else None

    async def _run(self, call: Call) -> asyncio.Task[None] | None:
        """Run one call; the task that ends when its callback is over, or None where there is nothing to wait for."""
        begun_s, callback = time.perf_counter(), callback_of(call)
        try:
            async with asyncio.timeout(self._run_timeout_s):
                outcome, body = await self._ask(call, keep=bool(callback))
        except TimeoutError:
            log.warning("asynchronous call %s was given up after %g s", call.call_id[:64], self._run_timeout_s)
            outcome, body = Outcome(504, []), b""
        if not callback:
            return None
        return self.callbacks.send(_callback(call, callback, outcome, body, time.perf_counter() - begun_s))

    async def _ask(self, call: Call, *, keep: bool) -> tuple[Outcome, bytes]:
        """The reply and its whole body, which is read but not kept where nobody wants it."""
        outcome = await self._forwarder.forward(call)
        if outcome.stream is None:
            return outcome, outcome.body
        body = io.BytesIO()  # its value is no second copy
        try:
            with self._replies.room() as room:  # the callback takes its own
                async for data in outcome.stream:
                    if keep:
                        room.take(len(data))
                        body.write(data)
        except UpstreamError as error:
            log.warning("the reply of asynchronous call %s broke off: %s", call.call_id[:64], error)
            return Outcome(503, []), b""
        except TooMuchHeldError as error:
            log.warning("the reply of asynchronous call %s was not kept: %s", call.call_id[:64], error)
            return Outcome(503, [(b"content-type", b"text/plain")]), f"the reply was not kept: {error}".encode()
        finally:
            outcome.release()
        return outcome, body.getvalue()


class AsyncQueue(AsyncCalls):
    """A queue in this process's memory: what is accepted is run before :meth:`close` returns, time allowing."""

    def __init__(self, forwarder: Forwarder, metrics: GatewayMetrics, *, size: int, workers: int, **more: Any) -> None:
        super().__init__(forwarder, metrics, **more)
        self._queue: asyncio.Queue[Call] = asyncio.Queue(size)
        self._workers = workers
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self._tasks = [asyncio.create_task(self._work()) for _ in range(self._workers)]

    async def close(self, timeout_s: float) -> None:
        """Run what is queued and send its callbacks, at most ``timeout_s`` long; logs what was dropped."""
        end_s = time.monotonic() + timeout_s
        try:
            await asyncio.wait_for(self._queue.join(), timeout_s)
        except TimeoutError:
            log.warning("%d asynchronous calls were dropped at shutdown", self._metrics.async_pending)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.callbacks.close(end_s - time.monotonic())

    async def put(self, call: Call) -> Refusal | None:
        refused = self._refusal(call)
        if refused is not None:
            return refused
        if self._queue.full():
            return 429, f"{self._queue.maxsize} asynchronous calls are waiting; try again later"
        try:
            self._waiting.take(call.size)
        except TooMuchHeldError:
            return 429, f"{self._waiting.taken} bytes of asynchronous calls are waiting; try again later"
        self._queue.put_nowait(call)
        self._metrics.async_pending += 1
        return None

    async def _work(self) -> None:
        while True:
            call = await self._queue.get()
            try:
                await self._run(call)
            except Exception:
                log.exception("asynchronous call %s failed", call.call_id[:64])
            finally:
                self._waiting.give(call.size)
                self._metrics.async_pending -= 1
                self._queue.task_done()


def callback_of(call: Call) -> str:
    """The call's ``X-Callback-Url``, empty without one."""
    return next((value.decode("latin-1") for name, value in call.headers if name == CALLBACK), "")


def _callback(call: Call, url: str, outcome: Outcome, body: bytes, seconds: float) -> Callback:
    answered = {
        name.decode("latin-1"): value.decode("latin-1")
        for name, value in outcome.headers
        if name == b"content-type" or name.startswith(b"x-")
    }
    about_call = {
        "X-Call-Id": call.call_id,
        "X-Duration-Seconds": f"{seconds:f}",
        "X-Function-Status": str(outcome.status),
        "X-Function-Name": call.function,
    }
    return Callback(call.call_id, url, {**answered, **about_call}, body)
