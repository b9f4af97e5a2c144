"""Windows on one shared machine under uniform configurations: all experts have the same.

The queueing model gives every replica its cores to itself; it knows neither what the ingress does nor what a CPU quota
lets through. So there the simulator is asked, with each resource of the configuration space for all experts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from autoscaler.contract import Configuration
from autoscaler.prices import Meter
from evaluation.bound.loads import WindowLoad, peak_tokens
from evaluation.bound.oracle import simulate
from evaluation.uniform import fits, for_all_experts, uniform_configurations
from simulation.engine.requests import Requests
from simulation.workloads.workload import Workload

REPLICAS = (1, 2, 4)
CONCURRENCY = 4
"""Concurrent calls cost nothing; where a replica takes very many, scalers that go by its free slots never see it
full."""

Outcome = tuple[Configuration, float, float]
"""A configuration of all experts, its cost, and the P95 of all requests in seconds."""


def candidates(workload: Workload, requests: Requests) -> list[Configuration]:
    """Each resource with as many replicas of :data:`REPLICAS` as the space allows, :data:`CONCURRENCY`, and the least
    memory that is enough for every expert and, in coupled mode, for the cores, as far as the cluster has room."""
    space = workload.space
    slots = min(max(CONCURRENCY, space.concurrency_min), space.concurrency_max)
    memory_mb = enough_memory(workload, requests)
    counts = sorted({min(max(count, space.replicas_min), space.replicas_max) for count in REPLICAS})
    every = uniform_configurations(space, counts, slots, memory_mb=memory_mb)
    return [one for one in every if fits(workload, one)]


def enough_memory(workload: Workload, requests: Requests) -> Callable[[int, float], int]:
    """Replicas and CPU cores → the least memory that is enough for every expert and, in coupled mode, for the cores."""
    space, peak = workload.space, _peak_tokens(workload, requests)
    needs = {workload.memory_need(node, peak) for node in workload.experts}

    def memory_mb(replicas: int, cores: float) -> int:
        least_mb = max((space.least_memory_mb(need, replicas) or space.memory_max_mb for need in needs), default=0)
        wanted_mb = max(least_mb, cores * (workload.memory_mb_per_core or 0.0))
        return next((size for size in space.memory_sizes_mb if size >= wanted_mb), space.memory_max_mb)

    return memory_mb


def _peak_tokens(workload: Workload, requests: Requests) -> float:
    """Most tokens in flight at any expert, where every request is gone after λ: P of Eq. (2)."""
    until = np.searchsorted(requests.arrival_s, requests.arrival_s + workload.slo_s, side="right")
    return max((peak_tokens(tokens, until) for tokens in requests.counts[1:]), default=0.0)


def uniform_outcomes(load: WindowLoad, meter: Meter, seed: int) -> list[Outcome]:
    """Each of :func:`candidates` in a window that stands by itself, see :func:`evaluation.bound.oracle.simulate`."""
    workload = load.physics.workload
    return [
        (candidate, *simulate(load, for_all_experts(workload, candidate), meter, seed))
        for candidate in candidates(workload, load.requests)
    ]


def uniform_slo_binds(outcomes: Sequence[Outcome], slo_s: float) -> bool:
    """Whether the cheapest configuration breaks the SLO, and another keeps it."""
    _, _, cheapest_s = min(outcomes, key=lambda outcome: outcome[1])
    return cheapest_s > slo_s >= min(p95_s for _, _, p95_s in outcomes)
