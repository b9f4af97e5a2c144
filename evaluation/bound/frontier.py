"""Per expert: the Pareto frontier of (latency, cost) over the whole of Φ, masked by Eq. (2).

A configuration is worth choosing only if no other is both as fast and as cheap. What an expert does depends on its
compute (a *row*: cores that it really has, or GPU share), replicas and concurrency; configurations equal in these
differ in price alone, so of each such group only the cheapest that satisfies Eq. (2) is looked at. Nothing of Φ is lost
by that: with memory as a constraint 203,520 configurations make 1,280 groups, and where memory bounds the cores
(coupled mode) some 14,000.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from autoscaler.contract import ConfigurationSpace, MemoryNeed
from autoscaler.prices import PriceSheet
from simulation.arrays import Floats, Ints


@dataclass(frozen=True)
class SpaceArrays:
    """Φ as arrays. Axes in the order of the numbering: memory, resource, replicas, concurrency."""

    space: ConfigurationSpace
    unit_per_s: Floats
    """U_φ of one replica: [memory, resource], currency per second."""
    row: Ints
    """[memory, resource]: number of the compute that such a replica really has."""
    cpu_cores: Floats
    """[rows]: cores of it, 0 with a GPU share."""
    gpu_share: Floats
    """[rows]"""

    @property
    def replicas(self) -> Ints:
        return np.array(self.space.replica_counts, np.int64)

    @property
    def concurrencies(self) -> Ints:
        return np.array(self.space.concurrencies, np.int64)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of an expert's tables: rows, replicas, concurrencies."""
        return len(self.cpu_cores), len(self.space.replica_counts), len(self.space.concurrencies)

    def least_memory(self, need: MemoryNeed) -> Ints:
        """Eq. (2): [replicas], position of the least memory that is enough; the number of sizes where none is."""
        least = self.space.mask(need)
        sizes = self.space.memory_sizes_mb
        least_sizes = [least[replicas] for replicas in self.space.replica_counts]
        return np.array([len(sizes) if size is None else sizes.index(size) for size in least_sizes], np.int64)


def space_arrays(space: ConfigurationSpace, prices: PriceSheet, memory_mb_per_core: float | None = None) -> SpaceArrays:
    """Φ with the prices of its replicas. ``memory_mb_per_core``: coupled mode, at most memory / this many cores."""
    memory_mb = np.array(space.memory_sizes_mb, np.float64)[:, None]
    cores = np.array([cores for cores, _ in space.resources])
    shares = np.array([share for _, share in space.resources])
    unit = memory_mb / 1024 * prices.memory_gib_s + cores * prices.cpu_core_s + shares * prices.gpu_s
    really = np.broadcast_to(cores, unit.shape)
    if memory_mb_per_core is not None:
        really = np.minimum(really, memory_mb / memory_mb_per_core)
    pairs = np.stack([really.ravel(), np.broadcast_to(shares, unit.shape).ravel()], axis=1)
    distinct, row = np.unique(pairs, axis=0, return_inverse=True)
    return SpaceArrays(
        space, np.ascontiguousarray(unit), row.reshape(unit.shape).astype(np.int64), distinct[:, 0], distinct[:, 1]
    )


@dataclass(frozen=True)
class ExpertTable:
    """One expert in one window: what each configuration would do. Arrays [rows, replicas, concurrencies] float64."""

    latency_s: Floats
    """Infinite marks a configuration that cannot serve the load."""
    charged_s: Floats
    """Replica-seconds that are paid for: busy ones (Eq. 7), or replicas × seconds of the window."""
    least_memory: Ints
    """[replicas], see :meth:`SpaceArrays.least_memory`."""


@dataclass(frozen=True)
class Frontier:
    """Configurations worth choosing: latency ascending, cost strictly descending."""

    latency_s: Floats
    cost: Floats
    number: Ints
    """Their numbers in the space."""

    def __len__(self) -> int:
        return len(self.latency_s)

    def second(self, number: int) -> tuple[int, float] | None:
        """Number and additional cost of the cheapest other configuration that is at least as fast as ``number``; None
        where there is none, or ``number`` is not worth choosing."""
        at = np.flatnonzero(self.number == number)
        if not at.size or not at[0]:
            return None
        place = int(at[0])
        return int(self.number[place - 1]), float(self.cost[place - 1] - self.cost[place])


def frontier(table: ExpertTable, space_arrays: SpaceArrays, extra: Floats | None = None) -> Frontier:
    """The Pareto frontier of one expert over all valid configurations; empty where there is none.

    ``extra`` [memory, resource]: what each replica costs on top, never falling with memory; None: nothing. Raises
    ValueError for tables of another shape than the space_arrays's.
    """
    for values in (table.latency_s, table.charged_s):
        if values.shape != space_arrays.shape:
            raise ValueError(
                f"a table is {values.shape}; the space_arrays's rows, replicas, concurrencies are {space_arrays.shape}"
            )
    latency, cost, number = _groups(
        table.latency_s, table.charged_s, space_arrays.unit_per_s, space_arrays.row, table.least_memory
    )
    if extra is not None:
        memory, resource, replicas, _ = np.unravel_index(
            number, (*extra.shape, len(space_arrays.replicas), len(space_arrays.concurrencies))
        )
        cost = cost + space_arrays.replicas[replicas] * extra[memory, resource]
    order = np.lexsort((number, cost, latency))
    latency, cost, number = latency[order], cost[order], number[order]
    worth = np.ones(len(cost), np.bool_)
    worth[1:] = cost[1:] < np.minimum.accumulate(cost)[:-1]
    return Frontier(latency[worth], cost[worth], number[worth])


@njit(cache=True)
def _groups(latency: Floats, charged: Floats, unit: Floats, row: Ints, least: Ints) -> tuple[Floats, Floats, Ints]:
    """(latency, cost, number) of the cheapest valid configuration of every group that can serve."""
    rows, replicas, concurrencies = latency.shape
    memories, resources = unit.shape
    price = np.full((replicas, rows), np.inf)
    place = np.zeros((replicas, rows), np.int64)
    for p in range(replicas):
        for m in range(least[p], memories):
            for r in range(resources):
                if unit[m, r] < price[p, row[m, r]]:
                    price[p, row[m, r]] = unit[m, r]
                    place[p, row[m, r]] = m * resources + r
    size = latency.size
    latencies, costs, numbers = np.empty(size), np.empty(size), np.empty(size, np.int64)
    count = 0
    for group in range(rows):
        for p in range(replicas):
            if price[p, group] == np.inf:
                continue
            for c in range(concurrencies):
                if latency[group, p, c] < np.inf:
                    latencies[count] = latency[group, p, c]
                    costs[count] = charged[group, p, c] * price[p, group]
                    numbers[count] = (place[p, group] * replicas + p) * concurrencies + c
                    count += 1
    return latencies[:count], costs[:count], numbers[:count]
