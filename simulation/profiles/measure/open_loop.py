"""Simulates the fitted model on the arrivals of the profile's own open loops, which were not used for fitting.

One replica: calls wait in order of arrival until one of its slots is free; those in service share it (processor
sharing at ``speedup``), on the token bucket of its CPU limit. The same rule that a simulator needs, written as plainly
as possible, so that it can be compared with what was measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from simulation.arrays import Floats
from simulation.profiles.fit.fitting import UNDISTURBED_CORES, Fit, NodeFit
from simulation.profiles.fit.rows import Row
from simulation.profiles.fit.stops import limit_of_row
from simulation.profiles.fit.validation import Errors
from simulation.profiles.measure.load import poisson_arrivals
from simulation.profiles.measure.throttle import burst_s

BUSIEST = 0.8
"""Most of its share that a replica may have used for a comparison of latencies to mean something."""


def simulate(
    arrivals_s: Floats, work_s: Floats, slots: int, rates: Floats, use: Floats, burst: float, refill: float
) -> Floats:
    """Seconds of each call from its arrival to its end.

    ``work_s``: seconds of each call alone on an unlimited core. ``rates [slots + 1]``: work per second in total with
    that many calls in service; ``use [slots + 1]``: cores in use meanwhile, below 1 where a call alone waits for
    other things than its core. ``burst``, ``refill``: the token bucket (CPU seconds; 0 and 1: none).
    """
    ends = np.full(len(arrivals_s), math.nan)
    left: dict[int, float] = {}
    queue: list[int] = []
    now, level, place = 0.0, burst, 0
    while place < len(arrivals_s) or left or queue:
        rate = rates[len(left)] / len(left) if left else 0.0
        used = use[len(left)] if left else 0.0
        stopped = level <= 1e-12 and used > refill
        speed = rate * refill / used if stopped else rate
        to_arrival = arrivals_s[place] - now if place < len(arrivals_s) else math.inf
        to_end = min(left.values()) / speed if left else math.inf
        to_empty = level / (used - refill) if used > refill and not stopped else math.inf
        step = min(to_arrival, to_end, to_empty)
        now += step
        for number in left:
            left[number] -= step * speed
        level = level if stopped else min(burst, max(0.0, level + step * (refill - used)))
        if step == to_empty:
            level = 0.0
        for number in [number for number, rest in left.items() if rest <= 1e-12]:
            del left[number]
            ends[number] = now
        if step == to_arrival:
            queue.append(place)
            place += 1
        while queue and len(left) < slots:
            number = queue.pop(0)
            left[number] = work_s[number]
    return np.asarray(ends - arrivals_s)


def simulate_row(node: NodeFit, row: Row, seconds: float, tick_s: float, seed: int) -> Floats:
    """The calls of one open-loop row, with the arrivals it had; ``seconds`` is how long they came. Arrivals [calls]."""
    arrivals = poisson_arrivals(row.rate_rps, seconds, row.seed)
    alone_s = float(node.work(row.tokens) + node.apart(row.tokens))
    draws = np.random.default_rng(seed).uniform(size=len(arrivals))
    grid = np.linspace(0, 1, len(node.idle_factors))
    work_s = alone_s * np.interp(draws, grid, node.idle_factors)
    calls = np.arange(1, row.concurrency + 1, dtype=np.float64)
    rounds = node.together_s(np.full_like(calls, row.tokens), calls, row.share)
    rates = np.concatenate([[0.0, 1.0], np.minimum(calls, calls * alone_s / rounds)[1:]])
    use = np.ones(row.concurrency + 1)
    use[1] = float(node.work(row.tokens)) / alone_s
    limit = limit_of_row(row, tick_s)
    return simulate(arrivals, work_s, row.concurrency, rates, use, burst_s(limit), min(1.0, limit.share))


def check_open_loop(rows: Sequence[Row], fitted: Fit) -> Errors | None:
    """Errors against open-loop rows that used at most ``BUSIEST`` of their share on a quiet machine; None without any.

    Beyond that a queue's length hangs on the last percent of its service time, which no profile knows.
    """
    errors = []
    for row in rows:
        if row.p50_s is None or row.p95_s is None or row.mean_s is None or row.node not in fitted.nodes:
            continue
        if row.note or (row.others_cores or 0.0) > UNDISTURBED_CORES:
            continue
        if (row.cpu_s_per_call or 0.0) * row.rate_rps > BUSIEST * row.share:
            continue
        seconds = _length_s(row)
        if seconds is None:
            continue
        simulated_s = simulate_row(fitted.nodes[row.node], row, seconds, fitted.tick_s, row.seed)
        p50, p95 = np.percentile(simulated_s, (50, 95))
        errors.append((abs(simulated_s.mean() / row.mean_s - 1), abs(p50 / row.p50_s - 1), abs(p95 / row.p95_s - 1)))
    if not errors:
        return None
    mean, p50, p95 = (float(value) for value in np.mean(errors, axis=0))
    return Errors(len(errors), mean, p50, p95)


def _length_s(row: Row) -> float | None:
    """How long arrivals came: the length that gives as many as there were calls."""
    times = poisson_arrivals(row.rate_rps, max(row.seconds, 1e-3) * 2 + 1, row.seed)
    count = row.n + row.errors
    return float(times[count - 1]) + 1e-9 if 0 < count <= len(times) else None
