"""Segments of a decoder as instances: what policies see of them, and that they are scaled together."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.contract import GenerationObservation, Observation, Proposal
from autoscaler.policy.hpa import HpaPolicy
from autoscaler.policy.instances import InstancesPolicy, as_instances, together
from autoscaler.policy.keda import KedaPolicy
from autoscaler.policy.kpa import KpaPolicy
from tests.unit.autoscaler.builders import NOW_S, configuration, observation, topology

SEGMENTS = [node for node in topology().nodes if node.kind == "segment"]
FUNCTIONS = {node.function for node in SEGMENTS}


def window(running: float = 0.0, waiting: float = 0.0, replicas: int = 1, **more: Any) -> Observation:
    """Every segment has ``replicas`` of 4 slots; calls at segments are few whatever the texts."""
    changes = {
        node.id: {"configuration": configuration(replicas), "ready_replicas": replicas, "in_flight": 0.1}
        for node in SEGMENTS
    }
    return observation(changes, generation=GenerationObservation(running=running, waiting=waiting), **more)


def test_policies_see_texts_as_calls_of_every_segment_and_experts_as_they_are() -> None:
    whole = as_instances(window(6, 3, replicas=2))
    for node in whole.nodes:
        if node.kind == "segment":
            assert (node.in_flight, node.waiting, node.concurrency_utilisation) == (6, 3, 6 / 8)
        else:
            assert node == window(6, 3, replicas=2).node(node.node)


def test_there_are_as_many_instances_as_replicas_of_the_scarcest_segment() -> None:
    changes = {node.id: {"ready_replicas": 3 - place} for place, node in enumerate(SEGMENTS[:2])}
    texts = GenerationObservation(running=4.0, waiting=0.0)
    ready = {node.ready_replicas for node in as_instances(observation(changes, generation=texts)).nodes[1:]}
    assert min(3, 2, 1) in ready
    segments = [node for node in as_instances(observation(changes, generation=texts)).nodes if node.kind == "segment"]
    assert {node.ready_replicas for node in segments} == {1}


def test_a_pipeline_that_generates_nothing_is_judged_as_before() -> None:
    plain = observation()
    assert as_instances(plain) is plain
    hpa = HpaPolicy()
    assert InstancesPolicy(hpa).propose(plain, NOW_S, None) == hpa.propose(plain, NOW_S, None)


@pytest.mark.parametrize("policy", [HpaPolicy(), KpaPolicy(), KedaPolicy()], ids=lambda policy: policy.name)
def test_waiting_texts_scale_all_segments_to_the_same_number(policy: Any) -> None:
    """15 texts, 2.8 for each instance of 4 slots at a target of 0.7."""
    wrapped = InstancesPolicy(policy)
    assert policy.propose(window(5, 10), NOW_S, None).desired[SEGMENTS[0].function].replicas == 1
    proposal = wrapped.propose(window(5, 10), NOW_S, None)
    replicas = {name: proposal.desired[name].replicas for name in FUNCTIONS}
    assert len(set(replicas.values())) == 1 and min(replicas.values()) >= 5
    assert wrapped.propose(window(5, 10), NOW_S, proposal.memory).memory is not None


@given(st.dictionaries(st.sampled_from(sorted(FUNCTIONS)), st.integers(0, 8)), st.integers(1, 8))
def test_every_segment_gets_the_most_that_one_is_to_have(asked: dict[str, int], replicas: int) -> None:
    seen = window(replicas=replicas)
    one = Proposal({name: configuration(count) for name, count in asked.items()}, dict.fromkeys(FUNCTIONS, "why"))
    desired = {name: each.replicas for name, each in together(one, seen).desired.items()}
    if asked:
        most = max([asked.get(name, replicas) for name in FUNCTIONS])
        assert desired == dict.fromkeys(FUNCTIONS, most)
    else:
        assert desired == {}


def test_segments_that_the_policy_leaves_alone_stay_alone() -> None:
    expert = next(node.function for node in topology().nodes if node.kind == "expert")
    one = Proposal({expert: configuration(3)}, {expert: "busy"})
    assert together(one, window(5, 5)) == one
