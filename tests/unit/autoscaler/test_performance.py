"""The performance model against queues with known answers, and its inverse."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.policy.performance import Load, PassModel, alone_seconds, mean_seconds


@pytest.mark.parametrize(
    ("replicas", "slots", "sharing", "alone_s", "expected_s"),
    [
        pytest.param(1, 4, 1.0, 0.5, 1.0, id="processor-sharing-at-half-load"),
        pytest.param(1, 1, 1.0, 0.5, 1.0, id="one-slot-is-the-same-in-the-mean"),
        pytest.param(1, 2, 0.0, 1.0, 4 / 3, id="two-slots-that-never-meet-are-erlang-c-with-two-servers"),
        pytest.param(2, 1, 1.0, 1.0, 4 / 3, id="so-are-two-replicas-of-one-slot"),
        pytest.param(3, 1, 1.0, 2.0, 2.0 * (1 + 4 / 9), id="erlang-c-with-three-servers"),
        pytest.param(1, 1, 1.0, 1.0, math.inf, id="all-of-its-time-is-too-much"),
    ],
)
def test_seconds_of_queues_with_known_answers(
    replicas: int, slots: int, sharing: float, alone_s: float, expected_s: float
) -> None:
    assert mean_seconds(alone_s, 1.0, replicas, slots, sharing) == pytest.approx(expected_s)


def test_no_limit_of_slots_and_no_sharing_is_the_call_alone() -> None:
    assert mean_seconds(0.2, 10.0, 1, 0, 0.0) == pytest.approx(0.2)
    assert mean_seconds(0.2, 0.0, 1, 4, 1.0) == 0.2


@settings(deadline=None)
@given(
    st.floats(1e-3, 1.0),
    st.floats(0.05, 0.95),
    st.integers(1, 8),
    st.integers(1, 10),
    st.sampled_from((0.0, 0.3, 1.0)),
)
def test_the_fitted_seconds_give_back_the_measured_mean(
    alone_s: float, used: float, replicas: int, slots: int, sharing: float
) -> None:
    calls_per_s = used * replicas * slots / (1 + sharing * (slots - 1)) / alone_s
    measured_s = mean_seconds(alone_s, calls_per_s, replicas, slots, sharing)
    assert alone_seconds(measured_s, calls_per_s, replicas, slots, sharing) == pytest.approx(alone_s, rel=1e-6)


@settings(deadline=None)
@given(st.floats(0.01, 5.0), st.integers(1, 7), st.integers(1, 6), st.sampled_from((0.0, 0.5, 1.0)))
def test_another_replica_never_makes_calls_slower(
    calls_per_s: float, replicas: int, slots: int, sharing: float
) -> None:
    few, more = (mean_seconds(0.5, calls_per_s, count, slots, sharing) for count in (replicas, replicas + 1))
    assert more <= few * (1 + 1e-9) and more >= 0.5 * (1 - 1e-9)


def test_a_pass_is_its_segments_and_each_layer_s_slowest_expert() -> None:
    loads = {"s": Load(0.1, 0.0, 1), "a": Load(0.2, 0.0, 1), "b": Load(0.3, 0.0, 1), "c": Load(0.05, 0.0, 1)}
    model = PassModel(loads, ["s", "s"], [["a", "b"], ["c"]], 1.0)
    once = dict.fromkeys(loads, 1)
    assert model.attention_s(once) == pytest.approx(0.2)
    assert model.experts_s(once) == pytest.approx(0.35)
