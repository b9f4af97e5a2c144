"""A workload's latency model over every compute of Φ, as arrays: the simulator's own tables, one row a compute."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from autoscaler.contract import Configuration, NodeInfo
from rl.bound.frontier import Floats, Ints, Lattice, lattice
from rl.sim.tables import ResourceTables
from rl.workload import Workload


@dataclass(frozen=True, eq=False)
class NodeRows:
    """One kind of node on every row of the lattice (or, for a segment, on its one configuration)."""

    seconds: Floats
    """[rows, tokens + 1]: a call alone, mean."""
    rate: Floats
    """[rows, m]: how fast each of m = 1, 2 … calls at once goes; 1 alone."""
    noise: Floats
    """[scatters, points]: inverse distribution functions of a call's factor."""
    noise_of: Ints
    """[rows]: which of them a row has."""

    @cached_property
    def speedup(self) -> Floats:
        """[rows, m]: work per second of m calls at once over that of one."""
        return np.asarray(self.rate * np.arange(1, self.rate.shape[1] + 1))

    @cached_property
    def most_work(self) -> Floats:
        """[rows, m]: the most work per second of at most m calls, whoever else is served beside them.

        Others never speed a call up, so where a rate rises with m it is taken for smaller m too.
        """
        highest = np.maximum.accumulate(self.rate[:, ::-1], axis=1)[:, ::-1]
        return np.asarray(np.maximum.accumulate(highest * np.arange(1, self.rate.shape[1] + 1), axis=1))


class Physics:
    """Tables of a workload up to requests of ``most_tokens`` tokens. Nodes of equal cost share theirs."""

    def __init__(self, workload: Workload, most_tokens: int) -> None:
        self.workload = workload
        self.lattice: Lattice = lattice(workload.space, workload.prices, workload.memory_mb_per_core)
        widest = replace(workload.space, concurrency_min=workload.space.concurrency_max)
        self.widest: Lattice = lattice(widest, workload.prices, workload.memory_mb_per_core)
        """Φ with the largest concurrency alone: all that a bound which is blind to waiting needs."""
        self.layers = [workload.topology.experts(layer) for layer in range(workload.topology.layers)]
        calls = max(workload.space.concurrency_max, workload.segment_configuration.concurrency)
        self._tables = ResourceTables(workload, most_tokens, calls)
        self._shared: dict[tuple[int, ...], NodeRows] = {}
        self._least: dict[tuple[float, float, float], Ints] = {}
        computes = self._computes()
        self.experts = [[self._of(node, computes) for node in layer] for layer in self.layers]
        self.segments = [self._of(node, [workload.segment_configuration]) for node in workload.segments]

    @property
    def constant_s(self) -> float:
        """The ingress's part of every request: before the first stage and between the 2n + 1 stages."""
        return self.workload.request_s + 2 * len(self.layers) * self.workload.hop_s

    def least_memory(self, node: NodeInfo, peak_tokens: float) -> Ints:
        """Eq. (2) for an expert, see :meth:`Lattice.least_memory`."""
        need = self.workload.memory_need(node, peak_tokens)
        key = (need.runtime_bytes, need.bytes_per_token, peak_tokens)
        if key not in self._least:
            self._least[key] = self.lattice.least_memory(need)
        return self._least[key]

    def _computes(self) -> list[Configuration]:
        """A configuration for every row; its memory is enough for the cores in coupled mode."""
        per_core = self.workload.memory_mb_per_core or 0.0
        return [
            Configuration(max(1, int(np.ceil(cores * per_core))), float(cores), float(share), 1, 1)
            for cores, share in zip(self.lattice.cpu_cores, self.lattice.gpu_share, strict=True)
        ]

    def _of(self, node: NodeInfo, computes: list[Configuration]) -> NodeRows:
        rows = tuple(self._tables.row(node, compute) for compute in computes)
        if rows not in self._shared:
            at = np.array(rows)
            noise, noise_of = np.unique(self._tables.noise[at], axis=0, return_inverse=True)
            self._shared[rows] = NodeRows(
                self._tables.seconds[at], self._tables.rate[at, 1:], noise, noise_of.reshape(-1).astype(np.int64)
            )
        return self._shared[rows]
