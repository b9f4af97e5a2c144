"""Rows of GPU shares as seconds of a call: alone, and with several always in flight.

Fitted are medians over repeats of *gpu_alone* and *gpu_busy*, made monotone as those of cores are (``fit``): never
falling with tokens nor with calls at once, never rising with the share. Points that were not measured are filled in by
the effects of their axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from simulation.arrays import Floats
from simulation.profiles.fit.curves import Tables, additive_fill, falling_with_share, monotone_table
from simulation.profiles.fit.fitting import factors, mean_s
from simulation.profiles.fit.rows import Row
from simulation.profiles.model.errors import ProfileError


@dataclass(frozen=True, eq=False)
class GpuFit:
    """One kind of node on shares of the GPU that was measured. Seconds; tokens are packed tokens of one call."""

    node: str
    alone: Tables
    """Mean seconds of a call to an idle replica; over tokens × 1 × share."""
    together: Tables
    """Seconds of a round of m calls that are always in flight; over tokens × calls × share."""
    factors: Floats
    """Quantiles (even probabilities) of seconds over their mean, idle replica."""
    tokens: tuple[int, int]
    """Measured range."""
    shares: tuple[float, float]
    """Measured range."""


def fit_gpu(name: str, rows: Sequence[Row]) -> GpuFit | None:
    """The fit of a node's rows; None where its GPU shares were not measured. Raises ProfileError where single calls
    were, but none always in flight."""
    node_rows = [row for row in rows if row.node == name and row.feasible and row.mean_s is not None]
    alone = [row for row in node_rows if row.family == "gpu_alone"]
    busy = [row for row in node_rows if row.family == "gpu_busy"]
    if not alone:
        return None
    if not busy:
        raise ProfileError(f"rows of {name} have single calls on GPU shares (gpu_alone), but none always in flight")
    return GpuFit(
        node=name,
        alone=_tables(alone),
        together=_tables(busy),
        factors=factors(alone),
        tokens=(min(row.tokens for row in alone), max(row.tokens for row in alone)),
        shares=(min(row.gpu_share for row in alone), max(row.gpu_share for row in alone)),
    )


def _tables(rows: Sequence[Row]) -> Tables:
    """Seconds in which ``concurrency`` calls are answered: with all of them always in flight, those of each."""
    tokens, calls = sorted({row.tokens for row in rows}), sorted({row.concurrency for row in rows})
    shares = sorted({row.gpu_share for row in rows})
    logs = np.full((len(shares), len(tokens), len(calls)), np.nan)
    for place in np.ndindex(logs.shape):
        point = (shares[place[0]], tokens[place[1]], calls[place[2]])
        seconds = [mean_s(row) for row in rows if (row.gpu_share, row.tokens, row.concurrency) == point]
        if seconds:
            logs[place] = np.log(median(seconds))
    axes = np.array(tokens, dtype=np.float64), np.array(calls, dtype=np.float64)
    return falling_with_share(shares, [monotone_table(*axes, values) for values in np.exp(additive_fill(logs))])
