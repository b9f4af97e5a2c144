"""Trimmed means: what they say of percentiles, against enumeration."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.bound.tail import Group, everyone, groups, kept, sum_of_lowest

METHODS: tuple[Any, ...] = (
    "linear",
    "lower",
    "higher",
    "nearest",
    "hazen",
    "weibull",
    "median_unbiased",
    "inverted_cdf",
)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=120), st.integers(0, 50))
def test_where_the_percentile_is_in_time_so_many_requests_are(values: list[int], slo: int) -> None:
    for method in METHODS:
        if np.quantile(values, 0.95, method=method) <= slo:
            assert sum(value <= slo for value in values) >= kept(len(values))


@given(st.lists(st.integers(0, 9), max_size=7), st.integers(0, 4), st.integers(0, 12))
def test_the_lowest_are_the_least_over_all_subsets(values: list[int], silent: int, count: int) -> None:
    every = [*values, *([0] * silent)]
    size = min(count, len(every))
    least = min(sum(chosen) for chosen in combinations(every, size))
    lowest = sum_of_lowest(np.array([values], float).reshape(1, -1), silent, count)
    assert lowest.tolist() == [least]


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=60))
def test_the_mean_of_a_sum_is_no_less_than_the_sum_of_means(pairs: list[tuple[int, int]]) -> None:
    one, other = (np.array(values, float) for values in zip(*pairs, strict=True))
    group = everyone(len(pairs))
    assert group.mean(one + other) >= group.mean(one) + group.mean(other) - 1e-9
    assert group.mean(np.maximum(one, other)) >= max(group.mean(one), group.mean(other)) - 1e-9


def test_groups_are_the_requests_with_the_most_tokens_less_those_that_may_be_late() -> None:
    tokens = np.arange(100, dtype=np.uint16)
    every, heavy = groups(tokens, (1.0, 0.2))
    assert every.in_time == kept(100) == 95 and every.member.all()
    assert np.flatnonzero(heavy.member).tolist() == list(range(80, 100)) and heavy.in_time == 15
    assert heavy.mean(tokens.astype(float)) == pytest.approx(np.arange(80, 95).mean())
    assert len(groups(tokens, (1.0, 0.05))) == 1
    assert groups(np.zeros(0, np.uint16))[0].in_time == 0


def test_requests_without_a_call_count_as_nothing() -> None:
    group = Group(np.array([True, True, False, True]), 2)
    assert group.means(np.array([1, 2]), np.array([[6.0, 1.0]])).tolist() == [0.0]
    assert group.means(np.array([0, 1, 2]), np.array([[6.0, 4.0, 1.0]])).tolist() == [2.0]
