"""How long a mean call of a mean expert takes on each resource of Φ: what makes one agent fit heterogeneous
machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autoscaler.contract import ConfigurationSpace
from simulation.arrays import Floats
from simulation.latency.contract import LatencyModel, NodeCost
from simulation.workloads.workload import Workload

TOKENS = 32.0
"""Tokens of a mean call where nothing is known of it."""
CORES_OF_A_GPU = 50.0
"""Where only cores and shares are known, a whole GPU counts as so many cores (assumption)."""
PART_OF_A_CORE = 0.5
"""Where nothing is known of speeds, a mean call on one core is taken to last this part of λ / n (assumption)."""


@dataclass(frozen=True, eq=False)
class CallTimes:
    """``seconds [R] float64``: a mean call of a mean expert, alone, on each of ``ConfigurationSpace.resources``."""

    seconds: Floats
    tokens: float
    """Tokens of a mean call."""
    source: str
    """Where the numbers come from, in words."""

    def __post_init__(self) -> None:
        if self.seconds.ndim != 1 or not (self.seconds > 0).all() or not np.isfinite(self.seconds).all():
            raise ValueError(f"call times are seconds above 0, one a resource; got {self.seconds}")
        if not self.tokens > 0:
            raise ValueError(f"a mean call has more than 0 tokens, got {self.tokens}")

    @property
    def mean_s(self) -> float:
        """Geometric mean over the resources: the unit of work."""
        return float(np.exp(np.log(self.seconds).mean()))


def calls_of(workload: Workload) -> CallTimes:
    """From a workload's latency model: profiled where that was measured. Coupled mode: with all of the cores."""
    experts = [(workload.costs[node.id], workload.typical_tokens(node)) for node in workload.experts]
    return mean_calls(workload.latency, experts, workload.space)


def mean_calls(
    latency: LatencyModel, experts: Sequence[tuple[NodeCost, float]], space: ConfigurationSpace
) -> CallTimes:
    """Mean over ``experts``, each with its cost and the tokens of its mean call."""
    cores, shares = np.array(space.resources, dtype=np.float64).T
    seconds, tokens = np.zeros(len(cores)), 0.0
    for (cost, length), number in Counter(experts).items():
        seconds += number / len(experts) * latency.seconds(cost, length, cores, shares)
        tokens += number / len(experts) * length
    return CallTimes(seconds, tokens, latency.name)


def calls_of_cores(space: ConfigurationSpace, slo_s: float, layers: int) -> CallTimes:
    """Where no machine is known: seconds fall with cores, in proportion; a GPU counts as ``CORES_OF_A_GPU`` cores."""
    cores, shares = np.array(space.resources, dtype=np.float64).T
    seconds = PART_OF_A_CORE * slo_s / max(1, layers) / (cores + CORES_OF_A_GPU * shares)
    return CallTimes(seconds, TOKENS, "assumed from cores and GPU shares alone")
