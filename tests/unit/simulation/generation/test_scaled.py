"""Instances that start and leave: times and replica-seconds worked by hand, and the rules that ask for them."""

from __future__ import annotations

import heapq
import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.arrow import planner
from benchmarks.arrow.planners import AtInput, SlaPlanner, kalman
from functions.scheduling.cluster import Role
from functions.scheduling.peers import Colocated, MinimalLoad
from functions.scheduling.settings import Targets
from simulation.generation.engine import GenerationSimulation, Request
from simulation.generation.hardware import Hardware, beside
from simulation.generation.scaled import ScaledSimulation

# An iteration takes 1 s and 10 ms a computed token; 100 tokens an iteration; a token moves in 1 ms.
ROUND = Hardware(1.0, 0.01, 0.0, 0.0, 100, 10_000, 1, 1000.0)
TARGETS = Targets(10.0, 2.0)


class Scripted:
    """Instances wanted from given times on."""

    def __init__(self, wanted: dict[float, dict[Role | None, int]]) -> None:
        self._wanted = wanted

    def wanted(self, now_s: float, seen: ScaledSimulation) -> dict[Role | None, int]:
        return self._wanted.get(now_s, {})


def simulation(requests: list[Request], scaler: object, rule=Colocated, instances: int = 1, start_s: float = 5.0):
    scheduler = rule({}, TARGETS, 1)
    for name in range(instances):
        scheduler.add(name, ROUND.profile(10))
    return ScaledSimulation(requests, scheduler, ROUND, scaler, ROUND.profile(10), start_s)


def test_an_ordered_instance_takes_requests_once_it_has_started_and_is_paid_from_its_order() -> None:
    # 100 prompts' tokens take 2 s. One a second is too much for one instance, not for two.
    requests = [Request(float(at), 100, 1) for at in range(20)]
    run = simulation(requests, Scripted({1.0: {None: 3}}))
    outcome = run.run()
    assert run.instances() == 3
    assert outcome.lost == 0
    assert outcome.ttft_s[0] == pytest.approx(2.0)
    assert max(outcome.ttft_s[at] for at in range(6)) > 5.0  # before 6 s all wait for one
    assert outcome.ttft_s[-1] <= 4.0
    assert run.replica_s(20.0) == pytest.approx(20.0 + 2 * 19.0)


def test_an_instance_given_up_ends_what_it_has_and_is_paid_until_then() -> None:
    requests = [Request(0.0, 100, 4), Request(0.0, 100, 4), Request(6.0, 100, 4)]
    run = simulation(requests, Scripted({1.0: {None: 1}}), instances=2)
    outcome = run.run()
    assert outcome.lost == 0
    assert run.instances() == 1
    # Prompt 2 s, three tokens of 1.01 s: done at 5.03 s, seen at the update at 6 s.
    assert run.replica_s(100.0) == pytest.approx(100.0 + 6.0)


def test_an_instance_that_has_not_started_is_given_up_first() -> None:
    run = simulation([Request(0.0, 100, 20)], Scripted({1.0: {None: 2}, 3.0: {None: 1}}))
    run.run()
    assert run.replica_s(10.0) == pytest.approx(10.0 + 2.0)


def test_roles_are_reached_apart_and_one_of_each_stays() -> None:
    wanted = {1.0: {Role.PREFILL: 3, Role.DECODE: 2}, 10.0: {Role.PREFILL: 0, Role.DECODE: 0}}
    requests = [Request(float(at), 50, 5) for at in range(30)]
    run = simulation(requests, Scripted(wanted), MinimalLoad, 2)
    assert run.run().lost == 0
    assert (run.instances(Role.PREFILL), run.instances(Role.DECODE)) == (1, 1)


def test_a_planner_that_counts_what_ends_orders_less_than_one_that_counts_arrivals_in_an_overload() -> None:
    hardware = Hardware(0.01, 0.001, 0.0, 0.0, 1000, 100_000, 1, 1e9)
    requests = [Request(at / 20, 200, 2) for at in range(2000)]  # 4 s of prompts a second

    def first(at_input: bool) -> int:
        scheduler = MinimalLoad(dict.fromkeys(range(2), hardware.profile()), TARGETS, 1)
        rule = SlaPlanner(hardware, TARGETS, 10.0, at_input=at_input)
        run = ScaledSimulation(requests, scheduler, hardware, Scripted({}), hardware.profile(), 1.0)
        run._events.clear()
        for at, one in enumerate(requests):
            run._at(one.arrival_s, "arrival", at)
        while run._events[0][0] <= 10.0:
            run._now, _, kind, what = heapq.heappop(run._events)
            getattr(run, f"_{kind}")(*what)
        return rule.wanted(10.0, run)[Role.PREFILL]

    # One instance ends 4.7 requests a second; 20 arrive.
    assert first(at_input=False) == 1
    assert first(at_input=True) == 5


def test_the_planners_correction_only_lowers_prefill_and_divides_the_token_target() -> None:
    hardware = Hardware(0.01, 0.001, 0.0, 0.0, 1000, 100_000, 1, 1e9)
    exact = SlaPlanner(hardware, Targets(1.0, 0.05), 10.0, correction=False)
    scheduler = MinimalLoad(dict.fromkeys(range(2), hardware.profile()), TARGETS, 1)
    run = ScaledSimulation(
        [Request(at / 4, 100, 11) for at in range(80)], scheduler, hardware, exact, hardware.profile(), 1.0
    )
    run.run()
    # 4 requests/s · 0.11 s: one. 40 tokens/s at 40 texts in 0.05 s, which is 800 tokens/s: one.
    assert (run.instances(Role.PREFILL), run.instances(Role.DECODE)) == (1, 1)


def test_the_rule_at_the_input_sees_growth_and_texts_in_flight() -> None:
    rule = AtInput(ROUND, Targets(10.0, 2.0), 20.0, interval_s=1.0, look_s=5.0, prompt=100, output=10)
    rps, texts = rule.instance(100, 10)
    # 1.9 s an iteration, 1 s of them its own; a text takes 10 ms and the tenth of its prompt's 1 s.
    assert (rps, texts) == pytest.approx((0.9 / 0.11 / (10 * 1.9), 0.9 / 0.11))
    run = simulation([Request(at / 10, 100, 10) for at in range(100)], rule)
    first = rule.wanted(5.0, run)[None]
    assert first >= 50 / texts  # nothing has ended yet


def test_the_filter_follows_a_line() -> None:
    assert kalman([100.0 + 20 * at for at in range(30)]) == pytest.approx(700.0, rel=0.01)


@pytest.mark.slow
def test_the_command_prints_one_object() -> None:
    arguments = ["--periods", "0.2", "--seeds", "0", "--only", "planner,deadline; at the input,colocated 7"]
    result = CliRunner().invoke(planner.main, arguments)
    assert result.exit_code == 0, result.output
    rows = json.loads(result.output.splitlines()[-1])["starts"]["60"]
    assert set(rows) == {"planner", "deadline, at the input", "colocated 7"}
    assert rows["colocated 7"]["replica_s"] == pytest.approx(7 * 180, abs=14)
    assert all(one["lost"] == 0 for one in rows.values())


def test_instances_next_to_each_other_slow_each_other_down_by_what_they_compute() -> None:
    requests = [Request(0.0, 100, 3), Request(0.0, 100, 3)]
    slow = replace(ROUND, slowdown=(1.5, 1.2, 1.3, 1.1))
    scheduler = Colocated(dict.fromkeys(range(2), ROUND.profile(10)), TARGETS, 1)
    outcome = GenerationSimulation(requests, scheduler, slow).run()
    # The first prompt begins alone, the second next to it; then a decode next to the rest of that prompt, and so on.
    assert outcome.ttft_s == pytest.approx([2.0, 3.0])
    assert outcome.tpot_s[0] == pytest.approx((1.01 * 1.3 + 1.01 * 1.1) / 2)
    assert beside((1.5, 1.2, 1.3, 1.1), 0.5, [1.0, 0.0]) == pytest.approx(1 + 0.5 * 0.7 + 0.5 * 0.4)


def test_instances_of_two_kinds_take_their_own_times() -> None:
    kinds = {0: ROUND, 1: replace(ROUND, iteration_s=0.5)}
    scheduler = MinimalLoad({name: one.profile(10) for name, one in kinds.items()}, TARGETS, 1)
    outcome = GenerationSimulation([Request(0.0, 100, 2)], scheduler, kinds).run()
    assert outcome.ttft_s == pytest.approx([2.0])
    assert outcome.tpot_s == pytest.approx([0.1 + 0.5 + 0.01])


def test_recovery_is_counted_from_the_step_to_the_last_window_that_missed() -> None:
    requests = [Request(float(at), 10, 1) for at in range(900)]
    kept = np.ones(900, bool)
    kept[230:258] = False
    assert planner.recovery_s(requests, kept) == pytest.approx(40.0)
    assert planner.recovery_s(requests, np.ones(900, bool)) == 0.0
    assert planner.recovery_s(requests, np.zeros(900, bool)) == 450.0
