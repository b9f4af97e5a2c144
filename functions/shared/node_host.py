"""The application of segments and experts: programs behind paths, calls in flight coalesced into one product.

Computation runs on the event loop. While one batch computes, further calls wait in their sockets; afterwards the loop
reads all of them and they become the next batch, so coalescing needs no timer and adds no wait. A hand-over to a thread
costs more than a small expert's whole computation; the price of staying is that health checks wait for one batch.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from torch import Tensor

from functions.shared import wire
from functions.shared.messages import ALL_LOGITS, Reply, Request, error_reply
from moe.errors import ProgramInputError
from moe.runtime import NodeProgram

log = logging.getLogger(__name__)

MAX_BATCH_TOKENS = 8192
"""A batch is closed once it holds this many tokens, so that one product does not hold back small calls for long."""


@dataclass(slots=True)
class _Call:
    request: Request
    answer: Callable[[Reply], None]
    tensors: dict[str, Tensor]
    tokens: int
    all_logits: bool


class NodeHost:
    """Serves one node at ``/``, or several at ``/stage/NODEID``."""

    def __init__(self, programs: Mapping[str, NodeProgram], loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._programs = dict(programs)
        self._only = next(iter(programs)) if len(programs) == 1 else None
        self._waiting: dict[str, deque[_Call]] = {node_id: deque() for node_id in programs}
        self._scheduled = False
        self._registry = CollectorRegistry()
        self._calls = Counter("smoe_worker_calls", "Calls answered", ["node", "code"], registry=self._registry)
        self._batch = Histogram(
            "smoe_worker_batch_calls",
            "Calls in one product",
            registry=self._registry,
            buckets=(1, 2, 4, 8, 16, 32, 64),
        )

    def submit(self, request: Request, answer: Callable[[Reply], None]) -> None:
        """Check the call and queue it for the next batch of its node."""
        node_id = self._node_of(request.path)
        if node_id is None:
            known = ", ".join(f"/stage/{name}" for name in list(self._programs)[:6])
            answer(
                error_reply(
                    404,
                    "not_found",
                    f"there is no {request.path}; this function serves {known}",
                    platform=False,
                )
            )
            return
        if request.method != "POST":
            answer(error_reply(405, "method", f"{node_id} takes POST", platform=False))
            return
        try:
            tensors = wire.decode(request.body)
            self._programs[node_id].check(tensors)
        except (wire.WireError, ProgramInputError) as error:
            self._calls.labels(node_id, "400").inc()
            answer(error_reply(400, "bad_tensors", str(error), platform=False))
            return
        tokens = next((tensors[name].shape[0] for name in ("x", "hidden", "token_ids") if name in tensors), 0)
        call = _Call(request, answer, tensors, tokens, request.headers.get(ALL_LOGITS) == "1")
        self._waiting[node_id].append(call)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run_waiting)

    def metrics(self) -> bytes:
        return bytes(generate_latest(self._registry))

    def _node_of(self, path: str) -> str | None:
        if path.startswith("/stage/"):
            node_id = path[len("/stage/") :].rstrip("/")
            return node_id if node_id in self._programs else None
        return self._only if path in ("", "/") else None

    def _run_waiting(self) -> None:
        """One batch of each node that has calls; what is left or arrives meanwhile gets the next turn."""
        for node_id, calls in self._waiting.items():
            if calls:
                self._run_batch(node_id, self._next_batch(calls))
        self._scheduled = any(self._waiting.values())
        if self._scheduled:
            self._loop.call_soon(self._run_waiting)

    def _next_batch(self, calls: deque[_Call]) -> list[_Call]:
        batch: list[_Call] = []
        tokens = 0
        now_s = self._loop.time()
        while calls and (not batch or (tokens < MAX_BATCH_TOKENS and calls[0].all_logits == batch[0].all_logits)):
            call = calls.popleft()
            if call.request.deadline_s is not None and call.request.deadline_s <= now_s:
                message = "the request's time was spent while it waited at the function"
                call.answer(error_reply(504, "deadline_exceeded", message, platform=True))
                continue
            batch.append(call)
            tokens += call.tokens
        return batch

    def _run_batch(self, node_id: str, batch: list[_Call]) -> None:
        if not batch:
            return
        program = self._programs[node_id]
        self._batch.observe(len(batch))
        try:
            tensors, splits = program.coalesce([call.tensors for call in batch])
            parts = program.split(program.run(tensors, all_logits=batch[0].all_logits, checked=True), splits)
        except Exception:
            log.exception("%s failed on a batch of %d calls", node_id, len(batch))
            self._calls.labels(node_id, "500").inc(len(batch))
            for call in batch:
                call.answer(error_reply(500, "internal", f"{node_id} failed; its log says why", platform=True))
            return
        self._calls.labels(node_id, "200").inc(len(batch))
        for call, part in zip(batch, parts, strict=True):
            call.answer(Reply(200, wire.encode(part), wire.CONTENT_TYPE))
