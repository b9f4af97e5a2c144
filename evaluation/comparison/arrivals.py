"""Arrival times of a group: an hour of its pattern and set, or the file that was given, at the wanted rate.

Times of day stay: a rate is reached by thinning, or by many users of the clip's profile (:mod:`traces.scale`). Of an
hour that is longer than the episode the part is replayed whose CV is nearest to the hour's. The CV of what is really
replayed stands in every result.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from evaluation.comparison.errors import EvaluationError
from evaluation.comparison.grid import FROM_FILE, Grid, Group
from simulation.arrays import Floats
from traces import catalog, clips, generate, hours, loading, scale
from traces.model import PATTERNS, Trace
from traces.splits import SPLITS

DATASETS = ("functions-day", "functions-8h")
"""Where test hours are taken from: the first that is there."""
MIN_REQUESTS = 100
"""Least of an hour: fewer leave its CV uncertain; more would leave too few hours in the small sets."""
MADE_CV = {"slow": 0.7, "normal": 1.8, "bursty": 4.0}


@dataclass(frozen=True, eq=False)
class Arrivals:
    """``arrival_s [N]`` seconds from 0, below the episode's length, and where they come from."""

    arrival_s: Floats
    seconds: float
    """Length of the episode: the grid's, or less where the trace is shorter; whole windows."""
    source: str
    cv: float | None
    measured: bool
    """False: a made trace, as the public ones are not there."""


def arrivals(grid: Grid, group: Group) -> Arrivals:
    """A file longer than the episode is cut from the start that is given, else from the minute of its first request on,
    an hour of the public traces where it is most like itself (:func:`typical`); then its time is divided by the grid's
    speed.

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
    return replace(
        trace_arrivals,
        arrival_s=trace_arrivals.arrival_s / grid.speed,
        seconds=trace_arrivals.seconds / grid.speed,
        source=source,
    )


def _in_its_own_time(grid: Grid, group: Group) -> Arrivals:
    trace, measured = _whole(grid, group)
    if trace.requests == 0:
        raise EvaluationError(f"{trace.source} has no request")
    if trace.duration_s > grid.seconds:
        if group.pattern == FROM_FILE:
            first_s = trace.arrival_s[0] // 60 * 60 if grid.start_s is None else 0.0
            start_s = min(first_s, trace.duration_s - grid.seconds)
            trace = trace.clip(float(start_s), float(start_s) + grid.seconds)
        else:
            trace = typical(trace, grid.seconds)
    replayed = scale.at_rate(trace, grid.mean_rps, group.seed)
    if replayed.requests == 0:
        raise EvaluationError(f"{trace.source} has no request left at {grid.mean_rps:g} requests/s")
    seconds = _whole_windows(grid, trace)
    within = replayed.arrival_s[replayed.arrival_s < seconds]
    return Arrivals(within, seconds, replayed.source, replayed.iat_cv, measured)


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


def _whole(grid: Grid, group: Group) -> tuple[Trace, bool]:
    folder = catalog.data_folder(grid.data)
    if group.pattern == FROM_FILE:
        assert grid.trace is not None
        path, start_s, duration_s = catalog.resolve(str(grid.trace), folder), grid.start_s, grid.duration_s
        return loading.load(path, row=grid.row, start_s=start_s, duration_s=duration_s, seed=group.seed), True
    pattern = next(name for name in PATTERNS if name == group.pattern)
    paths = {dataset.name: dataset.path for dataset in catalog.datasets(folder)}
    for name in DATASETS:
        if name in paths:
            table = _hours(paths[name])
            return clips.choose(table, pattern, split=grid.split, seed=group.seed)[0][1], True
    count = max(3, round((grid.mean_rps or 1.0) * grid.seconds))
    seed = group.seed + 1000 * SPLITS.index(grid.split)
    return generate.synthetic(count, grid.seconds, MADE_CV[pattern], seed), False


@lru_cache(maxsize=2)
def _hours(path: Path) -> hours.HourTable:
    return hours.hours(path, MIN_REQUESTS, clips.MAX_REQUESTS)
