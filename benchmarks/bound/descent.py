"""A cheaper feasible choice by local search: the oracle's, made cheaper step by step while it meets the SLO.

The separable optimum treats all experts of a layer the same, but one that few requests visit may be slow without the
P95 noticing, and late requests need no care at all. So blocks of experts move down their frontiers (towards cheaper and
slower configurations), and each move that costs less and meets the SLO in simulation is kept. A block begins as a whole
layer with long strides; a move that fails halves the stride, then the block, those with fewer calls apart from those
with more. What promises to save most is tried first, and the number of simulations is bounded. Feasible, never optimal.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from autoscaler.prices import Meter
from evaluation.bound.frontier import Frontier, frontier
from evaluation.bound.loads import WindowLoad, expected_tables
from evaluation.bound.oracle import Feasible, simulate_numbers
from simulation.arrays import Floats, Ints

LOOKS = 100
"""Simulations of a search."""


@dataclass(frozen=True, eq=False)
class _Block:
    """Experts (numbered through all layers) that move together, by ``stride`` places of their frontiers."""

    experts: Ints
    stride: int


class _Descent:
    """Frontiers of all experts, and where on them the choice is."""

    def __init__(self, load: WindowLoad, meter: Meter, start: Feasible) -> None:
        tables, _ = expected_tables(load, meter)
        self.sizes = [len(layer) for layer in tables]
        self.frontiers: list[Frontier] = [
            frontier(table, load.physics.space_arrays) for layer in tables for table in layer
        ]
        numbers = np.concatenate([np.asarray(layer) for layer in start.numbers])
        places = [
            int(np.flatnonzero(choices.number == number)[0])
            for choices, number in zip(self.frontiers, numbers, strict=True)
        ]
        self.places: Ints = np.array(places, np.int64)
        self.calls: Ints = np.array(
            [int(np.count_nonzero(load.tokens(1 + e))) for e in range(len(self.frontiers))], np.int64
        )

    def moved(self, block: _Block) -> Ints:
        """Places after the block's move, [experts] int64."""
        places = self.places.copy()
        last = np.array([len(self.frontiers[e]) - 1 for e in block.experts])
        places[block.experts] = np.minimum(places[block.experts] + block.stride, last)
        return places

    def saving(self, block: _Block) -> float:
        """What the move would save by the model."""
        places = self.moved(block)
        terms = [(self.frontiers[e].cost, self.places[e], places[e]) for e in block.experts]
        return float(sum(cost[now] - cost[then] for cost, now, then in terms))

    def numbers(self, places: Ints) -> tuple[Ints, ...]:
        """Per layer [experts]: configuration numbers at these places."""
        every = np.array(
            [choices.number[place] for choices, place in zip(self.frontiers, places, strict=True)], np.int64
        )
        return tuple(np.split(every, np.cumsum(self.sizes)[:-1]))

    def layers(self) -> list[_Block]:
        """Each layer's experts, to be moved by half of the longest way there is."""
        ends = np.cumsum(self.sizes)
        return [self._block(np.arange(end - size, end)) for size, end in zip(self.sizes, ends, strict=True) if size]

    def smaller(self, block: _Block) -> list[_Block]:
        """What is tried after a move that failed."""
        if block.stride > 1:
            return [replace(block, stride=block.stride // 2)]
        if block.experts.size == 1:
            return []
        by_calls = block.experts[np.argsort(self.calls[block.experts], kind="stable")]
        return [self._block(part) for part in np.array_split(by_calls, 2)]

    def _block(self, experts: Ints) -> _Block:
        most = max(len(self.frontiers[e]) - 1 - int(self.places[e]) for e in experts)
        return _Block(experts, max(1, most // 2))


def descend(load: WindowLoad, meter: Meter, start: Feasible, seed: int = 0, looks: int = LOOKS) -> Feasible:
    """The cheapest choice met on the way down from ``start``, with at most ``looks`` simulations.

    ``start``: of :func:`evaluation.bound.oracle.cheapest_feasible` for the same window by itself, meter and seed.
    """
    descent, best, slo_s = _Descent(load, meter, start), start, load.physics.workload.slo_s
    blocks = descent.layers()
    for _ in range(looks):
        savings: Floats = np.array([descent.saving(block) for block in blocks])
        if not blocks or savings.max() <= 0:
            break
        block = blocks.pop(int(savings.argmax()))
        places = descent.moved(block)
        numbers = descent.numbers(places)
        cost, p95_s = simulate_numbers(load, numbers, meter, seed)
        if p95_s <= slo_s and cost < best.cost:
            best, descent.places = replace(best, cost=cost, p95_s=p95_s, numbers=numbers), places
            blocks.append(block)
        else:
            blocks += descent.smaller(block)
    return best
