"""Drawn worlds: the same for the same seed, and of all the kinds that are promised."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.guard.scrapes import KINDS
from benchmarks.guard.worlds import FAMILIES, MOST_EXPERTS, OFF, PATTERNS, SLOS, OffProfile, draw, prepared
from simulation.latency.roofline import Roofline
from simulation.workloads.paper import paper_workload

WORLDS = [draw(seed) for seed in range(400)]


def test_a_seed_is_one_world_and_another_attempt_or_seed_is_another() -> None:
    assert draw(3) == draw(3)
    assert draw(3) != draw(4) and draw(3) != draw(3, attempt=1)


def test_worlds_cover_every_kind_that_is_promised() -> None:
    assert {world.broken for world in WORLDS} == {"", *KINDS}
    assert {world.calls for world in WORLDS} == {1.0, *OFF}
    assert {world.pattern for world in WORLDS} == set(PATTERNS)
    assert {world.family for world in WORLDS} == set(FAMILIES)
    assert {world.slo for world in WORLDS} == set(SLOS)
    assert {world.drift for world in WORLDS} == {world.gpus for world in WORLDS} == {True, False}
    sizes = {(world.layers, world.experts) for world in WORLDS}
    assert max(layers * experts for layers, experts in sizes) <= MOST_EXPERTS and len(sizes) > 20
    assert all(1 <= world.top_k <= world.experts for world in WORLDS)


@pytest.mark.parametrize("trouble", ["drift", "off", "broken"])
def test_two_of_five_worlds_have_each_trouble(trouble: str) -> None:
    having = {"drift": [world.drift for world in WORLDS], "off": [world.calls != 1 for world in WORLDS],
              "broken": [bool(world.broken) for world in WORLDS]}[trouble]  # fmt: skip
    assert abs(np.mean(having) - 0.4) < 4 * np.sqrt(0.4 * 0.6 / len(WORLDS))


def test_prices_are_a_third_to_three_times_the_papers() -> None:
    factors = np.array([world.prices for world in WORLDS])
    assert 1 / 3 <= factors.min() < 0.4 and 2.7 < factors.max() <= 3


@pytest.mark.slow
def test_a_prepared_world_fits_its_cluster_and_is_planned_with_the_profiles_call_times() -> None:
    world = prepared(1, 120.0)
    workload, planned, start = world.workload, world.planned, world.start
    assert world.world.calls == 1.5 and world.world.seed == 1
    assert workload.capacity is not None and not workload.capacity.beyond(workload.initial(start).values())
    expert, segment = workload.costs[workload.experts[0].id], workload.costs[workload.segments[0].id]
    for cost, times in ((expert, 1.5), (segment, 1.0)):
        planned_s = planned.latency.seconds(cost, 32, 1.0, 0.0)
        assert workload.latency.seconds(cost, 32, 1.0, 0.0) == pytest.approx(times * planned_s)
    assert workload.slo_s == planned.slo_s and workload.prices == planned.prices
    sheet = paper_workload(world.world.family).prices
    assert workload.prices.cpu_core_s == pytest.approx(world.world.prices[0] * sheet.cpu_core_s)
    assert np.array_equal(world.requests.arrival_s, prepared(1, 120.0).requests.arrival_s)


def test_what_a_call_shares_and_scatters_stays_the_profiles() -> None:
    model, cost = Roofline(), paper_workload("bert-4").costs["expert-0-0"]
    slow = OffProfile(factor=2.5)
    assert slow.speedup(cost, 16, 1.0, 0.0, 4) == model.speedup(cost, 16, 1.0, 0.0, 4)
    assert slow.utilisation(cost, 16, 1.0, 0.0) == model.utilisation(cost, 16, 1.0, 0.0)
    assert slow.noise(cost, False).cv == model.noise(cost, False).cv
    assert not slow.measured(cost, 16, 1.0, 0.0) and "2.5 times" in slow.name
