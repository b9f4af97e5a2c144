"""Small things to test with: a pipeline of two layers with two and three experts, and observations of it."""

from __future__ import annotations

from typing import Any

from autoscaler.contract import Configuration, NodeInfo, NodeObservation, Observation, Topology
from autoscaler.prices import PriceSheet

NOW_S = 1_700_000_000.0
PRICES = PriceSheet("test", "made up", "USD", cpu_core_s=2.0, memory_gib_s=1.0, gpu_s=10.0)
EXPERTS = (2, 3)
WEIGHTS_BYTES = 10 * 2**20


def configuration(replicas: int = 1, **more: Any) -> Configuration:
    values: dict[str, Any] = {"memory_mb": 256, "cpu_cores": 1.0, "gpu_share": 0.0, "concurrency": 4}
    return Configuration(**{**values, "replicas": replicas, **more})


def info(node: str, kind: Any, layer: int | None = None, expert: int | None = None, function: str = "") -> NodeInfo:
    return NodeInfo(node, function or f"m-{node}", kind, layer, expert, 1000, WEIGHTS_BYTES, 4096)


def topology() -> Topology:
    """``m``: segments 0 to 2, experts 0-0, 0-1 and 1-0, 1-1, 1-2; 1,000 FLOPs a token each."""
    nodes = [info("ingress", "ingress", function="m")]
    nodes += [info(f"segment-{i}", "segment", i) for i in range(3)]
    nodes += [info(f"expert-{i}-{j}", "expert", i, j) for i, count in enumerate(EXPERTS) for j in range(count)]
    edges = tuple(
        edge
        for i, count in enumerate(EXPERTS)
        for j in range(count)
        for edge in ((f"segment-{i}", f"expert-{i}-{j}"), (f"expert-{i}-{j}", f"segment-{i + 1}"))
    )
    return Topology("m", "0" * 64, 2, tuple(nodes), edges)


def observed(node: NodeInfo, **more: Any) -> NodeObservation:
    """A node at rest: one ready replica, nothing to do."""
    at_rest = NodeObservation(
        node=node.id,
        function=node.function,
        kind=node.kind,
        layer=node.layer,
        expert=node.expert,
        configuration=configuration(),
        ready_replicas=1,
        cpu_utilisation=0.0,
        memory_utilisation=0.2,
        gpu_utilisation=None,
        concurrency_utilisation=0.0,
        latency_p95_s=None,
        latency_mean_s=None,
        tokens_per_s=0.0,
        requests_per_s=0.0,
        in_flight=0.0,
        waiting=0.0,
        busy_s=0.0,
        cpu_s=0.0,
        peak_tokens=0.0,
        measured_replicas=1,
        age_s=0.0,
    )
    return at_rest._replace(**more)


def observation(changes: dict[str, dict[str, Any]] | None = None, **more: Any) -> Observation:
    """A window of 10 s that ends at ``NOW_S``; ``changes``: node id → fields."""
    nodes = tuple(observed(node, **(changes or {}).get(node.id, {})) for node in topology().nodes)
    values: dict[str, Any] = {
        "start_s": NOW_S - 10,
        "end_s": NOW_S,
        "pipeline": "m",
        "requests": 10.0,
        "failed": 0.0,
        "requests_per_s": 1.0,
        "tokens_per_s": 20.0,
        "in_flight": 0.0,
        "latency_p50_s": 0.1,
        "latency_p95_s": 0.2,
        "latency_p99_s": 0.3,
        "nodes": nodes,
        "layers": (),
    }
    return Observation(**{**values, **more})
