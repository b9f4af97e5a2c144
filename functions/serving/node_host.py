"""The application of segments and experts: programs behind paths, calls in flight coalesced into one product.

Small batches are computed on the event loop: while one computes, further calls wait in their sockets, and afterwards
the loop reads all of them and they become the next batch, so coalescing needs no timer and adds no wait. A hand-over to
a thread costs about 0.1 ms, as much as a small expert's whole computation. Batches expected to take longer than
``INLINE_S``, by the node's own recent speed, go to the one computing thread, so health checks are answered meanwhile.

Calls under way hold at most as many tokens as the worker's memory was sized for (``smoe_max_tokens``): further calls
get 429 until there is room, and one that could never have room 413.

Batches for a GPU always go to that thread, under the device's deadline: a GPU can hang. Once it is lost, everything is
answered 503 at once and ``on_lost`` is called.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from functions.device.contract import CHECK_S, Device, DeviceLostError, Program
from functions.serving.speed import Speed
from functions.serving.token_bound import TokenBound
from functions.wire import layout as wire
from functions.wire.messages import ALL_LOGITS, KV_FULL, KV_MISSING, LIKELIEST, Reply, Request, error_reply
from moe.errors import CacheFullError, CacheMissError, ProgramInputError
from platform_words.headers import START_TIME

log = logging.getLogger(__name__)

MAX_BATCH_TOKENS = 8192
"""A batch is closed once it holds this many tokens, so that one product does not hold back small calls for long."""
BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64)
INLINE_S = 0.05
"""Longest computation on the event loop."""


class _Kind(NamedTuple):
    """Calls of one kind are computed together."""

    all_logits: bool
    sequences: bool
    """Whether it names any."""
    likeliest: bool


@dataclass(slots=True)
class _Call:
    request: Request
    answer: Callable[[Reply], None]
    tensors: dict[str, Any]
    tokens: int
    kind: _Kind
    size: int
    """Tokens that it holds, those of an encoder's memory included."""


@dataclass(slots=True)
class _Node:
    """A hosted program, the calls that wait for it, and how fast it has been."""

    program: Program
    waiting: deque[_Call] = field(default_factory=deque)
    speed: Speed = field(default_factory=Speed)


class Kept(Protocol):
    """Keys and values of a worker's segments (:class:`functions.serving.kept_pages.KeptPages`)."""

    def open(self, program: Any) -> object: ...

    def submit(self, request: Request, answer: Callable[[Reply], None]) -> None: ...

    def held(self) -> bool: ...

    def families(self) -> Iterator[Metric]: ...

    def close(self) -> None: ...


class NodeHost:
    """Serves one node at ``/``, or several at ``/stage/NODEID``. One computation at a time."""

    def __init__(
        self,
        programs: Mapping[str, Program],
        loop: asyncio.AbstractEventLoop,
        device: Device,
        on_lost: Callable[[str], object] = log.critical,
        kept: Kept | None = None,
        stages: Mapping[str, Program] | None = None,
        tokens: TokenBound | None = None,
    ) -> None:
        """``device``: what computes the programs; ``on_lost``: called once, with the
        reason; ``kept``: keys and values of the segments, where any are kept; ``stages``: further programs, served at
        ``/stage/NAME`` however many there are; ``tokens``: of all calls under way."""
        self._loop = loop
        self._device = device
        self._on_lost = on_lost
        self._lost = ""
        self._idle_check: asyncio.TimerHandle | None = None
        self._nodes = {node_id: _Node(program) for node_id, program in (dict(programs) | dict(stages or {})).items()}
        self._only = next(iter(programs)) if len(programs) == 1 else None
        self._turns: deque[str] = deque(self._nodes)
        self._scheduled = False
        self._thread: ThreadPoolExecutor | None = None
        self._bound = tokens or TokenBound(0)
        self._tokens = 0
        """Held by calls that wait or are computed."""
        self._calls: dict[tuple[str, int], int] = {}
        self._batches = [0] * (len(BATCH_BUCKETS) + 1)
        self._batched_calls = 0
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._kept = kept
        if self._device.in_thread:
            self._idle_check = loop.call_later(CHECK_S, self._check_when_idle)

    def submit(self, request: Request, answer: Callable[[Reply], None]) -> None:
        """Check the call and queue it for the next batch of its node."""
        if self._lost:
            answer(_unavailable(self._lost))
            return
        if self._kept is not None and request.path.startswith("/kv"):
            self._kept.submit(request, answer)
            return
        node_id = self._node_of(request.path)
        if node_id is None:
            names = ", ".join(f"/stage/{name}" for name in list(self._nodes)[:6])
            message = f"there is no {request.path}; this function serves {names}"
            answer(error_reply(404, "not_found", message, platform=False))
            return
        if request.method != "POST":
            answer(error_reply(405, "method", f"{node_id} takes POST", platform=False))
            return
        node = self._nodes[node_id]
        try:
            tensors = self._device.decode(request.body)
            if "sequences" in tensors and START_TIME in request.headers:
                self._count(node_id, 403)
                message = "keys and values are kept for the ingress's own calls; this one came through a gateway"
                answer(error_reply(403, "forwarded", message, platform=False))
                return
            node.program.check(tensors)
            if self._kept is not None and "sequences" in tensors:
                self._kept.open(node.program)
        except (wire.WireError, ProgramInputError) as error:
            self._count(node_id, 400)
            answer(error_reply(400, "bad_tensors", str(error), platform=False))
            return
        tokens = next((tensors[name].shape[0] for name in ("token_ids", "hidden", "x") if name in tensors), 0)
        size = tokens + (tensors["memory"].shape[0] if "memory" in tensors else 0)
        refusal = self._no_room(size)
        if refusal is not None:
            self._count(node_id, refusal.status)
            answer(refusal)
            return
        self._tokens += size
        headers = request.headers
        kind = _Kind(headers.get(ALL_LOGITS) == "1", "sequences" in tensors, headers.get(LIKELIEST) == "1")
        node.waiting.append(_Call(request, answer, tensors, tokens, kind, size))
        self._schedule()

    def _no_room(self, size: int) -> Reply | None:
        """The refusal of a call of so many tokens, where there is no room for them."""
        most = self._bound.most
        if not most or self._tokens + size <= most:
            return None
        if size > most:
            message = f"the call has {size} tokens; this function takes at most {most} ({self._bound.cause})"
            return error_reply(413, "too_many_tokens", message, platform=False)
        message = f"calls of {self._tokens} tokens are under way, of at most {most}; this one has {size}"
        return error_reply(429, "overloaded", message, platform=True, retry_after_s=1)

    def _answer(self, call: _Call, reply: Reply) -> None:
        self._tokens -= call.size
        call.answer(reply)

    def made_up_calls(self, sizes: Sequence[int]) -> Iterator[tuple[str, Sequence[wire.Chunk]]]:
        """Path and body of a call of each of ``sizes`` tokens, as far as there is room for them, for every program;
        none where they are on a GPU, which rehearses them as it loads them."""
        if self._device.in_thread:
            return
        for node_id, node in self._nodes.items():
            path = "/" if node_id == self._only else f"/stage/{node_id}"
            for tokens in sizes:
                yield path, self._device.encode(node.program.made_up(min(tokens, self._bound.most or tokens)))

    def forget_calls(self) -> None:
        """Calls until now were made up: they are not counted, and what they took is no measure of a node's speed."""
        self._calls.clear()
        self._batches, self._batched_calls = [0] * len(self._batches), 0
        for node in self._nodes.values():
            node.speed = Speed()

    def holds(self) -> bool:
        """Whether callers go on from keys and values that are kept here."""
        return self._kept is not None and not self._lost and self._kept.held()

    def metrics(self) -> bytes:
        return bytes(generate_latest(self._registry))

    def collect(self) -> Iterator[Metric]:
        """Called at every scrape; counting itself is plain additions, a tenth of the client library's cost."""
        calls = CounterMetricFamily("smoe_worker_calls", "Calls answered", labels=["node", "code"])
        for (node_id, status), count in self._calls.items():
            calls.add_metric([node_id, str(status)], count)
        yield calls
        counts = list(accumulate(self._batches))
        bounds = [*(repr(float(bound)) for bound in BATCH_BUCKETS), "+Inf"]
        batches = HistogramMetricFamily("smoe_worker_batch_calls", "Calls in one product")
        batches.add_metric([], list(zip(bounds, counts, strict=True)), self._batched_calls)
        yield batches
        if self._kept is not None:
            yield from self._kept.families()

    def _count(self, node_id: str, status: int) -> None:
        key = (node_id, status)
        self._calls[key] = self._calls.get(key, 0) + 1

    def close(self) -> None:
        """End the computing thread, if there is one."""
        if self._kept is not None:
            self._kept.close()
        if self._idle_check is not None:
            self._idle_check.cancel()
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _node_of(self, path: str) -> str | None:
        if path.startswith("/stage/"):
            node_id = path[len("/stage/") :].rstrip("/")
            return node_id if node_id in self._nodes else None
        return self._only if path in ("", "/") else None

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run_next)

    def _run_next(self) -> None:
        """One batch of the node whose turn it is; what is left or arrives meanwhile gets the next turn."""
        for _ in range(len(self._turns)):
            node_id = self._turns[0]
            self._turns.rotate(-1)
            node = self._nodes[node_id]
            batch = self._next_batch(node.waiting) if node.waiting else []
            if batch:
                self._run_batch(node, batch)
                return
        self._scheduled = False

    def _next_batch(self, calls: deque[_Call]) -> list[_Call]:
        """Calls to compute together. Those nobody waits for are dropped, those whose time is spent get 504."""
        batch: list[_Call] = []
        tokens = 0
        now_s = self._loop.time()
        while calls and (not batch or (tokens < MAX_BATCH_TOKENS and calls[0].kind == batch[0].kind)):
            call = calls.popleft()
            deadline_s = call.request.deadline_s
            if call.request.abandoned:
                self._answer(call, error_reply(504, "abandoned", "the caller is gone", platform=True))
            elif deadline_s is not None and deadline_s <= now_s:
                message = "the request's time was spent while it waited at the function"
                self._answer(call, error_reply(504, "deadline_exceeded", message, platform=True))
            else:
                batch.append(call)
                tokens += call.tokens
        return batch

    def _run_batch(self, node: _Node, batch: list[_Call]) -> None:
        """Compute on the loop or in the thread, answer, and go on to the next batch."""
        self._batches[bisect_left(BATCH_BUCKETS, len(batch))] += 1
        self._batched_calls += len(batch)
        tokens = sum(call.tokens for call in batch)
        if not self._device.in_thread and node.speed.expected_s(tokens) <= INLINE_S:
            self._finish(node, batch, tokens, _compute(self._device, node.program, batch))
            return
        self._in_thread(
            partial(_compute, self._device, node.program, batch),
            partial(self._finish, node, batch, tokens),
            lambda reason: [_unavailable(reason)] * len(batch),
        )

    def _in_thread(
        self,
        work: Callable[[], _Computed],
        then: Callable[[_Computed], None],
        given_up: Callable[[str], list[Reply]],
    ) -> None:
        """``work`` in the computing thread, ``then`` on the loop. A device that does not come back counts as lost:
        ``given_up`` makes replies of the reason, and what ``work`` finds later goes nowhere.
        """
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="compute")
        limit_s = self._device.deadline_s
        reason = f"the device did not finish within {limit_s:g} s"
        watch: asyncio.TimerHandle | None = None
        if math.isfinite(limit_s):
            watch = self._loop.call_later(limit_s, lambda: then(_Computed(given_up(reason), limit_s, reason)))

        def on_loop(computed: _Computed) -> None:
            if watch is not None:
                watch.cancel()
            if not self._lost:
                then(computed)

        def done(future: Future[_Computed]) -> None:
            if not future.cancelled():
                self._loop.call_soon_threadsafe(on_loop, future.result())

        self._thread.submit(work).add_done_callback(done)

    def _finish(self, node: _Node, batch: list[_Call], tokens: int, computed: _Computed) -> None:
        for call, reply in zip(batch, computed.replies, strict=True):
            self._answer(call, reply)  # what is counted can wait, callers cannot
        for reply in computed.replies:
            self._count(node.program.id, reply.status)
        node.speed.observe(tokens, computed.spent_s)
        self._go_on(computed.lost)

    def _go_on(self, lost: str) -> None:
        """The device is free again, or ``lost`` is the reason why it never will be."""
        if lost:
            self._lose(lost)
            return
        self._scheduled = False
        if any(node.waiting for node in self._nodes.values()):
            self._schedule()

    def _lose(self, reason: str) -> None:
        """The device is gone: nobody waits any longer, and ``on_lost`` is called."""
        self._lost = reason
        for node_id, node in self._nodes.items():
            while node.waiting:
                self._count(node_id, 503)
                self._answer(node.waiting.popleft(), _unavailable(reason))
        self._on_lost(reason)

    def _check_when_idle(self) -> None:
        """Look after the device now and then while nothing is computed on it."""
        self._idle_check = self._loop.call_later(CHECK_S, self._check_when_idle)
        if not self._scheduled:
            self._scheduled = True
            self._in_thread(
                partial(_check, self._device), lambda computed: self._go_on(computed.lost), lambda _reason: []
            )


@dataclass(frozen=True, slots=True)
class _Computed:
    """What came of a batch: one reply for each call, the seconds it took, and why the device is lost, if it is."""

    replies: list[Reply]
    spent_s: float
    lost: str = ""


def _compute(device: Device, program: Program, batch: Sequence[_Call]) -> _Computed:
    """Never raises: a call that fails gets its own 500; a lost device is everybody's 503."""
    begun_s = time.perf_counter()
    lost = ""
    try:
        kind = batch[0].kind
        parts = device.run(program, [call.tensors for call in batch], kind.all_logits)
        if kind.likeliest:
            parts = [{"likeliest": part["logits"].argmax(-1)} if "logits" in part else part for part in parts]
        replies = [Reply(200, device.encode(part), wire.CONTENT_TYPE) for part in parts]
    except DeviceLostError as error:
        lost = str(error)
        replies = [_unavailable(lost)] * len(batch)
    except Exception as error:
        kept = isinstance(error, CacheMissError | CacheFullError)
        if not kept:
            log.exception("%s failed on a batch of %d calls", program.id, len(batch))
        if len(batch) > 1:
            alone = [_compute(device, program, [call]) for call in batch]
            replies = [reply.replies[0] for reply in alone]
            lost = next((reply.lost for reply in alone if reply.lost), "")
        elif kept:
            status = KV_MISSING if isinstance(error, CacheMissError) else KV_FULL
            replies = [error_reply(status, "kv", str(error), platform=False)]
        else:
            message = f"{program.id} failed; its log has the reason"
            replies = [error_reply(500, "internal", message, platform=True)]
    return _Computed(replies, time.perf_counter() - begun_s, lost)


def _check(device: Device) -> _Computed:
    try:
        device.check()
    except DeviceLostError as error:
        return _Computed([], 0.0, str(error))
    return _Computed([], 0.0)


def _unavailable(reason: str) -> Reply:
    return error_reply(503, "device_lost", reason, platform=True)
