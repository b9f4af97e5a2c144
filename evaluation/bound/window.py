"""One window: the least cost of all experts within the SLO, enclosed from both sides.

A layer waits for its slowest expert, so its cost at T is a step function: every expert takes its cheapest configuration
with latency at most T. The maximum over experts is so treated exactly; the layers' functions share the budget
(:mod:`evaluation.bound.knapsack`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evaluation.bound.frontier import ExpertTable, Frontier, SpaceArrays, frontier
from evaluation.bound.knapsack import BUCKETS, Steps, split
from simulation.arrays import Ints


@dataclass(frozen=True)
class Enclosure:
    """Least cost of one window, for latencies that depend on each expert's own configuration only."""

    budget_s: float
    lower: float
    """Valid lower bound; infinite where no choice of configurations meets the budget."""
    upper: float
    """Cost of the choice below."""
    numbers: tuple[Ints, ...]
    """Per layer [experts]: configuration numbers of that choice; empty where there is none."""
    fastest_s: float
    """Least sum of latencies that any choice has."""
    cheapest: float
    """Least cost where latency does not matter."""
    cheapest_s: float
    """Sum of latencies of that choice; where it is within the budget, the SLO does not bind."""

    @property
    def feasible(self) -> bool:
        return bool(np.isfinite(self.upper))

    @property
    def binds(self) -> bool:
        """Whether the budget can be met, but not by the cheapest choice: else a calibration measures nothing."""
        return self.fastest_s <= self.budget_s < self.cheapest_s

    @property
    def gap(self) -> float:
        return 0.0 if self.upper == self.lower else (self.upper - self.lower) / self.lower


def enclose(
    layers: Sequence[Sequence[ExpertTable]], space_arrays: SpaceArrays, budget_s: float, buckets: int = BUCKETS
) -> Enclosure:
    """The least cost at which the layers' slowest experts add up to at most ``budget_s``, over the whole of Φ."""
    return enclose_frontiers(
        [[frontier(table, space_arrays) for table in layer] for layer in layers], budget_s, buckets
    )


def enclose_frontiers(layers: Sequence[Sequence[Frontier]], budget_s: float, buckets: int = BUCKETS) -> Enclosure:
    """:func:`enclose` where the frontiers are already known: they do not depend on the budget."""
    functions: list[Steps] = [steps(layer) for layer in layers]
    enclosure = split(functions, budget_s, buckets)
    possible = all(len(function) for function in functions)
    return Enclosure(
        budget_s,
        enclosure.lower,
        enclosure.upper,
        tuple(choose(layer, float(part)) for layer, part in zip(layers, enclosure.latency_s, strict=True))
        if np.isfinite(enclosure.upper)
        else (),
        sum(float(function.latency_s[0]) for function in functions) if possible else np.inf,
        sum(float(function.cost[-1]) for function in functions) if possible else np.inf,
        sum(float(function.latency_s[-1]) for function in functions) if possible else np.inf,
    )


def steps(experts: Sequence[Frontier]) -> Steps:
    """The step function of a layer; empty where an expert has no valid configuration. No experts: (0, 0)."""
    if not experts:
        return Steps(np.zeros(1), np.zeros(1))
    if any(len(expert) == 0 for expert in experts):
        return Steps(np.empty(0), np.empty(0))
    first_s = max(expert.latency_s[0] for expert in experts)
    breaks = np.unique(np.concatenate([expert.latency_s for expert in experts]))
    breaks = breaks[breaks >= first_s]
    cost = np.zeros(len(breaks))
    for expert in experts:
        cost += expert.cost[np.searchsorted(expert.latency_s, breaks, side="right") - 1]
    falls = np.concatenate(([True], cost[1:] < np.minimum.accumulate(cost)[:-1]))
    return Steps(breaks[falls], cost[falls])


def choose(experts: Sequence[Frontier], latency_s: float) -> Ints:
    """[experts]: number of the cheapest configuration of each with at most this latency. Raises ValueError for none."""
    numbers = []
    for expert in experts:
        position = int(np.searchsorted(expert.latency_s, latency_s, side="right")) - 1
        if position < 0:
            raise ValueError(f"no configuration of an expert is done within {latency_s} s")
        numbers.append(int(expert.number[position]))
    return np.array(numbers, np.int64)
