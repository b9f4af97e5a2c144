"""Janus on a decoder: windows of a small world of its own, every pair of attention and experts by brute force."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from autoscaler.contract import GenerationObservation, Observation, Policy, Proposal
from autoscaler.decision.limits import LimitSettings
from autoscaler.errors import SettingsError
from autoscaler.policies import Making
from autoscaler.policy.instances import InstancesPolicy
from autoscaler.policy.janus import make
from autoscaler.policy.janus_decoder import JanusDecoderMemory, JanusDecoderPolicy, JanusDecoderSettings
from autoscaler.settings import ControllerSettings
from tests.unit.autoscaler.builders import NOW_S, PRICES, configuration, observation, topology
from tests.unit.autoscaler.test_iterations import chain_seconds

SEGMENTS = ("segment-0", "segment-1", "segment-2")
LAYERS = (("expert-0-0", "expert-0-1"), ("expert-1-0", "expert-1-1", "expert-1-2"))
EXPERTS = tuple(node for layer in LAYERS for node in layer)
NODES = (*SEGMENTS, *EXPERTS)
MOST = 3
ONES = dict.fromkeys(NODES, 1)


@dataclass(frozen=True)
class World:
    """A decoder whose every token visits all experts, solved by iterating; TPOT is the iteration, with no tail."""

    base_s: dict[str, float] = field(default_factory=dict)
    token_s: dict[str, float] = field(default_factory=dict)

    def alone_s(self, node: str, tokens: float) -> float:
        return self.base_s.get(node, 0.01) + self.token_s.get(node, 0.0005) * tokens

    def calls_s(self, tokens_per_s: float, replicas: dict[str, int]) -> tuple[float, float, dict[str, float]]:
        """Tokens and seconds of an iteration, and seconds of a call of each node, where instances never rest."""
        instances, took_s = replicas["segment-0"], 0.05
        for _ in range(200):
            tokens = max(1.0, tokens_per_s * took_s / instances)
            each = {node: self.alone_s(node, tokens) for node in NODES}
            for node in EXPERTS if instances > 1 else ():
                each[node] = met_s(each[node], took_s, instances, replicas[node])
            last_s, took_s = took_s, sum(each[n] for n in SEGMENTS) + sum(max(each[n] for n in m) for m in LAYERS)
            if took_s > 10 or abs(took_s - last_s) < 1e-8:
                break
        return tokens, took_s, each


@cache
def met_s(alone_s: float, cycle_s: float, callers: int, replicas: int) -> float:
    """Mean seconds of a call that each of ``callers`` makes once in ``cycle_s``, by the balance equations."""
    low, high = 1e-6, cycle_s
    if callers == 1 or low + chain_seconds(alone_s, low, callers, replicas, 4, 1.0) > cycle_s:
        return chain_seconds(alone_s, low, callers, replicas, 4, 1.0)
    for _ in range(25):
        middle = (low + high) / 2
        longer = middle + chain_seconds(alone_s, middle, callers, replicas, 4, 1.0) > cycle_s
        low, high = (low, middle) if longer else (middle, high)
    return cycle_s - high


def window(
    world: World, tokens_per_s: float, replicas: dict[str, int], waiting: float = 0.0, **more: Any
) -> Observation:
    """What the world reports under a load that it can bear."""
    tokens, took_s, each = world.calls_s(tokens_per_s, replicas)
    calls_per_s = tokens_per_s / tokens
    changes: dict[str, dict[str, Any]] = {
        node: {
            "configuration": configuration(replicas[node]),
            "ready_replicas": replicas[node],
            "requests_per_s": calls_per_s,
            "latency_mean_s": each[node] if calls_per_s else None,
            "tokens_per_s": tokens_per_s,
        }
        for node in NODES
    }
    for node, change in more.items():
        changes[node.replace("_", "-")] |= change
    texts = GenerationObservation(
        running=tokens_per_s * took_s, waiting=waiting, written_tokens_per_s=tokens_per_s,
        tpot_p50_s=took_s, tpot_p95_s=took_s if calls_per_s else None,
    )  # fmt: skip
    return observation(changes, generation=texts)


def settings(**more: Any) -> JanusDecoderSettings:
    """Nothing kept in reserve."""
    plain = {"headroom": 1.0, "spare": 1.0, "load_factor": 1.0, "load_smoothing": 1.0, "down_windows": 2}
    return JanusDecoderSettings(**{"tpot_s": 0.1, "max_replicas": MOST, "tail_windows": 1, **plain, **more})


def story(policy: Any, *windows: Observation) -> Proposal:
    memory: object = None
    for number, seen in enumerate(windows):
        proposal = policy.propose(seen, NOW_S + 10 * number, memory)
        memory = proposal.memory
    return proposal


def counts(found: Proposal) -> dict[str, int]:
    return {function.removeprefix("m-"): desired.replicas for function, desired in found.desired.items()}


def priced(replicas: dict[str, int]) -> float:
    return sum(PRICES.unit_per_s(configuration()) * count for count in replicas.values())


EARLIER = (20.0, 60.0, 120.0)
"""Loads seen before, from which the lines of all nodes are known."""


def learnt(world: World, *last: Observation) -> tuple[Observation, ...]:
    return (*(window(world, load, ONES) for load in EARLIER), *last)


@pytest.mark.parametrize("heavy", ["segment-1", "expert-0-1", "none"])
@pytest.mark.parametrize(
    ("load", "replicas"),
    [
        pytest.param(170.0, 1, id="up"),
        pytest.param(150.0, MOST, id="down"),
        pytest.param(400.0, MOST, id="hardly-down"),
    ],
)
def test_no_attention_and_experts_that_keep_the_target_are_cheaper_by_more_than_a_step(
    load: float, replicas: int, heavy: str
) -> None:
    """All 3 · 3^5 by brute force with the world's own arithmetic; a step of the search is one replica of a layer's
    experts each."""
    world, target_s, now = World(token_s={heavy: 0.0012}), 0.13, dict.fromkeys(NODES, replicas)
    policy = JanusDecoderPolicy(settings(tpot_s=target_s, down_windows=1), PRICES)
    seen = window(world, load, now)
    reached = counts(story(policy, *learnt(world, seen)))
    assert seen.generation is not None
    cheapest = least(world, max(load * target_s, seen.generation.running or 0.0), target_s)
    step = max(map(len, LAYERS)) * PRICES.unit_per_s(configuration())
    assert world.calls_s(load, reached)[1] <= target_s * 1.02
    assert priced(reached) <= cheapest + step + 1e-9


def least(world: World, batch: float, target_s: float) -> float:
    """What the cheapest combination costs that computes so many tokens within the longest iteration allowed."""
    costs = []
    for attention in range(1, MOST + 1):
        tokens = batch / attention
        segments_s = sum(world.alone_s(node, tokens) for node in SEGMENTS)
        each = {
            (node, r): met_s(world.alone_s(node, tokens), target_s, attention, r)
            for node in EXPERTS
            for r in range(1, MOST + 1)
        }
        for experts in product(range(1, MOST + 1), repeat=len(EXPERTS)):
            chosen = dict(zip(EXPERTS, experts, strict=True))
            if segments_s + sum(max(each[n, chosen[n]] for n in layer) for layer in LAYERS) <= target_s:
                costs.append(priced(dict.fromkeys(SEGMENTS, attention) | chosen))
    return min(costs)


def test_more_texts_ask_for_instances_where_segments_are_slow_and_leave_experts() -> None:
    world = World(token_s=dict.fromkeys(SEGMENTS, 0.003))
    desired = counts(story(JanusDecoderPolicy(settings(), PRICES), *learnt(world, window(world, 60.0, ONES))))
    assert {desired[node] for node in SEGMENTS} == {2} and {desired[node] for node in EXPERTS} == {1}


def test_instances_that_meet_at_experts_ask_for_experts_and_for_no_instance() -> None:
    world = World(base_s={"expert-0-1": 0.04})
    three = ONES | dict.fromkeys(SEGMENTS, 3)
    assert world.calls_s(60.0, three)[1] > 0.11
    desired = counts(
        story(JanusDecoderPolicy(settings(tpot_s=0.11), PRICES), *learnt(world, window(world, 60.0, three)))
    )
    assert {desired[node] for node in SEGMENTS} == {3}
    assert desired["expert-0-1"] > 1 and desired["expert-0-0"] == 1


def test_calm_windows_take_both_sides_away_and_no_more_than_the_target_bears() -> None:
    world = World(token_s=dict.fromkeys(SEGMENTS, 0.003))
    many = dict.fromkeys(NODES, 3)
    policy = JanusDecoderPolicy(settings(), PRICES)
    first = learnt(world, window(world, 60.0, many))
    assert counts(story(policy, *first)) == many  # one calm window is not enough
    desired = counts(story(policy, *first, window(world, 60.0, many)))
    assert sum(desired.values()) < sum(many.values()) and world.calls_s(60.0, desired)[1] <= 0.1


def test_a_load_that_jumps_is_planned_for_at_once_whatever_was_before() -> None:
    world = World(token_s=dict.fromkeys(SEGMENTS, 0.003))
    policy = JanusDecoderPolicy(settings(load_smoothing=0.1), PRICES)
    desired = counts(story(policy, *(window(world, load, ONES) for load in (30.0, 20.0, 10.0, 10.0, 60.0))))
    assert world.calls_s(60.0, ONES)[1] > 0.1 and world.calls_s(60.0, desired)[1] <= 0.1


@pytest.mark.parametrize("last", [20.0, 60.0], ids=["in-a-lull", "at-the-load"])
def test_less_is_planned_for_the_most_that_calm_windows_asked_for(last: float) -> None:
    """In a lull of the last of three calm windows what stays bears the load of the two before."""
    world = World(token_s=dict.fromkeys(SEGMENTS, 0.003))
    many, policy = dict.fromkeys(NODES, 3), JanusDecoderPolicy(settings(down_windows=3), PRICES)
    busy = [window(world, 60.0, many)] * 2
    desired = counts(story(policy, *learnt(world, *busy, window(world, last, many))))
    assert sum(desired.values()) < sum(many.values()) and world.calls_s(60.0, desired)[1] <= 0.1


def test_texts_that_wait_are_planned_for_although_the_target_is_kept() -> None:
    world = World(token_s=dict.fromkeys(SEGMENTS, 0.003))
    calm, queued = (window(world, 40.0, ONES, waiting) for waiting in (0.0, 12.0))
    policy = JanusDecoderPolicy(settings(), PRICES)
    assert counts(story(policy, *learnt(world, calm)))["segment-0"] == 1
    proposal = story(policy, *learnt(world, queued))
    assert counts(proposal)["segment-0"] > 1 and "texts wait" in proposal.reasons["m-segment-0"]


def test_a_load_that_nothing_bears_takes_all_that_helps() -> None:
    world = World(token_s=dict.fromkeys(SEGMENTS, 0.003))
    proposal = story(JanusDecoderPolicy(settings(), PRICES), *learnt(world, window(world, 100.0, ONES, 1e4)))
    assert counts(proposal)["segment-0"] == MOST


def test_an_idle_decoder_comes_down_to_the_least() -> None:
    world = World()
    idle = window(world, 0.0, dict.fromkeys(NODES, 3))
    policy = JanusDecoderPolicy(settings(load_smoothing=1.0), PRICES)
    assert set(counts(story(policy, *learnt(world), idle)).values()) == {1}


def test_a_decoder_at_rest_whose_tokens_would_be_late_with_any_replicas_keeps_no_more_than_one() -> None:
    """An iteration of one token takes 50 ms of 40: what is not to be had is not paid for."""
    world = World()
    idle = window(world, 0.0, dict.fromkeys(NODES, 3))
    proposal = story(JanusDecoderPolicy(settings(tpot_s=0.04), PRICES), *learnt(world), idle, idle)
    assert set(counts(proposal).values()) == {1} and "calm" in proposal.reasons["m-expert-0-0"]


@pytest.mark.parametrize("name", ["requests_per_s", "tokens_per_s", "configuration", "latency_mean_s"])
def test_one_unknown_number_holds_everything(name: str) -> None:
    measured = window(World(), 300.0, ONES, expert_1_0={name: None})
    proposal = JanusDecoderPolicy(settings(), PRICES).propose(measured, NOW_S, None)
    assert proposal.desired == {} and "expert-1-0 is not known" in proposal.reasons["m-segment-0"]


def test_a_pipeline_that_reports_no_texts_is_held() -> None:
    measured = replace(window(World(), 60.0, ONES), generation=None)
    proposal = JanusDecoderPolicy(settings(), PRICES).propose(measured, NOW_S, None)
    assert proposal.desired == {} and set(proposal.reasons.values()) == {"no data: the texts under way are not known"}


def test_experts_alone_leave_instances_as_they_are() -> None:
    world = World(base_s={"expert-0-1": 0.04})
    three = ONES | dict.fromkeys(SEGMENTS, 3)
    policy = JanusDecoderPolicy(settings(tpot_s=0.11, kinds=frozenset({"expert"})), PRICES)
    desired = counts(story(policy, *learnt(world, window(world, 60.0, three))))
    assert set(desired) == set(EXPERTS) and desired["expert-0-1"] > 1


def test_the_tail_is_the_median_of_p95_over_modelled_iterations() -> None:
    world = World()
    usual = window(world, 60.0, ONES)
    assert usual.generation is not None and usual.generation.tpot_p95_s is not None
    slow = replace(usual, generation=replace(usual.generation, tpot_p95_s=5 * usual.generation.tpot_p95_s))
    memory = story(JanusDecoderPolicy(settings(tail_windows=3), PRICES), usual, usual, slow).memory
    assert isinstance(memory, JanusDecoderMemory) and memory.tails == pytest.approx((1.0, 1.0, 5.0), rel=1e-3)


def test_it_judges_the_same_through_the_eyes_that_other_policies_need() -> None:
    """The controller shows every policy of a decoder texts in place of segments' calls."""
    world = World(token_s=dict.fromkeys(SEGMENTS, 0.003))
    policy, windows = JanusDecoderPolicy(settings(), PRICES), learnt(world, window(world, 60.0, ONES))
    assert counts(story(InstancesPolicy(policy), *windows)) == counts(story(policy, *windows))


def test_a_decoder_s_is_made_by_name_and_needs_a_target_of_tpot() -> None:
    policy = of_a_decoder(tpot_s=0.3, scale_segments=False, max_replicas=5, policy_settings={"spare": 0.7})
    assert isinstance(policy, JanusDecoderPolicy)
    assert policy.settings == JanusDecoderSettings(0.3, spare=0.7, max_replicas=5, kinds=frozenset({"expert"}))
    with pytest.raises(SettingsError, match="--tpot-ms"):
        of_a_decoder(slo_s=0.3)
    with pytest.raises(SettingsError, match="scaling"):
        of_a_decoder(tpot_s=0.3, policy_settings={"scaling": "stages"})


def of_a_decoder(**more: Any) -> Policy:
    settings = ControllerSettings("http://127.0.0.1:9", Path("m"), policy="janus", **more)
    return make(Making(settings, replace(topology(), generates=True), LimitSettings(), PRICES))
