"""The local search below the oracle's choice, against every choice there is, each played in the simulator."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from benchmarks.bound import descent
from benchmarks.bound.descent import descend
from evaluation.bound.loads import WindowLoad
from evaluation.bound.oracle import Feasible, cheapest_feasible, simulate_numbers
from tests.unit.evaluation.bound.builders import FOUR, window, with_slo


@pytest.fixture(scope="module")
def every() -> tuple[WindowLoad, np.ndarray]:
    """A window and [choices, (cost, P95)] of all 4^4 choices on the provisioned meter."""
    load = window(0.05, 40.0, 1.5, seed=4)
    choices = product(range(len(FOUR)), repeat=4)
    return load, np.array(
        [simulate_numbers(load, (np.array(c[:2]), np.array(c[2:])), "provisioned", 0) for c in choices]
    )


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.8])
def test_it_lies_between_the_optimum_and_where_it_began_and_meets_the_slo(
    every: tuple[WindowLoad, np.ndarray], share: float
) -> None:
    load, (cost, p95_s) = every[0], every[1].T
    slo_s = float(np.quantile(p95_s, share, method="nearest"))
    at = with_slo(load, slo_s)
    start = cheapest_feasible(at, "provisioned")
    assert start is not None
    lowest = descend(at, "provisioned", start)
    assert cost[p95_s <= slo_s].min() * (1 - 1e-9) <= lowest.cost <= start.cost
    assert (
        simulate_numbers(at, lowest.numbers, "provisioned", 0) == (lowest.cost, lowest.p95_s) and lowest.p95_s <= slo_s
    )


def test_from_the_most_expensive_choice_it_goes_down_and_looks_no_more_often_than_allowed(
    every: tuple[WindowLoad, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    load, (cost, p95_s) = every[0], every[1].T
    at = with_slo(load, float(p95_s.max()))
    fastest = tuple(np.array([frontier.number[0] for frontier in layer]) for layer in frontiers(at))
    dear = Feasible(*simulate_numbers(at, fastest, "provisioned", 0), 1.0, fastest)
    assert descend(at, "provisioned", dear).cost == pytest.approx(cost.min())
    looks: list[object] = []
    monkeypatch.setattr(descent, "simulate_numbers", lambda *given: looks.append(given) or (np.inf, np.inf))
    assert descend(at, "provisioned", dear, looks=3) is dear and len(looks) == 3


def frontiers(load: WindowLoad) -> list[list[descent.Frontier]]:
    tables, _ = descent.expected_tables(load, "provisioned")
    return [[descent.frontier(table, load.physics.space_arrays) for table in layer] for layer in tables]
