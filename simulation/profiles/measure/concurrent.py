"""Concurrent requests: what one takes next to others, compared with one on its own.

Bursts of one, two and three requests are sent to the ingress, every function at a full core; the next burst comes
when the last has been answered and the pipeline was idle for a while. The sizes take turns in short rounds, so that a
machine that becomes faster or slower does so for all of them. The CPU seconds of all functions, ingress included, are
counted by their cgroups.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median, stdev

from simulation.profiles.fit.rows import Row, spread
from simulation.profiles.measure.load import Call, Recorded, timed
from simulation.profiles.measure.measurement_plan import ProfileSettings
from simulation.profiles.measure.requests import Counters, Interference, at_a_point, blank, undisturbed

FAMILY = "overlap"
SIZES = (1, 2, 3)
PAUSE_S = 0.2
"""Seconds between bursts: requests of a replay are about as far apart."""
OFFSETS = (0.1, 0.6)
"""How much later than the first of a burst the others begin, in parts of what a lone request takes: not together, as
calls that arrive at once are computed as one."""
ABOUT_S = 0.1
"""What a burst takes, in a measurement plan, in seconds."""


def bursts_s(settings: ProfileSettings) -> float:
    """About how long one repeat takes."""
    return settings.volley_rounds * len(SIZES) * at_a_point(settings) * (PAUSE_S + ABOUT_S)


def measure_bursts(
    calls: Sequence[Call], repeat: int, functions: Sequence[Counters], settings: ProfileSettings, runner: asyncio.Runner
) -> list[Row]:
    """One row for each round and size; ``repeat`` numbers the rounds. ``calls``: requests of ``surface_tokens`` that
    take turns, as many as the largest burst has; ``functions``: counters of all that works for a request. What the
    ingress refuses gives an infeasible row."""
    order = random.Random(1000 * settings.seed + repeat)
    lone_s = runner.run(_lone_s(calls[0]))
    rows = []
    for turn in range(settings.volley_rounds):
        sizes = list(SIZES)
        order.shuffle(sizes)
        for size in sizes:
            row = blank(settings.surface_tokens, repeat * settings.volley_rounds + turn, settings)
            offsets = [burst(order, size, lone_s) for _ in range(at_a_point(settings))]
            rows.append(_measure(replace(row, family=FAMILY, concurrency=size), calls, offsets, functions, runner))
    return rows


def burst(order: random.Random, size: int, lone_s: float) -> list[float]:
    """When the requests of a burst are sent, after its first; ``lone_s``: what a lone request takes."""
    return [0.0, *(lone_s * order.uniform(*OFFSETS) for _ in range(size - 1))]


@dataclass(frozen=True)
class Slowdown:
    """Slowdown of requests of a burst compared with lone ones."""

    times: float
    """Median seconds over those of a lone one, the median over rounds."""
    error: float
    """Standard error of its logarithm by the noise of the rounds; infinite for a single one."""


def slowdowns(rows: Iterable[Row]) -> dict[int, Slowdown]:
    """By the burst's size. Rounds are compared with themselves; those that others disturbed are left out where there
    are quieter ones. None where bursts were not measured, as in profiles from before there were any.
    """
    measured = [row for row in rows if row.family == FAMILY and row.feasible and row.p50_s]
    return _slowdowns(undisturbed(measured)) or _slowdowns(measured)  # the undisturbed ones may lack a lone one


def _slowdowns(rows: Sequence[Row]) -> dict[int, Slowdown]:
    alone = {row.repeat: row.p50_s for row in rows if row.concurrency == 1}
    ratios: dict[int, list[float]] = {}
    for row in rows:
        lone_s = alone.get(row.repeat)
        if row.concurrency > 1 and row.p50_s and lone_s:
            ratios.setdefault(row.concurrency, []).append(math.log(row.p50_s / lone_s))
    return {
        size: Slowdown(math.exp(median(logs)), stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf)
        for size, logs in sorted(ratios.items())
    }


def _measure(
    row: Row,
    calls: Sequence[Call],
    offsets: Sequence[Sequence[float]],
    functions: Sequence[Counters],
    runner: asyncio.Runner,
) -> Row:
    interference = Interference(functions)
    recorded = runner.run(_bursts(calls, offsets))
    cpu_s = interference.functions_s()
    others_s = interference.others_s(cpu_s)
    if recorded.errors or not recorded.latencies_s:
        return replace(row, feasible=False, note="the ingress refused one of the concurrent requests")
    return replace(
        row,
        errors=recorded.errors,
        seconds=recorded.seconds,
        cpu_s_per_call=None if cpu_s is None else cpu_s / len(recorded.latencies_s),
        others_cores=others_s / recorded.seconds,
        **asdict(spread(recorded.latencies_s)),
    )


async def _lone_s(call: Call) -> float:
    """Median seconds of a few requests, one at a time, after some that nobody counts."""
    recorded = Recorded()
    for _ in range(8):
        await timed(call, None, recorded)
    return median(recorded.latencies_s[3:]) if len(recorded.latencies_s) > 3 else 0.0


async def _bursts(calls: Sequence[Call], offsets: Sequence[Sequence[float]]) -> Recorded:
    """Burst after burst, each of as many requests as it has ``offsets`` [seconds]."""
    recorded, begun_s = Recorded(), time.perf_counter()

    async def one(call: Call, after_s: float) -> None:
        await asyncio.sleep(after_s)
        await timed(call, None, recorded)

    for number, burst in enumerate(offsets):
        await asyncio.sleep(PAUSE_S)
        turned = [calls[(number + place) % len(calls)] for place in range(len(burst))]
        await asyncio.gather(*(one(call, after_s) for call, after_s in zip(turned, burst, strict=True)))
    recorded.seconds = time.perf_counter() - begun_s
    return recorded
