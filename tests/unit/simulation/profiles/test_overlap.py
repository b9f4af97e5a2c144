"""Concurrent requests: how bursts are sent and counted, and what the profile makes of them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from simulation.engine.requests import draw_requests
from simulation.engine.simulation import Simulation
from simulation.latency.contract import Noise
from simulation.profiles.fit.concurrency_fit import LEAST, MOST, fitted_overlap
from simulation.profiles.fit.rows import Row
from simulation.profiles.measure import concurrent as overlap
from simulation.profiles.measure import load
from simulation.profiles.measure.concurrent import Slowdown
from simulation.profiles.measure.counters import Counted
from simulation.profiles.measure.measurement_plan import ProfileSettings
from simulation.workloads.workload import Host, Workload
from tests.unit.simulation.engine.builders import Limited, initial, simulate, workload
from tests.unit.simulation.profiles.hurried import Hurried
from tests.unit.simulation.profiles.truth import BLANK

SETTINGS = ProfileSettings(seconds_per_point=0.3, surface_tokens=12, volley_rounds=3)
LONE_S, BESIDE_S = 0.004, 0.005
"""What the pipeline below says that its requests cost."""


class Pipeline:
    """A request takes 20 ms; one that begins beside another costs more."""

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails
        self.now = self.most = 0
        self.used_s = 0.0

    async def call(self) -> bool:
        self.now += 1
        self.most = max(self.most, self.now)
        self.used_s += LONE_S if self.now == 1 else BESIDE_S
        await asyncio.sleep(0.02)
        self.now -= 1
        return not self.fails

    def read(self) -> Counted:
        return Counted(self.used_s, None, None, None, None)


def measured(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> list[Row]:
    loop = Hurried()
    monkeypatch.setattr(load, "_clock", loop.time)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return overlap.measure_bursts([pipeline.call] * 3, 1, [pipeline], SETTINGS, runner)


def times(rows: list[Row]) -> dict[int, float]:
    return {size: slowdown.times for size, slowdown in overlap.slowdowns(rows).items()}


def test_bursts_have_their_size_and_their_cost_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = Pipeline()
    rows = measured(pipeline, monkeypatch)
    assert pipeline.most == 3
    assert sorted((row.repeat, row.concurrency) for row in rows) == [(r, size) for r in (3, 4, 5) for size in (1, 2, 3)]
    assert all(row.n == 3 * row.concurrency and row.mean_s == pytest.approx(0.02) for row in rows)
    costs = {size: [row.cpu_s_per_call for row in rows if row.concurrency == size] for size in (1, 2, 3)}
    assert costs[1] == pytest.approx([LONE_S] * 3)
    assert costs[2] == pytest.approx([(LONE_S + BESIDE_S) / 2] * 3)
    assert costs[3] == pytest.approx([(LONE_S + 2 * BESIDE_S) / 3] * 3)
    assert times(rows) == pytest.approx({2: 1.0, 3: 1.0})


def test_a_refused_request_gives_an_infeasible_row(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = measured(Pipeline(fails=True), monkeypatch)
    assert {(row.feasible, row.n) for row in rows} == {(False, 0)}
    assert overlap.slowdowns(rows) == {}


def test_rounds_are_compared_with_themselves() -> None:
    """The machine was half as fast in the second round, which says nothing about concurrent requests."""
    seconds = {(0, 1): 0.04, (0, 2): 0.048, (0, 3): 0.06, (1, 1): 0.08, (1, 2): 0.096, (2, 2): 0.5}
    rows = [
        replace(BLANK, family=overlap.FAMILY, repeat=repeat, concurrency=size, p50_s=p50_s)
        for (repeat, size), p50_s in seconds.items()
    ]
    assert times(rows) == pytest.approx({2: 1.2, 3: 1.5})


def test_disturbed_rounds_are_left_out_where_there_are_quieter_ones() -> None:
    bursts = [
        replace(BLANK, family=overlap.FAMILY, repeat=repeat, concurrency=size, p50_s=p50_s, others_cores=others)
        for repeat, size, p50_s, others in ((0, 1, 0.04, 0.1), (0, 2, 0.05, 0.1), (1, 1, 0.04, 0.1), (1, 2, 0.4, 1.5))
    ]
    assert times(bursts) == pytest.approx({2: 1.25})
    assert times(bursts[2:]) == pytest.approx({2: 10.0})


def test_profiles_without_bursts_know_nothing_of_overlap() -> None:
    assert overlap.slowdowns([replace(BLANK, family="pass", p50_s=0.1)]) == {}


HOST = Host(2.0, 0.001, 0.001, 0.001, 0.001, 1e-5)


def slowed(found: Workload, size: int) -> Slowdown:
    """Bursts of ``size`` on a machine, 3 s apart and with offsets and routing of their own, over lone requests."""
    generator, medians = np.random.default_rng(size), [0.0]
    for many in (1, size):
        after_s = generator.uniform(0.1, 0.6, (400, many)) * medians[-1]
        after_s[:, 0] = 0.0
        arrival_s = (3.0 * np.arange(400)[:, None] + np.sort(after_s, axis=1)).ravel()
        requests = draw_requests(found, arrival_s, seed=size, tokens=np.full(arrival_s.size, 20))
        latency, _ = simulate(Simulation(found, requests, initial(found), seed=size), [2000.0])
        medians.append(float(np.median(latency)))
    return Slowdown(medians[2] / medians[1], 0.001)


@pytest.mark.slow
@pytest.mark.parametrize("truth", [(0.9, 0.9), (1.15, 0.95), (1.0, 0.85)])
def test_what_meeting_costs_is_found_again_by_how_many_meet(truth: tuple[float, float]) -> None:
    model = Limited(base_s=0.004, token_s=1e-4, alone_use=0.9, scatter=Noise.lognormal(0.1))
    small_workload = workload((4, 4), model, hop_s=0.0, request_s=0.0, host=HOST)
    machine = replace(small_workload, host=replace(HOST, overlap=truth))
    assert fitted_overlap(small_workload, {size: slowed(machine, size) for size in (2, 3)}, 20, 1.0) == pytest.approx(
        truth, abs=0.03
    )


def test_what_no_overlap_explains_gives_the_nearer_bound() -> None:
    small_workload = workload((2,), Limited(), hop_s=0.0, request_s=0.0, host=HOST)
    assert [fitted_overlap(small_workload, {2: Slowdown(far, 0.1)}, 20, 1.0) for far in (0.1, 50.0)] == [
        (LEAST,),
        (MOST,),
    ]


def test_what_cannot_be_distinguished_from_nothing_is_nothing() -> None:
    small_workload = workload((2,), Limited(), hop_s=0.0, request_s=0.0, host=HOST)
    reported = slowed(replace(small_workload, host=replace(HOST, overlap=(1.1,))), 2)
    assert fitted_overlap(small_workload, {2: reported}, 20, 1.0)[0] > 1.05
    assert fitted_overlap(small_workload, {2: replace(reported, error=0.5)}, 20, 1.0) == (1.0,)


def test_of_what_meeting_costs_as_much_is_taken_as_is_certain() -> None:
    small_workload = workload((2,), Limited(), hop_s=0.0, request_s=0.0, host=HOST)
    reported = slowed(replace(small_workload, host=replace(HOST, overlap=(1.1,))), 2)
    exact, careful = (
        fitted_overlap(small_workload, {2: replace(reported, error=error)}, 20, 1.0)[0] for error in (0.001, 0.02)
    )
    assert 1.0 < careful < exact - 0.02


def test_the_error_is_that_of_the_rounds() -> None:
    seconds = {0: 0.05, 1: 0.05 * np.e**0.2, 2: 0.05 * np.e**-0.2, 3: 0.05}
    rows = [
        replace(BLANK, family=overlap.FAMILY, repeat=repeat, concurrency=size, p50_s=p50_s)
        for repeat, pair_s in seconds.items()
        for size, p50_s in ((1, 0.04), (2, pair_s))
    ]
    assert overlap.slowdowns(rows)[2].error == pytest.approx(np.sqrt(2 * 0.2**2 / 3 / 4))
    assert overlap.slowdowns(rows[:2])[2].error == np.inf
