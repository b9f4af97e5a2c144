"""Times inside a minute, where a trace only counts: from requests per minute to arrivals.

*even* spaces the requests of a minute equally (gap 60/count, half a gap at both ends): a lower bound of the
burstiness. *uniform* draws each request's second at random, which is what a Poisson process of the minute's rate
gives once its count is known. *gamma* draws gaps inside a minute from a Gamma law of a wanted CV and stretches them
to fill the minute, as ServeGen does in its windows: burstier than uniform for a CV above one. All three keep every
minute's count exactly. What they do to the CV of an hour, and in closed form for the first two: :func:`hour_cv`.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from traces.errors import TraceError
from traces.formats.azure_functions_2019 import MinuteCounts
from traces.model import MAX_REQUESTS, FloatArray, IntArray, Trace, make_trace

Placement = Literal["even", "uniform", "gamma"]
MINUTE_S = 60.0
GAMMA_CV = 2.0
GAP_FLOOR = 1e-12
LAST_OF_MINUTE_S = MINUTE_S - 1e-6


def place(counts: IntArray, placement: Placement, seed: int = 0, cv: float = GAMMA_CV) -> FloatArray:
    """Arrival seconds [sum(counts)] float64 for ``counts`` [minutes]; ``cv`` only for *gamma*. Raises TraceError."""
    total = int(counts.sum())
    if total > MAX_REQUESTS:
        raise TraceError(f"{total} requests in one trace, at most {MAX_REQUESTS} are allowed; choose a shorter span")
    if placement == "gamma" and not 0.05 <= cv <= 20:
        raise TraceError(f"the CV inside a minute must be 0.05 to 20, got {cv:g}")
    minute = np.repeat(np.arange(counts.size), counts)
    starts = minute * MINUTE_S
    rng = np.random.default_rng(seed)
    if placement == "uniform":
        uniform: FloatArray = np.sort(starts + np.minimum(rng.random(total) * MINUTE_S, LAST_OF_MINUTE_S))
        return uniform
    if placement == "even":
        position = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
        even: FloatArray = starts + (position + 0.5) * MINUTE_S / np.repeat(counts, counts)
        return even
    # count + 1 gaps a minute (before, between, after), scaled to its length; the floor is for laws so heavy that
    # all draws of a minute underflow
    gaps = rng.gamma(1.0 / cv**2, size=total + counts.size) + GAP_FLOOR
    first = np.concatenate(([0], np.cumsum(counts + 1)[:-1]))
    gaps /= np.repeat(np.add.reduceat(gaps, first), counts + 1)
    passed = np.cumsum(gaps)
    kept = np.ones(total + counts.size, dtype=bool)
    kept[first + counts] = False
    within = passed[kept] - (passed[first] - gaps[first])[minute]
    drawn: FloatArray = np.asarray(starts + np.clip(within * MINUTE_S, 0.0, LAST_OF_MINUTE_S), dtype=np.float64)
    return drawn


def to_trace(counts: MinuteCounts, placement: Placement = "uniform", seed: int = 0, cv: float = GAMMA_CV) -> Trace:
    """Arrivals of one row. Raises TraceError when there are too many to hold."""
    how = {"even": "placed evenly", "uniform": f"placed uniformly, seed {seed}"}.get(
        placement, f"placed by Gamma gaps of CV {cv:g}, seed {seed}"
    )
    last = counts.first_minute + counts.counts.size - 1
    return make_trace(
        place(counts.counts, placement, seed, cv),
        duration_s=counts.counts.size * MINUTE_S,
        source=f"{counts.path.name} row {counts.row[:16]} minutes {counts.first_minute} to {last}, {how}",
    )


def hour_cv(counts: IntArray) -> tuple[FloatArray, FloatArray]:
    """CV of inter-arrival times for rows of ``counts`` [n, minutes], without drawing them: (even [n], uniform [n]).

    Even is exact. Uniform is the root of the expected squared gap over the squared expected mean gap: of c points
    in a minute the spacings have mean 60/(c+1) and mean square 2*60^2/((c+1)(c+2)); between two busy minutes lie
    the last spacing of one, the empty minutes and the first spacing of the other, independent of each other. NaN
    below three requests.
    """
    busy = counts > 0
    total = counts.sum(axis=1)
    c = np.where(busy, counts, 1).astype(np.float64)
    even_gap, spacing, spacing_sq = MINUTE_S / c, MINUTE_S / (c + 1), 2 * MINUTE_S**2 / ((c + 1) * (c + 2))
    even_sq = np.where(busy, (c - 1) * even_gap**2, 0.0).sum(axis=1)
    uniform_sq = np.where(busy, (c - 1) * spacing_sq, 0.0).sum(axis=1)
    row, minute = np.nonzero(busy)
    follows = np.flatnonzero(row[1:] == row[:-1])
    here, there = (row[follows], minute[follows]), (row[follows + 1], minute[follows + 1])
    idle = (there[1] - here[1] - 1) * MINUTE_S
    across = idle + even_gap[here] / 2 + even_gap[there] / 2
    ends = spacing[here] + spacing[there]
    ends_sq = spacing_sq[here] + spacing_sq[there] + 2 * spacing[here] * spacing[there]
    across_sq = idle**2 + 2 * idle * ends + ends_sq
    size = counts.shape[0]
    even_sq += np.bincount(here[0], across**2, size)
    uniform_sq += np.bincount(here[0], across_sq, size)
    # first and last arrival
    first = busy.argmax(axis=1)
    last = counts.shape[1] - 1 - busy[:, ::-1].argmax(axis=1)
    rows = np.arange(size)
    even_span = (last - first + 1) * MINUTE_S - even_gap[rows, first] / 2 - even_gap[rows, last] / 2
    uniform_span = (last - first + 1) * MINUTE_S - spacing[rows, first] - spacing[rows, last]
    return _cv(total, even_sq, even_span), _cv(total, uniform_sq, uniform_span)


def _cv(total: IntArray, squares: FloatArray, span: FloatArray) -> FloatArray:
    """[n] from the sum of squared gaps and their sum."""
    gaps = np.maximum(total - 1, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = squares / gaps / (span / gaps) ** 2 - 1
    return np.where((total >= 3) & (span > 0), np.sqrt(np.maximum(relative, 0.0)), np.nan)
