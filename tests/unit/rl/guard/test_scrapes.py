"""Scraped metrics: whole ones are the simulator's own, and each kind of broken one reaches the policy as it says."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from autoscaler.contract import Configuration, Observation
from autoscaler.state.readings import Series
from benchmarks.guard.scrapes import KINDS, LATE, Break, ScrapedMetrics
from rl.episodes.sizes import resized
from simulation.engine.requests import draw_requests
from simulation.engine.simulation import Simulation
from simulation.workloads.paper import paper_workload

WINDOW_S, WINDOWS = 5.0, 12
START = Configuration(512, 4.0, 0.0, 2, 4)
BROKEN = (20.0, 45.0)
"""Scrapes at 20 to 40 s are broken: windows 3 to 7."""
FIRST, LAST = 3, 7
EXPERT = "expert-0-1"


@cache
def windows(kind: str = "") -> tuple[list[Observation], list[Observation]]:
    """What policies see in each window, and the simulator's own numbers."""
    workload = resized(paper_workload("bert-4"), 2, 3)
    function = next(node.function for node in workload.experts if node.id == EXPERT)
    series = frozenset((Series.NODE_TOKENS, Series.REQUEST_SECONDS))
    breaks = Break(kind, *BROKEN, frozenset((EXPERT, function)), series) if kind else None
    arrival_s = np.arange(0.0, WINDOW_S * WINDOWS, 0.1)
    simulation = Simulation(workload, draw_requests(workload, arrival_s, seed=0), workload.initial(START), seed=0)
    metrics = ScrapedMetrics(simulation, breaks=breaks)
    metrics.observe(0.0, WINDOW_S)
    seen = []
    for number in range(1, WINDOWS + 1):
        metrics.add(simulation.advance(number * WINDOW_S))
        seen.append(metrics.observe(number * WINDOW_S, WINDOW_S))
    return seen, metrics.exact


@pytest.fixture
def whole() -> list[Observation]:
    return windows()[0]


@pytest.fixture
def exact() -> list[Observation]:
    return windows()[1]


def load(observation: Observation, node: str = EXPERT) -> float | None:
    row = observation.node(node)
    assert row is not None
    return row.requests_per_s


@pytest.mark.parametrize(
    "name", ["requests", "requests_per_s", "tokens_per_s", "in_flight", "latency_p50_s", "latency_p95_s"]
)
def test_whole_metrics_are_the_simulators_own(name: str, whole: list[Observation], exact: list[Observation]) -> None:
    assert [getattr(one, name) for one in whole] == pytest.approx([getattr(one, name) for one in exact])


@pytest.mark.parametrize(
    "name",
    ["requests_per_s", "tokens_per_s", "busy_s", "waiting", "in_flight", "peak_tokens", "ready_replicas",
     "cpu_utilisation", "memory_utilisation", "latency_p95_s", "token_share", "straggler_ratio"],
)  # fmt: skip
def test_so_are_those_of_every_node(name: str, whole: list[Observation], exact: list[Observation]) -> None:
    for one, real in zip(whole, exact, strict=True):
        rows = [(getattr(node, name), getattr(other, name)) for node, other in zip(one.nodes, real.nodes, strict=True)
                if node.kind != "ingress"]  # fmt: skip
        assert [mine for mine, _ in rows] == pytest.approx([theirs for _, theirs in rows]), name


@pytest.mark.parametrize("kind", KINDS)
def test_before_and_long_after_nothing_is_broken(kind: str, exact: list[Observation]) -> None:
    seen, _ = windows(kind)
    for number in (*range(FIRST), *range(LAST + 1 + LATE + 1, WINDOWS)):
        assert load(seen[number]) == pytest.approx(load(exact[number]))
        assert not seen[number].stale


@pytest.mark.parametrize("kind", ["missing", "zero"])
def test_a_third_of_the_experts_show_no_load_and_the_others_theirs(kind: str, exact: list[Observation]) -> None:
    seen, _ = windows(kind)
    for number in range(FIRST, LAST + 1):
        assert load(seen[number]) == 0.0
        assert load(seen[number], "expert-0-0") == pytest.approx(load(exact[number], "expert-0-0"))
    row = seen[FIRST].node(EXPERT)
    assert row is not None and row.ready_replicas == (None if kind == "missing" else 0)


def test_series_that_come_back_count_all_that_was_ever_counted(exact: list[Observation]) -> None:
    counted = sum(load(one) or 0.0 for one in exact[: LAST + 2])
    for kind in ("missing", "zero"):
        assert load(windows(kind)[0][LAST + 1]) == pytest.approx(counted)


def test_targets_that_do_not_answer_make_windows_stale_once_the_last_scrape_is_old() -> None:
    seen, _ = windows("stale")
    assert [one.stale for one in seen[FIRST : LAST + 1]] == [True] * 5
    assert "could not be scraped" in " ".join(seen[FIRST].problems)


def test_metrics_that_are_nan_are_not_known_and_the_others_are(exact: list[Observation]) -> None:
    seen, _ = windows("nan")
    for number in range(FIRST, LAST + 1):
        row = seen[number].node(EXPERT)
        assert row is not None and row.tokens_per_s == 0.0 and seen[number].latency_p95_s is None
        assert load(seen[number]) == pytest.approx(load(exact[number]))


def test_an_ingress_that_restarts_shows_a_window_without_traffic_and_never_less_than_none(
    exact: list[Observation],
) -> None:
    seen, _ = windows("reset")
    requests = [one.requests for one in seen[FIRST : LAST + 1]]
    assert requests == pytest.approx([0.0, *(exact[number].requests for number in range(FIRST + 1, LAST)), 0.0])


def test_late_scrapes_show_the_windows_of_three_scrapes_ago(exact: list[Observation]) -> None:
    seen, _ = windows("late")
    for number in range(FIRST + 1, LAST + 1):
        assert load(seen[number]) == pytest.approx(load(exact[number - LATE]))


def test_a_drawn_break_lies_in_the_middle_and_meets_a_third_of_the_experts() -> None:
    topology = resized(paper_workload("bert-4"), 2, 3).topology
    one = Break.drawn("zero", topology, 600.0, seed=5)
    assert one == Break.drawn("zero", topology, 600.0, seed=5) != Break.drawn("zero", topology, 600.0, seed=6)
    assert 120 <= one.start_s <= 240 and 150 <= one.end_s - one.start_s <= 300
    assert len(one.nodes & {node.id for node in topology.nodes}) == 2
    assert len(one.series) == len(Series) // 2
    assert replace(one, kind="late") != one
