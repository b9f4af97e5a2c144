"""A replica's CPU limit on one shared machine, compiled: the kernel's bandwidth control, period by period.

At the end of each period a replica is granted its quota, and what it had left is lost. It runs at full speed, beyond
what it was granted, until the kernel notices: at its timer's next tick, or when there is nothing more to compute. Then
it is *stopped*, or cannot begin, until grants have paid what it overran; calls that come meanwhile are computed
together. The rules are those of :mod:`simulation.profiles.measure.throttle`.
"""

from __future__ import annotations

import math

import numpy as np

from simulation.arrays import Floats
from simulation.engine.compiled import inner
from simulation.engine.draws import draw_bits
from simulation.engine.replicas import BURST, FAR, GRANT_AT, LEVEL, REFILL, TICK

_PARTS = 1 << 16
"""Phases of period and tick are drawn in so many parts."""


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
    clock[LEVEL, r] = bucket[BURST]
    clock[GRANT_AT, r] = now_s + period_s * (1 + (bits & (_PARTS - 1))) / _PARTS
    clock[TICK, r] = max(tick_s, 1e-12) * (1 + ((bits >> 16) & (_PARTS - 1))) / _PARTS


@inner
def grant(clock: Floats, r: int, bucket: Floats, now_s: float) -> None:
    """What the periods that have ended until now brought. ``clock [rows, replicas]``, ``bucket [2]``."""
    if clock[GRANT_AT, r] <= now_s:
        quota_s, period_s = bucket[BURST], bucket[BURST] / bucket[REFILL]
        ended = 1 + math.floor((now_s - clock[GRANT_AT, r]) / period_s)
        clock[LEVEL, r] = min(quota_s, clock[LEVEL, r] + ended * quota_s)
        clock[GRANT_AT, r] += ended * period_s


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
    used_up_s = now_s + max(0.0, clock[LEVEL, r]) / given if given > 0 else FAR
    if tick_s <= 0 or used_up_s >= FAR:
        return used_up_s
    return float(clock[TICK, r] + tick_s * (math.floor((used_up_s - clock[TICK, r]) / tick_s) + 1))
