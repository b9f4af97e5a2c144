"""Plans by stages against every combination of replicas, and the hull that their steps follow."""

from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.policy.janus_search import Bounds, Frontier, Plan, Present
from autoscaler.policy.performance import Load, PassModel
from tests.parameters import examples

LAYERS = (("a", "b"), ("c", "d", "e"))
OTHERS = ("s", "t")
NAMES = (*OTHERS, *(name for layer in LAYERS for name in layer))
MOST = 3
TAIL = 2.0


def model(alone_s: dict[str, float], calls_per_s: float) -> PassModel:
    return PassModel({name: Load(alone_s[name], calls_per_s, 2) for name in NAMES}, OTHERS, LAYERS, 1.0)


def plan(found: PassModel, now: dict[str, int], price: dict[str, float], *, fixed: bool = False) -> Plan:
    present = Present(LAYERS, OTHERS, now, price, dict.fromkeys(NAMES, 1.0))
    return Plan(found, TAIL, present, Bounds(1, MOST, 1), "stages", fixed=fixed)


@settings(deadline=None, max_examples=examples(25))
@given(
    st.lists(st.floats(0.005, 0.12), min_size=len(NAMES), max_size=len(NAMES)),
    st.lists(st.sampled_from((1.0, 2.0)), min_size=len(NAMES), max_size=len(NAMES)),
    st.floats(1.0, 12.0),
    st.floats(1.05, 4.0),
)
def test_no_combination_of_replicas_within_the_budget_is_cheaper_by_more_than_one_step(
    alone: list[float], prices: list[float], calls_per_s: float, times: float
) -> None:
    """All 3^7 of them. Steps are hulls' edges, so the last one may be more than the rest of the budget asks for."""
    found, price = model(dict(zip(NAMES, alone, strict=True)), calls_per_s), dict(zip(NAMES, prices, strict=True))
    combinations = [dict(zip(NAMES, counts, strict=True)) for counts in product(range(1, MOST + 1), repeat=len(NAMES))]
    p95_s = [TAIL * (found.attention_s(one) + found.experts_s(one)) for one in combinations]
    budget_s = times * min(p95_s)
    chosen = plan(found, dict.fromkeys(NAMES, 1), price).least(budget_s, up=True)
    if math.isinf(budget_s):
        assert math.isinf(chosen.p95_s)
        return
    costs = [sum(price[name] * count for name, count in one.items()) for one in combinations]
    least = min(cost for cost, seconds in zip(costs, p95_s, strict=True) if seconds <= budget_s)
    step = max(sum(price[name] for name in layer) for layer in LAYERS) * (MOST - 1)
    assert chosen.p95_s <= budget_s and least <= chosen.cost + 1e-9 and chosen.cost <= least + step
    assert chosen.p95_s == pytest.approx(TAIL * (found.attention_s(chosen.replicas) + found.experts_s(chosen.replicas)))


def test_going_up_takes_nothing_away_and_fixed_segments_stay() -> None:
    performance = model({**dict.fromkeys(NAMES, 0.01), "a": 0.08}, 10.0)
    now = {**dict.fromkeys(NAMES, 1), "e": 3, "s": 2}
    up = plan(performance, now, dict.fromkeys(NAMES, 1.0)).least(0.3, up=True).replicas
    assert up == {**now, "a": 2}
    fixed = plan(performance, now, dict.fromkeys(NAMES, 1.0), fixed=True).least(0.3, up=False).replicas
    assert (fixed["s"], fixed["t"], fixed["e"], fixed["a"]) == (2, 1, 1, 2)


def test_where_nothing_is_within_the_budget_the_nearly_fastest_is_taken() -> None:
    performance = model({**dict.fromkeys(NAMES, 0.01), "a": 0.08}, 10.0)
    action = plan(performance, dict.fromkeys(NAMES, 1), dict.fromkeys(NAMES, 1.0)).least(0.001, up=True)
    fastest_s = TAIL * (
        performance.attention_s(dict.fromkeys(NAMES, MOST)) + performance.experts_s(dict.fromkeys(NAMES, MOST))
    )
    assert fastest_s <= action.p95_s <= 1.05 * fastest_s and action.cost < MOST * len(NAMES)


def test_more_than_can_be_served_takes_all_that_helps() -> None:
    performance = model({**dict.fromkeys(NAMES, 0.01), "a": 0.5}, 10.0)
    action = plan(performance, dict.fromkeys(NAMES, 1), dict.fromkeys(NAMES, 1.0)).least(0.5, up=True)
    assert math.isinf(action.p95_s) and action.replicas["a"] == MOST


def test_the_hull_leaves_out_steps_that_pay_less_than_those_after_them() -> None:
    """Costs 0, 1, 2, 3: the second step saves 1, the third 4, so both are one; nothing can be served at first."""
    frontier = Frontier(["a"] * 4, [0.0, 1.0, 2.0, 3.0, 4.0], [math.inf, 10.0, 9.0, 5.0, 5.0])
    assert frontier.hull() == [1, 3]
    assert frontier.saving(1, 3) == 2.5
    assert Frontier(["a"], [0.0, 1.0], [math.inf, math.inf]).hull() == [1]
