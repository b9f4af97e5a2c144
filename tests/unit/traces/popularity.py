"""How skewed and how drifting expert popularity is: Zipf fits, skew and drift of a :class:`traces.routing.Routing`.

Pure functions over arrays. Popularity is judged by assignments, so tokens count, not requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from traces.errors import TraceError
from traces.model import FloatArray, IntArray
from traces.routing import RequestRouting, Routing

MAX_EXPONENT = 20.0


@dataclass(frozen=True, eq=False)
class ZipfFit:
    """Share of the r-th most popular of E experts ~ r^-exponent, fitted per window and layer."""

    exponent: FloatArray
    """[windows, layers] float64, 0 is uniform."""
    distance: FloatArray
    """[windows, layers] float64: total variation distance of the fit from the ranked shares, 0 to 1; what the law
    leaves out."""


def zipf(assignments: IntArray) -> ZipfFit:
    """Maximum likelihood over ranks for ``assignments`` [windows, layers, experts]. Raises TraceError.

    The likelihood's one maximum is where the law's mean log rank equals the counts'; it falls with the exponent,
    so bisection finds it. Ranks come from the same counts, which overstates the exponent where a window has few
    assignments per expert (uniform routing of n assignments over 64 experts gives about .27 at n = 640, .10 at 6,400
    and .03 at 64,000).
    """
    if assignments.ndim != 3 or assignments.shape[2] < 2 or (assignments.sum(axis=2) <= 0).any():
        raise TraceError("a Zipf fit needs [windows, layers, experts] of at least two experts, none of them empty")
    ranked = -np.sort(-assignments.astype(np.float64), axis=2)
    shares = ranked / ranked.sum(axis=2, keepdims=True)
    logs = np.log(np.arange(1.0, assignments.shape[2] + 1))
    wanted = (shares * logs).sum(axis=2)
    low, high = np.zeros_like(wanted), np.full_like(wanted, MAX_EXPONENT)
    for _ in range(60):
        middle = (low + high) / 2
        too_flat = (_law(middle, logs) * logs).sum(axis=2) > wanted
        low, high = np.where(too_flat, middle, low), np.where(too_flat, high, middle)
    exponent = (low + high) / 2
    return ZipfFit(exponent, np.abs(_law(exponent, logs) - shares).sum(axis=2) / 2)


def skew(shares: FloatArray) -> FloatArray:
    """Busiest expert over the mean, [...] from shares [..., experts]: 1 is even, E is all on one."""
    result: FloatArray = shares.max(axis=-1) * shares.shape[-1]
    return result


@dataclass(frozen=True)
class Drift:
    """How popularity moves from window to window. All are means over layers (and windows)."""

    distance: float
    """Total variation distance between neighbouring windows, 0 to 1: the share of assignments that changed place."""
    distance_shuffled: float | None
    """The same with the prompts shuffled over the windows: what is left when nothing drifts, only prompts differ.
    None where the log names no prompts."""
    rank_correlation: float
    """Spearman's, between neighbouring windows; 1 is the same order."""
    busiest_kept: float
    """Share of steps in which a layer's busiest expert stays the busiest."""
    spread: float
    """Standard deviation over windows of the log share about its mean of all windows, root mean square over
    experts; experts without a single assignment in a window count as half an assignment there."""
    persistence: float
    """Lag-one autocorrelation of that log share, pooled over experts, -1 to 1. With few windows it is biased low by
    about (1 + 3 x persistence) / windows."""


def drift(routing: Routing, seed: int = 0) -> Drift:
    """Raises TraceError below three windows."""
    if routing.windows < 3:
        raise TraceError(f"{routing.source}: drift needs at least three windows, got {routing.windows}")
    shares = routing.shares
    logs = np.log(np.maximum(routing.assignments, 0.5) / routing.assignments.sum(axis=2, keepdims=True))
    away = logs - logs.mean(axis=0)
    power = float((away**2).mean())
    carried = float((away[1:] * away[:-1]).mean())
    ranks = np.argsort(np.argsort(shares, axis=2, kind="stable"), axis=2, kind="stable").astype(np.float64)
    ranks -= ranks.mean(axis=2, keepdims=True)
    busiest = shares.argmax(axis=2)
    return Drift(
        distance=_mean_step(shares),
        distance_shuffled=None if routing.requests is None else _shuffled(routing.requests, seed),
        rank_correlation=float(((ranks[1:] * ranks[:-1]).sum(axis=2) / (ranks**2).sum(axis=2)[1:]).mean()),
        busiest_kept=float((busiest[1:] == busiest[:-1]).mean()),
        spread=power**0.5,
        persistence=float(np.clip(carried / power, -1.0, 1.0)) if power > 0 else 1.0,
    )


def _law(exponent: FloatArray, logs: FloatArray) -> FloatArray:
    """[windows, layers, experts] shares of the law for exponents [windows, layers]."""
    weights = np.exp(-exponent[:, :, None] * logs)
    law: FloatArray = weights / weights.sum(axis=2, keepdims=True)
    return law


def _mean_step(shares: FloatArray) -> float:
    return float(np.mean([np.abs(after - before).sum(axis=-1) / 2 for before, after in pairwise(shares)]))


def _shuffled(requests: RequestRouting, seed: int) -> float:
    order = np.random.default_rng(seed).permutation(requests.tokens.size)
    starts = np.searchsorted(requests.window, np.arange(int(requests.window.max()) + 1))
    summed = np.add.reduceat(requests.assignments[order], starts, axis=0).astype(np.float64)
    return _mean_step(summed / summed.sum(axis=2, keepdims=True))
