"""What a CPU limit costs calls by stopping their replica, from a profile's passes whose experts are stopped.

A stop in the midst of a product costs little: what was being computed is read again. The call that the replica
answers next costs more, the longer it has stood still, since all that a call does then runs once, cold. So of a
product that takes ``n`` stops ``more = stop · n + after(still) · min(1, n)``, in CPU seconds. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import nnls

from simulation.arrays import Floats
from simulation.latency.contract import ALONE, Sharing
from simulation.profiles.fit.curves import Curve, monotone
from simulation.profiles.fit.rows import Row
from simulation.profiles.measure.throttle import Limit, limit_of

FULL = 0.999
"""Shares from here on are a whole core."""
_SEVERAL = 1.5
"""Stops of a product from which on what each costs can be separated from what it costs to go on cold."""


@dataclass(frozen=True, eq=False)
class Stops:
    """CPU seconds that calls take more."""

    stop_s: float
    """A product for each time that it is stopped."""
    after: Curve | None
    """A product that begins after a stop, over the seconds that the replica stood still; None: not measured."""

    def after_s(self, still_s: ArrayLike) -> Floats:
        """What stops of ``still_s`` seconds cost; 0 where nothing stops. Arrays [...] in, [...] out."""
        still = np.asarray(still_s, dtype=np.float64)
        if self.after is None:
            return np.zeros(still.shape)
        inside = np.minimum(still, self.after.at[-1])  # colder than cold there is not
        return np.where(still > 0, self.after(inside), 0.0)


@dataclass(frozen=True)
class _Point:
    """One row, for each product."""

    still_s: float
    stops: float
    more_s: float
    whole_s: float


def limit_of_row(row: Row, tick_s: float) -> Limit:
    """The limit that was in force when the row was measured."""
    if row.period_s is None:
        return limit_of(row.share, tick_s)
    return Limit(row.share * row.period_s, row.period_s, tick_s)


def fit_stops(rows: Sequence[Row], product_s: Callable[[int, float], float], sharing: Sharing = ALONE) -> Stops | None:
    """``rows``: of family ``stopped`` of one kind of node; ``product_s``: CPU seconds of a product of so many calls of
    so many tokens at a full core, of which only ratios count. What stops cost is that of a lone pass, which ``sharing``
    makes that of several. None where that is not enough."""
    counted = [row for row in rows if row.cpu_s_per_call and row.batch_calls and row.stops_per_call is not None]
    # Compared within a repeat, as a machine may be slower or faster in another one.
    full = {(row.repeat, row.concurrency): row for row in counted if row.share >= FULL}
    points = [
        _point(row, full[row.repeat, row.concurrency], product_s, sharing.times(row.concurrency))
        for row in counted
        if row.share < FULL and (row.repeat, row.concurrency) in full
    ]
    stopped = [point for point in points if point.stops > 0]
    if not stopped:
        return None
    lengths = sorted({point.still_s for point in stopped})
    columns = np.zeros((len(stopped), 1 + len(lengths)))
    for place, point in enumerate(stopped):
        columns[place, 0] = point.stops / point.whole_s
        columns[place, 1 + lengths.index(point.still_s)] = min(1.0, point.stops) / point.whole_s
    if not any(point.stops >= _SEVERAL for point in stopped):
        columns[:, 0] = 0.0  # no product is stopped twice, so nothing is known of it
    costs, _ = nnls(columns, np.array([max(0.0, point.more_s) / point.whole_s for point in stopped]))
    return Stops(float(costs[0]), monotone(zip(lengths, costs[1:].tolist(), strict=True)))


def _point(row: Row, full: Row, product_s: Callable[[int, float], float], times: float) -> _Point:
    """``full``: as many requests at once at a full core, in which calls take ``times`` what they do in lone passes."""
    calls, calls_full = row.batch_calls or 1.0, full.batch_calls or 1.0
    whole_s = (row.cpu_s_per_call or 0.0) * calls
    ratio = product_s(row.tokens, calls) / product_s(full.tokens, calls_full)
    limit = limit_of_row(row, 0.0)
    usual_s = (full.cpu_s_per_call or 0.0) * calls_full * ratio
    return _Point(
        limit.period_s - limit.quota_s, (row.stops_per_call or 0.0) * calls, (whole_s - usual_s) / times, whole_s
    )
