"""The load of ``smoe run``: measured capacity, and a trace whose busiest seconds ask for more than that."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smoe import load
from smoe.errors import SmoeError
from smoe.load import BUSY_S, OVERLOAD, Capacity, busiest_over_mean, in_length_and_rate, mean_rps_of, measure_capacity
from tests.parameters import examples
from traces.model import make_trace

HOUR_S = 3600.0


@settings(max_examples=examples(50))
@given(times=st.lists(st.floats(0, HOUR_S - 1), min_size=1, max_size=40).map(sorted), duration_s=st.floats(5, 600))
def test_the_busiest_seconds_are_those_that_trying_every_begin_finds(times: list[float], duration_s: float) -> None:
    trace = make_trace(np.array(times), duration_s=HOUR_S, source="drawn")
    window_s = min(1.0, BUSY_S / duration_s) * HOUR_S
    most = max(sum(first <= time_s < first + window_s for time_s in times) for first in times)
    assert busiest_over_mean(trace, duration_s) == pytest.approx((most / window_s) / (len(times) / HOUR_S))


@pytest.mark.parametrize("capacity", [8.0, 40.0])
def test_the_busiest_seconds_of_the_replay_ask_for_more_than_the_capacity(capacity: float) -> None:
    rng = np.random.default_rng(0)
    minutes = rng.gamma(0.5, 60.0, size=60)
    times = [60 * at + 60 * rng.random(rng.poisson(rate)) for at, rate in enumerate(minutes)]
    hour = make_trace(np.sort(np.concatenate(times)), duration_s=HOUR_S, source="drawn")
    asked_for_rps = Capacity(capacity, 0.01).overload_rps(64)
    replayed = in_length_and_rate(hour, 120.0, mean_rps_of(hour, 120.0, asked_for_rps), seed=0)
    assert replayed.duration_s == pytest.approx(120.0)
    busiest_rps = busiest_over_mean(replayed, 120.0) * replayed.mean_rps
    assert busiest_rps == pytest.approx(OVERLOAD * capacity, rel=0.25)


class Clock:
    """Time that goes on with each call alone, by a 32nd of a second."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def call(self) -> None:
        self.now_s += 1 / 32

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """Takes no time."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    one = Clock()
    monkeypatch.setattr(load, "time", one)
    return one


def test_capacity_is_what_is_answered_in_a_second_after_settling(clock: Clock) -> None:
    spent_s = iter([3.0, 4.0])
    measured = measure_capacity([clock.call], lambda: next(spent_s), 0.125, 0.5)
    assert (measured.rps, measured.cpu_s) == (32.0, 1 / 16)


@pytest.mark.parametrize(
    ("cpu_s", "expected"),
    [
        pytest.param(0.04, 16.0, id="room"),
        pytest.param(0.07, 10.0, id="cores are short"),
        pytest.param(0.0, 16.0, id="free"),
    ],
)
def test_the_busiest_seconds_ask_for_no_more_than_most_of_what_the_cores_can_do(cpu_s: float, expected: float) -> None:
    assert Capacity(10.0, cpu_s).overload_rps(2) == pytest.approx(expected)


def test_a_refused_prompt_ends_the_measurement_with_what_was_said() -> None:
    def refused() -> None:
        raise SmoeError("no replica")

    with pytest.raises(SmoeError, match="no replica"):
        measure_capacity([refused, lambda: None], lambda: 0.0, 0.0, 30.0)


def test_nothing_answered_asks_for_a_rate(clock: Clock) -> None:
    with pytest.raises(SmoeError, match="--mean-rps"):
        measure_capacity([clock.call], lambda: 0.0, 0.0, 1 / 64)


def test_a_rate_that_leaves_no_request_is_refused() -> None:
    hour = make_trace(np.array([10.0]), duration_s=HOUR_S, source="one")
    with pytest.raises(SmoeError, match="no request"):
        in_length_and_rate(hour, 120.0, 1e-6, seed=0)
