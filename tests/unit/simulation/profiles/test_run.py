"""Going through a plan: the time given, points under memory limits, transitions that do not end."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from simulation.profiles.fit.rows import Row
from simulation.profiles.measure import transitions
from simulation.profiles.measure.measurement_plan import Plan, Point
from simulation.profiles.measure.run import run_live, run_memory
from simulation.profiles.measure.target import ReplicaSeen, Snapshot
from simulation.profiles.model.errors import MeasurementError
from tests.unit.simulation.profiles.truth import BLANK

FIRST = Point("expert-0-0", "busy", "closed", 8, 0.5, 1024, 1)
UNDER = replace(FIRST, family="memory", memory_mib=8)


class StubBench:
    """Measures nothing; remembers what it was asked."""

    def __init__(self, fails: str = "") -> None:
        self.fails = fails
        self.measured: list[tuple[Point, bool]] = []
        self.restarts: list[Point] = []

    def measure(self, point: Point, *, again: bool = True) -> Row:
        self.measured.append((point, again))
        return BLANK

    def restart(self, point: Point) -> str:
        self.restarts.append(point)
        return self.fails

    def infeasible(self, point: Point, reason: str) -> Row:
        return replace(BLANK, memory_mib=point.memory_mib, feasible=False, note=reason)


def plan(points: list[Point]) -> Plan:
    return Plan(tuple(points), (), 0, {replace(point, repeat=0): 1.0 for point in points})


def silent(*_: Any) -> None:
    return


def test_without_a_time_every_repeat_is_measured() -> None:
    bench = StubBench()
    points = [replace(FIRST, repeat=repeat) for repeat in range(4)]
    assert len(run_live(bench, plan(points), silent)) == 4  # type: ignore[arg-type]
    assert all(again for _, again in bench.measured)


def test_when_the_time_is_over_only_the_first_repeat_is_measured_and_nothing_again() -> None:
    bench = StubBench()
    points = [FIRST, replace(FIRST, tokens=32), replace(FIRST, repeat=1)]
    assert len(run_live(bench, plan(points), silent, time.monotonic() - 1)) == 2  # type: ignore[arg-type]
    assert bench.measured == [(points[0], False), (points[1], False)]


def test_points_of_one_memory_limit_share_one_start() -> None:
    bench = StubBench()
    points = [UNDER, replace(UNDER, concurrency=8), replace(UNDER, memory_mib=16)]
    found = Plan((), tuple(points), 0, dict.fromkeys(points, 1.0))
    rows = run_memory(bench, found, silent)  # type: ignore[arg-type]
    assert [point.memory_mib for point in bench.restarts] == [8, 16]
    assert [row.feasible for row in rows] == [True, True, True]


def test_points_under_a_limit_that_kills_are_infeasible_with_the_reason() -> None:
    bench = StubBench(fails="the replica was killed")
    points = [UNDER, replace(UNDER, concurrency=8)]
    rows = run_memory(bench, Plan((), tuple(points), 0, dict.fromkeys(points, 1.0)), silent)  # type: ignore[arg-type]
    assert [(row.feasible, row.note, row.memory_mib) for row in rows] == [(False, "the replica was killed", 8)] * 2
    assert bench.measured == []


class Feed:
    """Snapshots given beforehand."""

    def __init__(self, *snapshots: Snapshot) -> None:
        self.snapshots = list(snapshots)

    def next(self, timeout_s: float) -> Snapshot:
        if not self.snapshots:
            raise TimeoutError
        return self.snapshots.pop(0)


def snapshot(at_s: float, *states: str) -> Snapshot:
    return Snapshot(at_s, tuple(ReplicaSeen(str(place), "h:1", state) for place, state in enumerate(states)))


def test_a_start_is_timed_to_the_snapshot_that_shows_it_ready() -> None:
    now_s = time.perf_counter()
    feed = Feed(
        snapshot(now_s - 1, "ready", "ready"),
        snapshot(now_s + 1, "ready", "starting"),
        snapshot(now_s + 2, "ready", "ready"),
    )
    took_s = transitions.seconds_until(feed, lambda seen: len(seen.ready) == 2, now_s, "the replica")
    assert took_s == pytest.approx(2.0)


def test_a_transition_that_does_not_end_is_reported() -> None:
    with pytest.raises(MeasurementError, match="the drain of x was not done within 30 s"):
        transitions.seconds_until(Feed(), lambda seen: True, time.perf_counter(), "the drain of x")


def test_a_start_and_a_drain_are_timed_from_the_order_of_one_replica_more_and_one_less() -> None:
    ordered: list[int] = []
    later_s = time.perf_counter() + 60.0
    feed = Feed(
        snapshot(later_s, "ready"), snapshot(later_s + 2, "ready", "ready"), snapshot(later_s + 5, "ready")
    )  # fmt: skip
    function = SimpleNamespace(changes=lambda: nullcontext(feed), scale=ordered.append)
    started_s, drained_s, cpu_s = transitions.scale_once(SimpleNamespace(functions={"x": function}), "x")  # type: ignore[arg-type]
    assert ordered == [2, 1] and drained_s - started_s == pytest.approx(3.0, abs=0.5) and cpu_s >= 0.0
