"""Uniform configurations: which candidates there are, in which order, and which one is chosen."""

from __future__ import annotations

import numpy as np
import pytest

from autoscaler.contract import Configuration, ConfigurationSpace
from evaluation.uniform import cheapest_within, first_keeping, uniform_configurations

SPACE = ConfigurationSpace(4, 512, 4, (0.5, 1.0), (0.1,), 1, 3, 1, 6)


def test_candidates_are_each_resource_with_each_replica_count_and_the_smallest_memory() -> None:
    candidates = uniform_configurations(SPACE, (1, 3), 5)
    assert candidates == [
        Configuration(4, cores, share, replicas, 5)
        for replicas in (1, 3)
        for cores, share in ((0.5, 0.0), (1.0, 0.0), (0.0, 0.1))
    ]


def test_memory_depends_on_replicas_and_cores_and_equal_values_stay_in_order() -> None:
    candidates = uniform_configurations(
        SPACE,
        (2, 1),
        1,
        memory_mb=lambda replicas, cores: int(8 * replicas + 4 * cores),
        order=lambda one: one.replicas,
    )
    assert [(one.replicas, one.memory_mb) for one in candidates] == [
        (1, 10),
        (1, 12),
        (1, 8),
        (2, 18),
        (2, 20),
        (2, 16),
    ]


@pytest.mark.parametrize(
    ("cost", "excess", "allowed", "expected"),
    [
        pytest.param([1.0, 2.0, 3.0], [0.9, 0.1, 0.0], 0.1, 1, id="cheapest that keeps"),
        pytest.param([3.0, 2.0, 2.0], [0.0, 0.0, 0.0], 0.1, 1, id="first of equals"),
        pytest.param([1.0, 2.0, 3.0], [0.9, 0.4, 0.4], 0.1, 1, id="none keeps: least excess, first of equals"),
        pytest.param([1.0, 2.0], [np.inf, np.inf], 0.1, 0, id="nothing is ever answered"),
    ],
)
def test_the_cheapest_within_what_is_allowed(
    cost: list[float], excess: list[float], allowed: float, expected: int
) -> None:
    assert cheapest_within(cost, excess, allowed) == expected


@pytest.mark.parametrize("count", [0, 1, 7])
def test_bisection_finds_the_first_that_keeps_and_the_number_of_all_where_none_does(count: int) -> None:
    for first in range(count + 1):
        assert first_keeping(count, lambda index, first=first: index >= first) == first
