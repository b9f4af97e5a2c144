"""What a CPU limit does to a call: the kernel's CFS bandwidth control, simulated.

A limit of ``share`` cores is a quota of CPU time in each period (here 10 ms, longer where the quota would be under
1 ms). A replica runs at full speed until its quota is used up, and then not at all until the next period. That it is
used up is noticed only when it wakes up and at the kernel's timer tick (4 ms at 250 Hz), so a call may overrun the
quota; what it overran is taken from the next periods. Hence latency under a limit is not work / share: a call to an
idle replica that needs less than quota and tick is not slowed down at all, while calls one after the other get exactly
``share`` of a core. However long a replica is idle, it gets one quota back, so a debt of two waits for the next call.

``idle_call_s`` simulates that for every phase of period and tick, without debts; ``stream_s`` simulates calls at
random times, with them. ``burst_s`` is that as one number: the size of the token bucket with the same mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from gateway.backends.process.cgroup.limits import quota
from simulation.arrays import Floats
from simulation.profiles.fit.curves import cell

PERIOD_S = 0.01
"""What the process backend asks for where nothing else is (``ProcessSettings.cpu_period_s``)."""
_SAME_S = 1e-12
"""Times nearer than this are the same."""
_PHASES = 12
"""Phases of the period, and of the tick."""
_LONG = 12.0
"""Work of so many quotas and ticks is taken as long: its mean grows by 1 / share from there."""
_CALLS, _LOAD = 3000, 0.6
"""The stream by which ``burst_s`` is found: so many calls of one quota, at this load. More work or another load moves
it by less than a tenth, half a quota by a third."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A CPU limit in force: ``quota_s`` of CPU time in each ``period_s``; overruns are noticed every ``tick_s``."""

    quota_s: float
    period_s: float
    tick_s: float

    @property
    def share(self) -> float:
        """Real cores."""
        return self.quota_s / self.period_s


def limit_of(share: float, tick_s: float, period_s: float = PERIOD_S) -> Limit:
    """The limit that the process backend sets for ``share`` real cores."""
    quota_us, period_us = quota(share, period_s)
    return Limit(quota_us / 1e6, period_us / 1e6, tick_s)


def idle_call_s(work_s: float, limit: Limit) -> Floats:
    """Seconds of a call of ``work_s`` CPU seconds to an idle replica, one for each phase of period and tick. Arrays
    [phases] or broadcast [...].

    One thread: a share of one core or more limits nothing.
    """
    if limit.share >= 1 or work_s <= 0:
        return np.full(_PHASES**2, max(0.0, work_s))
    phases = (np.arange(_PHASES) + 0.5) / _PHASES
    refill, tick = (axis.ravel() for axis in np.meshgrid(phases * limit.period_s, phases * limit.tick_s))
    now = np.zeros_like(refill)
    left = np.full_like(refill, work_s)
    budget = np.full_like(refill, limit.quota_s)
    running = np.ones(refill.shape, dtype=bool)
    tick_s = max(limit.tick_s, 1e-6)
    while True:
        active = left > 1e-12
        if not active.any():
            return now
        to_end = np.where(running, left, np.inf)
        to_tick = np.where(running, tick - now, np.inf)
        step = np.where(active, np.minimum(np.minimum(to_end, to_tick), refill - now), 0.0)
        ticked = active & (to_tick <= step)
        refilled = active & (refill - now <= step)
        now += step
        left -= np.where(running, step, 0.0)
        budget -= np.where(running, step, 0.0)
        budget = np.where(refilled, np.minimum(limit.quota_s, budget + limit.quota_s), budget)
        refill += np.where(refilled, limit.period_s, 0.0)
        running = np.where(ticked & (budget <= 0), False, running | (refilled & (budget > 0)))
        behind = active & (tick <= now + _SAME_S)
        tick += np.where(behind, tick_s * np.ceil((now - tick) / tick_s + 1e-9), 0.0)


def busy_call_s(work_s: float, limit: Limit, calls: int = 150, gap_s: float = 0.0) -> Floats:
    """Seconds of calls of ``work_s`` CPU seconds one right after the other, each ``gap_s`` after the last one's end.
    Arrays [phases] or broadcast [...].

    The replica has been at it for some periods, so it lives on what each period brings.
    """
    if limit.share >= 1 or work_s <= 0:
        return np.full(calls, max(0.0, work_s))
    tick_s = max(limit.tick_s, 1e-6)
    now, budget, refill, tick, running = 0.0, 0.0, 0.37 * limit.period_s, 0.61 * tick_s, True
    settle = min(calls // 3, 50)
    seconds = np.empty(calls + settle)
    for number in range(calls + settle):
        begun, left = now, work_s
        running = budget > 0  # looked at whenever a process wakes up
        while left > 1e-12:
            step = min(left, tick - now) if running else refill - now
            step = min(step, refill - now)
            now += step
            if running:
                left -= step
                budget -= step
            while now >= tick - _SAME_S:  # several have passed where it was stopped
                running = running and budget > 0
                tick += tick_s
            if now >= refill - _SAME_S:
                budget = min(limit.quota_s, budget + limit.quota_s)
                refill += limit.period_s
                running = running or budget > 0
        seconds[number] = now - begun
        now += gap_s
        while refill <= now + _SAME_S:
            budget = min(limit.quota_s, budget + limit.quota_s)
            refill += limit.period_s
            running = running or budget > 0
        while tick < now - _SAME_S:
            tick += tick_s
    return seconds[settle:]


@lru_cache(maxsize=4096)
def mean_idle_s(work_s: float, limit: Limit) -> float:
    """Mean of :func:`idle_call_s`; for long work by its asymptote."""
    if limit.share >= 1:
        return work_s
    long_s = _LONG * (limit.quota_s + limit.tick_s)
    if work_s > long_s:
        return mean_idle_s(long_s, limit) + (work_s - long_s) / limit.share
    return float(idle_call_s(work_s, limit).mean())


def stream_s(work_s: float, limit: Limit, arrival_s: Sequence[float]) -> float:
    """Mean seconds of calls of ``work_s`` CPU seconds that come at ``arrival_s`` [calls] and wait for each other."""
    quota_s, period_s, tick_s = limit.quota_s, limit.period_s, max(limit.tick_s, 1e-6)
    now, budget, refill, tick, total = 0.0, quota_s, 0.37 * period_s, 0.61 * tick_s, 0.0
    for arrival in arrival_s:
        now = max(now, arrival)
        if now >= refill:  # one quota, however long it was idle
            budget = min(quota_s, budget + quota_s)
            refill += period_s * (1 + (now - refill) // period_s)
        if now >= tick:
            tick += tick_s * (1 + (now - tick) // tick_s)
        left, running = work_s, budget > 0
        while left > 1e-12:
            step = min(left, tick - now, refill - now) if running else refill - now
            now += step
            if running:
                left, budget = left - step, budget - step
            if now >= tick - _SAME_S:
                running = running and budget > 0
                tick += tick_s * (1 + (now + _SAME_S - tick) // tick_s)
            if now >= refill - _SAME_S:
                budget, refill = min(quota_s, budget + quota_s), refill + period_s
                running = running or budget > 0
        total += now - arrival
    return total / len(arrival_s)


def bucket_stream_s(work_s: float, share: float, burst: float, arrival_s: Sequence[float]) -> float:
    """The same of a token bucket of ``burst`` CPU seconds: at full speed while it holds, then at ``share`` of it."""
    now, level, total = 0.0, burst, 0.0
    for arrival in arrival_s:
        begun = max(now, arrival)
        level = min(burst, level + share * (begun - now))
        full_s = min(work_s, level / (1 - share))
        now = begun + full_s + (work_s - full_s) / share
        level = max(0.0, level - full_s * (1 - share))
        total += now - arrival
    return total / len(arrival_s)


@lru_cache(maxsize=4096)
def burst_s(limit: Limit) -> float:
    """CPU seconds that a replica does at full speed: the bucket that gives a stream of calls of one quota each the mean
    that the kernel gives it. A bucket for long calls, as large again by the ticks, gives short ones half or less."""
    if limit.share >= 1:
        return 0.0
    gaps = np.random.default_rng(0).exponential(limit.period_s / _LOAD, _CALLS)
    arrival_s: list[float] = np.cumsum(gaps).tolist()
    wanted_s = stream_s(limit.quota_s, limit, arrival_s)
    low, high = 0.0, 4 * (limit.quota_s + limit.tick_s)
    for _ in range(14):
        middle = (low + high) / 2
        slow = bucket_stream_s(limit.quota_s, limit.share, middle, arrival_s) > wanted_s
        low, high = (middle, high) if slow else (low, middle)
    return (low + high) / 2


class IdleTable:
    """Mean seconds of a call to an idle replica over CPU seconds of work × share, monotone in both.

    Simulated on a grid of both and interpolated on logarithms of them, because an episode asks for very many.
    """

    def __init__(self, tick_s: float, period_s: float) -> None:
        self._work = np.geomspace(5e-5, 2.0, 56)
        self._share = np.geomspace(0.01, 1.0, 29)
        slowdown = np.array(
            [
                [mean_idle_s(float(work), limit_of(float(share), tick_s, period_s)) for work in self._work]
                for share in self._share
            ]
        )  # [shares, works] seconds
        falling = np.maximum.accumulate(slowdown[::-1], axis=0)[::-1]
        self._seconds = np.maximum.accumulate(falling, axis=1)

    def seconds(self, work_s: ArrayLike, share: ArrayLike) -> Floats:
        """Broadcasts. Work beyond the grid takes its last cell's seconds per work. Arrays [phases] or broadcast
        [...]."""
        work, cores = np.broadcast_arrays(np.asarray(work_s, dtype=np.float64), np.asarray(share, dtype=np.float64))
        inside = np.clip(work, self._work[0], self._work[-1])
        scale = np.maximum(work, 1e-12) / inside  # outside the grid seconds are in proportion to work
        column, x = cell(np.log(self._work), np.log(inside))
        row, y = cell(np.log(self._share), np.log(np.clip(cores, self._share[0], self._share[-1])))
        corners = np.log(self._seconds)
        low = corners[row, column] * (1 - x) + corners[row, column + 1] * x
        high = corners[row + 1, column] * (1 - x) + corners[row + 1, column + 1] * x
        return np.asarray(np.exp(low * (1 - y) + high * y) * scale)


@lru_cache(maxsize=16)
def idle_table(tick_s: float, period_s: float = PERIOD_S) -> IdleTable:
    """The table, made once for each tick and period."""
    return IdleTable(tick_s, period_s)
