"""All experts alike: what is tried on one shared machine.

The queueing model gives every replica its cores to itself; it knows neither what the ingress does nor what a CPU quota
lets through. So there the simulator is asked, with each resource of Φ for all experts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from autoscaler.contract import Configuration
from evaluation.bound.loads import Meter, WindowLoad, peak_tokens
from evaluation.bound.oracle import simulate
from simulation.engine.requests import Requests
from simulation.workloads.workload import Workload

REPLICAS = (1, 2, 4)
CONCURRENCY = 4
"""Calls at once cost nothing; where a replica takes very many, scalers that go by its free slots never see it full."""


def choices(workload: Workload, requests: Requests) -> Iterator[Configuration]:
    """Each resource with as many replicas of :data:`REPLICAS` as Φ allows, :data:`CONCURRENCY`, and the least memory
    that is enough for every expert and, in coupled mode, for the cores."""
    space, peak = workload.space, _peak_tokens(workload, requests)
    slots = min(max(CONCURRENCY, space.concurrency_min), space.concurrency_max)
    needs = {workload.memory_need(node, peak) for node in workload.experts}
    for replicas in sorted({min(max(count, space.replicas_min), space.replicas_max) for count in REPLICAS}):
        least_mb = max((space.least_memory_mb(need, replicas) or space.memory_max_mb for need in needs), default=0)
        for cores, share in space.resources:
            wanted_mb = max(least_mb, cores * (workload.memory_mb_per_core or 0.0))
            memory_mb = next((size for size in space.memory_sizes_mb if size >= wanted_mb), space.memory_max_mb)
            yield Configuration(memory_mb, cores, share, replicas, slots)


def _peak_tokens(workload: Workload, requests: Requests) -> float:
    """Most tokens in flight at any expert, where every request is gone after λ: P of Eq. (2)."""
    until = np.searchsorted(requests.arrival_s, requests.arrival_s + workload.slo_s, side="right")
    return max((peak_tokens(tokens, until) for tokens in requests.counts[1:]), default=0.0)


def deployed(workload: Workload, choice: Configuration) -> dict[str, Configuration]:
    """Function → ``choice``, of every expert."""
    return {node.function: choice for node in workload.experts}


Outcome = tuple[Configuration, float, float]
"""A choice, its cost, and the P95 of all requests in seconds."""


def outcomes(load: WindowLoad, meter: Meter, seed: int) -> list[Outcome]:
    """Of every choice, in a window that stands by itself, see :func:`evaluation.bound.oracle.simulate`."""
    workload = load.physics.workload
    return [
        (choice, *simulate(load, deployed(workload, choice), meter, seed))
        for choice in choices(workload, load.requests)
    ]


def binds_alike(found: Sequence[Outcome], slo_s: float) -> bool:
    """Whether the choice that is cheapest breaks the SLO, and another keeps it."""
    _, _, cheapest_s = min(found, key=lambda one: one[1])
    return cheapest_s > slo_s >= min(p95_s for _, _, p95_s in found)
