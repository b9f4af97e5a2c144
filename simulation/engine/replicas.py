"""Replicas as arrays, and what happens to one of them: calls come, go, are counted, and are slowed down by a CPU limit.

A replica shares its speed among the calls in service (limited processor sharing). In its *virtual time* every call in
service advances equally, at ``rate[row, m]`` for m calls, so a call that starts at virtual time v with w seconds of
work ends at v + w whatever comes and goes; calls in service are a ring sorted by that end, and only its first end is
looked at. Replicas of a node are in order of age. Times are absolute seconds, ``FAR`` stands for never.

A CPU limit is a token bucket of CPU seconds. While calls are in service they use ``use[row, m]`` cores, and the bucket
gets ``refill`` back all the time, idle or not, up to ``burst``; once it is empty, everything goes on at ``refill /
use`` of its speed. Where nothing is limited ``refill`` is 1 and the bucket has no effect.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simulation.arrays import Calls, Floats, Ints, Tokens
from simulation.engine.compiled import inlined, inner

FAR = 1e300
"""Never: a finite number, since infinities turn into NaN by subtraction."""
NO_LIMIT = 1 << 40
RANK_BITS = 20
RANK = (1 << RANK_BITS) - 1

READY, DRAIN, VIRTUAL, LAST, NEXT, SINCE, LEVEL, GRANT_AT, TICK, POOL = range(10)
HELD = 10
"""Rows of ``clock``: ready from, no new calls from, virtual time, when that was, next completion (on a shared machine:
CPU seconds left until it is ready), busy since, CPU seconds in the bucket at ``LAST``; on a shared machine: when its
period ends, one of its ticks (0: it has not had a call yet), what its quota still has, and, from ``HELD`` on, what each
core holds for it while it runs on another (``LEVEL``: on the one it runs on; negative: what it overran)."""
ROW, GENERATION, ACTIVE, HEAD, SITE, STANDBY, BATCH, STOPPED, WAS_STOPPED, CORE, TURN = range(11)
"""Rows of ``slot``: row of the resource tables, generation, calls in service, first of the ring, machine, number of the
activated standby from 1 (0: a replica that always runs); on a shared machine: calls that are computed now, whether its
limit has stopped it, whether it has done so since the batch before, the core it runs on, and which call of the node's
was its latest (0: it has had none)."""
CHANGE_AT = 0
"""Column of ``order_s``: when the change that is under way holds."""
LIMIT, NEXT_LIMIT, NEXT_ROW, NOW_GENERATION, COUNT, CALLS = range(6)
"""Columns of ``order``: calls at once, the same after the change, row after it, generation it is for, replicas; on a
shared machine: calls so far."""
BURST, REFILL = range(2)
"""Columns of ``bucket [rows, 2]``: CPU seconds it holds at most (on a shared machine: the quota of a period), CPU
seconds it gets back in a second."""


Limits = bool | None
"""None: no row has a CPU limit, and there is no word of them in the compiled code; else any."""


class Rows(NamedTuple):
    """Resource tables, see :class:`simulation.engine.tables.ResourceTables`."""

    work: Floats
    again: Floats
    pace: Floats
    stretch: Floats
    use: Floats
    bucket: Floats
    stop: Floats
    after_stop: Floats
    cold: Floats
    further: Floats
    in_flight: Floats
    noise: Floats


class Replicas(NamedTuple):
    """All replicas of all nodes: ``clock`` and ``slot [nodes, rows, replicas]``, ``end`` and ``call
    [nodes, replicas, calls]``, ``order [nodes, 6]``, ``order_s [nodes, 1]``, ``room [nodes, replicas]`` (calls at once
    they take, see :func:`open_up`)."""

    clock: Floats
    slot: Ints
    end: Floats
    call: Calls
    order: Ints
    order_s: Floats
    room: Ints


@inlined
def choose(active: Ints, room: Ints, count: int) -> int:
    """Least calls in service among replicas with a free slot, the oldest of equals; -1 without one. Arrays [replicas]
    and, of calls, [replicas, slots].

    ``room``: calls at once that each replica takes now, see :func:`open_up`.
    """
    least = NO_LIMIT
    for r in range(count):
        least = min(least, (active[r] << RANK_BITS) + r + (NO_LIMIT if active[r] >= room[r] else 0))
    return least & RANK if least < NO_LIMIT else -1


@inner
def choose_in_turn(active: Ints, turn: Ints, room: Ints, count: int) -> int:
    """As :func:`choose`, but of equals the one whose latest call is longest ago. ``turn [replicas]``."""
    best = -1
    for r in range(count):
        if active[r] < room[r] and (best < 0 or (active[r], turn[r]) < (active[best], turn[best])):
            best = r
    return best


@inner
def open_up(ready: Floats, drain: Floats, room: Ints, count: int, limit: int, change_s: float, now_s: float) -> float:
    """Give every replica that takes new calls now its ``limit`` of ``room``, others none; returns when this, or the
    configuration (``change_s``), is to change next. Arrays [replicas] and, of calls, [replicas, slots]."""
    next_s = change_s
    for r in range(count):
        room[r] = limit if ready[r] <= now_s < drain[r] else 0
        next_s = min(next_s, ready[r] if ready[r] > now_s else FAR, drain[r] if drain[r] > now_s else FAR)
    return next_s


@inlined
def earliest(coming: Floats, count: int) -> tuple[float, int]:
    """Time and replica of the next completion. Arrays [replicas] and, of calls, [replicas, slots]."""
    done_s, first = FAR, 0
    for r in range(count):
        sooner = coming[r] < done_s
        done_s = coming[r] if sooner else done_s
        first = r if sooner else first
    return done_s, first


@inlined
def insert(ends: Floats, calls: Calls, base: int, mask: int, head: int, size: int, value: float, request: int) -> None:
    """Put a call into the ring of ``size`` calls that begins at ``base``, behind those that end no later. Arrays
    [replicas] and, of calls, [replicas, slots]."""
    place = size
    while place > 0:
        before = np.uint32(base + ((head + place - 1) & mask))
        if ends[before] <= value:
            break
        here = np.uint32(base + ((head + place) & mask))
        ends[here] = ends[before]
        calls[here] = calls[before]
        place -= 1
    here = np.uint32(base + ((head + place) & mask))
    ends[here] = value
    calls[here] = request


@inner
def worked(spent_s: float, rate: float, level: float, use: float, refill: float) -> float:
    """Virtual seconds that go by in ``spent_s`` seconds of service."""
    drain = use - refill
    if drain * spent_s <= level:
        return spent_s * rate
    full_s = level / drain
    return rate * (full_s + (spent_s - full_s) * (refill / use))


@inner
def reach(work_s: float, stretch: float, level: float, use: float, refill: float) -> float:
    """Seconds of service until ``work_s`` virtual seconds have gone by."""
    drain, full_s = use - refill, work_s * stretch
    if drain * full_s <= level:
        return full_s
    return level / drain + (full_s - level / drain) * (use / refill)


@inner
def level_after(spent_s: float, level: float, use: float, refill: float, burst: float) -> float:
    """CPU seconds in the bucket after ``spent_s`` seconds in which ``use`` cores were wanted."""
    return min(burst, max(0.0, level - (use - refill) * spent_s))


@inner
def cpu_after(spent_s: float, level: float, use: float, refill: float) -> float:
    """CPU seconds used in ``spent_s`` seconds in which ``use`` cores were wanted."""
    drain = use - refill
    if drain * spent_s <= level:
        return spent_s * use
    return level + spent_s * refill


@inner
def catch_up(clock: Floats, slot: Ints, r: int, rows: Rows, now_s: float) -> tuple[float, float]:
    """Bring virtual time and bucket of replica ``r`` to ``now_s``; returns seconds that went by and CPU seconds used.
    Arrays [replicas] and, of calls, [replicas, slots].

    Without calls in service virtual time stands still.
    """
    row, active, spent_s = slot[ROW, r], slot[ACTIVE, r], max(0.0, now_s - clock[LAST, r])
    level, used, refill = clock[LEVEL, r], rows.use[row, active], rows.bucket[row, REFILL]
    if active > 0:
        clock[VIRTUAL, r] += worked(spent_s, rows.pace[row, active], level, used, refill)
    clock[LEVEL, r] = level_after(spent_s, level, used, refill, rows.bucket[row, BURST])
    clock[LAST, r] = max(clock[LAST, r], now_s)
    return spent_s, cpu_after(spent_s, level, used, refill)


@inner
def resize(
    clock: Floats, slot: Ints, ends: Floats, calls: Calls, slots: int, rows: Rows, tokens: Tokens, r: int, row: int
) -> None:
    """Give replica ``r``, caught up, the resources of ``row`` in place: what is left of each call scales with its work
    alone, what its bucket holds is kept as far as the new one takes it; the bucket of a new limit is full. Arrays
    [replicas] and, of calls, [replicas, slots]."""
    work, bucket = rows.work, rows.bucket
    old, active, mask, base = slot[ROW, r], slot[ACTIVE, r], slots - 1, r * slots
    slot[ROW, r] = row
    clock[LEVEL, r] = min(clock[LEVEL, r], bucket[row, BURST]) if bucket[old, REFILL] < 1 else bucket[row, BURST]
    virtual, head = clock[VIRTUAL, r], slot[HEAD, r]
    for k in range(active):
        at = base + ((head + k) & mask)
        request = calls[at]
        left_s = (ends[at] - virtual) * (work[row, tokens[request]] / work[old, tokens[request]])
        insert(ends, calls, base, mask, head, k, left_s, request)
    clock[VIRTUAL, r] = 0.0
