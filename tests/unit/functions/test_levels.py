"""Levels of standbys as requests come: the same as the rule that the simulator applies to whole windows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.dispatch.activation import Burst, Standbys, token_rates
from functions.dispatch.levels import Arrivals, Levels

sleeps = st.sampled_from([None, 0.5, 3.0])
arrivals = st.lists(st.floats(0.001, 3.0), min_size=1, max_size=40).map(np.cumsum)


@given(arrivals, st.floats(0.1, 5), st.integers(0, 3), st.floats(0.01, 1.0), st.sampled_from([0.3, 2.0]), sleeps)
def test_levels_are_those_of_the_simulators_rule(
    arrival_s: np.ndarray,
    look_back_s: float,
    replicas: int,
    seconds_per_token: float,
    hold_s: float,
    sleep_s: float | None,
) -> None:
    tokens = np.arange(1, arrival_s.size + 1, dtype=np.uint16)
    burst = Burst(4, hold_s=hold_s, look_back_s=look_back_s, sleep_s=sleep_s)
    wanted = burst.wanted(token_rates(arrival_s, tokens, 0, look_back_s), seconds_per_token)
    spans = Standbys(burst, replicas).spans(arrival_s, wanted, float("inf"))
    levels = Levels({"f": (burst, replicas)})
    for arrived_s, count in zip(arrival_s.tolist(), tokens.tolist(), strict=True):
        levels.arrived(arrived_s, count, {"f": seconds_per_token})
        for moment_s in (arrived_s, arrived_s + 0.0005):
            until_s = levels.until_s("f")
            expected = sum(
                begun_s is not None and begun_s <= moment_s and (released_s is None or released_s > moment_s)
                for _, begun_s, released_s in spans
            )
            assert (until_s > moment_s).sum() == expected == levels.counts(moment_s).get("f", 0)


def test_rates_of_a_look_back_are_those_of_all_arrivals() -> None:
    arrival_s, tokens = np.array([0.0, 0.2, 0.5, 2.0]), np.array([3, 1, 4, 1], dtype=np.uint16)
    arrivals = Arrivals(0.5)
    rates = [arrivals.rate(now_s, count) for now_s, count in zip(arrival_s.tolist(), tokens.tolist(), strict=True)]
    assert rates == pytest.approx(token_rates(arrival_s, tokens, 0, 0.5))


def test_functions_have_rules_of_their_own_and_nothing_measured_activates_nothing() -> None:
    levels = Levels({"f": (Burst(9, 1.0, 0.0), 1), "g": (Burst(2, 1.0, 0.0), 0), "h": (Burst(9, 1.0, 0.0, 0.5), 4)})
    levels.arrived(10.0, 50, {})
    assert levels.counts(10.0) == {} and levels.next_release_s(10.0) is None
    levels.arrived(10.0, 50, {"f": 0.02, "g": 0.02, "h": 0.02})  # 200 tokens/s: four replicas' worth
    assert levels.counts(10.0) == {"f": 3, "g": 2}
    assert levels.next_release_s(10.0) == 25.0
    assert levels.counts(24.9) == {"f": 3, "g": 2} and levels.counts(25.0) == {}


def test_ordered_replicas_sleep_without_requests_and_none_while_one_is_under_way() -> None:
    levels = Levels({"f": (Burst(1, sleep_s=2.0), 2), "g": (Burst(1), 2)})
    levels.arrived(0.0, 1, {})
    assert levels.counts(0.0) == {"f": 2} and levels.next_release_s(0.0) == 2.0
    levels.stay(5.0)  # the look was late, and a request is under way
    assert levels.counts(5.0) == {"f": 2} and levels.next_release_s(5.0) == 7.0
    assert levels.counts(7.0) == {}
    levels.stay(8.0)
    assert levels.counts(8.0) == {}, "nothing wakes up by itself"


def test_what_is_activated_stays_so_when_a_rule_or_the_replicas_change() -> None:
    first = Levels({"f": (Burst(3, 1.0, 0.0), 1)})
    first.arrived(0.0, 100, {"f": 0.02})
    assert first.counts(1.0) == {"f": 3}
    assert Levels({"f": (Burst(2, 1.0, 0.0), 1)}, first).counts(1.0) == {"f": 2}
    assert Levels({"f": (Burst(3, 1.0, 0.0), 4)}, first).counts(1.0) == {"f": 3}
    assert Levels({"g": (Burst(3), 1)}, first).counts(1.0) == {}
    again = Levels({"f": (Burst(3, 1.0, 0.0), 1)}, first)
    again.arrived(0.1, 1, {"f": 0.02})  # arrivals of before count on
    assert again.next_release_s(0.2) == pytest.approx(15.1)
