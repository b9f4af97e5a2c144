"""What a window shows of the rule's numbers: call times, tokens that are missing, λ that was missed with its budget."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autoscaler.contract import Configuration, Observation
from benchmarks.guard.worlds import OffProfile
from evaluation.bound.last_window import LastWindowPolicy
from rl.episodes.sizes import resized
from rl.staffing.checks import LEAST_BUDGET, LOOSER, Correction, call_times, tokens_seen
from rl.staffing.hours import encoder_of
from rl.staffing.policy import RuleSettings, StaffingRule
from simulation.engine.metrics import SimulatedMetrics
from simulation.engine.requests import draw_requests
from simulation.engine.simulation import Simulation
from simulation.workloads.paper import paper_workload
from simulation.workloads.workload import Workload

WORKLOAD = replace(resized(paper_workload("bert-4"), 2, 3), slo_s=1.0)
START = Configuration(512, 4.0, 0.0, 2, 1)


def observed(times: float = 1.0, rate: float = 5.0, top_k: int = 2) -> Observation:
    """Ten seconds of a machine on which experts' calls take ``times`` times as long."""
    slowed = replace(WORKLOAD, latency=OffProfile(WORKLOAD.latency, times), top_k=top_k)
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


@pytest.mark.parametrize(("p95_s", "part"), [(1.25, 0.8), (1.01, 0.9), (9.0, 0.6), (0.9, 1.0)])
def test_a_missed_window_tightens_the_budget_by_as_much_as_it_missed(p95_s: float, part: float) -> None:
    assert Correction().after(WORKLOAD, replace(observed(), latency_p95_s=p95_s)).budget == pytest.approx(part)


def test_the_budget_never_falls_below_a_third_and_comes_back_slowly() -> None:
    one = Correction()
    for _ in range(9):
        one = one.after(WORKLOAD, replace(observed(), latency_p95_s=3.0))
    assert one.budget == LEAST_BUDGET
    assert one.after(WORKLOAD, replace(observed(), latency_p95_s=0.5)).budget == pytest.approx(LOOSER * LEAST_BUDGET)


def test_a_stale_window_corrects_nothing() -> None:
    assert Correction().after(WORKLOAD, replace(observed(2.5), stale=True)) == Correction()
    assert Correction.of("another policy's") == Correction()


def rule(slo_s: float = 1.0) -> StaffingRule:
    workload = replace(WORKLOAD, slo_s=slo_s)
    return StaffingRule(workload, encoder_of(workload), RuleSettings().values())


def test_the_rule_doubts_itself_where_tokens_are_missing_or_standbys_open_too_late() -> None:
    assert rule().propose(observed(), 10.0, None).doubt == ""
    assert rule().propose(observed(top_k=1), 10.0, None).doubt.startswith("the experts show 5")
    late = rule(0.1).propose(observed(), 10.0, None).doubt
    assert late == "standbys open in 0.1 s, too late for an SLO of 0.1 s"


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
