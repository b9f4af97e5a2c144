"""Janus's module-wise scaling: actions worked out by hand, stories of windows, and what it holds on."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from autoscaler.contract import Observation, Proposal
from autoscaler.errors import SettingsError
from autoscaler.policy.janus import JanusMemory, JanusPolicy, JanusSettings
from autoscaler.policy.performance import mean_seconds
from autoscaler.policy.scaled_together import ScaledTogetherPolicy
from autoscaler.prices import PriceSheet
from tests.unit.autoscaler.builders import NOW_S, PRICES, configuration, observation
from tests.unit.autoscaler.manifests import write_pipeline
from tests.unit.autoscaler.test_policies_by_name import made

SLOTS = 4
EXPERTS = ("expert-0-0", "expert-0-1", "expert-1-0", "expert-1-1", "expert-1-2")
SEGMENTS = ("segment-0", "segment-1", "segment-2")
TOKENS = {"expert-0-0": 30.0, "expert-0-1": 10.0, "expert-1-0": 20.0, "expert-1-1": 10.0, "expert-1-2": 10.0}


def window(
    alone_s: dict[str, float],
    calls_per_s: dict[str, float],
    p95_s: float | None,
    replicas: dict[str, int] | None = None,
    **more: Any,
) -> Observation:
    """What a pipeline would measure whose replicas share their time evenly among calls."""
    changes: dict[str, dict[str, Any]] = {}
    for node in (*SEGMENTS, *EXPERTS):
        count = (replicas or {}).get(node, 1)
        rate = calls_per_s.get(node, 0.0)
        mean_s = mean_seconds(alone_s.get(node, 0.01), rate, count, SLOTS, 1.0)
        changes[node] = {
            "configuration": configuration(count),
            "ready_replicas": count,
            "requests_per_s": rate,
            "latency_mean_s": mean_s if rate else None,
            "in_flight": rate * mean_s,
            "tokens_per_s": TOKENS.get(node, 40.0) * rate,
        }
        changes[node] |= more.get(node.replace("-", "_"), {})
    return observation(changes, latency_p95_s=p95_s)


def settings(**more: Any) -> JanusSettings:
    """The paper's two numbers, nothing kept in reserve, nothing remembered of seconds and load."""
    plain = {"scaling": "modules", "headroom": 1.0, "load_factor": 1.0, "smoothing": 1.0, "load_smoothing": 1.0}
    return JanusSettings(**{"slo_s": 0.2, "down_windows": 2, "tail_windows": 1, **plain, **more})


def story(policy: JanusPolicy, *windows: Observation, step_s: float = 10.0) -> Proposal:
    """The proposal after these windows."""
    memory: object = None
    for number, seen in enumerate(windows):
        proposal = policy.propose(seen, NOW_S + step_s * number, memory)
        memory = proposal.memory
    return proposal


def counts(found: Proposal) -> dict[str, int]:
    return {function.removeprefix("m-"): desired.replicas for function, desired in found.desired.items()}


RATES = dict.fromkeys((*SEGMENTS, *EXPERTS), 10.0)


def test_the_hand_computed_action_is_chosen() -> None:
    """Expert 0-0 alone is busy: 80 ms a call at 10 a second make it 400 ms, all others take 10/0.9 ms.

    The mean of a pass is 3 segments and a layer of 11.1 ms and 400 ms, 444.4 ms; a P95 of 444.4 ms makes the tail 1. A
    second replica of 0-0 gives 80 / (1 - 0.16) = 95.24 ms (M/M/2 in the mean, offered 0.8), so the pass takes 139.7 ms
    of 200. One more slot a layer also goes to 1-0, which has most tokens of its layer.
    """
    measured = window({"expert-0-0": 0.08}, RATES, 4 * 0.01 / 0.9 + 0.4)
    proposal = JanusPolicy(settings(), PRICES).propose(measured, NOW_S, None)
    assert counts(proposal) == {
        **dict.fromkeys(SEGMENTS, 1),
        **dict.fromkeys(EXPERTS, 1),
        "expert-0-0": 2,
        "expert-1-0": 2,
    }
    assert "predicted P95 140 ms of 200" in proposal.reasons["m-expert-0-0"]


def test_where_segments_are_the_bottleneck_only_they_grow() -> None:
    measured = window({"segment-1": 0.08}, RATES, 4 * 0.01 / 0.9 + 0.4)
    replicas = counts(JanusPolicy(settings(), PRICES).propose(measured, NOW_S, None))
    assert replicas == {**dict.fromkeys(SEGMENTS, 2), **dict.fromkeys(EXPERTS, 1)}


def test_the_whole_model_in_full_replicas_costs_more_for_the_same() -> None:
    measured = window({"expert-0-0": 0.08}, RATES, 4 * 0.01 / 0.9 + 0.4)
    whole = counts(JanusPolicy(settings(scaling="model"), PRICES).propose(measured, NOW_S, None))
    assert whole == dict.fromkeys((*SEGMENTS, *EXPERTS), 2)


@pytest.mark.parametrize("slo_s", [0.4, 0.5, 0.7])
@pytest.mark.parametrize("dear", ["segment", "expert"])
def test_no_pair_of_attention_and_slots_that_meets_the_slo_is_cheaper(slo_s: float, dear: str) -> None:
    """All 8 × 15 pairs by brute force, with the greedy of section 3.4 written once more."""
    alone = {"segment-1": 0.06, "expert-0-0": 0.07, "expert-1-2": 0.05}
    memory = {"memory_mb": 4096}
    heavy = {
        node.replace("-", "_"): {"configuration": configuration(1, **memory)}
        for node in (SEGMENTS if dear == "segment" else EXPERTS)
    }
    measured = window(alone, RATES, 0.9, **heavy)
    policy = JanusPolicy(settings(slo_s=slo_s), PRICES)
    desired = counts(policy.propose(measured, NOW_S, None))
    nodes = {node.node: node for node in measured.nodes}
    mean_s = sum(nodes[n].latency_mean_s or 0 for n in SEGMENTS)
    mean_s += sum(max(nodes[n].latency_mean_s or 0 for n in EXPERTS if n.startswith(f"expert-{i}")) for i in (0, 1))
    tail = 0.9 / mean_s

    def p95_s(chosen: dict[str, int]) -> float:
        each = {n: mean_seconds(alone.get(n, 0.01), 10.0, chosen[n], SLOTS, 1.0) for n in chosen}
        layers = [max(each[n] for n in EXPERTS if n.startswith(f"expert-{i}")) for i in (0, 1)]
        return tail * (sum(each[n] for n in SEGMENTS) + sum(layers))

    def cost(chosen: dict[str, int]) -> float:
        return sum(PRICES.unit_per_s(nodes[n].configuration or configuration()) * r for n, r in chosen.items())

    pairs = [shared_out(attention, extra) for attention, extra in product(range(1, 9), range(15))]
    meeting = [cost(pair) for pair in pairs if p95_s(pair) <= slo_s]
    assert cost(desired) == pytest.approx(min(meeting)) and p95_s(desired) <= slo_s * (1 + 1e-9)


def shared_out(attention: int, extra: int) -> dict[str, int]:
    chosen = dict.fromkeys(SEGMENTS, attention) | dict.fromkeys(EXPERTS, 1)
    for layer in ("expert-0", "expert-1"):
        own = [node for node in EXPERTS if node.startswith(layer)]
        for _ in range(extra):
            room = [node for node in own if chosen[node] < 8]
            if room:
                chosen[max(room, key=lambda node: (TOKENS[node] / chosen[node], -chosen[node]))] += 1
    return chosen


def test_replicas_follow_the_activations_of_the_window() -> None:
    """Five slots beyond one an expert: 30 and 10 tokens become 5 and 2 replicas, 20, 10 and 10 become 4, 2 and 2."""
    policy = JanusPolicy(settings(rebalance_s=100.0, down_windows=1000), PRICES)
    replicas = {"expert-0-1": 6, "expert-1-1": 6}
    counted = counts(story(policy, *[window({}, RATES, 0.1, replicas)] * 2, step_s=100.0))
    assert [counted[node] for node in EXPERTS] == [5, 2, 4, 2, 2]


def test_calm_windows_take_away_what_the_model_can_spare() -> None:
    replicas = dict.fromkeys((*SEGMENTS, *EXPERTS), 4)
    calm = window({"expert-0-0": 0.08}, RATES, 0.13, replicas)
    policy = JanusPolicy(settings(), PRICES)
    assert counts(story(policy, calm)) == replicas  # one calm window is not enough
    counted = counts(story(policy, calm, calm))
    assert counted["expert-0-0"] >= 2 and counted["segment-0"] < 4
    assert sum(counted.values()) < sum(replicas.values())


def test_nothing_is_taken_away_that_the_slo_needs() -> None:
    """With one replica less of 0-0 the model predicts more than the SLO, so two calm windows change nothing."""
    replicas = {"expert-0-0": 2, "expert-1-0": 2}
    calm = window({"expert-0-0": 0.08}, RATES, 0.19, replicas)
    wanted = {**dict.fromkeys((*SEGMENTS, *EXPERTS), 1), **replicas}
    assert counts(story(JanusPolicy(settings(), PRICES), *[calm] * 5)) == wanted


def test_calls_that_wait_are_planned_for_before_the_slo_is_missed() -> None:
    queued = {"expert_0_0": {"waiting": 20.0}}
    policy = JanusPolicy(settings(waiting=0.1), PRICES)
    proposal = policy.propose(window({"expert-0-0": 0.08}, RATES, 0.15, **queued), NOW_S, None)
    assert counts(proposal)["expert-0-0"] >= 2 and "calls wait" in proposal.reasons["m-expert-0-0"]


def test_where_nothing_meets_the_slo_the_nearly_fastest_is_taken_not_the_most() -> None:
    measured = window({"expert-0-0": 0.08}, RATES, 0.9)
    proposal = JanusPolicy(settings(slo_s=0.001), PRICES).propose(measured, NOW_S, None)
    assert counts(proposal)["expert-0-0"] > 1 and sum(counts(proposal).values()) < 8 * 8


def test_more_than_anything_can_serve_takes_all_there_is() -> None:
    rates = RATES | {"expert-0-0": 12.4}
    queued = {"expert_0_0": {"waiting": 1e5}}
    proposal = JanusPolicy(settings(), PRICES).propose(window({"expert-0-0": 0.08}, rates, 5.0, **queued), NOW_S, None)
    assert set(counts(proposal).values()) == {8} and "more than can be served" in proposal.reasons["m-expert-0-0"]


@pytest.mark.parametrize("name", ["requests_per_s", "latency_mean_s", "waiting", "tokens_per_s", "configuration"])
def test_one_unknown_number_holds_everything(name: str) -> None:
    measured = window({}, RATES, 0.5, expert_1_0={name: None})
    proposal = JanusPolicy(settings(), PRICES).propose(measured, NOW_S, None)
    assert proposal.desired == {} and "expert-1-0 is not known" in proposal.reasons["m-segment-0"]


def test_an_idle_pipeline_comes_down_and_remembers_how_long_calls_take() -> None:
    replicas = dict.fromkeys((*SEGMENTS, *EXPERTS), 3)
    busy = window({"expert-0-0": 0.08}, RATES, 0.15, replicas)
    idle = window({}, {}, None, replicas)
    desired = story(JanusPolicy(settings(), PRICES), busy, idle)
    assert set(counts(desired).values()) == {1} and not math.isinf(float(desired.reasons["m-segment-0"].split()[-4]))


def test_experts_alone_leave_the_segments_as_they_are() -> None:
    only = settings(kinds=frozenset({"expert"}))
    measured = window({"expert-0-0": 0.08}, RATES, 4 * 0.01 / 0.9 + 0.4)
    proposal = JanusPolicy(only, PRICES).propose(measured, NOW_S, None)
    assert set(counts(proposal)) == set(EXPERTS) and counts(proposal)["expert-0-0"] == 2


def test_more_expensive_segments_are_spared_where_either_side_would_do() -> None:
    """Both sides are slow; with segments that cost a hundred times as much, slots are what grows."""
    alone = {"segment-1": 0.03, "expert-0-0": 0.08}
    cheap = PriceSheet("x", "made up", "USD", 1.0, 0.0, 0.0)
    dear = {node.replace("-", "_"): {"configuration": configuration(1, cpu_cores=100.0)} for node in SEGMENTS}
    replicas = counts(JanusPolicy(settings(slo_s=0.4), cheap).propose(window(alone, RATES, 0.6, **dear), NOW_S, None))
    assert replicas["segment-0"] == 1 and replicas["expert-0-0"] > 1


def test_with_stages_by_themselves_only_the_busy_expert_grows() -> None:
    """The same window as by hand above: what 0-0 needs is given to no other layer, and to no other segment."""
    measured = window({"expert-0-0": 0.08}, RATES, 4 * 0.01 / 0.9 + 0.4)
    proposal = JanusPolicy(settings(scaling="stages"), PRICES).propose(measured, NOW_S, None)
    assert counts(proposal) == {**dict.fromkeys((*SEGMENTS, *EXPERTS), 1), "expert-0-0": 2}
    assert "3 replicas of segments, 6 of experts, predicted P95 140 ms of 200" in proposal.reasons["m-expert-0-0"]


def test_calm_stages_hand_their_replicas_to_busier_ones_where_that_is_cheaper() -> None:
    """Four replicas a segment save 3.3 ms together, a second one of 0-0 saves 305 ms; 432 ms cannot do without both."""
    replicas = dict.fromkeys(SEGMENTS, 4)
    calm = window({"expert-0-0": 0.08}, RATES, 0.43, replicas)
    counted = counts(story(JanusPolicy(settings(scaling="stages", slo_s=0.432), PRICES), calm, calm))
    assert [counted[node] for node in SEGMENTS] == [1, 1, 1] and counted["expert-0-0"] == 2


def test_a_load_that_the_present_scale_could_not_bear_is_answered_before_the_slo_is_missed() -> None:
    """P95 is 250 of 450 ms with 8 calls a second at 0-0; 1.6 times as many are more than its replica can serve."""
    rates = RATES | {"expert-0-0": 8.0}
    measured = window({"expert-0-0": 0.08}, rates, 0.25)
    proposal = JanusPolicy(settings(scaling="stages", slo_s=0.45, load_factor=1.6), PRICES).propose(
        measured, NOW_S, None
    )
    assert counts(proposal)["expert-0-0"] == 2 and "P95 would near the SLO" in proposal.reasons["m-expert-0-0"]


def test_what_is_remembered_of_windows_is_smoothed() -> None:
    policy = JanusPolicy(settings(smoothing=0.25, load_smoothing=0.5, tail_windows=2), PRICES)
    usual = window({}, dict.fromkeys(RATES, 10.0), 0.1)
    other = window({"expert-0-0": 0.02}, dict.fromkeys(RATES, 30.0), 0.4)
    memory = story(policy, usual, usual, other).memory
    assert isinstance(memory, JanusMemory)
    assert memory.alone_s["m-expert-0-0"] == pytest.approx(0.75 * 0.01 + 0.25 * 0.02)
    assert set(memory.calls_per_s.values()) == {20.0}
    first, mean_s = mean_seconds(0.01, 10.0, 1, SLOTS, 1.0), mean_seconds(0.01, 30.0, 1, SLOTS, 1.0)
    smoothed_s = mean_seconds(0.0125, 30.0, 1, SLOTS, 1.0)
    assert memory.tails == pytest.approx((0.1 / (5 * first), 0.4 / (4 * mean_s + smoothed_s)))


def test_a_window_of_overload_among_others_is_not_planned_for() -> None:
    """One P95 of ten times the others': the median tail, and with it the scale, stays."""
    usual, overload = (window({}, RATES, p95_s) for p95_s in (0.1, 1.0))
    policy = JanusPolicy(settings(tail_windows=5), PRICES)
    desired = story(policy, usual, usual, usual, overload)
    assert set(counts(desired).values()) == {1} and "P95 nears the SLO" in desired.reasons["m-expert-0-0"]
    assert max(counts(story(policy, overload)).values()) > 1


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"headroom": 0.0}, "janus: headroom is 0.0; it should be greater than 0"),
        ({"sharing": 1.5}, "sharing is 1.5"),
        ({"scaling": "both"}, "scaling is 'both'; it should be 'stages', 'modules' or 'model'"),
        ({"slots_step": 0}, "slots_step is 0"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingsError) as caught:
        settings(**change)
    assert sentence in str(caught.value)


@pytest.mark.slow
def test_it_is_made_by_name_with_the_controller_s_bounds_and_needs_an_slo(tmp_path: Path) -> None:
    folder = write_pipeline(tmp_path / "m")
    alone = made(folder, "janus", slo_s=0.3, scale_segments=False, max_replicas=5)
    assert isinstance(alone, JanusPolicy) and alone.settings.max_replicas == 5
    assert alone.settings.kinds == {"expert"} and alone.settings.slo_s == 0.3
    both = made(folder, "janus", slo_s=0.3)
    assert isinstance(both, ScaledTogetherPolicy) and both.name == "janus"
    with pytest.raises(SettingsError, match="slo"):
        made(folder, "janus")
