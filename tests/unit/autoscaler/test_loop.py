"""The controller's loop on a scripted clock: whole stories, and every kind of bad tick."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoscaler.contract import Bound, Configuration, Observation, Policy, Proposal, TickReport
from autoscaler.decision.limits import LimitSettings
from autoscaler.errors import PlatformError
from autoscaler.logger import FunctionLogger, read_decisions, read_pipeline
from autoscaler.loop import Controller, brief, describe, run, short
from autoscaler.platforms.shadow import ShadowPlatform
from autoscaler.policy.fallback import FallbackPolicy, FallbackSettings
from autoscaler.policy.hpa import HpaPolicy, HpaSettings
from autoscaler.policy.static import StaticPolicy
from autoscaler.state.targets import Targets
from tests.doubles.fake_platform import FakePlatform
from tests.unit.autoscaler.builders import NOW_S, PRICES, configuration, observation, topology

NODE, FUNCTION = "expert-0-0", "m-expert-0-0"
HPA = HpaPolicy(HpaSettings(down_stabilisation_s=20.0, kinds=frozenset(("expert",))))


class Plant:
    """A pipeline without machines: its load is scripted, what it observes follows the platform's replicas."""

    def __init__(self) -> None:
        self.platform = FakePlatform({node.function: configuration() for node in topology().nodes})
        self.calls = 0.0
        self.stale = False
        self.error: Exception | None = None
        self.windows: list[float] = []

    def observe(self, now_s: float, window_s: float) -> Observation:
        self.windows.append(window_s)
        if self.error is not None:
            raise self.error
        present = self.platform.functions[FUNCTION]
        fields: dict[str, Any] = {
            "configuration": present,
            "ready_replicas": present.replicas,
            "measured_replicas": present.replicas,
            "in_flight": self.calls,
            "busy_s": self.calls * window_s,
        }
        problems = ("the ingress does not answer",) if self.stale else ()
        return observation({NODE: fields}, start_s=now_s - window_s, end_s=now_s, stale=self.stale, problems=problems)

    def replicas(self) -> int:
        return self.platform.configurations()[FUNCTION].replicas


def controller(plant: Plant, policy: Policy = HPA, **more: Any) -> Controller:
    limits = more.pop("limits", LimitSettings())
    return Controller(topology(), plant, policy, plant.platform, limits, PRICES, wait=lambda _: None, **more)


def test_load_comes_and_goes_and_replicas_follow() -> None:
    plant, seen = Plant(), []
    subject = controller(plant)
    for second in range(0, 60, 5):
        plant.calls = 8.4 if 10 <= second < 25 else 0.0
        subject.tick(NOW_S + second)
        seen.append(plant.replicas())
    assert seen == [1, 1, 3, 3, 3, 3, 3, 3, 1, 1, 1, 1]


class Alternating:
    """Two cores, then three, then two …"""

    name = "alternating"

    def propose(self, observation: Observation, now_s: float, memory: object) -> Proposal:
        number = int(memory or 0)  # type: ignore[call-overload]
        desired = configuration(cpu_cores=2.0 + number % 2)
        return Proposal({FUNCTION: desired}, {FUNCTION: "as ever"}, number + 1)


def test_sizes_that_somebody_else_deploys_are_reported_once_and_the_controllers_own_never() -> None:
    plant = Plant()
    subject = controller(plant, Alternating())
    seen = []
    for tick, others in enumerate([None, None, 5.0, None, None, 3.0]):
        if others:
            plant.platform.functions[FUNCTION] = configuration(cpu_cores=others)
        seen.append(subject.tick(NOW_S + 5 * tick).observation.redeployed)
    assert seen == [frozenset(), frozenset(), {FUNCTION}, frozenset(), frozenset(), frozenset()]


def test_a_size_that_is_deployed_in_a_stale_window_is_reported_in_the_next_one() -> None:
    plant = Plant()
    subject = controller(plant)
    subject.tick(NOW_S)
    plant.platform.functions[FUNCTION], plant.stale = configuration(cpu_cores=5.0), True
    assert subject.tick(NOW_S + 5).observation.redeployed == frozenset()
    plant.stale = False
    assert subject.tick(NOW_S + 10).observation.redeployed == {FUNCTION}


def test_a_window_states_how_much_of_it_is_new() -> None:
    plant = Plant()
    subject = controller(plant, window_s=30.0)
    times_s = [0, 5, 10, 40, 68, 70, 60, 65]  # the clock is set back once
    news = [subject.tick(NOW_S + one).observation.news for one in times_s]
    assert news == pytest.approx([1, 1 / 6, 1 / 6, 1, 1, 2 / 30, 1, 1 / 6])
    plant.stale = True
    assert subject.tick(NOW_S + 70).observation.news == pytest.approx(1 / 6)
    plant.stale = False
    assert subject.tick(NOW_S + 75).observation.news == pytest.approx(1 / 3), "nobody saw the stale one"


def test_a_tick_reports_what_was_observed_decided_done_and_paid() -> None:
    plant = Plant()
    plant.calls = 5.6
    report = controller(plant).tick(NOW_S, 10.0)
    changed = [decision for decision in report.decisions if decision.changes]
    assert [decision.function for decision in changed] == [FUNCTION] == list(report.applied)
    assert report.failures == {} and report.policy == "hpa" and not report.dry_run
    assert report.cost.provisioned == pytest.approx(9 * 10 * 2.25)
    assert report.cost.busy == pytest.approx(10 * 2.25)
    assert report.cost_by_node[NODE].busy == pytest.approx(10 * 2.25)


def test_the_window_is_the_controller_s_own_unless_said_otherwise() -> None:
    plant = Plant()
    subject = controller(plant, window_s=7.0)
    subject.tick(NOW_S)
    subject.tick(NOW_S, 3.0)
    assert plant.windows == [7.0, 3.0]


def test_a_dry_run_decides_and_changes_nothing() -> None:
    plant = Plant()
    plant.calls = 5.6
    report = controller(plant, dry_run=True).tick(NOW_S)
    assert any(decision.changes for decision in report.decisions)
    assert report.applied == () and plant.platform.orders == [] and report.dry_run


def test_stale_data_holds_the_scale_and_leaves_what_the_policy_remembers() -> None:
    plant = Plant()
    subject = controller(plant)
    plant.calls = 5.6
    subject.tick(NOW_S)
    assert plant.replicas() == 2
    plant.stale, plant.calls = True, 50.0  # what stale data tells must not be remembered either
    for second in (5, 10, 15, 20, 25, 30):
        report = subject.tick(NOW_S + second)
        assert all(not decision.valid and not decision.changes for decision in report.decisions)
        assert "the ingress does not answer" in report.decisions[0].reason
    plant.stale, plant.calls = False, 0.0
    subject.tick(NOW_S + 35)
    assert plant.replicas() == 1


def test_a_platform_that_is_down_loses_no_window_and_is_used_again_when_it_is_back() -> None:
    plant = Plant()
    subject = controller(plant)
    plant.calls, plant.platform.down = 5.6, True
    report = subject.tick(NOW_S)
    assert report.decisions == () and "nothing is decided" in report.observation.problems[-1]
    assert report.cost.provisioned is not None
    plant.platform.down = False
    subject.tick(NOW_S + 5)
    assert plant.replicas() == 2


def test_a_change_that_failed_is_made_by_the_next_tick_whatever_the_cool_down() -> None:
    plant = Plant()
    subject = controller(plant, limits=LimitSettings(cooldown_s=60.0))
    plant.calls = 5.6
    plant.platform.broken.add(FUNCTION)
    report = subject.tick(NOW_S)
    assert report.applied == () and FUNCTION in report.failures
    plant.platform.broken.clear()
    subject.tick(NOW_S + 5)
    assert plant.replicas() == 2
    plant.calls = 20.0
    held = {decision.function: decision for decision in subject.tick(NOW_S + 10).decisions}[FUNCTION]
    assert held.limits_hit == ("cool-down of 60 s",) and plant.replicas() == 2


class Broken:
    name = "broken"

    def propose(self, observation: Observation, now_s: float, memory: object) -> Proposal:
        raise ZeroDivisionError


def test_a_policy_that_fails_holds_the_scale_and_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    plant = Plant()
    subject = controller(plant, Broken())
    report = subject.tick(NOW_S)
    assert len(report.decisions) == 9 and plant.platform.orders == [] and report.failure == "ZeroDivisionError"
    assert {decision.reason for decision in report.decisions} == {
        "present scale held: policy broken failed (ZeroDivisionError)"
    }
    subject.tick(NOW_S + 5)
    assert caplog.text.count("policy broken failed") == 1, "the same failure is logged once"
    assert controller(plant).tick(NOW_S).failure == ""


def test_a_failure_under_guard_is_logged_once_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    guarded = FallbackPolicy(Broken(), HpaPolicy(), FallbackSettings(Targets(0.1)))
    subject = controller(Plant(), guarded)
    reports = [subject.tick(NOW_S + 5 * number) for number in range(4)]
    assert all(report.failure.startswith("ZeroDivisionError (test_loop.py, line ") for report in reports)
    assert caplog.text.count("policy broken failed under its guard") == 1


def test_every_tick_is_logged_and_what_is_left_is_written_at_the_end(tmp_path: Path) -> None:
    plant = Plant()
    plant.calls = 5.6
    subject = controller(plant, logger=FunctionLogger(tmp_path, {}, 0.25))
    subject.tick(NOW_S)
    subject.tick(NOW_S + 5)
    assert read_pipeline(tmp_path).num_rows == 0
    subject.close()
    assert read_pipeline(tmp_path).num_rows == 2
    rows = [row for row in read_decisions(tmp_path).to_pylist() if row["changes"]]
    assert [(row["function"], row["target_replicas"], row["applied"]) for row in rows] == [(FUNCTION, 2, True)]


def test_a_log_that_cannot_be_written_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    plant = Plant()
    plant.calls = 5.6
    subject = controller(plant, logger=FunctionLogger(tmp_path / "log", {}, None, windows_per_file=1))
    (tmp_path / "log").rmdir()
    subject.tick(NOW_S)
    subject.close()
    assert plant.replicas() == 2 and "could not write" in caplog.text


def test_a_decision_s_line_has_inputs_desired_limits_and_result(caplog: pytest.LogCaptureFixture) -> None:
    plant = Plant()
    plant.calls = 100.0
    with caplog.at_level(logging.DEBUG, "smoe.autoscaler"):
        controller(plant, limits=LimitSettings(max_step_replicas=2)).tick(NOW_S)
    (text,) = [record.message for record in caplog.records if record.levelno == logging.INFO]
    assert text.startswith(f"policy=hpa function={FUNCTION} cpu=0 concurrency=0 p95_s=none")
    assert "present=256MiB/1cpu/1x4 desired=256MiB/1cpu/5x4 target=256MiB/1cpu/3x4" in text
    assert "limits='at most 2 replicas a step'" in text and "result='applied'" in text


def test_a_decision_s_line_for_people_has_the_change_its_reason_and_what_limited_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    plant = Plant()
    plant.calls = 100.0
    subject = controller(plant, limits=LimitSettings(max_step_replicas=2, cooldown_s=60.0))
    with caplog.at_level(logging.INFO, "smoe.autoscaler"):
        report = subject.tick(NOW_S)
        subject.tick(NOW_S + 5)
    reason = next(decision.reason for decision in report.decisions if decision.changes)
    first, second = (record.message for record in caplog.records)
    assert first == f"{FUNCTION} replicas 1 → 3: {reason}; at most 2 replicas a step"
    assert second.startswith(f"{FUNCTION} stays 256MiB/1cpu/3x4, 256MiB/1cpu/5x4 desired: ")
    assert second.endswith("; cool-down of 60 s")


def test_a_problem_is_logged_once_and_not_at_every_tick(caplog: pytest.LogCaptureFixture) -> None:
    plant = Plant()
    plant.stale = True
    subject = controller(plant)
    for second in range(3):
        subject.tick(NOW_S + second)
    assert caplog.text.count("the ingress does not answer") == 1


def test_a_gpu_configuration_has_a_short_form_too() -> None:
    assert short(configuration(2, cpu_cores=0.0, gpu_share=0.3)) == "256MiB/0.3gpu/2x4"


def test_a_failed_change_says_so_in_its_line() -> None:
    plant = Plant()
    plant.calls = 5.6
    plant.platform.broken.add(FUNCTION)
    report = controller(plant).tick(NOW_S)
    decision = next(decision for decision in report.decisions if decision.changes)
    assert "result='failed: function m-expert-0-0 could not be changed'" in describe(decision, report)
    assert brief(decision, report).endswith("; failed: function m-expert-0-0 could not be changed")
    assert brief(decision, replace(report, dry_run=True, failures={})).endswith("; dry-run")
    assert "result='dry-run'" in describe(decision, replace(report, dry_run=True, failures={}))


class Clock:
    """Time passes only while the loop waits, and as long as ``work_s`` in each tick."""

    def __init__(self, ends_s: float) -> None:
        self.now_s, self.ends_s = NOW_S, NOW_S + ends_s

    def stop(self, wait_s: float) -> bool:
        self.now_s += wait_s
        return self.now_s > self.ends_s


def simulate(subject: Controller, clock: Clock, on_tick: Callable[[TickReport], None] = lambda report: None) -> None:
    run(subject, 5.0, clock.stop, on_tick, clock=lambda: clock.now_s, window_s=5.0)


def test_ticks_come_every_interval() -> None:
    plant, clock, times = Plant(), Clock(21.0), []
    simulate(controller(plant), clock, lambda report: times.append(report.observation.end_s - NOW_S))
    assert times == [5, 10, 15, 20]


def test_a_tick_that_takes_too_long_is_not_made_up_for() -> None:
    plant, clock, times = Plant(), Clock(31.0), []

    def slow(report: TickReport) -> None:
        times.append(report.observation.end_s - NOW_S)
        clock.now_s += 12.0 if len(times) == 1 else 0.0

    simulate(controller(plant), clock, slow)
    assert times == [5, 17, 22, 27]


def test_a_clock_that_is_set_back_stops_nothing() -> None:
    plant, clock, waits = Plant(), Clock(100.0), []

    def stop(wait_s: float) -> bool:
        waits.append(wait_s)
        clock.now_s += wait_s - (3600.0 if len(waits) == 2 else 0.0)
        return len(waits) > 4

    run(controller(plant), 5.0, stop, clock=lambda: clock.now_s)
    assert waits == [5.0] * 5


def test_the_loop_survives_bad_ticks_and_logs_each_kind_once(caplog: pytest.LogCaptureFixture) -> None:
    plant, clock, times = Plant(), Clock(41.0), []
    plant.error = PlatformError("out of order")

    def heal(wait_s: float) -> bool:
        if clock.now_s >= NOW_S + 20:
            plant.error = None
        return clock.stop(wait_s)

    run(controller(plant), 5.0, heal, lambda r: times.append(r.observation.end_s - NOW_S), lambda: clock.now_s)
    assert times == [25, 30, 35, 40]
    assert caplog.text.count("this tick failed") == 1
    assert "out of order" in caplog.text and "Traceback" not in caplog.text


def test_a_listener_that_fails_does_not_stop_the_loop_and_the_log_is_written_at_the_end(tmp_path: Path) -> None:
    plant, clock = Plant(), Clock(11.0)

    def fail(report: TickReport) -> None:
        raise RuntimeError("no screen")

    simulate(controller(plant, StaticPolicy(), logger=FunctionLogger(tmp_path, {}, None)), clock, fail)
    assert read_pipeline(tmp_path).num_rows == 2


def test_metrics_that_lag_behind_do_not_undo_the_last_tick() -> None:
    """A busy expert has three replicas already, while the metrics still tell one, ready and half idle."""
    plant = Plant()
    plant.platform.functions[FUNCTION] = configuration(3)
    plant.calls = 5.6
    lagging = {"configuration": configuration(1), "ready_replicas": 1, "in_flight": 5.6, "cpu_utilisation": 0.3}
    plant.observe = lambda now_s, window_s: observation({NODE: lagging})  # type: ignore[method-assign]
    decision = next(one for one in controller(plant).tick(NOW_S).decisions if one.function == FUNCTION)
    assert decision.present == decision.target == configuration(3)


def test_static_changes_nothing() -> None:
    plant = Plant()
    plant.calls = 100.0
    report = controller(plant, StaticPolicy()).tick(NOW_S)
    assert plant.platform.orders == [] and len(report.decisions) == 9


def test_static_brings_functions_to_given_configurations() -> None:
    plant = Plant()
    wanted: dict[str, Configuration] = {FUNCTION: configuration(2, memory_mb=512, concurrency=8)}
    controller(plant, StaticPolicy(wanted)).tick(NOW_S)
    assert plant.platform.configurations()[FUNCTION] == wanted[FUNCTION]


class NoRoom(FakePlatform):
    """Has memory for so much; an order beyond fails, and is no order any more afterwards."""

    def __init__(self, functions: dict[str, Configuration], memory_mb: int) -> None:
        super().__init__(functions)
        self.memory_mb = memory_mb
        self.bound: dict[str, Bound] = {}
        self.tried: list[str] = []

    def bounds(self) -> dict[str, Bound]:
        return dict(self.bound)

    def apply(self, function: str, present: Configuration, target: Configuration) -> None:
        self.tried.append(function)
        wanted = {**self.configurations(), function: target}
        if sum(one.memory_mb * one.replicas for one in wanted.values()) > self.memory_mb:
            self.bound[function] = Bound("full", memory_mb=target.memory_mb)
            raise PlatformError("full")
        super().apply(function, present, target)


def test_what_the_platform_refuses_is_planned_again_within_the_tick_and_not_ordered_again() -> None:
    """The budget has room for one of both changes, and the platform only for the more expensive one."""
    other, plant = "m-expert-0-1", Plant()
    plant.platform = NoRoom(dict(plant.platform.functions), 256 * len(topology().nodes) + 256)
    desired = {FUNCTION: configuration(memory_mb=1024), other: configuration(2)}
    present_per_s = sum(PRICES.unit_per_s(one) for one in plant.platform.functions.values())
    limits = LimitSettings(budget_per_hour=(present_per_s + 2.5) * 3600)
    subject = controller(plant, Scripted(desired), limits=limits)
    first = subject.tick(NOW_S)
    assert first.applied == (other,) and first.failures == {FUNCTION: "full"}
    assert {one.function for one in first.decisions if one.changes} == {FUNCTION, other}
    second = subject.tick(NOW_S + 5)
    assert second.failures == {} and plant.platform.tried == [FUNCTION, other]
    assert [one.limits_hit for one in second.decisions if one.function == FUNCTION] == [("platform: full",)]


def test_a_failure_that_bounds_nothing_is_not_tried_twice_within_a_tick() -> None:
    plant = Plant()
    plant.platform = NoRoom(dict(plant.platform.functions), 10**6)
    plant.platform.broken.add(FUNCTION)
    report = controller(plant, Scripted({FUNCTION: configuration(2)})).tick(NOW_S)
    assert set(report.failures) == {FUNCTION} and plant.platform.tried == [FUNCTION]


class Placed(FakePlatform):
    """One function is placed on two nodes."""

    def floors(self) -> dict[str, int]:
        return {FUNCTION: 2}


@pytest.mark.parametrize("shadow", [False, True])
def test_a_policy_does_not_take_the_last_replica_from_a_node_of_a_placement(shadow: bool) -> None:
    other, plant = "m-expert-0-1", Plant()
    plant.platform = Placed({**plant.platform.functions, FUNCTION: configuration(3), other: configuration(3)})
    platform = ShadowPlatform(plant.platform) if shadow else plant.platform
    policy = Scripted({FUNCTION: configuration(1), other: configuration(1)})
    report = Controller(topology(), plant, policy, platform, LimitSettings(), PRICES).tick(NOW_S)
    targets = {one.function: one.target.replicas for one in report.decisions if one.changes}
    assert targets == {FUNCTION: 2, other: 1}


class Scripted:
    """A policy that always desires the same."""

    name = "scripted"

    def __init__(self, desired: dict[str, Configuration]) -> None:
        self.desired = desired

    def propose(self, observation: Observation, now_s: float, memory: object) -> Proposal:
        return Proposal(self.desired, dict.fromkeys(self.desired, "scripted"))
