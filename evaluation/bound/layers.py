"""Per layer: the least cost at which all its experts are done within T, a step function of T.

A layer waits for its slowest expert, so at T every expert takes its cheapest configuration with latency at most T. The
maximum over experts is so treated exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evaluation.bound.frontier import Frontier
from simulation.arrays import Floats, Ints


@dataclass(frozen=True)
class Steps:
    """C(T) of one layer: latency ascending, cost strictly descending; C is infinite before the first."""

    latency_s: Floats
    cost: Floats

    def __len__(self) -> int:
        return len(self.latency_s)


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
