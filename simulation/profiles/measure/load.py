"""Load on one replica: closed loop, single calls with pauses, and open loop; every call's seconds are kept.

Uses the client that the ingress uses, so that what is measured is what a node call costs in a pass.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import numpy as np

from functions.dispatch.client import ConnectionPool, TransportError
from simulation.arrays import Floats

CALL_TIMEOUT_S = 60.0

_clock = time.perf_counter
"""The event loop's own clock (uvloop) counts whole milliseconds."""

Call = Callable[[], Awaitable[bool]]
"""One call; whether it was answered with 200."""


@dataclass
class Recorded:
    """Calls of one measurement. ``latencies_s``: of the calls that were answered; ``errors``: the others."""

    latencies_s: list[float] = field(default_factory=list)
    errors: int = 0
    seconds: float = 0.0
    """From the first counted call to the end of the last."""


class Target:
    """A replica under load: a pool of kept connections and the one request it gets again and again."""

    def __init__(self, address: str, head: bytes, body: bytes) -> None:
        self._pool = ConnectionPool(address)
        self._head = head
        self._body = body

    async def call(self) -> bool:
        try:
            reply = await self._pool.call(self._head, (self._body,), CALL_TIMEOUT_S)
        except TransportError:
            return False
        return reply.status == 200

    def close(self) -> None:
        self._pool.close()


async def closed_loop(call: Call, callers: int, calls: int, longest_s: float) -> Recorded:
    """``callers`` calls always in flight, until ``calls`` were made or ``longest_s`` has passed.

    Each caller makes at least two calls, so that a slow point has a number too.
    """
    recorded = Recorded()
    begun_s = _clock()
    left = calls

    async def caller() -> None:
        nonlocal left
        made = 0
        while (left > 0 and _clock() - begun_s < longest_s) or made < 2:
            left -= 1
            made += 1
            if not await timed(call, _clock(), recorded):
                return  # a replica that fails is not asked again and again

    await asyncio.gather(*(caller() for _ in range(callers)))
    recorded.seconds = _clock() - begun_s
    return recorded


async def paced(call: Call, calls: int, longest_s: float, pauses_s: Floats) -> Recorded:
    """One call at a time, each after a pause drawn from ``pauses_s``: the replica has been idle when it comes.
    ``pauses_s`` [calls]."""
    recorded = Recorded()
    begun_s = _clock()
    for made in range(calls):
        if made >= 3 and _clock() - begun_s > longest_s:
            break
        await asyncio.sleep(float(pauses_s[made % len(pauses_s)]))
        if not await timed(call, _clock(), recorded):
            break
    recorded.seconds = _clock() - begun_s
    return recorded


def poisson_arrivals(rate_per_s: float, seconds: float, seed: int) -> Floats:
    """Arrival times of a Poisson process, in seconds from its start; the same seed gives the same times. Returns
    [calls]."""
    generator = np.random.default_rng(seed)
    drawn = generator.exponential(1 / rate_per_s, size=max(16, int(2 * rate_per_s * seconds) + 64))
    times = np.cumsum(drawn)
    return times[times < seconds]


async def open_loop(call: Call, arrivals_s: Floats, slots: int, longest_s: float) -> Recorded:
    """Calls at given times, at most ``slots`` of them at the replica, the others waiting in order of arrival.
    ``arrivals_s`` [calls].

    A call's seconds run from its arrival to its reply, its wait included: that is how the ingress dispatches. Calls
    that have not begun ``longest_s`` after the start are given up and count as errors, so that a point beyond
    saturation ends.
    """
    recorded = Recorded()
    waiting: deque[float] = deque()
    begun_s = _clock()
    ends_s = begun_s + longest_s
    free = slots
    running: set[asyncio.Task[None]] = set()

    async def serve(due_s: float) -> None:
        nonlocal free
        await timed(call, due_s, recorded)
        free += 1
        start_next()

    def start_next() -> None:
        nonlocal free
        while free and waiting:
            due_s = waiting.popleft()
            if _clock() > ends_s:
                recorded.errors += 1
                continue
            free -= 1
            task = asyncio.create_task(serve(due_s))
            running.add(task)
            task.add_done_callback(running.discard)

    for arrival_s in arrivals_s:
        due_s = begun_s + float(arrival_s)
        pause_s = due_s - _clock()
        if pause_s > 0:
            await asyncio.sleep(pause_s)
        waiting.append(due_s)
        start_next()
    while running:
        await asyncio.wait(set(running))
    recorded.seconds = _clock() - begun_s
    return recorded


async def timed(call: Call, since_s: float | None, recorded: Recorded) -> bool:
    """One call, its seconds counted from ``since_s`` (``time.perf_counter``; None: now); whether it was answered."""
    since_s = _clock() if since_s is None else since_s
    answered = await call()
    if answered:
        recorded.latencies_s.append(_clock() - since_s)
    else:
        recorded.errors += 1
    return answered
