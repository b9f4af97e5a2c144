"""The bound of a window against every choice of configurations there is, each played in the simulator."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.contract import ConfigurationSpace
from autoscaler.prices import Meter
from evaluation.bound.bounds import deterministic, lower_bound
from evaluation.bound.certain import calls_by_layer, most_meeting, spans_of
from evaluation.bound.loads import WindowLoad, expected_tables, peak_tokens, windows
from evaluation.bound.oracle import alone, cheapest_feasible, simulate_numbers
from evaluation.bound.physics import Physics
from simulation.engine.requests import Requests
from tests.parameters import examples, some_fast
from tests.unit.evaluation.bound.builders import FOUR, PRICES, requests, window, with_slo, workload

METERS: tuple[Meter, Meter] = ("busy", "provisioned")
Simulated = dict[Meter, np.ndarray]


def simulate_all(load: WindowLoad) -> Simulated:
    """Meter → [choices, (cost, P95)] of all 4^4 choices."""
    choices = list(product(range(len(FOUR)), repeat=4))
    busy = np.array([simulate_numbers(load, (np.array(c[:2]), np.array(c[2:])), "busy", 0) for c in choices])
    hold = [sum(FOUR[n].replicas * PRICES.unit_per_s(FOUR[n]) for n in c) * load.window_s for c in choices]
    return {"busy": busy, "provisioned": np.stack([np.array(hold), busy[:, 1]], axis=1)}


@pytest.fixture(scope="module", params=some_fast([60.0, 15.0], 1), ids=["busy", "quiet"])
def simulated(request: pytest.FixtureRequest) -> tuple[WindowLoad, Simulated]:
    load = window(0.05, request.param, 1.5, seed=int(request.param))
    return load, simulate_all(load)


@pytest.mark.parametrize("meter", METERS)
@pytest.mark.parametrize("share", some_fast([0.0, 0.4, 0.1, 0.7, 1.0], 2))
def test_bound_optimum_and_oracle_are_in_this_order(
    simulated: tuple[WindowLoad, Simulated], meter: Meter, share: float
) -> None:
    """The SLO is the P95 of one of the choices, so that the best of those that meet it is known."""
    load, every = simulated
    cost, p95_s = every[meter].T
    slo_s = float(np.quantile(p95_s, share, method="nearest"))
    at = with_slo(load, slo_s)
    best = cost[p95_s <= slo_s].min()
    bound, found = lower_bound(at, meter), cheapest_feasible(at, meter)
    assert bound.reachable and 0 < bound.cost <= best
    if found is not None:
        assert best * (1 - 1e-9) <= found.cost <= 1.1 * best and found.p95_s <= slo_s
    assert found is not None or share == 0.0


@pytest.mark.parametrize("meter", METERS)
def test_the_bound_is_worth_something(simulated: tuple[WindowLoad, Simulated], meter: Meter) -> None:
    """At least half of the best with the least P95 that there is, and all of it where any choice will do."""
    load, every = simulated
    cost, p95_s = every[meter].T
    tight = with_slo(load, float(p95_s.min()))
    assert lower_bound(tight, meter).cost >= 0.5 * cost[p95_s <= p95_s.min()].min()
    loose = lower_bound(with_slo(load, float(p95_s.max())), meter)
    assert loose.cost >= 0.5 * cost.min()


@pytest.mark.parametrize("meter", METERS)
def test_the_bound_never_grows_with_the_slo(simulated: tuple[WindowLoad, Simulated], meter: Meter) -> None:
    load, every = simulated
    slos = np.linspace(0.8, 1.5, 8) * every[meter][:, 1].min()
    bounds = [lower_bound(with_slo(load, float(slo_s)), meter) for slo_s in slos]
    costs = [bound.cost for bound in bounds if bound.reachable]
    assert len(costs) > 3 and all(a >= b * (1 - 1e-9) for a, b in pairwise(costs))


def test_an_slo_below_all_work_cannot_be_met_by_anyone_and_the_work_still_costs(
    simulated: tuple[WindowLoad, Simulated],
) -> None:
    load, every = simulated
    bound = lower_bound(with_slo(load, 0.004), "busy")
    assert not bound.reachable and 0 < bound.cost <= every["busy"][:, 0].min()


@settings(deadline=None, max_examples=examples(20))
@given(st.integers(0, 10_000), st.floats(5.0, 200.0), st.floats(0.008, 0.08))
def test_no_choice_of_a_larger_space_that_meets_the_slo_is_cheaper(seed: int, rate: float, slo_s: float) -> None:
    space = ConfigurationSpace(128, 1024, 64, (1.0, 3.0, 6.0), (0.1, 0.5), 1, 4, 1, 10)
    load = window(slo_s, rate, 1.0, seed, space)
    rng = np.random.default_rng(seed)
    bounds = {meter: lower_bound(load, meter, seed=seed) for meter in METERS}
    for _ in range(6):
        numbers = tuple(rng.integers(0, len(space), 2) for _ in range(2))
        for meter in METERS:
            cost, p95_s = simulate_numbers(load, numbers, meter, seed)
            if p95_s <= slo_s or not bounds[meter].reachable:
                assert bounds[meter].cost <= cost


def test_the_bound_of_a_window_of_a_run_uses_that_run_s_draws() -> None:
    """The same arrivals later in a run meet other draws."""
    one = workload(0.012)
    drawn = requests(one, 40.0, 4.0, 5)
    physics = Physics(one, drawn.most_tokens)
    second = list(windows(physics, drawn, 2.0, 4.0))[1]
    itself = alone(second)
    assert itself.count == second.count and itself.arrival_s[0] == pytest.approx(second.arrival_s[0] - 2.0)
    assert lower_bound(second, "busy").cost != lower_bound(itself, "busy").cost


def test_windows_are_a_partition_of_the_requests() -> None:
    one = workload(0.05)
    drawn = requests(one, 30.0, 10.0, 1)
    parts = list(windows(Physics(one, drawn.most_tokens), drawn, 3.0, 10.0))
    assert [load.first for load in parts] == [0, *(load.last for load in parts[:-1])]
    assert parts[-1].last == drawn.arrival_s.size and len(parts) == 4
    assert all(
        load.count == np.sum((drawn.arrival_s >= 3 * k) & (drawn.arrival_s < 3 * k + 3)) for k, load in enumerate(parts)
    )


def test_an_empty_window_costs_nothing_busy_and_the_cheapest_replicas_provisioned() -> None:
    load = replace(window(0.05, 20.0, 2.0, 0), first=0, last=0)
    cheapest = 4 * 2.0 * load.physics.space_arrays.unit_per_s.min()
    for enclosed in (lower_bound(load, "busy").cost, deterministic(load, "busy").upper):
        assert enclosed == 0.0
    assert lower_bound(load, "provisioned").cost == pytest.approx(cheapest)
    assert deterministic(load, "provisioned").upper == pytest.approx(cheapest)
    feasible = cheapest_feasible(load, "provisioned")
    assert feasible is not None and feasible.cost == pytest.approx(cheapest)


def test_the_queueing_model_is_near_the_simulation() -> None:
    """Mean seconds of the whole pipeline and busy cost, over many requests at a middle load."""
    load = window(0.05, 40.0, 60.0, 3)
    numbers = (np.array([1, 3]), np.array([3, 1]))
    tables, outside_s = expected_tables(load, "busy")
    space = load.physics.space_arrays
    cost = 0.0
    for layer, chosen in zip(tables, numbers, strict=True):
        for one, number in zip(layer, chosen, strict=True):
            m, r, p, c = np.unravel_index(number, (1, 2, 2, 1))
            cost += float(one.charged_s[space.row[m, r], p, c] * space.unit_per_s[m, r])
    assert simulate_numbers(load, numbers, "busy", 0)[0] == pytest.approx(cost, rel=0.05)
    assert 0.001 < outside_s < 0.05


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6)), min_size=1, max_size=25),
    st.integers(1, 30),
)
def test_calls_can_meet_where_their_spans_overlap(spans: list[tuple[int, int]], most: int) -> None:
    from_s = np.array([begin for begin, _ in spans], float)
    until_s = np.array([begin + length for begin, length in spans], float)
    ends = list(zip(from_s, until_s, strict=True))
    oracle = [sum(a <= until and begin <= b for a, b in ends) for begin, until in ends]
    assert most_meeting(from_s, until_s, most).tolist() == [min(most, count) for count in oracle]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 9)), max_size=20), st.integers(0, 5))
def test_the_peak_is_the_most_tokens_within_a_stay(calls: list[tuple[int, int]], stay: int) -> None:
    arrivals = np.sort(np.array([time for time, _ in calls], float))
    tokens = np.array([count for _, count in calls], np.uint16)
    until = np.searchsorted(arrivals, arrivals + stay, side="right")
    pairs = list(zip(arrivals, tokens.tolist(), strict=True))
    within = [sum(n for b, n in pairs[k:] if b <= a + stay) for k, (a, _) in enumerate(pairs)]
    assert peak_tokens(tokens, until) == max(within, default=0)


def test_spans_end_where_the_rest_of_the_pass_and_the_slo_meet() -> None:
    """First layer: reached after ingress, segment and hop. Last layer: left before a hop, the last segment and λ."""
    load = window(0.2, 10.0, 2.0, 4)
    through = [np.full(load.count, seconds) for seconds in (0.001, 0.002, 0.003)]
    factors = [np.ones((1, load.count)) for _ in range(4)]
    spans = spans_of(load, through, calls_by_layer(load, factors))
    assert np.allclose(spans.from_s[0], load.arrival_s + 0.001 + 0.001 + 0.0005)
    assert np.allclose(spans.until_s[1], load.arrival_s + 0.2 - 0.003 - 0.0005)
    late = spans_of(with_slo(load, 0.001), through, calls_by_layer(load, factors))
    assert (late.until_s >= late.from_s).all()


def test_a_search_for_a_window_does_not_see_what_follows_it() -> None:
    """Requests overlap the window's end, and a storm comes after it: the choice is that of the window without it."""
    one = workload(0.05)
    calm, storm = requests(one, 60.0, 2.0, 5), requests(one, 2000.0, 1.0, 6)
    later = Requests(
        np.concatenate((calm.arrival_s, 2.0 + storm.arrival_s)), np.hstack((calm.counts, storm.counts)), "both"
    )
    physics = Physics(one, later.most_tokens)
    followed, by_itself = (next(windows(physics, arrivals, 2.0, 2.0)) for arrivals in (later, calm))
    assert followed.count == by_itself.count < later.arrival_s.size
    found, expected = (cheapest_feasible(load, "provisioned") for load in (followed, by_itself))
    assert found is not None and expected is not None
    assert found.p95_s == expected.p95_s and found.cost == expected.cost
