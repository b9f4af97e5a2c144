"""The deterministic optimum against brute force over every choice of configurations, and what holds of any bound."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.contract import MIB, ConfigurationSpace, MemoryNeed
from autoscaler.prices import PriceSheet
from evaluation.bound.frontier import ExpertTable, Frontier, SpaceArrays, frontier, space_arrays
from evaluation.bound.knapsack import Steps, split
from evaluation.bound.window import choose, enclose, steps
from simulation.arrays import Floats
from tests.parameters import examples

PRICES = PriceSheet("test", "made up", "USD", cpu_core_s=2.0, memory_gib_s=1.0, gpu_s=10.0)
TINY = ConfigurationSpace(128, 256, 64, (1.0, 2.0), (0.5,), 1, 2, 1, 2)
"""3 memories, 3 resources, 2 replicas, 2 concurrencies: 36 configurations."""
SPACE = space_arrays(TINY, PRICES)
"""Memory is a constraint: 3 rows."""
COUPLED = space_arrays(TINY, PRICES, memory_mb_per_core=100.0)
"""128 and 192 MiB are 1.28 and 1.92 cores at most: rows of 1, 1.28, 1.92 and 2 cores, and the GPU share."""
NO_NEED = np.zeros(2, np.int64)


def table(rng: np.random.Generator, space: SpaceArrays = SPACE, least: tuple[int, int] = (0, 0)) -> ExpertTable:
    """Made numbers, rounded so that ties happen; some configurations cannot serve."""
    latency = np.round(rng.uniform(0.01, 1.0, space.shape), 1)
    latency[rng.random(space.shape) < 0.1] = np.inf
    return ExpertTable(latency, np.round(rng.uniform(0.1, 5.0, space.shape), 1), np.array(least, np.int64))


def of(one: ExpertTable, space: SpaceArrays, number: int) -> tuple[float, float]:
    """(latency, cost) of one configuration, straight from the definition; infinite where it is not allowed."""
    m, r, p, c = np.unravel_index(number, (len(space.space.memory_sizes_mb), 3, 2, 2))
    if m < one.least_memory[p]:
        return np.inf, np.inf
    row = space.row[m, r]
    return float(one.latency_s[row, p, c]), float(one.charged_s[row, p, c] * PRICES.unit_per_s(space.space[number]))


def points(one: ExpertTable, space: SpaceArrays = SPACE) -> list[tuple[float, float]]:
    """(latency, cost) of every valid configuration."""
    points = [of(one, space, number) for number in range(len(space.space))]
    return [pair for pair in points if np.isfinite(pair[0])]


def undominated(found: list[tuple[float, float]]) -> list[tuple[float, float]]:
    return sorted({p for p in found if not any(q[0] <= p[0] and q[1] <= p[1] and q != p for q in found)})


def pairs(found: Frontier | Steps) -> list[tuple[float, float]]:
    return list(zip(found.latency_s.tolist(), found.cost.tolist(), strict=True))


def brute_force(layers: list[list[ExpertTable]], budget_s: float) -> float:
    """Least cost over every choice of a configuration for every expert."""
    best = np.inf
    choices = [[undominated(points(one)) for one in layer] for layer in layers]
    for chosen in product(*(product(*layer) for layer in choices)):
        if sum(max(latency for latency, _ in layer) for layer in chosen) <= budget_s:
            best = min(best, sum(cost for layer in chosen for _, cost in layer))
    return float(best)


seeds = st.integers(0, 2**32 - 1)


@settings(deadline=None)
@given(seeds, st.booleans(), st.tuples(st.integers(0, 3), st.integers(0, 3)))
def test_the_frontier_is_every_undominated_valid_configuration(
    seed: int, coupled: bool, least: tuple[int, int]
) -> None:
    space = COUPLED if coupled else SPACE
    one = table(np.random.default_rng(seed), space, least)
    found, oracle = frontier(one, space), undominated(points(one, space))
    assert len(found) == len(oracle) and np.allclose(np.reshape(pairs(found), (-1, 2)), np.reshape(oracle, (-1, 2)))
    for latency, cost, number in zip(found.latency_s, found.cost, found.number, strict=True):
        assert of(one, space, int(number)) == pytest.approx((latency, cost))


def test_rows_are_the_compute_that_replicas_really_have() -> None:
    assert list(zip(SPACE.cpu_cores, SPACE.gpu_share, strict=True)) == [(0, 0.5), (1, 0), (2, 0)]
    assert COUPLED.cpu_cores.tolist() == [0, 1, 1.28, 1.92, 2] and COUPLED.gpu_share[0] == 0.5
    assert COUPLED.row.tolist() == [[1, 2, 0], [1, 3, 0], [1, 4, 0]]


@pytest.mark.parametrize("coupled", [None, 1769.0])
def test_the_whole_space_of_the_paper_is_looked_at(coupled: float | None) -> None:
    """203,520 configurations, each evaluated by itself, against a plain sort."""
    space = space_arrays(ConfigurationSpace(), PRICES, coupled)
    rng = np.random.default_rng(1)
    latency, charged = rng.lognormal(0, 1, space.shape), rng.lognormal(0, 1, space.shape)
    least = rng.integers(0, 159, 8)
    front = frontier(ExpertTable(latency, charged, least), space)
    every, cost = latency[space.row], charged[space.row] * space.unit_per_s[:, :, None, None]
    valid = np.broadcast_to((np.arange(159)[:, None] >= least)[:, None, :, None], every.shape)
    order = np.lexsort((cost[valid], every[valid]))
    falling = np.minimum.accumulate(cost[valid][order])
    kept = np.concatenate(([True], falling[1:] < falling[:-1]))
    assert every.size == 203_520 and len(front) > 5
    assert np.array_equal(front.latency_s, every[valid][order][kept])
    assert np.allclose(front.cost, cost[valid][order][kept])


def test_eq_2_is_masked_as_the_space_says() -> None:
    need = MemoryNeed(100 * MIB, MIB, 40.0, alpha=0.9)
    least = SPACE.least_memory(need)
    assert [TINY.memory_sizes_mb[m] for m in least] == [TINY.least_memory_mb(need, p) for p in (1, 2)] == [256, 192]
    assert SPACE.least_memory(MemoryNeed(10**12, 1, 0.0)).tolist() == [3, 3]


def test_tables_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match="rows, replicas, concurrencies are"):
        frontier(ExpertTable(np.ones((3, 2, 2)), np.ones((2, 2, 2)), NO_NEED), SPACE)


@pytest.mark.parametrize("latency", [0.0, np.inf])
def test_an_idle_expert_costs_its_cheapest_and_an_overloaded_one_has_no_configuration(latency: float) -> None:
    shape = SPACE.shape
    kept = frontier(ExpertTable(np.full(shape, latency), np.ones(shape), NO_NEED), SPACE)
    assert pairs(kept) == ([] if latency else [(0.0, float(SPACE.unit_per_s.min()))])


@pytest.mark.slow
@settings(deadline=None)
@given(seeds, st.integers(1, 3))
def test_a_layer_s_steps_are_the_cheapest_of_each_expert_within_t(seed: int, experts: int) -> None:
    rng = np.random.default_rng(seed)
    tables = [table(rng) for _ in range(experts)]
    frontiers = [frontier(one, SPACE) for one in tables]
    layer_steps = steps(frontiers)
    for latency in sorted({p[0] for one in tables for p in points(one)}):
        costs = [min((c for t, c in points(one) if t <= latency), default=np.inf) for one in tables]
        position = int(np.searchsorted(layer_steps.latency_s, latency, side="right")) - 1
        seen = layer_steps.cost[position] if position >= 0 else np.inf
        assert seen == pytest.approx(sum(costs))
        if np.isfinite(seen):
            numbers = choose(frontiers, latency)
            assert len(numbers) == experts


@settings(deadline=None)
@given(seeds, st.integers(1, 3), st.integers(1, 2), st.floats(0.05, 2.0), st.integers(1, 60))
def test_brute_force_lies_between_the_bounds(seed: int, n: int, experts: int, budget_s: float, buckets: int) -> None:
    rng = np.random.default_rng(seed)
    layers = [[table(rng, least=(0, 1)) for _ in range(experts)] for _ in range(n)]
    found, exact = enclose(layers, SPACE, budget_s, buckets), brute_force(layers, budget_s)
    assert found.lower <= exact * (1 + 1e-12) and exact <= found.upper * (1 + 1e-12)
    assert found.feasible == bool(np.isfinite(exact))
    if found.feasible:
        assert_choice_is_real(layers, found.numbers, found.upper, budget_s)


def assert_choice_is_real(
    layers: list[list[ExpertTable]], numbers: tuple[np.ndarray, ...], upper: float, budget_s: float
) -> None:
    """The choice meets budget and Eq. (2), and costs what is said."""
    cost, total_s = 0.0, 0.0
    for layer, chosen in zip(layers, numbers, strict=True):
        slowest = 0.0
        for one, number in zip(layer, chosen, strict=True):
            latency, price = of(one, SPACE, int(number))
            slowest, cost = max(slowest, latency), cost + price
        total_s += slowest
    assert total_s <= budget_s * (1 + 1e-12) and cost <= upper * (1 + 1e-12)


def curves(rng: np.random.Generator, n: int, size: int) -> list[Steps]:
    """Layers with many steps of uneven width, not convex."""
    made = []
    for _ in range(n):
        latency = np.sort(rng.lognormal(-4, 1, size))
        cost = np.sort(rng.lognormal(0, 0.5, size) / (0.01 + latency))[::-1]
        made.append(Steps(latency, np.ascontiguousarray(cost)))
    return made


def by_integers(layers: list[Steps], budget: int) -> float:
    """The exact optimum where all latencies are whole numbers: a table over every budget, in plain Python."""
    best: list[float] = [0.0] * (budget + 1)
    for layer in layers:
        best = [
            min(
                (best[b - int(t)] + c for t, c in zip(layer.latency_s, layer.cost, strict=True) if t <= b),
                default=np.inf,
            )
            for b in range(budget + 1)
        ]
    return best[budget]


@settings(deadline=None, max_examples=examples(40))
@given(seeds, st.integers(1, 6), st.integers(2, 12), st.integers(3, 120), st.integers(5, 400))
def test_the_knapsack_encloses_the_exact_optimum(seed: int, n: int, size: int, budget: int, buckets: int) -> None:
    rng = np.random.default_rng(seed)
    layers = []
    for _ in range(n):
        latency = np.unique(rng.integers(0, 40, size)).astype(float)
        cost = np.sort(np.unique(rng.uniform(0, 10, 3 * size))[: len(latency)])[::-1]
        layers.append(Steps(latency, np.ascontiguousarray(cost)))
    found, exact = split(layers, float(budget), buckets), by_integers(layers, budget)
    if not np.isfinite(exact):
        assert found.lower == found.upper == np.inf
        return
    assert found.lower <= exact * (1 + 1e-9) and exact <= found.upper * (1 + 1e-9)
    assert found.latency_s.sum() <= budget


@settings(deadline=None, max_examples=examples(30))
@given(seeds)
def test_a_longer_budget_never_costs_more(seed: int) -> None:
    layers = curves(np.random.default_rng(seed), 5, 60)
    least = sum(layer.latency_s[0] for layer in layers)
    found = [split(layers, least * factor, 300) for factor in (1.0, 1.5, 2.0, 4.0, 16.0)]
    for tight, loose in pairwise(found):
        assert loose.lower <= tight.upper * (1 + 1e-12)
        assert loose.upper <= tight.upper * (1 + tight.gap + loose.gap + 1e-9)


def test_twelve_layers_of_many_steps_are_enclosed_within_three_parts_in_a_thousand() -> None:
    layers = curves(np.random.default_rng(7), 12, 1000)
    least, most = (sum(float(layer.latency_s[k]) for layer in layers) for k in (0, -1))
    for share in (0.01, 0.05, 0.2, 0.5):
        parts = split(layers, least + share * (most - least))
        assert 0 <= parts.gap < 0.003


def test_a_budget_below_the_fastest_has_no_choice_and_one_above_the_cheapest_does_not_bind() -> None:
    rng = np.random.default_rng(3)
    layers = [[table(rng) for _ in range(2)] for _ in range(2)]
    ends = enclose(layers, SPACE, 100.0)
    assert ends.gap == 0.0 and not ends.binds and ends.upper == ends.cheapest == ends.lower
    below = enclose(layers, SPACE, ends.fastest_s * 0.99)
    assert below.lower == below.upper == np.inf and below.numbers == () and not below.feasible and not below.binds
    assert enclose(layers, SPACE, (ends.fastest_s + ends.cheapest_s) / 2).binds


def test_a_layer_with_an_expert_that_cannot_serve_makes_the_window_infeasible() -> None:
    shape = SPACE.shape
    dead = ExpertTable(np.full(shape, np.inf), np.ones(shape), NO_NEED)
    enclosure = enclose([[table(np.random.default_rng(0)), dead]], SPACE, 10.0)
    assert not enclosure.feasible and enclosure.fastest_s == np.inf


def test_layers_without_experts_and_windows_without_layers_cost_nothing() -> None:
    assert enclose([], SPACE, 1.0).upper == 0.0
    assert enclose([[]], SPACE, 1.0).upper == 0.0


def test_a_layer_s_part_of_the_budget_must_be_enough_for_each_expert() -> None:
    one = Frontier(np.array([0.5]), np.array([1.0]), np.array([0]))
    with pytest.raises(ValueError, match=r"within 0\.4 s"):
        choose([one], 0.4)


def test_the_price_of_a_replica_grows_with_memory() -> None:
    values: Floats = SPACE.unit_per_s
    assert values.shape == (3, 3) and (np.diff(values, axis=0) > 0).all()
