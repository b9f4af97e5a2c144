"""Histograms of seconds with rising bounds, filled by compiled code."""

from __future__ import annotations

import numpy as np

from simulation.arrays import Floats, Ints, Marks
from simulation.engine.compiled import compiled

_CELL_BITS = 46
_FIRST_CELL, _LAST_CELL = 64000, 66600
"""Upper 18 bits of the floats from 3e-5 to 1e4."""


@compiled
def bucket_of(cells: Marks, bounds: Floats, value: float) -> int:
    """Index of the first bound that is not below ``value``; the last bound is beyond all values. ``bounds`` [bounds].

    ``cells``: see :func:`cells_of`. The upper bits of a float are its logarithm in steps of less than 1/64, finer than
    bounds lie, so one comparison is left to do. No branches: which way they go would be a guess.
    """
    cell = int(np.float64(value).view(np.int64) >> _CELL_BITS) - _FIRST_CELL
    cell = min(max(cell, 0), cells.size - 1)
    bucket = np.uint32(cells[np.uint32(cell)])
    return int(bucket + np.uint32(bounds[bucket] < value))


def cells_of(bounds: Floats) -> Marks:
    """Where :func:`bucket_of` begins to look. Raises ValueError for bounds less than 1/32 apart or out of its range.
    ``bounds`` [bounds]; returns [cells]."""
    cells = np.arange(_FIRST_CELL, _LAST_CELL)
    lowest = (cells << _CELL_BITS).view(np.float64)
    if (bounds[1:] < bounds[:-1] * (1 + 1 / 32)).any() or bounds[0] < lowest[1] or bounds[-2] > lowest[-1]:
        raise ValueError(f"bounds lie between {lowest[1]:g} and {lowest[-1]:g} and each is 1/32 above the one before")
    return np.searchsorted(bounds, lowest, side="left").astype(np.uint8)


@compiled
def count_spans(spans_s: Floats, cells: Marks, bounds: Floats, histogram: Ints) -> None:
    """Count every span into ``histogram [bounds]``."""
    for span_s in spans_s:
        histogram[bucket_of(cells, bounds, span_s)] += 1
