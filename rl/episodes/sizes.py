"""Workloads of other sizes, made from one that there is: what an agent must carry over to."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from autoscaler.contract import NodeInfo, Topology
from simulation.latency.contract import NodeCost
from simulation.workloads.routing import zipf_routing
from simulation.workloads.workload import Workload


def resized(workload: Workload, layers: int, experts: int, seed: int = 0) -> Workload:
    """``workload`` with so many MoE layers of so many experts: λ grows with the layers, routing is made again (Zipf).

    Costs are taken over: the first and last segment's, and in between those of the nearest part of the pass; an expert
    is as large as before, so with more experts each has fewer tokens. As many of a layer are shared as before. Raises
    ValueError.
    """
    shared, fewest = workload.shared, workload.top_k + workload.shared
    if layers < 1 or experts < fewest:
        raise ValueError(f"a pipeline has a layer or more and {fewest} experts or more, got {layers}×{experts}")
    old, name = workload.topology.layers, f"{workload.name}-{layers}x{experts}"
    costs: dict[str, NodeCost] = {}
    nodes = [NodeInfo("ingress", name, "ingress", None, None, 0, 0, 0)]
    edges: list[tuple[str, str]] = []
    for i in range(layers + 1):
        segment = f"segment-{i}"
        costs[segment] = workload.costs[f"segment-{_nearest(i, layers, old)}"]
        nodes.append(_info(name, segment, costs[segment], i, None))
        if i == layers:
            break
        there = workload.topology.experts(min(old - 1, i * old // layers))
        for j in range(experts):
            expert = f"expert-{i}-{j}"
            same = j % (len(there) - shared) if j < experts - shared else j - experts
            costs[expert] = workload.costs[there[same].id]
            nodes.append(_info(name, expert, costs[expert], i, j))
            edges += [(segment, expert), (expert, f"segment-{i + 1}")]
    digest = hashlib.sha256(repr((workload.topology.manifest_sha256, layers, experts)).encode()).hexdigest()
    return replace(
        workload,
        name=name,
        topology=Topology(name, digest, layers, tuple(nodes), tuple(edges), generates=workload.topology.generates),
        slo_s=workload.slo_s * layers / old,
        costs=costs,
        routing=zipf_routing([experts] * layers, seed=seed),
    )


def _nearest(i: int, layers: int, old: int) -> int:
    """Segment of a pass of ``old`` layers that stands for segment ``i`` of one of ``layers``."""
    if i in (0, layers):
        return 0 if i == 0 else old
    return min(max(1, round(i * old / layers)), max(1, old - 1))


def _info(pipeline: str, node: str, cost: NodeCost, layer: int, expert: int | None) -> NodeInfo:
    larger = int(max(cost.bytes_in_per_token, cost.bytes_out_per_token))
    flops, weights = int(cost.flops_per_token), int(cost.weights_bytes)
    return NodeInfo(node, f"{pipeline}-{node}", cost.kind, layer, expert, flops, weights, larger)
