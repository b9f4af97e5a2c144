"""The paper's "ElasticMoE" baseline: terciles, replicas by tokens, hysteresis; by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autoscaler.contract import Configuration, Proposal
from autoscaler.errors import SettingsError
from autoscaler.policy.token_load import LoadClass, TokenLoadPolicy, TokenLoadSettings, terciles
from functions.dispatch.activation import Burst
from tests.unit.autoscaler.builders import NOW_S, configuration, observation

NODES = ("expert-0-0", "expert-0-1", "expert-1-0", "expert-1-1", "expert-1-2")
CLASSES = (LoadClass(1.0, tokens_per_s=100.0), LoadClass(2.0, tokens_per_s=200.0), LoadClass(4.0, tokens_per_s=400.0))
SETTINGS = TokenLoadSettings(CLASSES, utilisation=0.5, class_windows=2)


def propose(loads: tuple[float, ...], memory: object = None, replicas: int = 1) -> Proposal:
    rows = {
        node: {"tokens_per_s": load, "configuration": configuration(replicas)}
        for node, load in zip(NODES, loads, strict=True)
    }
    return TokenLoadPolicy(SETTINGS).propose(observation(rows), NOW_S, memory)


def shapes(found: Proposal) -> list[tuple[float, int]]:
    return [(found.desired[f"m-{node}"].cpu_cores, found.desired[f"m-{node}"].replicas) for node in NODES]


def test_terciles_by_rank_and_equal_loads_together() -> None:
    assert terciles({"a": 5.0, "b": 1.0, "c": 3.0}) == {"a": 2, "b": 0, "c": 1}
    assert terciles({"a": 0.0, "b": 0.0, "c": 0.0, "d": 9.0}) == {"a": 0, "b": 0, "c": 0, "d": 2}
    assert terciles({}) == {}


def test_class_by_tercile_and_replicas_by_tokens() -> None:
    """Half of 100, 200, 400 tokens/s a replica are planned: 50/50, 60/50, 300/100, 500/200, 900/200."""
    assert shapes(propose((50.0, 60.0, 300.0, 500.0, 900.0))) == [(1, 1), (1, 2), (2, 3), (2, 5), (4, 5)]


def test_memory_and_concurrency_stay_unless_the_class_says_otherwise() -> None:
    settings = TokenLoadSettings((LoadClass(gpu_share=0.5, memory_mb=512, concurrency=2, tokens_per_s=10.0),) * 3)
    rows = {node: {"tokens_per_s": 1.0} for node in NODES}
    proposal = TokenLoadPolicy(settings).propose(observation(rows), NOW_S, None)
    assert proposal.desired["m-expert-0-0"] == Configuration(512, 0.0, 0.5, 1, 2)
    assert propose((50.0,) * 5).desired["m-expert-0-0"] == configuration()


def test_replicas_never_leave_the_bounds() -> None:
    assert [replicas for _, replicas in shapes(propose((0.0, 0.0, 0.0, 0.0, 1e6)))] == [1, 1, 1, 1, 8]


def test_a_class_changes_only_after_so_many_windows_of_the_same_other_tercile() -> None:
    low, high = (10.0, 20.0, 30.0, 40.0, 50.0), (60.0, 20.0, 30.0, 40.0, 50.0)
    memory, seen = None, []
    for loads in (low, high, low, high, high):
        proposal = propose(loads, memory)
        memory = proposal.memory
        seen.append(proposal.desired["m-expert-0-0"].cpu_cores)
    assert seen == [1, 1, 1, 1, 4]


@pytest.mark.parametrize(
    ("load", "replicas"),
    [
        pytest.param(150.0, 4, id="3 would do, but not with 10 % more"),
        pytest.param(136.0, 3, id="3 would do even with 10 % more"),
        pytest.param(210.0, 5, id="up at once"),
    ],
)
def test_replicas_go_only_with_room_to_spare(load: float, replicas: int) -> None:
    assert propose((load,) * 5, replicas=4).desired["m-expert-0-0"].replicas == replicas


def test_without_a_profile_the_speed_of_a_busy_replica_is_measured_and_scaled_by_cores() -> None:
    """80 tokens/s in 10 s, of which the replica was busy 4: 200 tokens/s on one core, of which 70 % are planned."""
    rows = {node: {"tokens_per_s": 80.0, "busy_s": 6.0, "busy_replica_s": 4.0} for node in NODES}
    rows["expert-1-2"] = {**rows["expert-1-2"], "tokens_per_s": 1000.0, "busy_replica_s": 50.0}
    proposal = TokenLoadPolicy().propose(observation(rows), NOW_S, None)
    assert shapes(proposal) == [(1, 1), (1, 1), (1, 1), (1, 1), (4, 2)]
    again = TokenLoadPolicy().propose(observation({NODES[0]: {"tokens_per_s": 300.0}}), NOW_S, proposal.memory)
    assert again.desired["m-expert-0-0"].replicas == 3


def test_seconds_at_replicas_stand_in_for_busy_seconds_up_to_all_there_are() -> None:
    rows = {node: {"tokens_per_s": 70.0, "busy_s": 35.0} for node in NODES}
    assert shapes(TokenLoadPolicy().propose(observation(rows), NOW_S, None))[0] == (1, 2)


def test_activated_standbys_have_busy_seconds_too() -> None:
    """Four replicas' 35 s for 70 tokens/s in 10 s: 20 tokens/s on a core, of which 70 % are planned."""
    burst = replace(configuration(), burst=Burst(3))
    rows = {node: {"tokens_per_s": 70.0, "busy_s": 35.0, "activated_s": 30.0, "configuration": burst} for node in NODES}
    assert shapes(TokenLoadPolicy().propose(observation(rows), NOW_S, None))[0] == (1, 5)


def test_an_expert_never_used_nor_measured_is_held() -> None:
    proposal = TokenLoadPolicy().propose(observation(), NOW_S, None)
    assert not proposal.desired and "tokens per second of a replica" in proposal.reasons["m-expert-0-0"]


def test_speed_measured_on_cores_says_nothing_of_a_gpu_share() -> None:
    settings = TokenLoadSettings((LoadClass(gpu_share=0.5),) * 3)
    rows = {node: {"tokens_per_s": 70.0, "busy_s": 3.0} for node in NODES}
    assert not TokenLoadPolicy(settings).propose(observation(rows), NOW_S, None).desired


def test_only_experts_are_its_business_and_missing_loads_are_reported() -> None:
    rows: dict[str, dict[str, Any]] = {node: {"tokens_per_s": None} for node in NODES}
    proposal = TokenLoadPolicy(SETTINGS).propose(observation(rows), NOW_S, None)
    assert set(proposal.reasons) == {f"m-{node}" for node in NODES} and not proposal.desired


def test_settings_that_are_not_allowed_are_named() -> None:
    with pytest.raises(SettingsError, match="load class is not allowed"):
        LoadClass(1.0, gpu_share=0.5)
    with pytest.raises(SettingsError, match="classes is"):
        TokenLoadSettings(CLASSES[:2])
    with pytest.raises(SettingsError, match="tokens_per_s is"):
        LoadClass(1.0, tokens_per_s=0.0)
