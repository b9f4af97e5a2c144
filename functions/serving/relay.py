"""The stage of a worker that spreads a message of several groups: to itself, and to siblings on its node.

An ingress on another node sends one message where it would have sent one for each expert (Janus, section 3.2). Groups
fail apart: each has its own status, and what one sibling does changes nothing for the others. Siblings' addresses come
with the message, because the ingress chose the replicas and counts their calls in flight.

Who may ask: where workers have a key (``smoe_caller_key_file``) those who show it, as for any call; without one
anybody, but then only addresses of this very machine (loopback) are called.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable, Sequence

from functions.dispatch.client import ConnectionPool, ReplyTimeoutError, TransportError, request_head
from functions.serving.token_bound import TokenBound
from functions.wire import arrays, bundles
from functions.wire import layout as wire
from functions.wire.arrays import Array
from functions.wire.bundles import GROUPS, RELAY_PATH, Part
from functions.wire.messages import REQUEST_ID, Application, Reply, Request, error_reply
from platform_words.headers import CALLER_KEY, TIMEOUT_MS
from platform_words.liveness import DEFAULT_S

MAX_FORWARDED = 512
"""Calls to siblings at once; messages beyond get 429."""
MAX_SIBLINGS = 256
TIMEOUT_S = 60.0
"""Deadline of messages that name no time."""


class Relay:
    """An application with the relaying stage at ``/relay`` added to another's paths. ``key``: the workers';
    ``tokens``: rows of all groups under way, as a row may be named by many groups; ``silence_s``: as of the ingress's
    calls."""

    def __init__(
        self,
        inner: Application,
        loop: asyncio.AbstractEventLoop,
        key: str,
        tokens: TokenBound | None = None,
        silence_s: float = DEFAULT_S,
    ) -> None:
        self.inner = inner
        self._loop = loop
        self._key = key
        self._pools: dict[str, ConnectionPool] = {}
        self._bound, self._silence_s = tokens or TokenBound(0), silence_s
        self._forwarded = self._tokens = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def submit(self, request: Request, answer: Callable[[Reply], None]) -> None:
        if request.path != RELAY_PATH:
            self.inner.submit(request, answer)
            return
        if request.method != "POST":
            answer(error_reply(405, "method", f"{RELAY_PATH} takes POST", platform=False))
            return
        try:
            wanted = bundles.targets(request.headers.get(GROUPS, ""))
            tensors = arrays.decode(request.body)
            rows = tensors["rows"].size if "rows" in tensors else 0
            most = self._bound.most
            if most and rows > most:
                message = f"the groups have {rows} rows; this function takes at most {most} ({self._bound.cause})"
                answer(error_reply(413, "too_many_tokens", message, platform=False))
                return
            if most and self._tokens + rows > most:
                answer(_overloaded(f"groups of {self._tokens} rows are under way"))
                return
            parts = bundles.split_rows(tensors, len(wanted))
            self._check(wanted)
        except wire.WireError as error:
            answer(error_reply(400, "bad_bundle", str(error), platform=False))
            return
        if self._forwarded + len(parts) > MAX_FORWARDED:
            answer(_overloaded(f"{self._forwarded} calls of other messages are under way"))
            return
        if not parts:
            answer(Reply(200, bundles.assemble([]), bundles.CONTENT_TYPE))
            return
        task = self._loop.create_task(self._spread(request, wanted, parts, answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        request.on_abandoned = task.cancel

    def metrics(self) -> bytes:
        return self.inner.metrics()

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()
        self.inner.close()

    async def _spread(
        self,
        request: Request,
        wanted: Sequence[tuple[str, str]],
        parts: Sequence[Array],
        answer: Callable[[Reply], None],
    ) -> None:
        """All groups at once; one answer when the last has ended."""
        deadline_s = request.deadline_s or self._loop.time() + TIMEOUT_S
        rows = sum(map(len, parts))
        self._forwarded += len(parts)
        self._tokens += rows
        try:
            calls = [
                self._forward(request, address, path, part, deadline_s) if address else self._own(request, path, part)
                for (address, path), part in zip(wanted, parts, strict=True)
            ]
            answered = await asyncio.gather(*calls)
        except asyncio.CancelledError:
            answer(error_reply(504, "abandoned", "the caller is gone", platform=True))
            raise
        finally:
            self._forwarded -= len(parts)
            self._tokens -= rows
        answer(Reply(200, bundles.assemble(answered), bundles.CONTENT_TYPE))

    async def _own(self, request: Request, path: str, x: Array) -> Part:
        """A group of this worker's own."""
        replied: asyncio.Future[Reply] = self._loop.create_future()

        def answered(reply: Reply) -> None:
            if not replied.done():
                replied.set_result(reply)

        body = bytearray().join(arrays.encode({"x": x}))
        request_here = Request("POST", path, {}, body, request.arrived_s, request.deadline_s, request.request_id)
        self.inner.submit(request_here, answered)
        try:
            reply = await replied
        except asyncio.CancelledError:
            request_here.abandon()
            raise
        return Part(reply.status, reply.chunks)

    async def _forward(self, request: Request, address: str, path: str, x: Array, deadline_s: float) -> Part:
        """A sibling's group. Never raises but for cancellation."""
        chunks = arrays.encode({"x": x})
        left_s = deadline_s - self._loop.time()
        head = request_head(
            path,
            address,
            wire.CONTENT_TYPE,
            wire.total_bytes(chunks),
            [
                (REQUEST_ID, request.request_id),
                (TIMEOUT_MS, f"{left_s * 1000:.1f}"),
                *([(CALLER_KEY, self._key)] if self._key else []),
            ],
        )
        try:
            reply = await self._pool(address).call(head, chunks, max(0.0, left_s), self._silence_s)
        except ReplyTimeoutError:
            return Part(504, ())
        except TransportError:
            return Part(0, ())
        return Part(reply.status, (reply.body,))

    def _pool(self, address: str) -> ConnectionPool:
        """Connections to a sibling; those used longest ago go when there are too many."""
        pool = self._pools.pop(address, None) or ConnectionPool(address)
        self._pools[address] = pool
        if len(self._pools) > MAX_SIBLINGS:
            self._pools.pop(next(iter(self._pools))).close()
        return pool

    def _check(self, wanted: Sequence[tuple[str, str]]) -> None:
        """Raises WireError for an address that may not be called."""
        for address, _ in wanted if not self._key else ():
            if address and not is_loopback(address):
                raise wire.WireError(f"without a key only addresses of this machine are called, not {address}")


def _overloaded(message: str) -> Reply:
    return error_reply(429, "overloaded", message, platform=True, retry_after_s=1)


def is_loopback(address: str) -> bool:
    """Whether ``host:port`` is this very machine."""
    try:
        return ipaddress.ip_address(address.rpartition(":")[0].strip("[]")).is_loopback
    except ValueError:
        return False
