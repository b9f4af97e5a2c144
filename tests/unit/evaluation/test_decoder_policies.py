"""What the comparison of policies on a decoder calls the least money."""

from __future__ import annotations

import pytest

from benchmarks.decoder_policies import LOADS, TIMES, against, choice, constant_cost, requests_of
from traces.model import make_trace

FRONT = [(0.5, 1.0), (0.7, 3.0), (0.9, 3.0)]


@pytest.mark.parametrize(
    ("goodput", "cost"),
    [
        pytest.param(0.4, 1.0, id="below-all"),
        pytest.param(0.5, 1.0, id="one-of-them"),
        pytest.param(0.7, 2.0, id="a-mixture-undercuts-a-constant"),
        pytest.param(0.91, None, id="above-all"),
    ],
)
def test_constants_cost_the_least_mixture_at_a_goodput(goodput: float, cost: float | None) -> None:
    assert constant_cost(FRONT, goodput) == (None if cost is None else pytest.approx(cost))


def test_the_least_money_with_enough_is_chosen_else_the_most_requests() -> None:
    rows = [{"goodput": 0.96, "cost": 3.0}, {"goodput": 0.97, "cost": 2.0}, {"goodput": 0.9, "cost": 1.0}]
    assert choice(rows) == 1
    assert choice([rows[2], {"goodput": 0.94, "cost": 5.0}]) == 1


def test_a_policy_is_compared_with_the_constants_of_its_seed() -> None:
    rows = [
        {"policy": "constant-1", "tests": {1: {"goodput": 0.5, "cost": 1.0}, 2: {"goodput": 0.5, "cost": 2.0}}},
        {"policy": "hpa", "tests": {1: {"goodput": 0.5, "cost": 3.0}, 2: {"goodput": 0.6, "cost": 3.0}}},
    ]
    assert against(rows, [1, 2]) == {"hpa": {1: 3.0, 2: None}}


def test_parts_for_choosing_and_judging_share_no_request() -> None:
    trace = make_trace(
        [float(at) for at in range(2000)],
        duration_s=2000.0,
        source="synthetic",
        context_tokens=[80] * 2000,
        generated_tokens=[8] * 2000,
    )
    load = LOADS["code"]
    first, second = requests_of(trace, load, 0, 0.0, 1300.0), requests_of(trace, load, 0, 1300.0, 2700.0)
    assert 150 < len(first) < 300 and {(one.prompt, one.output) for one in first} == {(10, 1)}
    assert first[-1].arrival_s < 1300.0 and second[0].arrival_s < 100.0
    assert len(first) + len(second) == len(requests_of(trace, load, 0, 0.0, 4000.0))


def test_times_of_an_instance_are_the_published_medians() -> None:
    tpot_s = [TIMES.iteration(texts, 0, ()) for texts in (1, 4, 16)]
    assert tpot_s == pytest.approx([0.0885, 0.150, 0.231])
    assert TIMES.prefill_s(64) + TIMES.front_s == pytest.approx(0.218)
    assert TIMES.prefill_s(256) + TIMES.front_s == pytest.approx(0.760)
