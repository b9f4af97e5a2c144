"""Keys and values that a worker keeps for texts under way: opened when first asked for, bounded, freed.

``GET /kv``: room and use of each segment as JSON. ``POST /kv/free`` with ``sequences [F] int64``: these texts have
ended. Texts that no call was for in ``IDLE_S`` are freed too: the ingress that asked for them is gone. Memory of pages
that stay free goes back to the system.
``POST /kv/read/NODE`` and ``/kv/pull``: :mod:`functions.serving.kv_transfer`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping

import orjson
import torch
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from functions.serving.kv_transfer import PageTransfer
from functions.wire import format as wire
from functions.wire.messages import Reply, Request, error_reply
from moe.cache import PAGE_TOKENS, PageCache
from moe.errors import ProgramInputError
from moe.runtime import NodeProgram
from platform_words.liveness import DEFAULT_S

IDLE_S = 120.0
"""Longer than a request may wait for its next token."""
LOOK_S = IDLE_S / 4
"""How often texts are looked at, and how long a page stays free before its memory is released: pages that come and go
keep theirs."""
RELEASE_BYTES, RELEASE_S = 16 << 20, 1.0
"""How much is released at once, and the pause before more is: calls go on meanwhile."""
LEFT_S = 3.0
"""In a worker that drains, texts that no call was for in this time have been left: an iteration takes less."""


class KeptPages:
    """The caches of a worker's segments; they share one bound, each with as many pages."""

    def __init__(
        self,
        programs: Mapping[str, NodeProgram],
        limit_bytes: int,
        loop: asyncio.AbstractEventLoop,
        key: str = "",
        silence_s: float = DEFAULT_S,
    ) -> None:
        """``limit_bytes`` 0: nothing is kept here. ``key``: the workers', empty without one; ``silence_s``: as of the
        ingress's calls."""
        self._programs = {node_id: program for node_id, program in programs.items() if program.rules.caches}
        self._limit_bytes = limit_bytes
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._transfer = PageTransfer(self._kept, loop, key, silence_s)

    def open(self, program: NodeProgram) -> PageCache:
        """A segment's cache. Raises ProgramInputError where nothing is kept."""
        if program.cache is not None:
            return program.cache
        if not self._limit_bytes:
            raise ProgramInputError(f"{program.id}: this worker keeps no keys and values (smoe_kv_mb is 0, or a GPU).")
        if self._timer is None:
            self._timer = self._loop.call_later(LOOK_S, self._free_unused)
        page_bytes = {name: PAGE_TOKENS * _bytes_per_token(one) for name, one in self._programs.items()}
        pages = self._limit_bytes // max(1, sum(page_bytes.values()))
        return program.open_cache(pages * page_bytes.get(program.id, 0))

    def submit(self, request: Request, answer: Callable[[Reply], None]) -> None:
        """Everything under ``/kv``."""
        try:
            if (request.method, request.path) == ("GET", "/kv"):
                answer(Reply(200, (orjson.dumps(self._document()),)))
            elif (request.method, request.path) == ("POST", "/kv/free"):
                answer(Reply(200, (orjson.dumps({"freed": self._free(request)}),)))
            elif (request.method, request.path) == ("POST", "/kv/pull"):
                self._transfer.pull(request, answer)
            elif request.method == "POST" and request.path.startswith("/kv/read/"):
                answer(self._transfer.read(request))
            else:
                there_are = "there are GET /kv, POST /kv/free, /kv/pull and /kv/read/NODE"
                answer(error_reply(404, "not_found", there_are, platform=False))
        except (wire.WireError, ProgramInputError) as error:
            answer(error_reply(400, "kv", str(error), platform=False))

    def held(self) -> bool:
        """Whether texts go on here, in a worker that drains; those that were left are freed."""
        caches = [cache for _, cache in self._open()]
        for cache in caches:
            cache.free_unused(LEFT_S)
        return any(cache.texts for cache in caches)

    def families(self) -> Iterator[Metric]:
        """Metric families of the caches that are open."""
        pages = GaugeMetricFamily("smoe_worker_kv_pages", "Pages of keys and values", labels=["node", "state"])
        size = GaugeMetricFamily("smoe_worker_kv_bytes", "Bytes of keys and values in use", labels=["node"])
        for node_id, cache in self._open():
            pages.add_metric([node_id, "used"], cache.used_pages)
            pages.add_metric([node_id, "free"], cache.pages - cache.used_pages)
            size.add_metric([node_id], cache.used_pages * PAGE_TOKENS * cache.bytes_per_token)
        moved = CounterMetricFamily(
            "smoe_worker_kv_moved_bytes", "Bytes of texts that moved to or from another worker", labels=["direction"]
        )
        moved.add_metric(["in"], self._transfer.bytes_in)
        moved.add_metric(["out"], self._transfer.bytes_out)
        yield from (pages, size, moved)

    def close(self) -> None:
        """Look after idle texts no more, pull no more."""
        self._transfer.close()
        if self._timer is not None:
            self._timer.cancel()

    def _kept(self) -> dict[str, PageCache]:
        """Every segment's cache, opened where it was not yet. Raises ProgramInputError."""
        return {node_id: self.open(program) for node_id, program in self._programs.items()}

    def _document(self) -> dict[str, object]:
        nodes = {}
        for node_id, program in self._programs.items():
            cache = self.open(program)
            nodes[node_id] = {
                "pages": cache.pages,
                "used_pages": cache.used_pages,
                "texts": cache.texts,
                "bytes_per_token": cache.bytes_per_token,
            }
        return {"page_tokens": PAGE_TOKENS, "nodes": nodes}

    def _free(self, request: Request) -> int:
        tensors = wire.decode(request.body)
        sequences = tensors.get("sequences", torch.empty(0))
        if sequences.dtype != torch.int64 or sequences.dim() != 1:
            raise wire.WireError("the call takes sequences [F] int64")
        ids: list[int] = sequences.tolist()
        return max((cache.free(ids) for _, cache in self._open()), default=0)

    def _open(self) -> list[tuple[str, PageCache]]:
        return [(node_id, p.cache) for node_id, p in self._programs.items() if p.cache is not None]

    def _free_unused(self) -> None:
        released = False
        try:
            for _, cache in self._open():
                cache.free_unused(IDLE_S)
            released = any(cache.release(LOOK_S, RELEASE_BYTES) for _, cache in self._open())
        finally:
            self._timer = self._loop.call_later(RELEASE_S if released else LOOK_S, self._free_unused)


def _bytes_per_token(program: NodeProgram) -> int:
    return sum(shape.bytes_per_token for shape in program.kv_shapes)
