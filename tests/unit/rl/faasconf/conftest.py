"""A pipeline of two layers of two experts, and what a window of it looks like."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from autoscaler.contract import Configuration, NodeObservation, Observation, Topology
from evaluation.comparison.policies import limits_of
from rl.faasconf.policy import Pipeline
from simulation.workloads.workload import Workload
from tests.unit.evaluation.bound.builders import workload

Observe = Callable[..., Observation]


@pytest.fixture(scope="session")
def small() -> Workload:
    return workload(0.05)


@pytest.fixture(scope="session")
def pipeline(small: Workload) -> Pipeline:
    return Pipeline(small.topology, limits_of(small), small.slo_s)


def node_of(topology: Topology, place: int, **known: object) -> NodeObservation:
    """An expert on a core with one of three calls in use, and ``known`` in place of that."""
    info = [node for node in topology.nodes if node.kind == "expert"][place]
    found = NodeObservation(
        node=info.id,
        function=info.function,
        kind="expert",
        layer=info.layer,
        expert=info.expert,
        configuration=Configuration(128, 1.0, 0.0, 1, 3),
        ready_replicas=1,
        cpu_utilisation=0.5,
        memory_utilisation=0.25,
        gpu_utilisation=None,
        concurrency_utilisation=None,
        latency_p95_s=0.05,
        latency_mean_s=0.0125,
        tokens_per_s=99.0,
        requests_per_s=9.0,
        in_flight=1.0,
        waiting=0.5,
        busy_s=1.0,
        cpu_s=1.0,
        peak_tokens=10.0,
    )
    return found._replace(**known)  # type: ignore[arg-type]


@pytest.fixture
def observe(small: Workload) -> Observe:
    """An observation of all four experts; ``known`` changes the one at ``place``."""

    def made(place: int = 0, **known: object) -> Observation:
        nodes = tuple(node_of(small.topology, at, **(known if at == place else {})) for at in range(4))
        return Observation(0.0, 30.0, "t", 270.0, 0.0, 9.0, 300.0, 1.0, 0.02, 0.1, 0.2, nodes, ())

    return made
