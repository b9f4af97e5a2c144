"""Monotone curves and tables through measured points. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import isotonic_regression

from simulation.arrays import Floats, Ints


@dataclass(frozen=True, eq=False)
class Curve:
    """Piecewise linear and never falling. ``at``, ``values`` [knots], both ascending.

    Below the first knot it is flat, above the last it goes on with its mean slope over the last half of the knots.
    """

    at: Floats
    values: Floats

    def __call__(self, where: ArrayLike) -> Floats:
        x = np.asarray(where, dtype=np.float64)
        inside = np.interp(x, self.at, self.values)
        beyond = np.maximum(0.0, x - self.at[-1]) * self.slope
        return np.asarray(inside + beyond)

    @property
    def slope(self) -> float:
        """Slope of the part above the last knot; 0 with one knot."""
        first = (len(self.at) - 1) // 2
        run = float(self.at[-1] - self.at[first])
        return float(self.values[-1] - self.values[first]) / run if run > 0 else 0.0


def monotone(points: Iterable[tuple[float, float]], floor: float = 1e-9) -> Curve:
    """The never-falling curve nearest to (where, value) points: medians at each place, least squares on their logs.

    Logarithms, so that short calls count as much as long ones. Raises ValueError without points.
    """
    by_place: dict[float, list[float]] = {}
    for where, value in points:
        by_place.setdefault(float(where), []).append(max(floor, float(value)))
    if not by_place:
        raise ValueError("a curve needs at least one point")
    at = np.array(sorted(by_place))
    medians = np.log([np.median(by_place[place]) for place in at])
    weights = np.array([len(by_place[place]) for place in at], dtype=np.float64)
    return Curve(at, np.exp(isotonic_regression(medians, weights=weights).x))


@dataclass(frozen=True, eq=False)
class Table:
    """Never falling along both axes. ``values [tokens, calls]``; linear between knots.

    Tokens beyond the knots take the nearest row, scaled by the caller; calls beyond the last knot are in proportion to
    them, as if nothing more were shared.
    """

    tokens: Floats
    calls: Floats
    values: Floats

    def __call__(self, tokens: ArrayLike, calls: ArrayLike) -> Floats:
        t, m = np.broadcast_arrays(np.asarray(tokens, dtype=np.float64), np.asarray(calls, dtype=np.float64))
        row, x = cell(self.tokens, np.clip(t, self.tokens[0], self.tokens[-1]))
        inside = np.clip(m, self.calls[0], self.calls[-1])
        column, y = cell(self.calls, inside)
        interpolated = _line(self.values, row, column, y) * (1 - x) + _line(self.values, row, column, y, 1) * x
        return np.asarray(interpolated * np.maximum(1.0, m / self.calls[-1]))


@dataclass(frozen=True, eq=False)
class Tables:
    """One table for each share of a core, ascending; never rising with the share. Linear on the share's logarithm."""

    shares: Floats
    tables: tuple[Table, ...]

    @property
    def tokens(self) -> Floats:
        return self.tables[0].tokens

    def __call__(self, tokens: ArrayLike, calls: ArrayLike, share: ArrayLike) -> Floats:
        t, m, s = np.broadcast_arrays(*(np.asarray(x, dtype=np.float64) for x in (tokens, calls, share)))
        place, x = cell(np.log(self.shares), np.log(np.clip(s, self.shares[0], self.shares[-1])))
        every = np.stack([table(t, m) for table in self.tables])  # [shares, ...]
        low = np.take_along_axis(every, place[None], axis=0)[0]
        right = np.minimum(place + 1, len(self.shares) - 1)
        high = np.take_along_axis(every, right[None], axis=0)[0]
        return np.asarray(low * (1 - x) + high * x)


def falling_with_share(shares: Sequence[float], tables: Sequence[Table]) -> Tables:
    """Tables on the same knots, each taken down to the running minimum along ascending shares."""
    values = np.minimum.accumulate(np.stack([table.values for table in tables]), axis=0)
    first = tables[0]
    kept = tuple(Table(first.tokens, first.calls, one) for one in values)
    return Tables(np.array(shares, dtype=np.float64), kept)


def monotone_table(tokens: Floats, calls: Floats, values: Floats) -> Table:
    """The table made never falling: least squares along each axis in turn, then the running maximum of both.

    ``values [tokens, calls]``.
    """
    logs = np.log(values)
    for _ in range(10):
        logs = np.apply_along_axis(_never_falling, 1, logs)
        logs = np.apply_along_axis(_never_falling, 0, logs)
    logs = np.maximum.accumulate(np.maximum.accumulate(logs, axis=0), axis=1)
    return Table(tokens, calls, np.exp(logs))


def _never_falling(values: Floats) -> Floats:
    """Least squares. ``values`` [knots]."""
    return np.asarray(isotonic_regression(values).x)


def additive_fill(values: Floats) -> Floats:
    """NaN replaced by the sum of effects of each axis, by least squares on what is known (on logarithms: a product).
    ``values`` [a, b, ...], an axis for each factor.

    Raises ValueError where nothing is known.
    """
    measured = np.isfinite(values)
    if not measured.any():
        raise ValueError("a table needs at least one number")
    if measured.all():
        return values.copy()
    places = np.indices(values.shape).reshape(values.ndim, -1)
    columns = [np.ones(values.size)]
    for axis, count in enumerate(values.shape):
        columns += [(places[axis] == index).astype(np.float64) for index in range(1, count)]
    design = np.stack(columns, axis=1)
    effects, *_ = np.linalg.lstsq(design[measured.ravel()], values[measured], rcond=None)
    return np.asarray(np.where(measured, values, (design @ effects).reshape(values.shape)))


def _line(values: Floats, row: Ints, column: Ints, y: Floats, below: int = 0) -> Floats:
    rows = np.minimum(row + below, values.shape[0] - 1)
    right = np.minimum(column + 1, values.shape[1] - 1)
    return np.asarray(values[rows, column] * (1 - y) + values[rows, right] * y)


def cell(grid: Floats, value: Floats) -> tuple[Ints, Floats]:
    """[...] left neighbour in ``grid`` [knots], and the part (0 to 1) of the way to the right one; 0 for one knot."""
    place = np.clip(np.searchsorted(grid, value, side="right") - 1, 0, max(0, len(grid) - 2))
    if len(grid) == 1:
        return place, np.zeros_like(value)
    return place, (value - grid[place]) / (grid[place + 1] - grid[place])
