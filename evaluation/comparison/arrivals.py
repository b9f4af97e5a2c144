"""Arrival times of a group: an hour of its pattern and set, or the file that was given, at the wanted rate.

Hours are those of :mod:`traces.traffic`, whose pattern is that of the process as replayed; the group's seed is the
number of the hour. Of an hour that is longer than the episode the part is replayed whose CV is nearest to the hour's.
A file's rate is changed by thinning, or by many users of its profile (:mod:`traces.scale`). CV and index of dispersion
of what is really replayed stand in every result.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from evaluation.comparison.errors import EvaluationError
from evaluation.comparison.grid import FROM_FILE, Grid, Group
from simulation.arrays import Floats
from traces import catalog, generate, loading, scale
from traces.dispersion import dispersions
from traces.errors import NoMatchError
from traces.model import Trace, make_trace
from traces.splits import SPLITS
from traces.traffic import DIURNAL, has_sources, hour_of_seed

MADE_CV = {"slow": 0.7, "normal": 1.8, "bursty": 4.0}


@dataclass(frozen=True, eq=False)
class Arrivals:
    """``arrival_s [N]`` seconds from 0, below the episode's length, and where they come from."""

    arrival_s: Floats
    seconds: float
    """Length of the episode: the grid's, or less where the trace is shorter; whole windows."""
    source: str
    cv: float | None
    dispersion: dict[str, float | None]
    """Index of dispersion of counts by scale in seconds."""
    measured: bool
    """False: a synthetic trace, as the public ones are not there."""


def arrivals(grid: Grid, group: Group) -> Arrivals:
    """A file longer than the episode is cut from the start that is given, else from the minute of its first request on,
    an hour of the public traces where it is most like itself (:func:`typical`); then its time is divided by the grid's
    speed. Two seeds of a grid never replay the same hour.

    Raises EvaluationError and ``traces.errors.TraceError``.
    """
    if grid.speed == 1:
        return _in_its_own_time(grid, group)
    slow = replace(
        grid,
        window_s=grid.window_s * grid.speed,
        seconds=grid.seconds * grid.speed,
        mean_rps=grid.mean_rps / grid.speed,
        speed=1.0,
    )
    trace_arrivals = _in_its_own_time(slow, group)
    source = f"{trace_arrivals.source}, {grid.speed:g} times as fast"
    seconds = trace_arrivals.seconds / grid.speed
    arrival_s = trace_arrivals.arrival_s / grid.speed
    indices = dispersions(make_trace(arrival_s, duration_s=seconds, source=source))
    return replace(trace_arrivals, arrival_s=arrival_s, seconds=seconds, source=source, dispersion=indices)


def _in_its_own_time(grid: Grid, group: Group) -> Arrivals:
    trace, measured = _at_rate(grid, group)
    if trace.requests == 0:
        raise EvaluationError(f"{trace.source} has no request at {grid.mean_rps:g} requests/s")
    seconds = _whole_windows(grid, trace)
    replayed = trace if seconds == trace.duration_s else trace.clip(0.0, seconds)
    within = replayed.arrival_s[replayed.arrival_s < seconds]
    return Arrivals(within, seconds, trace.source, replayed.iat_cv, dispersions(replayed), measured)


def _whole_windows(grid: Grid, trace: Trace) -> float:
    """Raises EvaluationError where a trace is too short to be judged."""
    windows = math.floor(min(grid.seconds, trace.duration_s) / grid.window_s + 0.05)
    if windows <= grid.warm_up_windows:
        raise EvaluationError(
            f"{trace.source} lasts {trace.duration_s:g} s, {windows} windows of {grid.window_s:g} s; more than the "
            f"{grid.warm_up_windows} of warm-up are needed"
        )
    return windows * grid.window_s


def typical(trace: Trace, seconds: float) -> Trace:
    """The ``seconds`` from a whole minute on whose CV is nearest to the whole trace's, the first of equals.

    Parts with less than half of their share of the requests do not count, if any has more: their CV is uncertain.
    """
    whole = trace.iat_cv
    starts = np.arange(0.0, trace.duration_s - seconds + 1e-9, 60.0)
    parts = [trace.clip(float(start), float(start) + seconds) for start in starts]
    varying = [part for part in parts if (part.iat_cv or 0.0) > 0]
    share = trace.requests * seconds / trace.duration_s
    enough = [part for part in varying if part.requests >= share / 2] or varying
    if not whole or not enough:
        return max(parts, key=lambda part: part.requests)
    return min(enough, key=lambda part: abs(math.log((part.iat_cv or 1.0) / whole)))


def _at_rate(grid: Grid, group: Group) -> tuple[Trace, bool]:
    """What is replayed, no longer than the episode where it can be cut, and whether it was measured."""
    if group.pattern == FROM_FILE:
        return scale.at_rate(_cut(grid, _file(grid, group)), grid.mean_rps, group.seed), True
    if not has_sources(grid.data):
        return _synthetic(grid, group), False
    hour = _hour(grid, group)
    return (hour if hour.duration_s <= grid.seconds else typical(hour, grid.seconds)), True


def _file(grid: Grid, group: Group) -> Trace:
    assert grid.trace is not None
    path = catalog.resolve(str(grid.trace), catalog.data_folder(grid.data))
    return loading.load(path, row=grid.row, start_s=grid.start_s, duration_s=grid.duration_s, seed=group.seed)


def _cut(grid: Grid, trace: Trace) -> Trace:
    if trace.duration_s <= grid.seconds or not trace.requests:
        return trace
    first_s = trace.arrival_s[0] // 60 * 60 if grid.start_s is None else 0.0
    start_s = float(min(first_s, trace.duration_s - grid.seconds))
    return trace.clip(start_s, start_s + grid.seconds)


def _hour(grid: Grid, group: Group) -> Trace:
    try:
        hours = {
            seed: hour_of_seed(group.pattern, grid.mean_rps, grid.split, seed, seconds=grid.seconds, data=grid.data)
            for seed in {*grid.seeds, group.seed}
        }
    except NoMatchError as error:
        raise EvaluationError(str(error)) from error
    first: dict[tuple[tuple[str, str, int], ...], int] = {}
    for seed, hour in hours.items():
        if (other := first.setdefault(tuple(hour.parts), seed)) != seed:
            raise EvaluationError(
                f"seeds {other} and {seed} would replay the same hour: {group.pattern} at {grid.mean_rps:g} requests/s "
                f"has few hours in {grid.split}; name fewer seeds, from 0 on"
            )
    return hours[group.seed].replay()


def _synthetic(grid: Grid, group: Group) -> Trace:
    mean_rps, seed = grid.mean_rps or 1.0, group.seed + 1000 * SPLITS.index(grid.split)
    if group.pattern == DIURNAL:
        return generate.synthetic_day(mean_rps, grid.seconds, seed)
    count = max(3, round(mean_rps * grid.seconds))
    return generate.synthetic(count, grid.seconds, MADE_CV[group.pattern], seed)
