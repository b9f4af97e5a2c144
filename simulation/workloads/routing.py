"""Where tokens go: popularity of experts that drifts, and how unevenly single requests use them.

A request's weight of expert j in a layer is the popularity at its time times a factor of its own (lognormal, mean 1).
Each token then chooses ``top_k`` distinct experts by these weights. The factor is what makes calls and tokens skew
differently, as in the paper's Observation 1: an expert with a wide factor gets its tokens from few requests (few long
calls), one with a narrow factor gets some from every request (many short calls). Statistics come from routing logs
(``traces.routing``), or are made and say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from simulation.arrays import Floats, Ints
from simulation.latency.contract import Noise

FACTOR_CVS = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0)
"""Coefficients of variation that a request's factor can have; an expert has the nearest one."""
FACTOR_POINTS = 513
DIGITS = 12


class PromptLog(Protocol):
    """Single prompts of a routing log (``traces.routing.RequestRouting``)."""

    @property
    def assignments(self) -> NDArray[np.int32]:
        """[requests, layers, experts]."""

    @property
    def tokens(self) -> Ints:
        """[requests]."""


class RoutingLog(Protocol):
    """What is read of a routing log (``traces.routing.Routing``)."""

    @property
    def shares(self) -> Floats:
        """[windows, layers, experts], sums to 1 over experts."""

    @property
    def source(self) -> str: ...

    @property
    def requests(self) -> PromptLog | None: ...


@dataclass(frozen=True, eq=False)
class RoutingStatistics:
    """``popularity [phases, layers, experts] float64``: weights above or equal to 0, rows of experts sum to 1; layers
    with fewer experts are padded with 0. They are the shares of tokens for top-1 and narrow factors; distinct choices
    (``top_k`` above 1) and wide factors of some experts make shares more even than weights. Phase p holds at
    ``p · phase_s``, linear in between, the last one joined to the first. ``spread [layers, experts] int64``: index into
    ``FACTOR_CVS``.
    """

    popularity: Floats
    spread: Ints
    phase_s: float
    source: str

    def __post_init__(self) -> None:
        weights, spread = np.asarray(self.popularity, dtype=np.float64), np.asarray(self.spread, dtype=np.int64)
        if weights.ndim != 3 or 0 in weights.shape or spread.shape != weights.shape[1:]:
            raise ValueError(
                f"popularity has axes [phases, layers, experts] and spread the last two of them, got "
                f"{weights.shape} and {spread.shape}"
            )
        if weights.min() < 0 or np.abs(weights.sum(axis=2) - 1).max() > 1e-6:
            raise ValueError("popularity holds shares of 0 or more that sum to 1 over a layer's experts")
        if spread.min() < 0 or spread.max() >= len(FACTOR_CVS) or not self.phase_s > 0:
            raise ValueError(f"spread is an index of 0 to {len(FACTOR_CVS) - 1}, and phase_s is above 0")
        weights = np.round(weights, DIGITS)
        weights.setflags(write=False)
        spread.setflags(write=False)
        object.__setattr__(self, "popularity", weights)
        object.__setattr__(self, "spread", spread)

    @property
    def layers(self) -> int:
        return int(self.popularity.shape[1])

    @property
    def experts(self) -> int:
        """Most experts of a layer."""
        return int(self.popularity.shape[2])


def factor_tables() -> Floats:
    """[len(FACTOR_CVS), FACTOR_POINTS] float64: quantiles of a request's factor at even steps."""
    rows = [Noise.lognormal(cv, FACTOR_POINTS).factors for cv in FACTOR_CVS[1:]]
    return np.stack([np.ones(FACTOR_POINTS), *rows])


def zipf_routing(
    experts: Sequence[int],
    *,
    exponent: float = 0.6,
    phases: int = 12,
    phase_s: float = 300.0,
    swaps: int = 1,
    seed: int = 0,
) -> RoutingStatistics:
    """Made statistics: Zipf over a random order of each layer's experts; each phase swaps ``swaps`` pairs of ranks.

    ``experts``: how many each layer has. An exponent of 0.6 puts twice the mean load on the busiest of eight experts,
    as DeepSeek-V2-Lite's log shows of its own (1.9 to 2.1). Spreads are drawn evenly from ``FACTOR_CVS`` of 0.25 and
    more.
    """
    if not experts or min(experts) < 1 or exponent < 0 or phases < 1 or swaps < 0:
        raise ValueError("Zipf routing needs experts in every layer, an exponent of 0 or more and a phase")
    generator = np.random.default_rng(seed)
    weights = np.zeros((phases, len(experts), max(experts)))
    spread = np.zeros((len(experts), max(experts)), dtype=np.int64)
    for layer, count in enumerate(experts):
        law = np.arange(1.0, count + 1) ** -exponent
        ranks = generator.permutation(count)
        for phase in range(phases):
            weights[phase, layer, :count] = law[ranks] / law.sum()
            for _ in range(swaps if count > 1 else 0):
                one, other = generator.choice(count, 2, replace=False)
                ranks[one], ranks[other] = ranks[other], ranks[one]
        spread[layer, :count] = generator.integers(1, len(FACTOR_CVS), count)
    return RoutingStatistics(
        weights, spread, phase_s, f"made: Zipf {exponent:g}, {swaps} swaps each {phase_s:g} s, seed {seed}"
    )


def logged_routing(log: RoutingLog, experts: Sequence[int], *, phase_s: float = 300.0) -> RoutingStatistics:
    """Statistics of a routing log, seen by a pipeline with ``experts`` experts in its layers.

    Windows of the log become phases. Layers are taken evenly spaced from the log's first to its last; where the log has
    more experts than a layer, those at even distances of the popularity order stand for it (summing groups would even
    the skew out). Spreads come from single prompts where the log names them: the part of the variance of a prompt's
    share that drawing tokens does not explain. Raises ValueError for a log with fewer experts than a layer.
    """
    shares = log.shares
    if max(experts) > shares.shape[2]:
        raise ValueError(f"{log.source}: {shares.shape[2]} experts are logged, a layer has {max(experts)}")
    taken = np.linspace(0, shares.shape[1] - 1, len(experts)).round().astype(np.int64)
    weights = np.zeros((shares.shape[0], len(experts), max(experts)))
    spread = np.full((len(experts), max(experts)), 2, dtype=np.int64)
    for layer, count in enumerate(experts):
        order = np.argsort(-shares[:, taken[layer]].mean(axis=0), kind="stable")
        chosen = np.sort(order[np.linspace(0, shares.shape[2] - 1, count).round().astype(np.int64)])
        part = shares[:, taken[layer], chosen] + 1e-6
        weights[:, layer, :count] = part / part.sum(axis=1, keepdims=True)
        if log.requests is not None:
            cvs = _prompt_cvs(log.requests, int(taken[layer]), chosen)
            spread[layer, :count] = np.abs(cvs[:, None] - np.asarray(FACTOR_CVS)).argmin(axis=1)
    return RoutingStatistics(weights, spread, phase_s, f"{log.source}; {max(experts)} experts of {shares.shape[2]}")


def _prompt_cvs(prompts: PromptLog, layer: int, chosen: Ints) -> Floats:
    """[experts] coefficient of variation of prompts' shares, without what drawing so few tokens would give."""
    counts = prompts.assignments[:, layer].astype(np.float64)
    totals = counts.sum(axis=1)
    heavy = totals >= 32
    shares = counts[heavy] / totals[heavy, None]
    mean, variance = shares.mean(axis=0), shares.var(axis=0)
    drawn = (mean * (1 - mean)) * (1 / totals[heavy]).mean()
    return np.asarray(np.sqrt(np.maximum(variance - drawn, 0.0))[chosen] / np.maximum(mean[chosen], 1e-9))
