"""Heterogeneous nodes, and a plan for them: which GPU holds which expert (Prism's z of Section III-B).

Every expert of a pipeline has the same size here (``expert_bytes``), as in all supported families; so a GPU holds a
whole number of experts and its memory limit is a number of *slots*. A node's memory is not pooled: what is left on
one GPU next to whole experts helps no other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placement.errors import InfeasibleError, PlacementError
from placement.layout import Floats

Whole = NDArray[np.int64]
PlanArray = NDArray[np.bool_]
"""[gpus, layers, experts] bool: the GPU holds the expert."""


@dataclass(frozen=True, eq=False)
class Cluster:
    """GPUs in order of their nodes, and the network between nodes. Build it with :func:`make_cluster`."""

    node: Whole
    """[gpus] int64: node of each GPU, rising from 0."""
    memory_bytes: Whole
    """[gpus] int64: memory for experts."""
    speed: Floats
    """[gpus]: relative speed of computing, 1 = the reference GPU."""
    load_bytes_per_s: Floats
    """[gpus]: speed at which an expert reaches the GPU's memory (Eq. (3))."""
    bandwidth: Floats
    """[nodes, nodes]: bytes/s from node to node; the diagonal means nothing."""

    @property
    def nodes(self) -> int:
        return len(self.bandwidth)

    @property
    def gpus(self) -> int:
        return len(self.node)

    def slots(self, expert_bytes: int) -> Whole:
        """[gpus] int64: whole experts that fit."""
        slots: Whole = self.memory_bytes // expert_bytes
        return slots

    def node_slots(self, expert_bytes: int) -> Whole:
        """[nodes] int64: whole experts that fit on the node's GPUs together."""
        slots: Whole = np.zeros(self.nodes, dtype=np.int64)
        np.add.at(slots, self.node, self.slots(expert_bytes))
        return slots

    def by_node(self, plan: PlanArray) -> PlanArray:
        """[nodes, layers, experts] bool: some GPU of the node holds the expert."""
        starts = np.searchsorted(self.node, np.arange(self.nodes))
        held: PlanArray = np.logical_or.reduceat(plan, starts, axis=0)
        return held


def make_cluster(
    gpus: list[int],
    memory_bytes: int | list[int],
    *,
    speed: float | list[float] = 1.0,
    load_bytes_per_s: float | list[float],
    bytes_per_s: float | Floats,
) -> Cluster:
    """``gpus`` of each node; numbers for all GPUs or one each; bandwidth for all pairs or [nodes, nodes], of which the
    diagonal means nothing. Raises PlacementError."""
    if not gpus or min(gpus) < 1:
        raise PlacementError(f"every node needs at least one GPU, got {gpus}")
    count, nodes = sum(gpus), len(gpus)

    def each(name: str, value: float | list[float] | list[int]) -> Floats:
        values = np.asarray(value, dtype=np.float64)
        if values.shape not in ((), (count,)) or not np.isfinite(values).all() or values.min() < 0:
            raise PlacementError(f"{name} must be one number or one for each of {count} GPUs, not negative: {value}")
        return np.broadcast_to(values, (count,)).copy()

    rates = [each("speed", speed), each("load_bytes_per_s", load_bytes_per_s)]
    if min(rate.min() for rate in rates) <= 0:
        raise PlacementError("speed and load_bytes_per_s must be above 0")
    bandwidth = np.asarray(bytes_per_s, dtype=np.float64)
    if bandwidth.shape not in ((), (nodes, nodes)):
        raise PlacementError(f"bandwidth must be one number or [{nodes}, {nodes}] of them, got shape {bandwidth.shape}")
    bandwidth = np.broadcast_to(bandwidth, (nodes, nodes)).copy()
    between = bandwidth[~np.eye(nodes, dtype=np.bool_)]
    if not (np.isfinite(between) & (between > 0)).all():
        raise PlacementError("bandwidth between nodes must be finite and above 0")
    return Cluster(
        np.repeat(np.arange(nodes), gpus),
        each("memory_bytes", memory_bytes).astype(np.int64),
        rates[0],
        rates[1],
        bandwidth,
    )


def check_fits(cluster: Cluster, layers: int, experts: int, expert_bytes: int) -> None:
    """Raises InfeasibleError where not every expert can have a place: expert coverage against GPU memory."""
    if expert_bytes < 1:
        raise PlacementError(f"expert_bytes must be at least 1, got {expert_bytes}")
    places = int(np.minimum(cluster.node_slots(expert_bytes), layers * experts).sum())
    if places < layers * experts:
        raise InfeasibleError(
            f"GPU memory: {layers} × {experts} experts of {expert_bytes} bytes need {layers * experts} places for "
            f"expert coverage, {cluster.gpus} GPUs on {cluster.nodes} nodes have {places}"
        )


def check_frequency(frequency: Floats, cluster: Cluster) -> Floats:
    """[nodes, layers, experts] float64, one block. Raises PlacementError: another shape, NaN, infinite or negative."""
    if frequency.ndim != 3 or frequency.shape[0] != cluster.nodes or not frequency.size:
        raise PlacementError(f"frequency must be [{cluster.nodes} nodes, layers, experts], got shape {frequency.shape}")
    if not np.isfinite(frequency).all() or frequency.min() < 0:
        raise PlacementError("frequency must be finite and not negative")
    return np.ascontiguousarray(frequency, dtype=np.float64)


def check_plan_shape(plan: PlanArray, name: str, cluster: Cluster, frequency: Floats | PlanArray) -> None:
    """Raises PlacementError unless ``plan`` is [gpus, layers, experts] bool for this cluster and the layers and experts
    of ``frequency`` [·, layers, experts]."""
    shape = (cluster.gpus, *frequency.shape[1:])
    if plan.ndim != 3 or plan.shape != shape or plan.dtype != np.bool_:
        raise PlacementError(f"{name} must be bool [gpus, layers, experts] = {shape}, got {plan.dtype} {plan.shape}")


def remote_calls(plan: PlanArray, cluster: Cluster, frequency: Floats) -> Floats:
    """[nodes]: Eq. (2) by node, ``frequency`` [nodes, layers, experts] of experts that the node does not hold."""
    calls: Floats = np.where(cluster.by_node(plan), 0.0, frequency).sum(axis=(1, 2))
    return calls


def local_ratio(plan: PlanArray, cluster: Cluster, frequency: Floats) -> Floats:
    """[nodes]: part of the node's calls that stay on it; 1 where there are none."""
    total = frequency.sum(axis=(1, 2))
    ratio: Floats = 1.0 - remote_calls(plan, cluster, frequency) / np.where(total > 0, total, 1.0)
    return ratio


def entropy(frequency: Floats) -> Floats:
    """[nodes, layers]: Shannon entropy in bits of each layer's activations on each node; 0 where there are none."""
    total = frequency.sum(axis=2, keepdims=True)
    p = frequency / np.where(total > 0, total, 1.0)
    bits: Floats = -(p * np.log2(np.where(p > 0, p, 1.0))).sum(axis=2)
    return bits
