"""Deployments that a search walks through: separable optima of a profile, and steps away from them.

ServerlessMoE (arXiv 2501.05313) first profiles which experts tokens choose, then optimises a deployment of every expert
for that popularity. So a search starts from deployments that are made for a profile expert by expert (*anchors*): the
separable optimum (:mod:`evaluation.bound.window`) of a stretch of the profile at several shares of the latency budget.
Parameters are the anchor's number and, for groups of experts by popularity, steps on the axes of Φ. They say nothing of
single experts, so what was found for one profile can be built for another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from autoscaler.contract import Configuration, MemoryNeed, NodeInfo
from autoscaler.prices import Meter
from evaluation.bound.loads import WindowLoad, expected_tables, peak_tokens
from evaluation.bound.oracle import configurations
from evaluation.bound.walls import Problem

SHARES = (1.0, 0.8, 0.6, 0.45, 0.3, 0.15)
"""Parts of the latency budget that the queueing model is given, cheap first."""
AXES = ("compute", "replicas", "concurrency")
Parameters = Mapping[str, int]
Deployment = Mapping[str, Configuration]


@dataclass(frozen=True, eq=False)
class Deployments:
    """``loads``: stretches of the profile, little load first, the busiest last; all of one workload."""

    loads: tuple[WindowLoad, ...]
    meter: Meter = "provisioned"
    groups: int = 4
    """Groups of experts by popularity, equally many in each."""
    axes: tuple[str, ...] = AXES
    """Axes that are stepped along."""

    @property
    def spans(self) -> dict[str, tuple[int, int]]:
        """Parameter → least and most."""
        space = self.loads[-1].physics.workload.space
        steps = {
            "compute": len(space.resources) - 1,
            "replicas": len(space.replica_counts) - 1,
            "concurrency": len(space.concurrencies) - 1,
        }
        spans = {"anchor": (0, len(self.loads) * len(SHARES) - 1)}
        groups = range(len(self.by_popularity))
        return spans | {f"{axis}-{group}": (-steps[axis], steps[axis]) for group in groups for axis in self.axes}

    def build(self, parameters: Parameters) -> dict[str, Configuration]:
        """Configurations of all experts: the anchor's, stepped along the axes as far as Φ goes, with the least memory
        of Eq. (2)."""
        anchor, space = self.anchors[parameters["anchor"]], self.loads[-1].physics.workload.space
        deployment = {}
        for group, functions in enumerate(self.by_popularity):
            compute, replicas, concurrency = (parameters.get(f"{axis}-{group}", 0) for axis in AXES)
            for function in functions:
                base = anchor[function]
                at = space.resources.index((base.cpu_cores, base.gpu_share)) + compute
                cores, share = space.resources[min(max(at, 0), len(space.resources) - 1)]
                count = min(max(base.replicas + replicas, space.replicas_min), space.replicas_max)
                slots = min(max(base.concurrency + concurrency, space.concurrency_min), space.concurrency_max)
                deployment[function] = Configuration(
                    self._memory_mb(function, cores, count), cores, share, count, slots
                )
        return deployment

    @cached_property
    def anchors(self) -> tuple[Deployment, ...]:
        """For each stretch, one at each of ``SHARES``; the fastest where a share cannot be had, and the most of every
        axis where nothing serves the stretch."""
        return tuple(anchor for load in self.loads for anchor in self._optima(load))

    @cached_property
    def by_popularity(self) -> tuple[tuple[str, ...], ...]:
        """Functions of the experts in groups by their tokens in the busiest stretch, fewest first."""
        load, nodes = self.loads[-1], self._experts
        tokens = [int(load.tokens(1 + e).sum(dtype=np.int64)) for e in range(len(nodes))]
        parts = np.array_split(np.argsort(tokens, kind="stable"), min(self.groups, len(nodes)))
        return tuple(tuple(nodes[int(e)].function for e in part) for part in parts)

    def words(self, parameters: Parameters) -> str:
        """Anchor and steps, as ``0.8 of the budget, stretch 1; compute +1 0 0 0``."""
        stretch, share = divmod(parameters["anchor"], len(SHARES))
        steps = [[parameters.get(f"{axis}-{group}", 0) for group in range(self.groups)] for axis in self.axes]
        moved = [
            f"{axis} {' '.join(f'{step:+d}' if step else '0' for step in row)}"
            for axis, row in zip(self.axes, steps, strict=True)
            if any(row)
        ]
        return "; ".join([f"{SHARES[share]:g} of the budget, stretch {stretch}", *moved])

    @property
    def _experts(self) -> tuple[NodeInfo, ...]:
        return self.loads[-1].physics.workload.experts

    @cached_property
    def _needs(self) -> dict[str, MemoryNeed]:
        """Function → Eq. (2)'s numbers in the busiest stretch."""
        load = self.loads[-1]
        workload = load.physics.workload
        until = np.searchsorted(load.arrival_s, load.arrival_s + workload.slo_s, side="right")
        return {
            node.function: workload.memory_need(node, peak_tokens(load.tokens(1 + e), until))
            for e, node in enumerate(self._experts)
        }

    def _memory_mb(self, function: str, cores: float, replicas: int) -> int:
        """Least memory of Eq. (2), and in coupled mode enough for a replica to have its cores; else the most."""
        workload = self.loads[-1].physics.workload
        sizes = workload.space.memory_sizes_mb
        least = workload.space.least_memory_mb(self._needs[function], replicas) or sizes[-1]
        per_core = workload.memory_mb_per_core or 0.0
        return next((size for size in sizes if size >= max(least, cores * per_core)), sizes[-1])

    def _optima(self, load: WindowLoad) -> Sequence[Deployment]:
        physics = load.physics
        tables, outside_s = expected_tables(load, self.meter)
        problem = Problem(tables, physics.space_arrays, physics.workload.expert_room)
        budget_s = max(0.0, physics.workload.slo_s - outside_s)
        optima = []
        for share in SHARES:
            best = problem.enclose(share * budget_s)
            if not best.feasible and np.isfinite(best.fastest_s):
                best = problem.quickest()
            optima.append(configurations(physics, best.numbers) if best.feasible else self._most)
        return optima

    @property
    def _most(self) -> Deployment:
        space = self.loads[-1].physics.workload.space
        cores, share = space.resources[-1]
        most = Configuration(space.memory_max_mb, cores, share, space.replicas_max, space.concurrency_max)
        return {node.function: most for node in self._experts}
