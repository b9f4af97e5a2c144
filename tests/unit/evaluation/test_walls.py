"""Searches inside a cluster's walls, against brute force over every choice of small spaces."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from autoscaler.contract import ConfigurationSpace, Resources
from autoscaler.prices import PriceSheet
from evaluation.bound.frontier import ExpertTable, space_arrays
from evaluation.bound.walls import Problem
from tests.parameters import some_fast

SPACE = ConfigurationSpace(128, 192, 64, (1.0, 2.0), (0.1, 0.2), 1, 2, 1, 1)
PRICES = PriceSheet("by hand", "", "u", 1.0, 0.1, 6.0)
ARRAYS = space_arrays(SPACE, PRICES)
SHAPE = (2, 4, 2, 1)


def problem(seed: int, room: Resources | None) -> Problem:
    """Two layers of one and two experts; faster on GPUs and with replicas, by amounts that are drawn."""
    draws = np.random.default_rng(seed)

    def table() -> ExpertTable:
        units = ARRAYS.cpu_cores + 30 * ARRAYS.gpu_share
        latency = draws.uniform(0.5, 1.5) / units[:, None, None] / np.array([1.0, 1.7])[None, :, None]
        charged = np.broadcast_to(np.array([1.0, 2.0])[None, :, None], latency.shape).copy()
        return ExpertTable(latency, charged, np.zeros(2, np.int64))

    return Problem([[table()], [table(), table()]], ARRAYS, room)


def best(subject: Problem, budget_s: float) -> float:
    """Least cost of all choices within budget and room; infinite without any."""
    least = np.inf
    for numbers in itertools.product(range(len(SPACE)), repeat=3):
        layers = (np.array(numbers[:1]), np.array(numbers[1:]))
        if subject.room is not None and not subject.taken(layers).within(subject.room):
            continue
        latency = 0.0
        for layer, tables in zip(layers, subject.tables, strict=True):
            at = [np.unravel_index(int(number), SHAPE) for number in layer]
            rows = [(ARRAYS.row[m, r], p, c) for m, r, p, c in at]
            latency += max(float(table.latency_s[row]) for table, row in zip(tables, rows, strict=True))
        if latency <= budget_s:
            least = min(least, subject._cost(layers))
    return least


@pytest.mark.slow
@pytest.mark.parametrize("seed", some_fast(range(3), 1))
@pytest.mark.parametrize("room", some_fast([Resources(4.0, 1e4, 3), Resources(2.0, 1e4, 4), Resources(6.0, 1e4, 1)], 1))
def test_a_window_is_enclosed_inside_the_walls(seed: int, room: Resources) -> None:
    subject = problem(seed, room)
    for budget_s in (0.35, 0.6, 1.0):
        enclosure, optimum = subject.enclose(budget_s), best(subject, budget_s)
        assert enclosure.lower <= optimum * (1 + 1e-9)
        if enclosure.feasible:
            assert subject.taken(enclosure.numbers).within(room)
            assert optimum * (1 - 1e-9) <= enclosure.upper <= 1.5 * optimum


def test_a_room_for_everything_changes_nothing() -> None:
    wide, none = problem(0, Resources(1e6, 1e9, 1e6)).enclose(0.6), problem(0, None).enclose(0.6)
    assert (wide.lower, wide.upper) == (none.lower, none.upper)
    assert all((one == other).all() for one, other in zip(wide.numbers, none.numbers, strict=True))


def test_walls_make_the_optimum_costlier_and_the_quickest_choice_fits() -> None:
    tight = problem(1, Resources(6.0, 1e4, 1))
    assert best(tight, 0.6) > best(problem(1, None), 0.6)
    quickest = tight.quickest()
    assert quickest.feasible and tight.taken(quickest.numbers).within(Resources(6.0, 1e4, 1))
