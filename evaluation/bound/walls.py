"""One window inside a cluster's walls: the least cost of all experts within the SLO and what the cluster has left.

The optimum of :mod:`evaluation.bound.window` knows no walls. Here each replica pays for what it takes of each resource
(a Lagrangian relaxation): the optimum at these prices, less what the whole room would cost, is a lower bound for every
choice that fits, whatever the prices are, and an optimum that fits is a feasible choice. The prices follow Polyak's
subgradient steps. So the lower end is valid; the upper one is the cheapest choice found, and where none was found that
fits there may still be one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from autoscaler.capacity import replica_needs
from autoscaler.contract import Configuration, Resources
from evaluation.bound.frontier import ExpertTable, Frontier, SpaceArrays, frontier
from evaluation.bound.window import Enclosure, enclose_frontiers
from simulation.arrays import Floats, Ints

ROUNDS = 16
SLOWER = (1.0, 1.25, 1.6, 2.0, 3.0, 5.0, 10.0, np.inf)
"""Times the least sum of latencies at which a choice that fits is looked for."""


@dataclass(frozen=True)
class Problem:
    """All experts of a window: tables [layers, experts], Φ, and what the experts may take together (None: anything)."""

    tables: Sequence[Sequence[ExpertTable]]
    space_arrays: SpaceArrays
    room: Resources | None

    def enclose(self, budget_s: float, rounds: int = ROUNDS) -> Enclosure:
        """As :func:`evaluation.bound.window.enclose`, but within the room; ``fastest_s``, ``cheapest`` and
        ``cheapest_s`` are those without walls. Not feasible where no choice was found that fits."""
        plain = enclose_frontiers(self._plain, budget_s)
        if self.room is None or not plain.feasible or self.taken(plain.numbers).within(self.room):
            return plain
        room = np.maximum(np.array(self.room), 1.0)
        lower, upper = plain.lower, np.inf
        numbers: tuple[Ints, ...] = ()
        prices = np.zeros(3)  # of the whole room
        priced = plain
        for _ in range(rounds):
            excess = np.array(self.taken(priced.numbers)) / room - 1
            dual = priced.lower - prices.sum()
            target = upper if np.isfinite(upper) else 1.5 * max(lower, plain.upper)
            step = max(target - dual, 1e-3 * plain.upper) / max(float(excess @ excess), 1e-9)
            prices = np.maximum(0.0, prices + step * excess)
            priced = enclose_frontiers(self._frontiers(prices / room), budget_s)
            lower = max(lower, (priced.lower - prices.sum()) - 1e-9 * abs(priced.lower))
            cost = self._cost(priced.numbers)
            if cost < upper and self.taken(priced.numbers).within(self.room):
                upper, numbers = cost, priced.numbers
        return replace(plain, lower=min(lower, upper), upper=upper, numbers=numbers)

    def quickest(self) -> Enclosure:
        """The least sum of latencies, among those of :data:`SLOWER`, at which a choice was found that fits."""
        least_s = self.enclose(0.0, 0).fastest_s
        for times in SLOWER if np.isfinite(least_s) else ():
            choice = self.enclose(least_s * times * (1 + 1e-9))
            if choice.feasible:
                return choice
        return self.enclose(0.0, 0)

    def taken(self, numbers: Sequence[Ints]) -> Resources:
        """What the configurations of these ``numbers`` (per layer [experts]) take together."""
        cores = memory_mb = tenths = 0.0
        for number in (int(number) for layer in numbers for number in layer):
            memory, resource, replicas, _ = np.unravel_index(number, self._shape)
            count, needs = float(self.space_arrays.replicas[replicas]), self._needs(int(memory), int(resource))
            cores, memory_mb = cores + count * needs.cores, memory_mb + count * needs.memory_mb
            tenths += count * needs.gpu_tenths
        return Resources(cores, memory_mb, tenths)

    def _needs(self, memory: int, resource: int) -> Resources:
        space = self.space_arrays.space
        cores, share = space.resources[resource]
        return replica_needs(Configuration(space.memory_sizes_mb[memory], cores, share, 1, 1))

    @property
    def _shape(self) -> tuple[int, int, int, int]:
        memories, resources = self.space_arrays.unit_per_s.shape
        return memories, resources, len(self.space_arrays.replicas), len(self.space_arrays.concurrencies)

    @property
    def frontiers(self) -> list[Frontier]:
        """Those of all experts, layer by layer, without walls."""
        return [one for layer in self._plain for one in layer]

    @cached_property
    def _plain(self) -> list[list[Frontier]]:
        return [[frontier(table, self.space_arrays) for table in layer] for layer in self.tables]

    def _frontiers(self, prices: Floats) -> list[list[Frontier]]:
        """``prices`` [3]: of a core, a MiB and a tenth of a GPU in this window, for each replica."""
        memories, resources = self.space_arrays.unit_per_s.shape
        extra = np.array([[np.dot(prices, self._needs(m, r)) for r in range(resources)] for m in range(memories)])
        return [[frontier(table, self.space_arrays, extra) for table in layer] for layer in self.tables]

    def _cost(self, numbers: Sequence[Ints]) -> float:
        """Cost of the configurations of these ``numbers`` (per layer [experts]) without what the room costs."""
        cost = 0.0
        for layer, tables in zip(numbers, self.tables, strict=False):
            for number, table in zip(layer, tables, strict=True):
                memory, resource, replicas, concurrency = np.unravel_index(int(number), self._shape)
                row = self.space_arrays.row[memory, resource]
                unit = self.space_arrays.unit_per_s[memory, resource]
                cost += float(table.charged_s[row, replicas, concurrency] * unit)
        return cost
