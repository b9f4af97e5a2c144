"""Across layers: split a latency budget so that the costs add up to the least. A multiple-choice knapsack.

Minimise the sum of C_i(T_i) where the sum of T_i is at most the budget. The optimum is enclosed from both sides:

1. the linear relaxation over the layers' convex hulls gives a lower bound, the best price μ of a second, and, rounded,
   a feasible split;
2. a step whose reduced cost C + μT exceeds the enclosure cannot be part of a better split and is dropped;
3. dynamic programming over ``buckets`` equal parts of what is left of the budget, with latencies rounded down (a
   relaxed problem, so a valid lower bound) and rounded up (a feasible split).

The problem is NP-hard in general; the gap of what comes out is known, and small (``docs/bound.md``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit

from simulation.arrays import Floats, Ints


@dataclass(frozen=True)
class Steps:
    """C(T) of one layer: latency ascending, cost strictly descending; C is infinite before the first."""

    latency_s: Floats
    cost: Floats

    def __len__(self) -> int:
        return len(self.latency_s)


BUCKETS = 4000
"""Parts of the budget; an eighth of them comes first, and more where the gap is still wide."""
ROUNDS = ((1 / 8, 0.0), (1, 0.0002), (8, 0.0002), (32, 0.002))
"""(how many times the buckets, relative gap above which this round is worth its time)."""
SLACK = 1e-9
"""Relative room given to rounding of sums, always towards a weaker bound."""


@dataclass(frozen=True)
class Split:
    """An enclosure of the least cost and a split of the budget that reaches its upper end."""

    lower: float
    """No split is cheaper. Infinite where none is feasible."""
    upper: float
    """Cost of the split below; infinite where none is feasible."""
    latency_s: Floats
    """[layers]: the budget of each layer; empty where none is feasible."""

    @property
    def gap(self) -> float:
        """(upper - lower) / lower; 0 where both are the same."""
        return 0.0 if self.upper == self.lower else (self.upper - self.lower) / self.lower


def split(layers: Sequence[Steps], budget_s: float, buckets: int = BUCKETS) -> Split:
    """Enclose the least cost of all layers within ``budget_s``."""
    if not layers:
        return Split(0.0, 0.0, np.empty(0))
    if any(len(layer) == 0 for layer in layers) or _latency(layers, [0] * len(layers)) > budget_s:
        return Split(np.inf, np.inf, np.empty(0))
    cheapest = [len(layer) - 1 for layer in layers]
    if _latency(layers, cheapest) <= budget_s:
        cost = _cost(layers, cheapest)
        return Split(cost, cost, _latencies(layers, cheapest))
    # 1. The relaxation encloses the optimum before any dynamic programming; often that is narrow enough.
    price, chosen = _relaxed(layers, budget_s)
    chosen = _filled(layers, chosen, budget_s)
    dual, upper = _dual(layers, price, budget_s), _cost(layers, chosen)
    lower = dual
    for times, gap in ROUNDS:
        if upper - lower <= gap * lower:
            break
        # 2. The narrower the enclosure, the fewer steps can be part of a better split, so it is asked in every round.
        kept = [_promising(layer, price, upper - dual) for layer in layers]
        parts = max(1, int(times * buckets))
        lower = max(lower, min(upper, _relaxed_least(layers, kept, budget_s, parts) * (1 - SLACK)))
        if upper - lower <= gap * lower:
            break
        # 3. Rounded up comes second: where the lower end has closed the gap, it need not be asked.
        up, picks = _feasible_least(layers, kept, budget_s, parts)
        if up < upper and _latency(layers, picks) <= budget_s:
            chosen = _filled(layers, picks, budget_s)
            upper = _cost(layers, chosen)
    return Split(min(lower, upper), upper, _latencies(layers, chosen))


def _cost(layers: Sequence[Steps], chosen: Sequence[int]) -> float:
    return float(sum(layer.cost[k] for layer, k in zip(layers, chosen, strict=True)))


def _latencies(layers: Sequence[Steps], chosen: Sequence[int]) -> Floats:
    return np.array([layer.latency_s[k] for layer, k in zip(layers, chosen, strict=True)])


def _latency(layers: Sequence[Steps], chosen: Sequence[int]) -> float:
    return float(_latencies(layers, chosen).sum())


def _dual(layers: Sequence[Steps], price: float, budget_s: float) -> float:
    """The Lagrangian at μ = ``price``: a lower bound for every μ of 0 or more."""
    least = sum(float(np.min(layer.cost + price * layer.latency_s)) for layer in layers)
    return (least - price * budget_s) - SLACK * (abs(least) + price * budget_s)


def _relaxed(layers: Sequence[Steps], budget_s: float) -> tuple[float, list[int]]:
    """The linear relaxation: the price μ of a second where its budget ends, and the whole steps taken before."""
    owners: list[Ints] = []
    gains: list[Floats] = []
    lengths: list[Floats] = []
    hulls = [_hull(layer.latency_s, layer.cost) for layer in layers]
    for i, (layer, hull) in enumerate(zip(layers, hulls, strict=True)):
        length, fall = np.diff(layer.latency_s[hull]), -np.diff(layer.cost[hull])
        owners.append(np.full(len(length), i))
        gains.append(np.minimum.accumulate(fall / length) if len(length) else length)
        lengths.append(length)
    owner, gain, length = np.concatenate(owners), np.concatenate(gains), np.concatenate(lengths)
    order = np.argsort(-gain, kind="stable")
    left_s = budget_s - sum(float(layer.latency_s[0]) for layer in layers)
    whole = int(np.searchsorted(np.cumsum(length[order]), left_s, side="right"))
    price = float(gain[order[min(whole, len(order) - 1)]])
    while True:
        taken = np.bincount(owner[order[:whole]], minlength=len(layers))
        chosen = [int(hull[k]) for hull, k in zip(hulls, taken, strict=True)]
        if whole == 0 or _latency(layers, chosen) <= budget_s:
            return price, chosen
        whole -= 1  # the running sum was short of the sum by rounding


def _filled(layers: Sequence[Steps], chosen: Sequence[int], budget_s: float) -> list[int]:
    """``chosen`` with what is left of the budget spent where it saves most, layer by layer, until nothing fits."""
    result = list(chosen)
    while True:
        left_s = budget_s - _latency(layers, result)
        best, saving = -1, 0.0
        reach = [
            int(np.searchsorted(layer.latency_s, layer.latency_s[k] + left_s, side="right")) - 1
            for layer, k in zip(layers, result, strict=True)
        ]
        for i, (layer, now, then) in enumerate(zip(layers, result, reach, strict=True)):
            if then > now and layer.cost[now] - layer.cost[then] > saving:
                best, saving = i, float(layer.cost[now] - layer.cost[then])
        if best < 0:
            return result
        moved = [*result[:best], reach[best], *result[best + 1 :]]
        if _latency(layers, moved) > budget_s:
            return result
        result = moved


def _promising(layer: Steps, price: float, room: float) -> Ints:
    """Positions of the steps whose reduced cost is within ``room`` of the layer's least.

    A split with any other step costs more than the Lagrangian at this price and ``room`` together.
    """
    reduced = layer.cost + price * layer.latency_s
    least = float(reduced.min())
    return np.flatnonzero(reduced <= least + room + SLACK * (abs(least) + room))


@dataclass(frozen=True)
class _Rounded:
    """Kept steps with latencies above each layer's first kept one in whole buckets, one group a layer."""

    sizes: Ints
    costs: Floats
    steps: Ints
    starts: Ints
    """[layers + 1]"""


def _relaxed_least(layers: Sequence[Steps], kept: Sequence[Ints], budget_s: float, buckets: int) -> float:
    """Least cost with latencies rounded down: no split of the kept steps is cheaper."""
    rounded = _rounded(layers, kept, budget_s * (1 + SLACK), buckets, up=False)
    return np.inf if rounded is None else float(_least(rounded.sizes, rounded.costs, rounded.starts, buckets))


def _feasible_least(
    layers: Sequence[Steps], kept: Sequence[Ints], budget_s: float, buckets: int
) -> tuple[float, list[int]]:
    """Least cost with latencies rounded up, and the steps that reach it."""
    rounded = _rounded(layers, kept, budget_s, buckets, up=True)
    if rounded is None:
        return np.inf, []
    best, picks = _dynamic(rounded.sizes, rounded.costs, rounded.starts, buckets)
    return float(best), [int(rounded.steps[pick]) for pick in picks] if np.isfinite(best) else []


def _rounded(
    layers: Sequence[Steps], kept: Sequence[Ints], budget_s: float, buckets: int, *, up: bool
) -> _Rounded | None:
    """None where the first kept steps are already too long."""
    left_s = budget_s - sum(float(layer.latency_s[k[0]]) for layer, k in zip(layers, kept, strict=True))
    if left_s < 0:
        return None
    width_s = left_s / buckets or budget_s
    sizes: list[Ints] = []
    costs: list[Floats] = []
    steps: list[Ints] = []
    for layer, positions in zip(layers, kept, strict=True):
        parts = (layer.latency_s[positions] - layer.latency_s[positions[0]]) / width_s
        size = np.ceil(parts * (1 + SLACK)) if up else np.floor(parts * (1 - SLACK))
        size = np.minimum(size, buckets + 1).astype(np.int64)
        last = np.concatenate((size[1:] != size[:-1], [True]))  # of equal sizes the last is the cheapest
        inside = last & (size <= buckets)
        sizes.append(size[inside])
        costs.append(layer.cost[positions][inside])
        steps.append(positions[inside])
    starts = np.concatenate(([0], np.cumsum([len(size) for size in sizes])))
    return _Rounded(np.concatenate(sizes), np.concatenate(costs), np.concatenate(steps), starts)


@njit(cache=True)
def _least(sizes: Ints, costs: Floats, starts: Ints, buckets: int) -> float:
    """Choose one of each group ``starts[i]:starts[i+1]``: least cost of at most ``buckets`` in all."""
    cost = np.zeros(buckets + 1)
    new = np.empty(buckets + 1)
    for i in range(len(starts) - 1):
        new[:] = np.inf
        for k in range(starts[i], starts[i + 1]):
            size, price = sizes[k], costs[k]
            for b in range(buckets + 1 - size):
                value = cost[b] + price
                new[b + size] = value if value < new[b + size] else new[b + size]
        cost, new = new, cost
    return float(cost[buckets])


@njit(cache=True)
def _dynamic(sizes: Ints, costs: Floats, starts: Ints, buckets: int) -> tuple[float, Ints]:
    """:func:`_least` with the positions that reach it."""
    groups = len(starts) - 1
    cost = np.zeros(buckets + 1)
    pick = np.zeros((groups, buckets + 1), np.int32)
    for i in range(groups):
        new = np.full(buckets + 1, np.inf)
        for k in range(starts[i], starts[i + 1]):
            size, price = sizes[k], costs[k]
            for b in range(size, buckets + 1):
                value = cost[b - size] + price
                if value < new[b]:
                    new[b] = value
                    pick[i, b] = k
        cost = new
    chosen = np.zeros(groups, np.int64)
    if cost[buckets] < np.inf:
        b = buckets
        for i in range(groups - 1, -1, -1):
            chosen[i] = pick[i, b]
            b -= sizes[chosen[i]]
    return cost[buckets], chosen


def _hull(x: Floats, y: Floats) -> Ints:
    """Positions of the lower convex hull of points with x ascending and y descending."""
    hull: Ints = _lower_hull(x, y)
    return hull


@njit(cache=True)
def _lower_hull(x: Floats, y: Floats) -> Ints:
    stack = np.empty(len(x), np.int64)
    size = 0
    for i in range(len(x)):
        while size >= 2:
            a, b = stack[size - 2], stack[size - 1]
            if (y[b] - y[a]) * (x[i] - x[a]) >= (y[i] - y[a]) * (x[b] - x[a]):
                size -= 1
            else:
                break
        stack[size] = i
        size += 1
    return stack[:size]
