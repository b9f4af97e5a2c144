"""Worlds are run through the controller's own code, and what comes of them is billed by the simulator's own numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autoscaler.contract import Configuration, Cost, Decision, Observation, TickReport
from autoscaler.policy.fallback import FallbackPolicy
from benchmarks.guard.runs import (
    AGAIN,
    CONSTANT,
    RunSettings,
    guards_reason,
    outcome,
    outcome_of,
    over,
    policy_for,
    row_of,
)
from benchmarks.guard.verdict import Outcome
from benchmarks.guard.worlds import Prepared, prepared
from simulation.engine.controlled import Step
from simulation.engine.simulation import Window

SETTINGS = RunSettings(minutes=2.0)
PRESENT = Configuration(512, 1.0, 0.0, 1, 1)


def window(latency_s: list[float], in_flight: int = 0) -> Window:
    none, nodes = np.zeros(0, dtype=np.int64), np.zeros(0)
    return Window(
        start_s=0.0, end_s=10.0, arrived=1, finished=np.zeros(0, dtype=np.uint32), latency_s=np.array(latency_s),
        in_flight=in_flight, meter=nodes, histogram=none, barrier=none, request_histogram=none, replicas={},
        ready_s=nodes, activated_s=nodes,
    )  # fmt: skip


def report(by: str, reason: str = "r", valid: bool = True) -> TickReport:
    decision = Decision("f", "n", PRESENT, PRESENT, PRESENT, reason, (), valid)
    seen = Observation(0.0, 10.0, "p", 1.0, 0.0, 0.1, 1.0, 0.0, None, None, None, (), ())
    return TickReport(seen, (decision,), (), {}, Cost(1.0, 1.0), {}, 0.0, False, by)


STEPS = [
    Step(window([0.1]), report("staffing")),
    Step(window([0.3]), report("staffing", "no data", valid=False)),
    Step(window([], in_flight=3), report("hpa", "cpu 9 % (hpa instead of staffing: calls take 2.5 times as long)")),
    Step(window([]), report("hpa", "cpu 9 % (hpa instead of staffing: calls take 3 times as long)")),
]


def test_an_outcome_counts_windows_over_and_those_of_guard_and_no_data() -> None:
    seen = outcome(STEPS, [1.0, 2.0, 3.0, 4.0], 0.2, "staffing")
    assert seen == Outcome(10.0, 2, 4, {"calls take N times as long": 2}, held=1)
    assert seen.share_guarded == 0.5


def test_a_window_without_answers_is_over_where_requests_wait() -> None:
    assert [over(step.window, 0.2) for step in STEPS] == [False, True, True, None]


def test_the_guards_reason_is_that_of_the_other_policy_alone() -> None:
    assert guards_reason(report("hpa", "cpu 9 %"), "hpa") == ""
    assert guards_reason(report("hpa", "cpu 9 %"), "staffing") == "not stated"


@pytest.fixture(scope="module")
def world() -> Prepared:
    return prepared(2, 120.0)


@pytest.mark.slow
def test_a_run_ends_the_same_every_time_and_hpa_under_another_seed_near_itself() -> None:
    longer = replace(SETTINGS, minutes=4.0)
    world = prepared(1, 240.0)
    first = outcome_of(world, "hpa", longer)
    assert first == outcome_of(world, "hpa", longer)
    again = outcome_of(world, AGAIN, longer)
    assert again != first and again.cost == pytest.approx(first.cost, rel=0.2)


@pytest.mark.slow
def test_a_constant_costs_its_replicas_and_what_its_standbys_did(world: Prepared) -> None:
    run = outcome_of(world, CONSTANT, SETTINGS)
    seconds, start, prices = run.windows * SETTINGS.window_s, world.start, world.workload.prices
    always = len(world.workload.experts) * start.replicas * prices.unit_per_s(start) * seconds
    assert run.windows == 6 and always <= run.cost <= 3 * always


def test_the_guard_is_the_products_and_watches_where_it_is_asked_to(world: Prepared) -> None:
    assert not isinstance(policy_for(world, "staffing", replace(SETTINGS, fallback=0)), FallbackPolicy)
    assert isinstance(policy_for(world, "staffing", replace(SETTINGS, fallback=3)), FallbackPolicy)
    assert not isinstance(policy_for(world, "hpa", replace(SETTINGS, fallback=3)), FallbackPolicy)
    assert policy_for(world, CONSTANT, SETTINGS).name == "hpa"


@pytest.mark.slow
def test_call_times_that_are_far_off_put_hpa_in_charge_of_a_learnt_policy(
    world: Prepared,
) -> None:
    slow = replace(world.workload, latency=replace(world.workload.latency, factor=4.0))  # type: ignore[type-var]
    run = outcome_of(replace(world, workload=slow, breaks=None), "smoe", replace(SETTINGS, policy="smoe"))
    assert set(run.guarded) == {"calls take N times as long as planned, in the median of N experts"}
    assert run.share_guarded > 0.5


def test_a_world_is_run_by_a_function_that_another_process_finds() -> None:
    """A new process does not load the main module of a package that is run by its name."""
    assert not row_of.__module__.endswith("__main__")
