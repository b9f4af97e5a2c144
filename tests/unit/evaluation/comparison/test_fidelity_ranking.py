"""When a simulation puts policies in the order in which they were measured."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

from benchmarks.closed_loop.contenders import contender
from benchmarks.closed_loop.runs import Outcome, check_period
from benchmarks.fidelity.clock import SpeedClock
from benchmarks.fidelity.looped import LoopedRecord, same_texts, texts_sha256
from benchmarks.fidelity.ranking import compare_policies, places, tau
from benchmarks.harness.stepped_load import HIGH_PART, TIMES, is_high, since_step_s, stepped
from simulation.profiles.model.storage import load, save


def outcome(p95_ms: float, cost: float) -> Outcome:
    return Outcome(50.0, p95_ms, 1.0, 0.0, cost, 1.0, cost, cost, 100, 1, 5, 0.5)


def row(policy: str, measured: list[Outcome], simulated: list[Outcome]) -> dict[str, Any]:
    return {"policy": policy, "measured": measured, "simulated": simulated, "pace": [1.0], "others_cores": [0.0]}


def test_those_within_the_target_come_first_by_cost_and_the_others_by_latency() -> None:
    result = places([90.0, 80.0, 300.0, 200.0], [2.0, 5.0, 1.0, 9.0], 100.0)
    assert np.argsort(result["choice"]).tolist() == [0, 1, 3, 2]
    assert np.argsort(result["cost"]).tolist() == [2, 0, 1, 3]
    assert np.argsort(result["p95"]).tolist() == [1, 0, 3, 2]


@pytest.mark.parametrize(("right", "expected"), [([1, 2, 3, 4], 1.0), ([4, 3, 2, 1], -1.0), ([2, 1, 3, 4], 2 / 3)])
def test_tau_counts_pairs_in_the_same_order(right: list[float], expected: float) -> None:
    assert tau([10.0, 20.0, 30.0, 40.0], right) == pytest.approx(expected)


def test_cpu_time_of_calls_is_given_where_it_was_recorded() -> None:
    rows = [
        row("a", [replace(outcome(80, 1.0), call_cpu_ms=0.91), outcome(90, 1.0)], [outcome(99, 1.1)]),
        row("b", [outcome(90, 2.0)], [replace(outcome(80, 2.0), call_cpu_ms=one) for one in (1.0, 1.5)]),
    ]
    given = [one["call_cpu_ms"] for one in compare_policies(rows, 150.0)["policies"]]
    assert given == [{"measured": [0.91, None], "simulated": None}, {"measured": [None], "simulated": 1.25}]


def test_errors_are_of_the_means_and_the_headline_is_the_operators_order() -> None:
    rows = [
        row("a", [outcome(80, 1.0), outcome(100, 1.0)], [outcome(99, 1.1)]),
        row("b", [outcome(90, 2.0), outcome(90, 2.0)], [outcome(80, 2.0)]),
        row("c", [outcome(300, 0.5), outcome(200, 0.5)], [outcome(250, 0.5)]),
    ]
    result = compare_policies(rows, 150.0)
    assert (result["kendall_tau"], result["kendall_tau_cost"]) == (1.0, 1.0)
    # Measured a and b are equal at 90 ms (a tie), simulated they are not: τ-b counts the two pairs with c.
    assert result["kendall_tau_p95"] == pytest.approx(2 / np.sqrt(2 * 3), abs=1e-3)
    # The first repeat has a before b, the second b before a.
    assert result["kendall_tau_p95_repeat"] == pytest.approx(1 / 3, abs=1e-3)
    assert result["policies"][0]["p95_err"] == pytest.approx(0.1) and result["policies"][0][
        "cost_err"
    ] == pytest.approx(0.1)
    assert result["policies"][2]["p95_repeat"] == pytest.approx(0.2)
    assert result["policies"][1]["failed"] == 2
    assert result["policy_p95_err"] == pytest.approx(1 / 9, abs=1e-4)


def test_one_run_of_each_policy_has_no_order_to_repeat() -> None:
    rows = [row(name, [outcome(cost, cost)], [outcome(cost, cost)]) for name, cost in (("a", 1.0), ("b", 2.0))]
    assert "kendall_tau_p95_repeat" not in compare_policies(rows, 100.0)


def test_a_load_steps_between_two_rates() -> None:
    trace = stepped(3000.0, 4.0, 60.0, 0)
    arrival_s = np.asarray(trace.arrival_s)
    high = is_high(arrival_s, 60.0)
    rates = high.sum() / (3000 * HIGH_PART), (~high).sum() / (3000 * (1 - HIGH_PART))
    assert trace.requests / 3000 == pytest.approx(4.0, rel=0.05)
    assert rates[0] / rates[1] == pytest.approx(TIMES, rel=0.1)
    assert since_step_s(np.array([0.0, 39.0, 41.0, 59.0, 61.0]), 60.0) == pytest.approx([0.0, 39.0, 1.0, 19.0, 1.0])


def test_all_contenders_go_at_one_pace() -> None:
    assert contender("static-3", 2.0, 1) == contender("static-3", 5.0, 2)
    assert contender("hpa", 2.0, 1).table["down_stabilisation_s"] == pytest.approx(40.0)
    assert contender("slo-aware", 15.0, 1).table["smoothing_s"] == 45.0
    assert contender("kpa", 2.0, 2).replicas == 2


def test_the_speed_clock_counts_work_and_ends_with_its_block() -> None:
    with SpeedClock() as clock:
        begun_s = time.time()
        while not clock.samples:
            assert time.time() < begun_s + 60.0
    taken = len(clock.samples)
    assert all(cpu_s > 0 for _, cpu_s in clock.samples)
    assert "speed clock" not in {thread.name for thread in threading.enumerate()} and len(clock.samples) == taken


def test_a_record_knows_its_speed_from_the_seconds_with_the_low_rate() -> None:
    clock = [(float(second), 0.004 if second % 60 >= 40 else 0.002) for second in range(120)]
    assert LoopedRecord("hpa", 0, [], outcome(90, 1.0), 0.0, None, clock).clock_s == 0.002


def test_records_of_other_texts_are_refused_and_older_ones_that_do_not_know_theirs_are_taken() -> None:
    old = LoopedRecord("hpa", 0, [], outcome(90, 1.0), 0.0, None, [])
    now = replace(old, texts_sha256=texts_sha256(["a", "b"]))
    same_texts([old, now], ["a", "b"])
    with pytest.raises(click.ClickException, match="other texts"):
        same_texts([old, now], ["a", "c"])


def test_a_profile_of_another_period_is_refused_with_both(tmp_path: Path) -> None:
    bundled = next(Path("simulation/profiles/data").glob("minilm-*.parquet"))  # of before there was the option: 10 ms
    check_period(bundled, 10.0)
    with pytest.raises(click.ClickException, match="CFS periods of 10 ms, and the run is to have periods of 200 ms"):
        check_period(bundled, 200.0)
    profile = load(bundled)
    at_200 = replace(profile, metadata=replace(profile.metadata, settings={"cpu_period_ms": 200.0}))
    save(at_200, tmp_path / "200.parquet")
    check_period(tmp_path / "200.parquet", 200.0)
