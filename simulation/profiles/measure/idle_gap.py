"""Requests after a pause: what a lone one takes by how long ago the last answer was.

Others fill the caches and cores go to sleep while nothing is asked, so a request that comes a second after the last
answer takes longer than one that comes at once. Lone requests are sent, every function at a full core, each a pause
after the answer before it; the pauses take turns at random, so that a machine that becomes faster or slower does so
for all of them.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean, linear_regression, stdev

from simulation.profiles.fit.rows import Row, spread
from simulation.profiles.measure.load import Call, Recorded, timed
from simulation.profiles.measure.measurement_plan import ProfileSettings
from simulation.profiles.measure.requests import Counters, Interference, at_a_point, blank, undisturbed

FAMILY = "idle"
PAUSES_S = (0.01, 0.03, 0.1, 0.3, 1.0)
"""From about the shortest between requests of a replay to where little more is to come."""
ABOUT_S = 0.06
"""What a request takes, in a plan."""
POINTS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Idle gaps in seconds at which the law is sampled for the simulator, which interpolates linearly between them."""
ERRORS = 2.0


def idle_s(settings: ProfileSettings) -> float:
    """About how long one repeat takes."""
    return settings.idle_rounds * at_a_point(settings) * (sum(PAUSES_S) + len(PAUSES_S) * ABOUT_S)


def measure_idle(
    calls: Sequence[Call], repeat: int, functions: Sequence[Counters], settings: ProfileSettings, runner: asyncio.Runner
) -> list[Row]:
    """One row for each round and pause; ``repeat`` numbers the rounds. ``calls``: requests of ``surface_tokens`` that
    take turns; ``functions``: counters of all that works for a request. What the ingress refuses gives an infeasible
    row."""
    order, rows = random.Random(1000 * settings.seed + repeat), list[Row]()
    for turn in range(settings.idle_rounds):
        pauses = list(PAUSES_S) * at_a_point(settings)
        order.shuffle(pauses)
        interference, begun_s = Interference(functions), time.perf_counter()
        recorded = runner.run(_paused(calls, pauses))
        seconds = time.perf_counter() - begun_s
        row = replace(
            blank(settings.surface_tokens, repeat * settings.idle_rounds + turn, settings),
            family=FAMILY,
            texts=len(calls),
            seconds=seconds,
            others_cores=interference.others_s(interference.functions_s()) / seconds,
        )
        rows += [_row(row, pause_s, one) for pause_s, one in recorded.items()]
    return rows


@dataclass(frozen=True)
class Cooling:
    """What a pause does: a request takes ``pause_s ** power`` times as long, up to a factor."""

    power: float
    error: float
    """Its standard error by the scatter of the rounds; infinite for a single one."""


def cooling(rows: Iterable[Row]) -> Cooling | None:
    """By rounds, each compared with itself; those that others disturbed are left out where there are quieter ones. None
    where pauses were not measured, as in profiles from before there were any."""
    measured = [row for row in rows if row.family == FAMILY and row.feasible and row.p50_s]
    rounds: dict[int, list[tuple[float, float]]] = {}
    for row in undisturbed(measured):
        assert row.p50_s is not None
        rounds.setdefault(row.repeat, []).append((math.log(row.pause_s), math.log(row.p50_s)))
    powers = [linear_regression(*zip(*points, strict=True)).slope for points in rounds.values() if len(points) > 1]
    if not powers:
        return None
    return Cooling(fmean(powers), stdev(powers) / math.sqrt(len(powers)) if len(powers) > 1 else math.inf)


def idle_times(rows: Iterable[Row]) -> tuple[tuple[float, float], ...]:
    """``simulation.workloads.workload.Host.idle``: 1 after the shortest pause, and from there on by the law; nothing
    where pauses were not measured or it is not certain that they do anything (``ERRORS`` standard errors)."""
    law = cooling(rows)
    if law is None or law.power <= ERRORS * law.error:
        return ()
    return tuple((pause_s, (pause_s / POINTS_S[0]) ** law.power) for pause_s in POINTS_S)


def _row(row: Row, pause_s: float, recorded: Recorded) -> Row:
    row = replace(row, pause_s=pause_s, errors=recorded.errors)
    if recorded.errors or not recorded.latencies_s:
        return replace(row, feasible=False, note="the ingress refused a request after a pause")
    return replace(row, **asdict(spread(recorded.latencies_s)))


async def _paused(calls: Sequence[Call], pauses: Sequence[float]) -> dict[float, Recorded]:
    """Request after request, each so many seconds after the answer before it; the first one is not counted, as nobody
    knows how long the pause before it was."""
    recorded = {pause_s: Recorded() for pause_s in PAUSES_S}
    await timed(calls[0], None, Recorded())
    for number, pause_s in enumerate(pauses):
        await asyncio.sleep(pause_s)
        await timed(calls[number % len(calls)], None, recorded[pause_s])
    return recorded
