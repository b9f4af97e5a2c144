"""Knative's autoscaler: single decisions and stories, worked out by hand from autoscaler.go."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.contract import Observation, Proposal
from autoscaler.errors import SettingsError
from autoscaler.policy.kpa import KpaPolicy, KpaSettings, KpaState, Sample, average, scale
from tests.unit.autoscaler.builders import configuration, observation

NODE, FUNCTION = "expert-0-0", "m-expert-0-0"
TARGET = 2.8
"""70 % of the 4 slots of a replica."""


def window(end_s: float, length_s: float, calls: float, replicas: int, **more: Any) -> Observation:
    fields = {"configuration": configuration(replicas), "ready_replicas": replicas, "in_flight": calls, **more}
    return replace(observation({NODE: fields}), start_s=end_s - length_s, end_s=end_s)


def story(policy: KpaPolicy, calls: list[float], length_s: float, replicas: int = 1) -> list[int]:
    """Replicas after each window; every desired replica is there at once."""
    memory: object = None
    seen = []
    for number, value in enumerate(calls, start=1):
        now_s = 1000.0 + number * length_s
        proposal = policy.propose(window(now_s, length_s, value, replicas), now_s, memory)
        memory, replicas = proposal.memory, proposal.desired[FUNCTION].replicas
        seen.append(replicas)
    return seen


def test_a_story_by_the_minute() -> None:
    """2: five times the target, panic. 3: panic lasts 60 s. 4: over, halved at most (5 / 2). 5: again (2 / 2)."""
    assert story(KpaPolicy(), [2.8, 14.0, 14.0, 5.6, 0.0, 0.0], 60.0) == [1, 5, 5, 2, 1, 1]


def test_a_story_by_two_seconds_with_a_panic_window_of_six() -> None:
    """28 calls from 60 to 66 s. Panic averages 28·2/6, 28·4/6, 28 ask for 4, 7, 10 (8 at most), once over twice the
    ready ones, at 62 s; panic ends after 122 s. Then the stable average still has 2 of its 60 s under load (1 replica),
    but never less than half of the ready ones."""
    calls = [0.0] * 30 + [28.0] * 3 + [0.0] * 33
    seen = dict(zip(range(2, 134, 2), story(KpaPolicy(), calls, 2.0), strict=True))
    assert [seen[t] for t in (60, 62, 64, 66, 68, 122, 124, 126, 128, 132)] == [1, 4, 7, 8, 8, 8, 4, 2, 1, 1]


def test_a_new_autoscaler_over_several_replicas_begins_in_panic_and_keeps_them() -> None:
    assert story(KpaPolicy(), [0.0] * 3, 30.0, replicas=6) == [6, 6, 6]
    assert story(KpaPolicy(), [0.0] * 4, 30.0, replicas=6)[-1] == 3


@pytest.mark.parametrize(
    ("stable", "ready", "settings", "replicas"),
    [
        pytest.param(8.4, 3, {}, 3, id="on target"),
        pytest.param(8.5, 3, {}, 4, id="a little more: Knative has no tolerance"),
        pytest.param(0.0, 7, {}, 3, id="down to half, rounded down"),
        pytest.param(0.0, 7, {"max_scale_down_rate": 10.0}, 0, id="a generous rate down"),
        pytest.param(14.0, 4, {"max_scale_up_rate": 1.1}, 5, id="at least one more: 4 · 1.1 rounded up"),
        pytest.param(28.0, 6, {"max_scale_up_rate": 1.5, "panic_threshold": 9.0}, 9, id="the rate up holds back"),
    ],
)
def test_one_decision_in_stable_mode(stable: float, ready: int, settings: dict[str, Any], replicas: int) -> None:
    state = KpaState((Sample(0.0, 60.0, stable),))
    assert scale(state, ready, TARGET, 60.0, KpaSettings(**settings))[0] == replicas


def test_in_panic_the_larger_of_both_averages_counts_and_nothing_goes() -> None:
    state = KpaState((Sample(0.0, 54.0, 28.0), Sample(54.0, 60.0, 5.6)), panic_s=50.0, panic_replicas=4)
    wanted, after, reason = scale(state, 4, TARGET, 60.0, KpaSettings())
    assert wanted == after.panic_replicas == 10 and "in panic" in reason
    assert after.panic_s == 50.0
    calm = replace(after, samples=(Sample(54.0, 60.0, 0.0),))
    assert scale(calm, 10, TARGET, 110.0, KpaSettings())[0] == 10
    assert scale(calm, 10, TARGET, 110.1, KpaSettings())[0] == 5


def test_panic_is_extended_while_the_threshold_is_exceeded() -> None:
    state = KpaState((Sample(0.0, 60.0, 28.0),), panic_s=30.0, panic_replicas=10)
    assert scale(state, 5, TARGET, 60.0, KpaSettings())[1].panic_s == 60.0
    assert scale(state, 6, TARGET, 60.0, KpaSettings())[1].panic_s == 30.0


def test_the_scale_down_delay_keeps_the_most_of_its_time() -> None:
    policy = KpaPolicy(KpaSettings(scale_down_delay_s=90.0))
    assert story(policy, [8.4, 8.4, 2.8, 2.8, 2.8], 60.0) == [3, 3, 3, 1, 1]


def test_calls_per_second_have_a_target_of_their_own() -> None:
    policy = KpaPolicy(KpaSettings(metric="rps"))
    seen = window(60.0, 60.0, 0.0, 1, requests_per_s=300.0)
    assert policy.propose(seen, 60.0, None).desired[FUNCTION].replicas == 3


def test_without_a_limit_of_calls_the_default_concurrency_is_the_target() -> None:
    seen = window(60.0, 60.0, 141.0, 1, configuration=configuration(1, concurrency=0))
    assert KpaPolicy().propose(seen, 60.0, None).desired[FUNCTION].replicas == 3


def test_calls_that_wait_count() -> None:
    proposal = KpaPolicy().propose(window(60.0, 60.0, 2.8, 1, waiting=2.8), 60.0, None)
    assert proposal.desired[FUNCTION] == configuration(2)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"ready_replicas": None}, "ready replicas are not known"),
        ({"configuration": None}, "configuration is not known"),
        ({"in_flight": None}, "calls are not known"),
        ({"waiting": None}, "calls are not known"),
    ],
)
def test_without_data_it_desires_nothing_names_the_reason_and_remembers_nothing(
    fields: dict[str, Any], sentence: str
) -> None:
    found: Proposal = KpaPolicy().propose(replace(observation({NODE: fields})), 60.0, None)
    assert FUNCTION not in found.desired and sentence in found.reasons[FUNCTION]
    assert FUNCTION not in found.memory  # type: ignore[operator]


def test_overlapping_windows_count_only_what_is_new() -> None:
    """Prometheus looks back 30 s at every 5 s: of the second window 5 s are new."""
    first = KpaPolicy().propose(window(30.0, 30.0, 2.8, 1), 30.0, None)
    second = KpaPolicy().propose(window(35.0, 30.0, 5.6, 1), 35.0, first.memory)
    assert second.memory[FUNCTION].samples == (Sample(0.0, 30.0, 2.8), Sample(30.0, 35.0, 5.6))  # type: ignore[index]


@given(st.lists(st.tuples(st.floats(0.5, 20), st.floats(0, 50)), min_size=1, max_size=12), st.floats(1, 80))
def test_the_average_is_that_of_a_fine_grid(stretches: list[tuple[float, float]], window_s: float) -> None:
    samples, now_s = [], 0.0
    for length_s, value in stretches:
        samples.append(Sample(now_s, now_s + length_s, value))
        now_s += length_s
    steps = 20_000
    begin_s = max(0.0, now_s - window_s)
    grid = [begin_s + (i + 0.5) * (now_s - begin_s) / steps for i in range(steps)]
    values, k = [], 0
    for time_s in grid:
        while samples[k].end_s <= time_s and k + 1 < len(samples):
            k += 1
        values.append(samples[k].value)
    assert average(samples, window_s) == pytest.approx(sum(values) / steps, rel=2e-2, abs=2e-2)


def test_a_function_at_zero_wakes_for_calls_only() -> None:
    for calls, replicas in ((0.0, 0), (1.0, 1)):
        seen = window(60.0, 60.0, 0.0, 0, waiting=calls)
        assert KpaPolicy().propose(seen, 60.0, None).desired[FUNCTION].replicas == replicas


@pytest.mark.parametrize(
    "wrong",
    [
        {"target_utilisation": 0.0},
        {"max_scale_down_rate": 1.0},
        {"panic_threshold": 1.0},
        {"stable_window_s": float("nan")},
        {"metric": "tokens"},
        {"min_replicas": 9},
    ],
)
def test_a_setting_that_is_not_allowed_is_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=f"^kpa: {next(iter(wrong))} is "):
        KpaSettings(**wrong)


def test_proposing_is_pure() -> None:
    policy = KpaPolicy()
    memory = policy.propose(window(60.0, 60.0, 14.0, 1), 60.0, None).memory
    seen = window(120.0, 60.0, 0.0, 5)
    assert policy.propose(seen, 120.0, memory) == policy.propose(seen, 120.0, memory)
