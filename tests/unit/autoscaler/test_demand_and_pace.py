"""Kubernetes' HPA rules by hand: what a metric asks for, and how fast replicas may follow."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.policy.demand import by_average_value, by_resource
from autoscaler.policy.pace import History, Pace, limit

PACE = Pace()


@pytest.mark.parametrize(
    ("utilisation", "present", "ready", "measured", "wanted"),
    [
        pytest.param(1.0, 3, 3, 3, 6, id="twice the target doubles"),
        pytest.param(0.5, 3, 3, 3, 3, id="on target"),
        pytest.param(0.549, 3, 3, 3, 3, id="inside the tolerance above"),
        pytest.param(0.451, 3, 3, 3, 3, id="inside the tolerance below"),
        pytest.param(0.56, 3, 3, 3, 4, id="outside: 3.36 rounds up"),
        pytest.param(0.1, 4, 4, 4, 1, id="a fifth of the target: 0.8 rounds up"),
        pytest.param(0.0, 4, 4, 4, 0, id="idle asks for none; bounds are not its affair"),
        pytest.param(1.0, 4, 2, 2, 4, id="up: unready ones count as idle, 2 busy of 4 is the target"),
        pytest.param(1.5, 4, 2, 2, 6, id="up: 3 loads over 4 replicas, ratio 1.5"),
        pytest.param(0.6, 4, 2, 2, 4, id="up would turn down with unready ones idle: stays"),
        pytest.param(0.1, 4, 2, 2, 1, id="down: unready ones do not count"),
        pytest.param(0.475, 4, 3, 3, 4, id="inside the tolerance of the ready ones, whatever is unready"),
        pytest.param(0.2, 4, 4, 2, 4, id="down: unmeasured ones are fully busy, and that turns up: stays"),
        pytest.param(0.05, 8, 8, 7, 3, id="down: (7 · 0.05 + 1) / 8 = 0.169 of 0.5, ceil(2.7)"),
        pytest.param(1.0, 2, 2, 1, 2, id="up: the unmeasured one is idle, on target"),
        pytest.param(0.9, 2, 2, 0, None, id="nothing measured"),
        pytest.param(0.9, 2, 0, 2, None, id="nothing ready"),
    ],
)
def test_replicas_by_a_resource(utilisation: float, present: int, ready: int, measured: int, wanted: int) -> None:
    assert by_resource(utilisation, 0.5, present, ready, measured, 0.1) == wanted


@pytest.mark.parametrize(
    ("total", "present", "wanted"),
    [
        pytest.param(20.0, 2, 4, id="20 calls at 5 each"),
        pytest.param(10.9, 2, 2, id="inside the tolerance"),
        pytest.param(11.1, 2, 3, id="outside"),
        pytest.param(0.0, 3, 0, id="idle"),
        pytest.param(15.0, 1, 3, id="a whole number is not rounded up"),
    ],
)
def test_replicas_by_a_number_for_each_replica(total: float, present: int, wanted: int) -> None:
    assert by_average_value(total, 5.0, present, 0.1) == wanted


@settings(deadline=None)
@given(st.floats(0, 50), st.integers(1, 20), st.data())
def test_demand_never_turns_the_direction_of_the_metric(utilisation: float, present: int, data: st.DataObject) -> None:
    ready = data.draw(st.integers(1, present))
    measured = data.draw(st.integers(1, ready))
    wanted = by_resource(utilisation, 0.5, present, ready, measured, 0.1)
    assert wanted is not None
    if utilisation > 0.5 and ready == present:
        assert wanted >= present
    if utilisation < 0.5:
        assert wanted <= present


def simulate(story: list[tuple[float, int]], pace: Pace = PACE, start: int = 1) -> list[int]:
    """Replicas after each (time, recommendation), each applied at once."""
    history, present, found = History(), start, []
    for now_s, raw in story:
        present, history, _ = limit(raw, present, history, now_s, pace)
        found.append(present)
    return found


def test_scaling_up_is_immediate_and_at_most_4_or_double_in_15_seconds() -> None:
    wide = replace(PACE, max_replicas=100)
    assert simulate([(0, 100), (5, 100), (15, 100), (16, 100), (30, 100)], wide) == [5, 5, 10, 10, 20]


def test_a_second_step_inside_the_period_gets_what_is_left_of_it() -> None:
    assert simulate([(0, 3), (5, 8), (10, 8), (15, 8), (20, 8)]) == [3, 5, 5, 7, 8]


def test_scaling_down_waits_for_the_largest_recommendation_of_five_minutes_to_pass() -> None:
    story = [(0, 6), (10, 1), (200, 3), (299, 1), (300, 1), (499, 1), (500, 1), (600, 1)]
    assert simulate(story, start=6) == [6, 6, 6, 6, 3, 3, 1, 1]


def test_the_first_look_never_shrinks_what_is_found() -> None:
    assert simulate([(0, 1), (299, 1), (300, 1)], start=5) == [5, 5, 1]


def test_a_spike_inside_the_scale_up_window_is_not_followed() -> None:
    slow = replace(PACE, up_stabilisation_s=30)
    assert simulate([(0, 1), (10, 8), (20, 1), (30, 8), (40, 8), (51, 8)], slow) == [1, 1, 1, 1, 1, 5]


def test_scaling_down_is_limited_by_its_rate() -> None:
    gentle = replace(PACE, down_stabilisation_s=0.0, down_pods=2, down_percent=0.0)
    assert simulate([(0, 8), (1, 1), (5, 1), (16, 1), (31, 1)], gentle, start=8) == [8, 6, 6, 4, 2]


@pytest.mark.parametrize(("raw", "expected"), [(0, 2), (20, 6)])
def test_bounds_hold_at_once_whatever_the_rate(raw: int, expected: int) -> None:
    bounded = replace(PACE, min_replicas=2, max_replicas=6, down_stabilisation_s=0.0)
    assert simulate([(0, raw)], bounded, start=4)[0] in (expected, 4)
    assert simulate([(0, 4)], bounded, start=1) == [4]
    assert simulate([(0, raw), (20, raw)], bounded, start=4)[-1] == expected


def test_a_scale_of_zero_is_left_alone() -> None:
    assert simulate([(0, 5)], start=0) == [0]


def test_rates_count_what_was_really_changed_and_not_what_was_desired() -> None:
    history = History()
    wanted, history, _ = limit(5, 1, history, 0.0, PACE)
    assert wanted == 5
    # The platform gave only one replica: three more of the four of this period are left.
    wanted, history, why = limit(8, 2, history, 5.0, PACE)
    assert (wanted, why) == (5, "held by the scale-up rate")


def test_what_held_it_back_is_named() -> None:
    _, history, why = limit(6, 6, History(), 0.0, PACE)
    assert why == ""
    _, _, why = limit(1, 6, history, 10.0, PACE)
    assert why == "held by the scale-down window"
    assert limit(30, 6, history, 10.0, replace(PACE, up_percent=1000))[2] == "bounds are 1 to 8"


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.1, 60), st.integers(1, 4)), min_size=1, max_size=40),
    st.sampled_from([(0.0, 300.0), (30.0, 60.0), (60.0, 0.0)]),
)
def test_remembering_the_last_of_equal_recommendations_is_remembering_all(
    steps: list[tuple[float, int]], windows: tuple[float, float]
) -> None:
    """The oracle keeps every recommendation. Bounds and rates are wide, so that only the windows are seen."""
    up_s, down_s = windows
    wide = replace(PACE, up_stabilisation_s=up_s, down_stabilisation_s=down_s, up_pods=100)
    history, present, now_s = History(), 2, 0.0
    kept: list[tuple[float, int]] = []
    for pause_s, raw in steps:
        now_s += pause_s
        kept = kept or [(now_s, present)]
        up = min([raw, *[n for time_s, n in kept if time_s > now_s - up_s]])
        down = max([raw, *[n for time_s, n in kept if time_s > now_s - down_s]])
        kept.append((now_s, raw))
        expected = min(max(present, up), down)
        present, history, _ = limit(raw, present, history, now_s, wide)
        assert present == expected
    runs = [i for i, (_, raw) in enumerate(steps) if i == 0 or raw != steps[i - 1][1]]
    assert len(history.recommendations) <= len(runs) + 1


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.1, 100), st.integers(0, 60)), min_size=1, max_size=30),
    st.integers(1, 8),
)
def test_no_story_leaves_the_bounds_or_outruns_the_rate(steps: list[tuple[float, int]], start: int) -> None:
    now_s, times = 0.0, []
    for pause_s, raw in steps:
        now_s += pause_s
        times.append((now_s, raw))
    simulated = simulate(times, start=start)
    assert all(1 <= replicas <= 8 for replicas in simulated)
    for before, after in zip([start, *simulated], simulated, strict=False):
        assert after <= max(before + 4, 2 * before)
