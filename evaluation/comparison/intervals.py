"""Interquartile means with stratified bootstrap intervals, and shares with Wilson intervals.

The interquartile mean is the mean of the middle half (Agarwal et al., "Deep Reinforcement Learning at the Edge of the
Statistical Precipice", 2021); strata are cells whose seeds are resampled each by itself, so that the spread between
workloads is not taken for noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulation.arrays import Floats

DRAWS = 2000


@dataclass(frozen=True)
class Interval:
    """A figure with its 95 % interval."""

    value: float
    low: float
    high: float


def iqm(values: Floats) -> Floats:
    """Interquartile mean over the last axis, ``[..., n]`` to ``[...]``: the n/4 least and the n/4 largest values count
    nothing, those at the edge in part.
    """
    ordered = np.sort(values, axis=-1)
    count = ordered.shape[-1]
    weight = np.clip(np.minimum(np.arange(1, count + 1) - count / 4, 3 * count / 4 - np.arange(count)), 0.0, 1.0)
    return np.asarray((ordered * weight).sum(-1) / weight.sum())


def interval(strata: Sequence[Sequence[float]], seed: int = 0, draws: int = DRAWS) -> Interval:
    """IQM of all values, with a percentile interval from ``draws`` resamples within each stratum. Raises ValueError."""
    if not strata or not all(len(stratum) for stratum in strata):
        raise ValueError("an interval needs at least one value in every stratum")
    rng = np.random.default_rng(seed)
    parts = [np.asarray(stratum, dtype=np.float64) for stratum in strata]
    drawn = np.concatenate([part[rng.integers(0, part.size, (draws, part.size))] for part in parts], axis=1)
    low, high = np.quantile(iqm(drawn), (0.025, 0.975))
    return Interval(float(iqm(np.concatenate(parts))), float(low), float(high))


def share(hits: int, of: int) -> Interval | None:
    """``hits / of`` with Wilson's interval; None of nothing."""
    if of == 0:
        return None
    from scipy.stats import binomtest  # takes a second, and most runs report no share

    interval = binomtest(hits, of).proportion_ci(method="wilson")
    return Interval(hits / of, float(interval.low), float(interval.high))
