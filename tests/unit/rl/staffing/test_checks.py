"""What a window shows of the rule's numbers: call times, tokens that are missing, λ that was missed with its budget."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from autoscaler.contract import Burst, Configuration, Observation
from benchmarks.guard.worlds import OffProfile
from evaluation.bound.last_window import LastWindowPolicy
from rl.episodes.sizes import resized
from rl.staffing.checks import NONE, Correction, call_times, tokens_seen
from rl.staffing.hours import encoder_of
from rl.staffing.policy import RuleSettings, StaffingRule
from simulation.engine.metrics import SimulatedMetrics
from simulation.engine.requests import draw_requests
from simulation.engine.simulation import Simulation
from simulation.workloads.paper import paper_workload
from simulation.workloads.workload import Workload

WORKLOAD = replace(resized(paper_workload("bert-4"), 2, 3), slo_s=1.0)
START = Configuration(512, 4.0, 0.0, 2, 1)


@cache
def observed(times: float = 1.0, rate: float = 5.0, top_k: int = 2) -> Observation:
    """Ten seconds of a machine on which experts' calls take ``times`` times as long."""
    slowed = replace(WORKLOAD, latency=OffProfile(factor=times), top_k=top_k)
    requests = draw_requests(slowed, np.arange(0.0, 10.0, 1 / rate), seed=0)
    simulation = Simulation(slowed, requests, slowed.initial(START), seed=0)
    metrics = SimulatedMetrics(simulation)
    metrics.add(simulation.advance(10.0))
    return metrics.observe(10.0, 10.0)


@pytest.mark.parametrize("times", [0.4, 1.0, 1.5, 2.5])
def test_call_times_are_those_of_the_machine_over_the_plans(times: float) -> None:
    assert call_times(WORKLOAD, observed(times)) == pytest.approx(times, rel=0.1)


def test_calls_that_share_replicas_or_are_few_say_nothing() -> None:
    seen = observed()
    crowded = tuple(node._replace(in_flight=9.0) for node in seen.nodes)
    assert call_times(WORKLOAD, replace(seen, nodes=crowded)) is None
    assert call_times(WORKLOAD, observed(rate=0.5)) is None


def test_tokens_of_the_experts_are_top_k_times_those_of_the_requests() -> None:
    assert tokens_seen(WORKLOAD, observed()) == pytest.approx(1.0, abs=0.05)
    assert tokens_seen(WORKLOAD, observed(top_k=1)) == pytest.approx(0.5, abs=0.05)
    seen = observed()
    changes: list[dict[str, Any]] = [{"tokens_per_s": 0.0}, {"tokens_per_s": None}, {"requests": 39.0}]
    changes.append({"layers": tuple(replace(layer, tokens_per_s=None) for layer in seen.layers)})
    for nothing in changes:
        assert tokens_seen(WORKLOAD, replace(seen, **nothing)) is None
    decoder = replace(WORKLOAD, topology=replace(WORKLOAD.topology, generates=True))
    assert tokens_seen(decoder, seen) is None


def test_call_times_are_taken_over_at_once_and_then_by_their_mean() -> None:
    first = Correction().after(WORKLOAD, observed(2.5))
    assert first.times == pytest.approx(2.5, rel=0.1)
    second = first.after(WORKLOAD, observed(1.0))
    assert second.times == pytest.approx(np.sqrt(2.5), rel=0.1)
    assert Correction().after(WORKLOAD, observed(20.0)).times == 4.0


def after(*p95_s: float, outside_s: float = 0.1, present_s: float = 0.25, news: float = 1.0) -> Correction:
    """After windows with these P95s, an SLO of 1 s and the same sizes with standbys, in which experts take
    ``present_s``."""
    correction, window = NONE, with_standbys()
    for one in p95_s:
        correction = correction.after(WORKLOAD, replace(window, latency_p95_s=one, news=news))
        correction = correction.with_sizes(1.0, present_s * correction.times, outside_s)
    return correction


def with_standbys(cores: float = 4.0, standbys: int = 2) -> Observation:
    """:func:`observed` with replicas of so many cores, and what waits next to them."""
    seen = observed()
    size = replace(START, cpu_cores=cores, burst=Burst(standbys) if standbys else None)
    return replace(seen, nodes=tuple(node._replace(configuration=size) for node in seen.nodes))


@pytest.mark.parametrize(
    ("p95_s", "most"), [(0.0, 1.5), (0.4, 1.5), (0.7, 4 / 3), (0.8, 8 / 7), (0.81, 1.0), (0.95, 1.0)]
)
def test_a_plan_may_be_slower_only_as_far_as_a_window_has_room_to_nine_tenths(p95_s: float, most: float) -> None:
    """All of P95 but 0.1 s is of the experts."""
    kept = after(*[0.99] * 30, p95_s)
    assert kept.most == np.inf and kept.most_s(1.0, 2.0, 0.1) == pytest.approx(2.0 * most)
    assert NONE.most_s(1.0, 2.0, 0.1) == np.inf


def test_a_window_just_within_the_slo_asks_for_a_quicker_plan_and_is_forgotten() -> None:
    near = after(0.5, 0.98)
    assert near.most_s(1.0, 2.0, 0.1) == pytest.approx(2.0 * 0.7 / 0.88) and near.most == np.inf


@pytest.mark.parametrize(("p95_s", "part"), [(1.1, 0.7), (1.3, 0.6), (9.0, 0.6)])
def test_a_window_over_the_slo_asks_for_a_quicker_plan(p95_s: float, part: float) -> None:
    """1 s of 1.1 is of the experts, and 0.7 would make 0.8 s."""
    assert after(0.5, p95_s).most == pytest.approx(0.25 * part, rel=1e-3)
    assert after(0.5, 1.1, outside_s=0.95).most == pytest.approx(0.15, rel=1e-3), "a fifth of P95 at least is theirs"


def test_a_plan_may_be_slower_again_by_half_after_28_windows() -> None:
    missed = after(0.5, 1.1)
    assert after(0.5, 1.1, *[0.8] * 28).most == pytest.approx(missed.most * 1.015**28)
    halves = missed
    for _ in range(56):
        halves = halves.after(WORKLOAD, replace(with_standbys(), latency_p95_s=0.8, news=0.5))
    assert halves.most == pytest.approx(missed.most * 1.015**28)
    assert after(0.5, 1.1, 0.4, 0.4).most == pytest.approx(missed.most * 1.215**2), "two with much room are enough"


def test_one_order_makes_a_plan_quicker_by_a_part_at_most() -> None:
    assert after(0.5, 9.0, present_s=0.1).most_s(1.0, 1.0, 0.1) == pytest.approx(0.6)


def test_a_window_that_begins_with_a_queue_or_as_standbys_come_corrects_nothing() -> None:
    late, other = replace(with_standbys(), latency_p95_s=1.5), replace(with_standbys(2.0), latency_p95_s=1.5)
    without = replace(with_standbys(standbys=0), latency_p95_s=0.5)

    def bound(*windows: Observation) -> float:
        correction = NONE
        for one in windows:
            correction = correction.after(WORKLOAD, one).with_sizes(1.0, 0.25, 0.1)
        return correction.most

    assert bound(late) == bound(without, late) == bound(late, other) == np.inf
    assert NONE.after(WORKLOAD, late).most_s(1.0, 0.25, 0.1) == pytest.approx(0.15), "but the next order is quicker"
    assert bound(late, late) < np.inf, "the sizes were there for a whole window"
    room = replace(with_standbys(), latency_p95_s=0.5)
    assert bound(room, other) < np.inf, "no queue was left by the window before"


def at(end_s: float, tokens_per_s: float | None, **changes: Any) -> Observation:
    return replace(with_standbys(**changes), end_s=end_s, tokens_per_s=tokens_per_s, latency_p95_s=0.3)


def test_sizes_are_planned_for_the_busiest_of_five_minutes_while_a_window_has_less_than_half_of_its_tokens() -> None:
    correction = NONE
    for one in (at(0.0, 90.0), at(30.0, 100.0), at(60.0, 60.0), at(90.0, 0.0)):
        correction = correction.after(WORKLOAD, one)
    idle = at(120.0, 49.0, cores=2.0)
    then = correction.after(WORKLOAD, idle).planned_for(idle)
    assert (then.end_s, then.tokens_per_s) == (30.0, 100.0)
    assert {node.configuration.cpu_cores for node in then.nodes if node.configuration} == {2.0}, "what there is now"
    for busy in (at(120.0, 50.0), at(120.0, None)):
        assert correction.after(WORKLOAD, busy).planned_for(busy) is busy
    assert correction.planned_for(replace(idle, stale=True)) == then, "as if it were fresh"
    later, later_still = at(330.0, 20.0), at(361.0, 20.0)
    assert correction.after(WORKLOAD, later).planned_for(later).tokens_per_s == 60.0, "the next busiest"
    assert correction.after(WORKLOAD, later_still).planned_for(later_still) is later_still
    decoder = replace(WORKLOAD, topology=replace(WORKLOAD.topology, generates=True))
    assert NONE.after(decoder, at(0.0, 90.0)).after(decoder, idle).planned_for(idle) is idle


def test_an_idle_window_leaves_sizes_as_they_are_but_where_more_requests_wait_than_were_answered() -> None:
    busy = NONE.after(WORKLOAD, at(0.0, 90.0))
    assert busy.most_s(1.0, 0.25, 0.1) == pytest.approx(1.5 * 0.25)
    assert busy.after(WORKLOAD, at(30.0, 1.0)).most_s(1.0, 0.25, 0.1) == pytest.approx(0.25)
    rest = replace(at(30.0, 1.0), latency_p95_s=1.5)
    assert busy.after(WORKLOAD, rest).most_s(1.0, 0.25, 0.1) == pytest.approx(0.25), "the last of what was busy"
    waiting = replace(rest, in_flight=(rest.requests or 0.0) + 1.0)
    assert busy.after(WORKLOAD, waiting).most_s(1.0, 0.25, 0.1) < 0.25


def test_a_stale_window_corrects_nothing() -> None:
    assert Correction().after(WORKLOAD, replace(observed(2.5), stale=True)) == Correction()
    assert Correction.of("another policy's") == Correction()


@pytest.mark.parametrize("before_s", [0.5, 1.5])
def test_windows_that_overlap_count_by_what_is_new_of_them(before_s: float) -> None:
    """One window over the SLO, read six times while it passes, is one reason; its sizes have to be there throughout."""
    late = replace(with_standbys(2.0), latency_p95_s=1.1, news=1 / 6)
    correction = NONE.after(WORKLOAD, replace(with_standbys(), latency_p95_s=before_s))
    bounds = []
    for _ in range(8):
        correction = correction.after(WORKLOAD, late).with_sizes(1.0, 0.25, 0.1)
        bounds.append(correction.most)
    assert bounds[:6] == [np.inf] * 6 and bounds[6] < np.inf


def test_a_window_in_which_requests_wait_without_an_answer_is_over_the_slo() -> None:
    waits = replace(with_standbys(), latency_p95_s=None, in_flight=30.0)
    correction = after(0.5).after(WORKLOAD, waits).with_sizes(1.0, 0.25, 0.1)
    assert correction.most == np.inf and correction.most_s(1.0, 0.25, 0.1) < 0.25
    nobody = after(0.5).after(WORKLOAD, replace(waits, in_flight=0.0))
    assert nobody.most_s(1.0, 0.25, 0.1) == pytest.approx(1.5 * 0.25), "0.5 s might double"


def test_texts_of_a_decoder_are_not_held_against_the_seconds_of_a_pass() -> None:
    decoder = replace(WORKLOAD, topology=replace(WORKLOAD.topology, generates=True))
    late = replace(with_standbys(), latency_p95_s=60.0)
    assert NONE.after(decoder, late).after(decoder, late).most_s(1.0, 0.25, 0.1) == np.inf


def test_a_window_that_the_rule_doubts_is_not_remembered() -> None:
    late, halved = (replace(observed(top_k=k), latency_p95_s=1.5) for k in (2, 1))
    for window, kept in ((late, False), (halved, True)):
        policy, memory = rule(), None
        for _ in range(2):
            memory = policy.propose(window, 10.0, memory).memory
        assert isinstance(memory, Correction) and (memory.most == np.inf) is kept


def rule(slo_s: float = 1.0) -> StaffingRule:
    workload = replace(WORKLOAD, slo_s=slo_s)
    return StaffingRule(workload, encoder_of(workload), RuleSettings().values())


def test_the_rule_doubts_itself_where_tokens_are_missing_or_standbys_open_too_late() -> None:
    assert rule().propose(observed(), 10.0, None).doubt == ""
    assert rule().propose(observed(top_k=1), 10.0, None).doubt.startswith("the experts show 5")
    late = rule(0.1).propose(observed(), 10.0, None).doubt
    assert late == "standbys open in 0.1 s, too late for an SLO of 0.1 s"


def test_the_rule_doubts_tokens_without_calls() -> None:
    seen = observed()
    several = [node.node for node in seen.nodes if node.node.startswith("expert") and node.tokens_per_s]
    for uncalled, doubts in ((several, True), (several[: len(several) // 2], False)):
        nodes = tuple(
            node._replace(requests_per_s=0.0 if node.node in uncalled else node.requests_per_s) for node in seen.nodes
        )
        doubt = rule().propose(replace(seen, nodes=nodes), 10.0, None).doubt
        assert doubt == ("the experts show tokens and no calls" if doubts else "")


def test_the_rule_remembers_what_it_corrected() -> None:
    memory = rule().propose(observed(2.5), 10.0, "another policy's").memory
    assert isinstance(memory, Correction) and memory.times == pytest.approx(2.5, rel=0.1)


def cores(workload: Workload, times: float) -> float:
    planner = LastWindowPolicy(workload)
    plan = planner.plan(observed(), 0.1, lambda _: 1.0, None, times=times)
    assert len(plan.desired) == 6
    return sum(one.replicas * (one.cpu_cores + 100 * one.gpu_share) for one in plan.desired.values())


def test_a_plan_for_longer_calls_takes_more() -> None:
    tight = replace(WORKLOAD, slo_s=0.3, space=replace(WORKLOAD.space, gpu_shares=()))
    assert cores(tight, 2.0) > cores(tight, 1.0)


def test_a_plan_is_no_slower_than_the_window_allows() -> None:
    """``START`` has four cores each, of which so far-off an SLO needs one."""
    loose = replace(WORKLOAD, slo_s=5.0, space=replace(WORKLOAD.space, gpu_shares=()))
    planner, seen = LastWindowPolicy(loose), list[float]()

    def cores_within(times: float) -> float:
        def most_s(present_s: float, outside_s: float) -> float:
            seen.append(present_s)
            return times * present_s

        plan = planner.plan(observed(), 0.8, lambda _: 1.0, None, most_s=most_s)
        return sum(one.cpu_cores for one in plan.desired.values()) / 6

    assert cores_within(100.0) == 1.0 < cores_within(2.0) < cores_within(1.01)
    latest = observed()
    measured_s = sum(
        max(node.latency_mean_s or 0.0 for node in latest.nodes if node.node.startswith(f"expert-{layer}-"))
        for layer in range(2)
    )
    assert seen[0] == pytest.approx(measured_s, rel=0.15)


def test_a_plan_is_not_corrected_to_the_last_of_the_quickest_seconds() -> None:
    """The quickest sizes take the room of standbys; a plan that is near them already stays there."""
    tight = replace(WORKLOAD, space=replace(WORKLOAD.space, gpu_shares=()))
    seen = observed()

    def cores_of(present: float) -> float:
        sized = tuple(node._replace(configuration=replace(START, cpu_cores=present)) for node in seen.nodes)
        plan = LastWindowPolicy(tight).plan(
            replace(seen, nodes=sized), 0.8, lambda _: 1.0, None, most_s=lambda present_s, outside_s: 0.01 * present_s
        )
        return sum(one.cpu_cores for one in plan.desired.values()) / 6

    most = max(tight.space.cpu_cores)
    assert cores_of(1.0) < cores_of(most)
