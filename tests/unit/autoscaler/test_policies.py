"""The policies over observations: metrics, several nodes in a function, missing data, scripted stories."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autoscaler.contract import Configuration, Observation, Proposal
from autoscaler.policy.hpa import HpaPolicy, HpaSettings
from autoscaler.policy.static import StaticPolicy
from tests.unit.autoscaler.builders import NOW_S, configuration, observation

NODE, FUNCTION = "expert-0-0", "m-expert-0-0"


def propose(settings: HpaSettings | None = None, memory: object = None, **fields: Any) -> Proposal:
    return HpaPolicy(settings).propose(observation({NODE: fields}), NOW_S, memory)


def busy(calls: float, replicas: int = 1, **more: Any) -> dict[str, Any]:
    """``calls`` in flight on replicas of 4 slots; CPU idle unless said."""
    return {
        "configuration": configuration(replicas),
        "ready_replicas": replicas,
        "measured_replicas": replicas,
        "in_flight": calls,
        "waiting": 0.0,
        **more,
    }


@pytest.mark.parametrize(
    ("fields", "replicas"),
    [
        pytest.param(busy(2.8), 1, id="on target: 0.7 of 4 slots"),
        pytest.param(busy(5.6), 2, id="twice the target"),
        pytest.param(busy(2.8, waiting=2.8), 2, id="calls that wait count"),
        pytest.param(busy(0.0, cpu_utilisation=1.0), 2, id="cpu 100 % of 80 %"),
        pytest.param(busy(8.4, cpu_utilisation=1.0), 3, id="the largest of the metrics wins"),
        pytest.param(busy(100.0), 5, id="at most four more at once"),
    ],
)
def test_hpa_scales_by_the_metric_that_asks_for_most(fields: dict[str, Any], replicas: int) -> None:
    assert propose(**fields).desired[FUNCTION] == configuration(replicas)


def test_the_reason_names_metrics_targets_and_what_held_it_back() -> None:
    reason = propose(**busy(100.0)).reasons[FUNCTION]
    assert reason == (
        "cpu 0% (target 80%) asks for 0, concurrency 2500% (target 70%) asks for 36; held by the scale-up rate"
    )


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"ready_replicas": None}, "ready replicas"),
        ({"configuration": None}, "configuration"),
        ({"cpu_utilisation": None, "in_flight": None}, "no data of cpu and concurrency"),
    ],
)
def test_without_data_hpa_desires_nothing_and_names_the_reason(fields: dict[str, Any], sentence: str) -> None:
    proposal = propose(**fields)
    assert FUNCTION not in proposal.desired and sentence in proposal.reasons[FUNCTION]


def test_a_metric_without_data_forbids_scaling_down_but_not_up() -> None:
    settings = HpaSettings(down_stabilisation_s=0.0)
    assert propose(settings, **busy(0.0, 3, cpu_utilisation=None)).desired[FUNCTION].replicas == 3
    assert propose(settings, **busy(14.0, 3, cpu_utilisation=None)).desired[FUNCTION].replicas == 5


def test_a_gpu_function_is_judged_by_calls_alone() -> None:
    gpu = configuration(3, cpu_cores=0.0, gpu_share=0.5)
    settings = HpaSettings(down_stabilisation_s=0.0)
    first = propose(settings, **busy(1.0, 3, configuration=gpu, cpu_utilisation=None))
    again = propose(settings, first.memory, **busy(1.0, 3, configuration=gpu, cpu_utilisation=None))
    assert again.desired[FUNCTION] == replace(gpu, replicas=1)


def test_a_function_scaled_to_zero_is_left_alone() -> None:
    fields = {"configuration": configuration(0), "ready_replicas": 0, "in_flight": 0.0}
    assert propose(**fields).desired[FUNCTION].replicas == 0


def test_only_the_chosen_kinds_are_managed() -> None:
    proposal = HpaPolicy(HpaSettings(kinds=frozenset(("expert",)))).propose(observation(), NOW_S, None)
    assert (
        set(proposal.desired) == set(proposal.reasons) == {f"m-expert-{i}" for i in ("0-0", "0-1", "1-0", "1-1", "1-2")}
    )


def test_nodes_that_share_a_function_are_judged_together() -> None:
    together = [
        node._replace(function="m-experts-0", in_flight=2.8) if node.node in ("expert-0-0", "expert-1-0") else node
        for node in observation().nodes
    ]
    proposal = HpaPolicy().propose(replace(observation(), nodes=tuple(together)), NOW_S, None)
    assert proposal.desired["m-experts-0"].replicas == 2


def test_a_burst_is_followed_at_once_and_left_after_the_window() -> None:
    """Load comes at 10 s and goes at 30 s; replicas follow within a tick and go 60 s after the last high
    recommendation."""
    policy = HpaPolicy(HpaSettings(down_stabilisation_s=60.0))
    memory: object = None
    replicas, seen = 1, {}
    for now_s in range(0, 120, 5):
        calls = 8.4 if 10 <= now_s < 30 else 0.0
        proposal = policy.propose(observation({NODE: busy(calls, replicas)}), float(now_s), memory)
        memory, replicas = proposal.memory, proposal.desired[FUNCTION].replicas
        seen[now_s] = replicas
    assert [seen[t] for t in (5, 10, 25, 30, 80, 85, 115)] == [1, 3, 3, 3, 3, 1, 1]


def test_proposing_changes_neither_the_policy_nor_the_memory_it_was_given() -> None:
    policy, first = HpaPolicy(), propose(**busy(5.6))
    memory = first.memory
    seen = observation({NODE: busy(5.6)})
    assert policy.propose(seen, NOW_S + 5, memory) == policy.propose(seen, NOW_S + 5, memory)


def desired_of(policy: StaticPolicy, seen: Observation) -> dict[str, Configuration]:
    return dict(policy.propose(seen, NOW_S, None).desired)


def test_static_desires_the_present_configuration_or_the_given_one() -> None:
    given = configuration(4, memory_mb=512)
    desired = desired_of(StaticPolicy({FUNCTION: given}), observation({"expert-0-1": {"configuration": None}}))
    assert desired[FUNCTION] == given and desired["m-segment-0"] == configuration()
    assert "m-expert-0-1" not in desired
