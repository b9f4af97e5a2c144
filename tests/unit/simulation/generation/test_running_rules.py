"""Rules on a running decoder: what they see of an ingress's counts, and instances that take a while to start."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from autoscaler.contract import Configuration
from benchmarks.arrow import planner
from benchmarks.arrow.live_scenario import Instance, Scenario, simulated
from benchmarks.arrow.planner_live import figures
from benchmarks.arrow.planners import AtInput
from benchmarks.arrow.running_rules import LiveFrontEnd, SlowStarts, line
from benchmarks.harness.streams import WHOLE, Stream
from functions.serving import generation_metric_names as names
from simulation.generation.hardware import Hardware

ONE = Configuration(memory_mb=256, cpu_cores=1.0, gpu_share=0.0, replicas=2, concurrency=10)


def counts(
    ended: int, running: int, waiting: int, ttft: tuple[int, float], tpot: tuple[int, float]
) -> dict[str, float]:
    first, later = names.TTFT_SECONDS, names.TPOT_SECONDS
    return {
        names.ENDED: ended,
        names.TEXTS_RUNNING: running,
        names.TEXTS_WAITING: waiting,
        f"{first}_count": ttft[0],
        f"{first}_sum": ttft[1],
        f"{later}_count": tpot[0],
        f"{later}_sum": tpot[1],
    }


def test_a_front_end_counts_from_its_first_look_and_takes_means_between_looks() -> None:
    seen = iter(
        [
            counts(7, 0, 0, (7, 70.0), (70, 70.0)),
            counts(9, 2, 1, (11, 74.0), (80, 75.0)),
            counts(12, 0, 4, (12, 84.0), (90, 77.0)),
        ]
    )
    front = LiveFrontEnd(128, 16, lambda: next(seen), lambda: 3)
    for at_s in (0.0, 10.0, 20.0):
        front.look(at_s)
    assert front.ended == 5
    # 5 had come by 10 s, 9 by 20 s.
    assert [front.arrived(at_s) for at_s in (-5.0, 0.0, 6.0, 10.0, 15.0, 20.0)] == [0, 0, 3, 5, 7, 9]
    assert front.means(5) is None
    # The second had ended by the look at 10 s, so what follows is the last one's: one first token, ten later ones.
    assert front.means(2) == pytest.approx((128, 16, 10.0, 0.2))
    assert front.means(0) == pytest.approx((128, 16, 14.0 / 5, 7.0 / 20))


class Instances:
    """A platform that starts at once."""

    def __init__(self) -> None:
        self.present = ONE
        self.orders: list[int] = []

    def configurations(self) -> Mapping[str, Configuration]:
        return {"f": self.present, "other": ONE}

    def apply(self, function: str, present: Configuration, target: Configuration) -> None:
        assert (function, present) == ("f", self.present)
        self.present = target
        self.orders.append(target.replicas)


def test_what_is_ordered_counts_at_once_starts_later_and_is_given_up_first() -> None:
    now, platform = [0.0], Instances()
    slow = SlowStarts(platform, "f", 20.0, lambda: now[0])

    def order(at_s: float, count: int) -> int:
        now[0] = at_s
        present = slow.configurations()["f"]
        slow.apply("f", present, present.with_replicas(count))
        return platform.present.replicas

    assert order(0.0, 4) == 2
    assert slow.configurations()["f"].replicas == 4
    assert slow.configurations()["other"] == ONE
    assert order(5.0, 5) == 2
    assert order(8.0, 3) == 2  # the one of 5 s and one of 0 s
    assert order(19.0, 3) == 2
    now[0] = 20.0
    slow.start_due()
    assert platform.present.replicas == 3
    assert order(30.0, 4) == 3
    assert order(31.0, 1) == 1
    assert platform.orders == [3, 1]
    assert sorted(slow.waits) == [(0.0, 8.0), (0.0, 20.0), (5.0, 8.0), (30.0, 31.0)]


def test_without_a_wait_an_order_is_passed_on_at_once() -> None:
    platform = Instances()
    slow = SlowStarts(platform, "f", 0.0, lambda: 1.0)
    slow.apply("f", ONE, ONE.with_replicas(7))
    assert platform.present.replicas == 7


def test_targets_and_rates_stand_to_an_instance_as_the_scenarios_do() -> None:
    theirs = planner.INSTANCE
    alone = Instance(theirs, theirs.prefill_s(8000), theirs.decode_s(1, 8500), 0.1)
    scenario = Scenario.of(alone, 300.0, None)
    assert (scenario.targets.ttft_s, scenario.targets.tpot_s) == pytest.approx((3.0, 0.035))
    assert scenario.start_s == 20.0
    slow = Hardware(0.1, 0.005, 0.0, 0.0, 256, 600)
    rps = Scenario.of(Instance(slow, 0.74, 0.105, 0.1), 300.0, 5.0).rps
    assert rps[1] / rps[0] == pytest.approx(24.0)
    wanted = Scenario.of(Instance(slow, 0.74, 0.105, 0.1), 300.0, 5.0).targets
    # 24 requests/s of 2.62 of an instance.
    assert rps[1] / AtInput(slow, wanted, 0.0).instance(128, 16)[0] == pytest.approx(9.16, abs=0.02)


def test_a_text_is_within_both_targets_or_not_and_a_broken_one_within_none() -> None:
    slow = Hardware(0.1, 0.005, 0.0, 0.0, 256, 600)
    scenario = Scenario.of(Instance(slow, 0.2, 0.1, 0.1), 300.0, 0.0)  # TTFT 5.7 s, TPOT 0.314 s

    def text(first_s: float, interval_s: float, outcome: str = WHOLE) -> Stream:
        return Stream(10.0, 3, [10.0 + first_s + interval_s * at for at in range(3)], "", outcome)

    row = figures([text(1.0, 0.1), text(4.0, 0.3), text(6.0, 0.1), text(1.0, 0.4), text(1.0, 0.1, "broken")], scenario)
    assert (row["goodput"], row["strict"], row["failed"]) == (0.4, 0.2, 1)
    assert (row["ttft_kept"], row["tpot_kept"]) == (0.6, 0.6)
    assert row["reasons"] == ["broken"]


def test_a_line_is_found_through_its_points() -> None:
    assert line([1, 2, 4, 8], [0.06, 0.07, 0.09, 0.13]) == pytest.approx((0.05, 0.01))


def test_the_simulated_side_has_rules_that_hold_and_rules_that_do_not() -> None:
    slow = Hardware(0.09, 0.0045, 0.0, 7e-5, 256, 682)
    scenario = Scenario.of(Instance(slow, 0.7, 0.095, 0.1), 60.0, None)
    requests = scenario.requests(0)
    rows = {name: simulated(name, scenario, requests, 12) for name in ("planner", "constant-3", "constant-10")}
    assert rows["constant-10"] == {"goodput": 1.0, "replica_s": pytest.approx(600.0)}
    assert rows["constant-3"]["goodput"] < 0.9
    assert rows["planner"]["goodput"] < 0.9
    assert rows["planner"]["replica_s"] < 600.0


def test_requests_that_may_wait_need_fewer_replica_seconds() -> None:
    slow = Hardware(0.09, 0.0045, 0.0, 7e-5, 256, 682)
    scenario = Scenario.of(Instance(slow, 0.7, 0.095, 0.1), 240.0, None)
    at_once, patient = (
        simulated(name, scenario, scenario.requests(0), 12) for name in ("at-input", "at-input-patient")
    )
    assert patient["replica_s"] < 0.95 * at_once["replica_s"] and patient["goodput"] >= at_once["goodput"] - 0.02
