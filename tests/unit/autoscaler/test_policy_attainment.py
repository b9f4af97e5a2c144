"""ElasticMoE's load estimator: attainment against hand computation, steps as stories of windows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.contract import Proposal
from autoscaler.errors import SettingsError
from autoscaler.policy.attainment import AttainmentPolicy, AttainmentSettings, attainment
from autoscaler.state.targets import Targets
from tests.unit.autoscaler.builders import NOW_S, configuration, observation
from tests.unit.autoscaler.manifests import write_pipeline
from tests.unit.autoscaler.test_policies_by_name import made

SETTINGS = AttainmentSettings(slo_s=0.2, up_windows=2, down_windows=3)
SLOW = {"latency_p50_s": 0.1, "latency_p95_s": 0.5, "latency_p99_s": 0.9}
QUICK = {"latency_p50_s": 0.02, "latency_p95_s": 0.05, "latency_p99_s": 0.1}
BUSY = {"in_flight": 3.5, "waiting": 0.0}


def story(*windows: dict[str, Any], changes: dict[str, dict[str, Any]] | None = None) -> Proposal:
    """The proposal after these windows."""
    policy, memory = AttainmentPolicy(SETTINGS), None
    for number, window in enumerate(windows):
        proposal = policy.propose(observation(changes, **window), NOW_S + 10 * number, memory)
        memory = proposal.memory
    return proposal


@pytest.mark.parametrize(
    ("latencies", "share"),
    [
        pytest.param((0.1, 0.3, 0.5), 0.725, id="between-p50-and-p95"),
        pytest.param((0.4, 0.8, 1.6), 0.25, id="below-p50"),
        pytest.param((0.1, 0.2, 0.4), 0.95, id="at-p95"),
        pytest.param((0.1, 0.1, 0.15), 1.0, id="all"),
        pytest.param((None, None, None), None, id="none-known"),
    ],
)
def test_attainment_is_read_off_the_quantiles(latencies: tuple[float | None, ...], share: float | None) -> None:
    names = ("latency_p50_s", "latency_p95_s", "latency_p99_s")
    (tail,) = Targets(0.2).tails(observation(**dict(zip(names, latencies, strict=True))))
    within_slo = attainment(tail)
    assert within_slo == (share if share is None else pytest.approx(share))


@given(st.lists(st.floats(0.001, 10), min_size=3, max_size=3).map(sorted), st.floats(0.001, 10), st.floats(0, 1))
def test_attainment_never_falls_when_the_slo_is_looser(latencies: list[float], slo_s: float, more_s: float) -> None:
    names = ("latency_p50_s", "latency_p95_s", "latency_p99_s")
    window = observation(**dict(zip(names, latencies, strict=True)))
    tight, loose = (attainment(Targets(target_s).tails(window)[0]) for target_s in (slo_s, slo_s + more_s))
    assert tight is not None and loose is not None and 0 <= tight <= loose <= 1


def test_one_violating_window_changes_nothing() -> None:
    assert story(SLOW).desired == {}


def test_windows_that_overlap_count_by_what_is_new_in_them() -> None:
    """Windows of 30 s, read every 5 s: two of them are twelve reads."""
    pressed = {"expert-0-0": BUSY}
    sixth = {**SLOW, "news": 1 / 6}
    assert story(*[sixth] * 11, changes=pressed).desired == {} and story(*[sixth] * 12, changes=pressed).desired
    assert story(SLOW, QUICK, SLOW).desired == {}


def test_functions_that_hold_requests_back_get_a_replica_after_two() -> None:
    desired = story(SLOW, SLOW, changes={"expert-0-1": BUSY, "expert-1-2": {"waiting": 2.0}})
    assert desired.desired == {"m-expert-0-1": configuration(2), "m-expert-1-2": configuration(2)}
    assert "80%" not in desired.reasons["m-expert-0-1"] and "within 0.2 s" in desired.reasons["m-expert-0-1"]


def test_where_none_is_pressed_the_slowest_gets_it() -> None:
    desired = story(SLOW, SLOW, changes={"expert-1-0": {"latency_p95_s": 0.3}, "expert-0-0": {"latency_p95_s": 0.2}})
    assert desired.desired == {"m-expert-1-0": configuration(2)}


def test_sustained_slack_takes_a_replica_from_those_that_can_spare_one() -> None:
    two = {"configuration": configuration(2)}
    desired = story(QUICK, QUICK, QUICK, changes={"expert-0-0": two, "expert-0-1": {**two, "in_flight": 3.5}})
    assert desired.desired["m-expert-0-0"] == configuration(1)
    assert "m-expert-0-1" not in desired.desired
    assert desired.desired["m-expert-1-0"] == configuration(1)  # at its least already


def test_bounds_hold_and_nothing_is_decided_without_latencies() -> None:
    full = {"configuration": configuration(8), "waiting": 5.0}
    assert story(SLOW, SLOW, changes={"expert-0-0": full}).desired == {"m-expert-0-0": configuration(8)}
    nothing = {"latency_p50_s": None, "latency_p95_s": None, "latency_p99_s": None}
    desired = story(SLOW, nothing)
    assert desired.desired == {} and "not known" in desired.reasons["m-expert-0-0"]


@pytest.mark.slow
def test_it_is_made_by_module_name_and_needs_an_slo(tmp_path: Any) -> None:
    folder = write_pipeline(tmp_path / "m")
    policy = made(folder, "autoscaler.policy.attainment:make", slo_s=0.3, scale_segments=False)
    assert isinstance(policy, AttainmentPolicy) and policy.settings.slo_s == 0.3
    with pytest.raises(SettingsError, match="slo"):
        made(folder, "autoscaler.policy.attainment:make")
