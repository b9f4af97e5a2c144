"""llm-d's control law by hand, and as a story of windows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.contract import GenerationObservation, Observation
from autoscaler.errors import SettingsError
from autoscaler.policy.slo_aware import SloAwarePolicy, SloAwareSettings, desired_replicas, saturation_of
from tests.unit.autoscaler.builders import configuration, observation

NODE, FUNCTION = "expert-0-0", "m-expert-0-0"
SETTINGS = SloAwareSettings(1.0)


@pytest.mark.parametrize(
    ("saturation", "provisioned", "ready", "replicas"),
    [
        (0.825, 4, 4, 6),
        (0.825, 4, 3, 5),
        (0.825, 4, 1, 2),  # fewer: see desired_replicas
        (0.825, 4, 0, 6),
        (2.0, 3, 3, 11),
        (0.56, 3, 3, 4),
        (0.55, 3, 3, 3),
        (0.40, 3, 3, 3),
        (0.39, 8, 8, 8),
        (0.2, 4, 4, 2),
        (0.2, 4, 1, 2),
        (0.0, 5, 5, 0),
    ],
)
def test_the_law_gives_what_a_hand_computes(saturation: float, provisioned: int, ready: int, replicas: int) -> None:
    assert desired_replicas(saturation, provisioned, ready, SETTINGS) == replicas


@given(st.floats(0, 2), st.floats(0, 2), st.integers(1, 20))
def test_more_saturation_never_asks_for_fewer_replicas(one: float, other: float, provisioned: int) -> None:
    low, high = sorted((one, other))
    few, many = (desired_replicas(saturation, provisioned, provisioned, SETTINGS) for saturation in (low, high))
    assert few <= many


def test_p90_lies_on_the_line_from_the_median_to_p95() -> None:
    measured = saturation_of(observation(latency_p50_s=0.1, latency_p95_s=1.0), SETTINGS)
    assert measured == ("", pytest.approx(0.9))


def texts(ttft_s: float | None, tpot_s: float | None, waiting: float = 0.0) -> Observation:
    """Quantiles as long as each other, so that the P90 is it too; whole texts took an hour each."""
    window = GenerationObservation(ttft_s, ttft_s, tpot_s, tpot_s, running=2.0, waiting=waiting)
    return observation(latency_p50_s=3600.0, latency_p95_s=3600.0, generation=window)


@pytest.mark.parametrize(
    ("window", "saturation"),
    [
        pytest.param(texts(0.2, 0.05), (" of TPOT", 0.5), id="the-worse-of-both"),
        pytest.param(texts(1.5, 0.01), (" of TTFT", 1.5), id="first-tokens-late"),
        pytest.param(texts(None, 0.01, 9), (" of TPOT", 0.4), id="no-first-token-is-no-reason-to-shrink"),
        pytest.param(texts(None, None, 9), None, id="nothing-known"),
        pytest.param(observation(generation=GenerationObservation(running=0.0, waiting=0.0)), ("", 0.0), id="at-rest"),
    ],
)
def test_targets_of_tokens_count_by_the_worse_of_them(window: Observation, saturation: tuple[str, float]) -> None:
    assert saturation_of(window, SloAwareSettings(ttft_s=1.0, tpot_s=0.1)) == saturation


def test_a_policy_without_any_target_is_refused() -> None:
    with pytest.raises(SettingsError, match="slo_s is None; allowed is a target"):
        SloAwareSettings()


def replicas_after(p95s_s: list[float | None], start: int = 4, every_s: float = 30.0, in_flight: float = 0.0) -> int:
    """With a median as long as the P95, so that the P90 is it too."""
    policy, memory, replicas = SloAwarePolicy(SETTINGS), None, start
    for number, p95_s in enumerate(p95s_s):
        node = {"configuration": configuration(replicas), "ready_replicas": replicas}
        window = observation({NODE: node}, latency_p50_s=p95_s, latency_p95_s=p95_s, in_flight=in_flight)
        proposal = policy.propose(window, every_s * number, memory)
        memory = proposal.memory
        replicas = proposal.desired[FUNCTION].replicas if FUNCTION in proposal.desired else replicas
    return replicas


def test_it_adds_replicas_before_the_slo_is_broken_and_drains_one_at_a_time() -> None:
    assert replicas_after([0.7, 0.7, 0.7]) > 4
    assert replicas_after([0.1] * 6) == 4, "the scale-down window of 180 s holds"
    assert [replicas_after([0.1] * windows) for windows in (7, 8, 9)] == [3, 3, 2], "then one replica in 60 s"


def test_one_wild_window_counts_no_more_than_the_clamp() -> None:
    assert replicas_after([0.5, 90.0, 0.5, 0.5]) == replicas_after([0.5, 2.0, 0.5, 0.5])


def test_an_idle_pipeline_has_no_saturation_and_a_stuck_one_no_data() -> None:
    assert replicas_after([None] * 7) == 3
    assert replicas_after([None] * 7, in_flight=50.0) == 4


def test_thresholds_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"down_threshold is 0\.6; allowed is below up_threshold"):
        SloAwareSettings(1.0, down_threshold=0.6)
