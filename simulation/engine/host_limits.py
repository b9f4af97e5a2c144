"""A replica's CPU limit on one shared machine, compiled: the kernel's bandwidth control, period by period.

At the end of each period the replica's quota is there again; what was left of it is lost. Each core takes the quota
when it has used up what it holds for the replica, and keeps up to a millisecond of that while the replica sleeps. A
replica runs on, beyond what there is, until the kernel notices: at its timer's next tick, or when there is nothing
more to compute. Then it is *stopped*, or cannot begin, until grants have paid what it overran on that core; calls that
come meanwhile are computed together. Woken on the other core it may run at once on what is left there, so stops are
rarer, and longer when both are in debt. Of one core the rules are those of
:mod:`simulation.profiles.measure.throttle`. Source: kernel/sched/fair.c (``assign_cfs_rq_runtime``,
``return_cfs_rq_runtime``, ``distribute_cfs_runtime``).
"""

from __future__ import annotations

import math

import numpy as np

from simulation.arrays import Floats, Ints
from simulation.engine.compiled import inner
from simulation.engine.draws import draw_bits
from simulation.engine.replicas import BURST, CORE, FAR, GRANT_AT, HELD, LEVEL, POOL, REFILL, STOPPED, TICK

_PARTS = 1 << 16
"""Phases of period and tick are drawn in so many parts."""
KEPT_S = 0.001
"""CPU seconds that a core keeps for a replica that sleeps (``min_cfs_rq_runtime``); more goes back, and what is beyond
a quota is lost."""


@inner
def first_seen(
    clock: Floats, r: int, bucket: Floats, tick_s: float, key: np.uint64, request: int, now_s: float
) -> None:
    """Replica ``r`` gets its first call, ``request``: it has a whole quota, and period and tick end anywhere.
    ``clock [rows, replicas]``, ``bucket [2]``."""
    if clock[TICK, r] > 0:
        return
    bits = draw_bits(key, request)
    period_s = bucket[BURST] / bucket[REFILL]
    begin_limit(clock, r, bucket)
    clock[GRANT_AT, r] = now_s + period_s * (1 + (bits & (_PARTS - 1))) / _PARTS
    clock[TICK, r] = max(tick_s, 1e-12) * (1 + ((bits >> 16) & (_PARTS - 1))) / _PARTS


@inner
def begin_limit(clock: Floats, r: int, bucket: Floats) -> None:
    """A new limit begins with a whole quota, and no core owes anything. ``clock [rows, replicas]``, ``bucket [2]``."""
    clock[POOL, r], clock[LEVEL, r] = bucket[BURST], 0.0
    clock[HELD:, r] = 0.0


@inner
def take(clock: Floats, r: int) -> None:
    """The core that ``r`` runs on takes what the pool has when it holds nothing. ``clock [rows, replicas]``."""
    if clock[LEVEL, r] <= 0:
        clock[LEVEL, r] += clock[POOL, r]
        clock[POOL, r] = 0.0


@inner
def fall_asleep(clock: Floats, r: int, bucket: Floats) -> None:
    """Replica ``r`` has nothing more to compute. ``clock [rows, replicas]``, ``bucket [2]``."""
    if clock[LEVEL, r] > KEPT_S:
        clock[POOL, r] = min(bucket[BURST], clock[POOL, r] + clock[LEVEL, r] - KEPT_S)
        clock[LEVEL, r] = KEPT_S


@inner
def wake_on(clock: Floats, slot: Ints, r: int, key: np.uint64, request: int) -> None:
    """Replica ``r`` is woken by ``request`` on any of the machine's cores. ``clock``, ``slot [rows, replicas]``."""
    cores = clock.shape[0] - HELD
    core = np.int64((draw_bits(key, request) >> 32) % np.uint64(cores))
    clock[HELD + slot[CORE, r], r] = clock[LEVEL, r]
    slot[CORE, r] = core
    clock[LEVEL, r] = clock[HELD + core, r]
    take(clock, r)


@inner
def grant(clock: Floats, slot: Ints, r: int, bucket: Floats, now_s: float) -> None:
    """What the periods that have ended until now brought. ``clock``, ``slot [rows, replicas]``, ``bucket [2]``."""
    if clock[GRANT_AT, r] <= now_s:
        quota_s, period_s = bucket[BURST], bucket[BURST] / bucket[REFILL]
        ended = 1 + math.floor((now_s - clock[GRANT_AT, r]) / period_s)
        clock[GRANT_AT, r] += ended * period_s
        if slot[STOPPED, r]:
            clock[LEVEL, r] += ended * quota_s  # period after period pays what it owes
        else:
            clock[POOL, r] = quota_s


@inner
def goes_on_at(clock: Floats, r: int, bucket: Floats) -> float:
    """When a stopped replica has been granted more than it overran. ``clock [rows, replicas]``, ``bucket [2]``."""
    quota_s = bucket[BURST]
    grants = math.floor(max(0.0, -clock[LEVEL, r]) / quota_s)
    return float(clock[GRANT_AT, r] + grants * (quota_s / bucket[REFILL]))


@inner
def noticed_at(clock: Floats, r: int, tick_s: float, given: float, now_s: float) -> float:
    """When a running replica is stopped, unless its period ends before: at the first tick after it has used what it
    had. ``given``: cores it gets. ``clock [rows, replicas]``."""
    used_up_s = now_s + max(0.0, clock[LEVEL, r] + clock[POOL, r]) / given if given > 0 else FAR
    if tick_s <= 0 or used_up_s >= FAR:
        return used_up_s
    return float(clock[TICK, r] + tick_s * (math.floor((used_up_s - clock[TICK, r]) / tick_s) + 1))
