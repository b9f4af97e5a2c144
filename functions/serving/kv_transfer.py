"""Texts' pages on their way from one worker to another of the same function: the one that goes on with a text pulls.

``POST /kv/read/NODE`` with ``sequences [1] int64`` and ``pages [2] int64`` (first, count): those pages of one segment,
``pages [count, page_bytes / 4] int32``. ``POST /kv/pull`` with ``sequences [1]`` and ``tokens [1]``, and the address of
the worker that has the text in ``x-smoe-kv-source``: all its pages, of every segment here, in parts of ``PART_BYTES``
so that neither worker's event loop is held for long. A pull that fails leaves what it had got, to be freed as any text.

Who may ask: as for the relay (:mod:`functions.serving.relay`), whoever shows the workers' key; without a key only
loopback addresses are pulled from.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import orjson
import torch
from torch import Tensor

from functions.dispatch.client import ConnectionPool, TransportError, request_head
from functions.serving.relay import is_loopback
from functions.wire import format as wire
from functions.wire.messages import KV_FULL, KV_MISSING, KV_SOURCE, Reply, Request, error_reply
from moe.cache import PAGE_TOKENS, PageCache
from moe.errors import CacheFullError, CacheMissError
from platform_words.headers import CALLER_KEY, TIMEOUT_MS
from platform_words.liveness import DEFAULT_S

PART_BYTES = 4 << 20
MAX_PULLS = 64
"""Pulls at once; more are refused with 429."""
MAX_SOURCES = 256
TIMEOUT_S = 30.0
"""Deadline of a pull that names no time."""


class SourceError(Exception):
    """The worker that a text is pulled from does not have it, or does not answer."""


class PageTransfer:
    """Reads pages for siblings and pulls them from siblings."""

    def __init__(
        self,
        caches: Callable[[], Mapping[str, PageCache]],
        loop: asyncio.AbstractEventLoop,
        key: str,
        silence_s: float = DEFAULT_S,
    ) -> None:
        """``caches``: of the worker's segments, by node; ``key``: the workers'; ``silence_s``: as of the ingress's
        calls."""
        self.bytes_in = 0
        self.bytes_out = 0
        self._caches, self._loop, self._key, self._silence_s = caches, loop, key, silence_s
        self._sources: dict[str, ConnectionPool] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """Give up pulls under way, close connections."""
        for task in self._tasks:
            task.cancel()
        for pool in self._sources.values():
            pool.close()

    def read(self, request: Request) -> Reply:
        """``POST /kv/read/NODE``. Raises WireError."""
        cache = self._caches().get(request.path.removeprefix("/kv/read/"))
        if cache is None:
            return error_reply(404, "not_found", "no keys and values are kept under this path", platform=False)
        tensors = wire.decode(request.body)
        (sequence,), (first, count) = _numbers(tensors, "sequences", 1), _numbers(tensors, "pages", 2)
        if not 0 < count * max(1, cache.bytes_per_token) * PAGE_TOKENS <= wire.MAX_BYTES // 2 or first < 0:
            raise wire.WireError(f"pages names {count} pages from {first}; a reply takes those of at most 32 MiB")
        try:
            data = cache.read(sequence, first, count)
        except CacheMissError as error:
            return error_reply(KV_MISSING, "kv_missing", str(error), platform=False)
        self.bytes_out += data.nbytes
        return Reply(200, wire.encode({"pages": data}), wire.CONTENT_TYPE)

    def pull(self, request: Request, answer: Callable[[Reply], None]) -> None:
        """``POST /kv/pull``. Raises WireError."""
        tensors, source = wire.decode(request.body), request.headers.get(KV_SOURCE, "")
        (sequence,), (tokens,) = _numbers(tensors, "sequences", 1), _numbers(tensors, "tokens", 1)
        if tokens < 1:
            raise wire.WireError(f"tokens is {tokens}; a text that is pulled has at least one")
        host, _, port = source.rpartition(":")
        if not host or not port.isdigit():
            raise wire.WireError(f"{KV_SOURCE} is {source[:80]!r}; it takes host:port")
        if not self._key and not is_loopback(source):
            raise wire.WireError(f"without a key only addresses of this machine are called, not {source[:80]}")
        if len(self._tasks) >= MAX_PULLS:
            answer(
                error_reply(429, "overloaded", f"{MAX_PULLS} texts are being pulled", platform=True, retry_after_s=1)
            )
            return
        task = self._loop.create_task(self._pull(request, source, sequence, tokens, answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        request.on_abandoned = task.cancel

    async def _pull(
        self, request: Request, source: str, sequence: int, tokens: int, answer: Callable[[Reply], None]
    ) -> None:
        limit_s = request.deadline_s or self._loop.time() + TIMEOUT_S
        moved = 0
        try:
            for node_id, cache in self._caches().items():
                if cache.bytes_per_token:
                    moved += await self._pull_node(source, node_id, cache, sequence, tokens, limit_s)
        except asyncio.CancelledError:
            answer(error_reply(504, "abandoned", "the caller is gone", platform=True))
            raise
        except CacheFullError as error:
            answer(error_reply(KV_FULL, "kv_full", str(error), platform=False))
        except (SourceError, CacheMissError) as error:
            answer(error_reply(KV_MISSING, "kv_missing", str(error), platform=False))
        else:
            answer(Reply(200, (orjson.dumps({"bytes": moved}),)))

    async def _pull_node(
        self, source: str, node_id: str, cache: PageCache, sequence: int, tokens: int, limit_s: float
    ) -> int:
        """All pages of one segment, in order; their bytes. Raises SourceError, CacheFullError, CacheMissError."""
        pages = -(-tokens // PAGE_TOKENS)
        most = max(1, PART_BYTES // (cache.bytes_per_token * PAGE_TOKENS))
        moved = 0
        for first in range(0, pages, most):
            count = min(most, pages - first)
            data = await self._part(source, node_id, sequence, first, count, limit_s)
            try:
                cache.write(sequence, first, min(tokens, (first + count) * PAGE_TOKENS), data)
            except ValueError as error:
                raise SourceError(f"{source}: {error}") from None
            moved += data.nbytes
            self.bytes_in += data.nbytes
        return moved

    async def _part(self, source: str, node_id: str, sequence: int, first: int, count: int, limit_s: float) -> Tensor:
        left_s = max(0.0, limit_s - self._loop.time())
        chunks = wire.encode({"sequences": torch.tensor([sequence]), "pages": torch.tensor([first, count])})
        headers = [(TIMEOUT_MS, f"{left_s * 1000:.1f}"), *([(CALLER_KEY, self._key)] if self._key else [])]
        head = request_head(f"/kv/read/{node_id}", source, wire.CONTENT_TYPE, wire.total_bytes(chunks), headers)
        try:
            reply = await self._pool(source).call(head, chunks, left_s, self._silence_s)
            if reply.status != 200:
                raise SourceError(f"{source} answered {reply.status} when pages were read")
            data = wire.decode(reply.body).get("pages")
        except (TransportError, wire.WireError) as error:
            raise SourceError(f"{source}: {error}") from None
        if data is None or data.dtype != torch.int32 or data.dim() != 2 or data.shape[0] != count:
            raise SourceError(f"{source} answered with other tensors than {count} pages")
        return data

    def _pool(self, source: str) -> ConnectionPool:
        """Connections to a sibling; those used longest ago go when there are too many."""
        pool = self._sources.pop(source, None) or ConnectionPool(source)
        self._sources[source] = pool
        if len(self._sources) > MAX_SOURCES:
            self._sources.pop(next(iter(self._sources))).close()
        return pool


def _numbers(tensors: Mapping[str, Tensor], name: str, count: int) -> list[int]:
    tensor = tensors.get(name)
    if tensor is None or tensor.dtype != torch.int64 or tuple(tensor.shape) != (count,):
        raise wire.WireError(f"the call takes {name} [{count}] int64")
    values: list[int] = tensor.tolist()
    return values
