"""The queueing model against solved balance equations and textbook formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.bound.queueing import serve
from tests.parameters import examples


def one(rate: float, alone_s: float, speedup: list[float], p: int, c: int) -> tuple[float, float]:
    """(mean seconds, busy replicas)"""
    served = serve(rate, np.array([alone_s]), np.array([speedup]), np.array([p]), np.array([c]))
    return float(served.latency_s[0, 0, 0]), float(served.busy_replicas[0, 0, 0])


def by_balance(
    rate: float, alone_s: float, speedup: list[float], p: int, c: int, states: int = 600
) -> tuple[float, float]:
    """The stationary distribution of the generator matrix, cut off far out; calls are dealt out one by one."""
    generator = np.zeros((states, states))
    for n in range(states - 1):
        generator[n, n + 1] = rate
    for n in range(1, states):
        dealt = [0] * p
        for call in range(min(n, p * c)):
            dealt[call % p] += 1
        generator[n, n - 1] = sum(speedup[m - 1] for m in dealt if m) / alone_s
    generator -= np.diag(generator.sum(axis=1))
    equations = np.vstack([generator.T, np.ones(states)])
    share = np.linalg.lstsq(equations, np.append(np.zeros(states), 1.0), rcond=None)[0]
    every = np.arange(states)
    return float(share @ every / rate), float(share @ np.minimum(every, p))


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(20))
@given(
    st.floats(0.1, 0.85),
    st.floats(0.01, 3.0),
    st.lists(st.floats(0.3, 1.0), min_size=3, max_size=3),
    st.integers(1, 3),
    st.integers(1, 3),
)
def test_it_solves_the_balance_equations(load: float, alone_s: float, rates: list[float], p: int, c: int) -> None:
    speedup = [m * share for m, share in enumerate([1.0, *sorted(rates[1:], reverse=True)], start=1)]
    rate = load * p * min(speedup[:c]) / alone_s
    assert one(rate, alone_s, speedup, p, c) == pytest.approx(by_balance(rate, alone_s, speedup, p, c), rel=1e-6)


@pytest.mark.parametrize("c", [1, 5, 10])
def test_one_replica_whose_calls_share_it_evenly_is_m_m_1(c: int) -> None:
    assert one(6.0, 0.1, [1.0] * 10, 1, c) == pytest.approx((0.1 / 0.4, 0.6))


def test_replicas_of_one_call_each_are_erlang_c() -> None:
    p, offered, alone_s = 4, 3.0, 0.5
    waiting = offered**p / math.factorial(p) * p / (p - offered)
    none = sum(offered**n / math.factorial(n) for n in range(p))
    wait = waiting / (none + waiting) * alone_s / (p - offered)
    assert one(offered / alone_s, alone_s, [1.0], p, 1) == pytest.approx((alone_s + wait, offered))


def test_every_concurrency_of_one_call_is_that_of_a_call_of_its_own() -> None:
    speedup = [1.0, 1.7, 2.1, 2.2]
    many = serve(9.0, np.array([0.1]), np.array([speedup]), np.array([1, 2]), np.array([1, 2, 3, 4]))
    for i, p in enumerate((1, 2)):
        for k in range(4):
            assert (many.latency_s[0, i, k], many.busy_replicas[0, i, k]) == one(9.0, 0.1, speedup, p, k + 1)


def test_more_load_than_can_be_served_is_infinite_and_no_load_costs_nothing() -> None:
    assert one(10.0, 0.1, [1.0], 1, 1) == (math.inf, 1.0)
    assert one(0.0, 0.1, [1.0], 1, 1) == (0.0, 0.0)
