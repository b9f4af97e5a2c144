"""The bound under CPU limits that are token buckets, and on one shared machine, against choices that are played."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.contract import Configuration, ConfigurationSpace
from autoscaler.prices import Meter
from evaluation.bound.bounds import lower_bound
from evaluation.bound.loads import WindowLoad
from evaluation.bound.oracle import simulate_numbers
from evaluation.bound.physics import Physics
from evaluation.bound.report import bound_rows
from evaluation.bound.uniform import candidates, uniform_slo_binds
from simulation.engine.requests import draw_requests
from simulation.latency.contract import Noise
from simulation.workloads.workload import Host, Workload
from tests.unit.evaluation.bound.builders import with_slo
from tests.unit.simulation.engine.builders import Limited, configuration, one_expert, random_limited, workload

METERS: tuple[Meter, Meter] = ("busy", "provisioned")
SPACE = ConfigurationSpace(128, 256, 128, (0.05, 0.3, 1.0), (), 1, 3, 2, 4)
TWO = ConfigurationSpace(128, 128, 128, (0.1, 0.5), (), 1, 2, 4, 4)
"""A tenth or half of a core, one or two replicas, four calls at once."""
HOST = Host(1.5, 0.0004, 0.0002, 0.0003, 0.0004, 1e-5, Noise.lognormal(0.2), 1.1)
SEGMENT = configuration(2, cpu_cores=0.7, concurrency=8)


def load_of(one: Workload, rate: float, seconds: float, seed: int) -> WindowLoad:
    rng = np.random.default_rng(seed)
    requests = draw_requests(one, np.sort(rng.uniform(0, seconds, 1 + rng.poisson(rate * seconds))), seed=seed)
    return WindowLoad(Physics(one, requests.most_tokens), requests, 0, requests.arrival_s.size, seconds)


@pytest.mark.slow
@settings(deadline=None, max_examples=4)
@given(st.integers(0, 100_000), st.floats(1.0, 25.0), st.booleans())
def test_no_choice_that_meets_the_slo_is_cheaper(seed: int, rate: float, shared: bool) -> None:
    """The SLO is the P95 of one of the choices."""
    rng = np.random.default_rng(seed)
    host = replace(HOST, cores=rng.uniform(0.5, 4.0), pace=rng.uniform(0.8, 1.5)) if shared else None
    if host is not None:
        times = tuple(zip((0.01, 0.1, 1.0)[: rng.integers(0, 4)], rng.uniform(0.7, 1.3, 3), strict=False))
        host = replace(host, overlap=tuple(rng.uniform(0.6, 1.3, rng.integers(0, 4))), idle=times)
    one = workload((3, 2), random_limited(rng), hop_s=0.0, host=host, space=SPACE, segment_configuration=SEGMENT)
    load = load_of(one, rate, 1.0, seed)
    choices = [tuple(rng.integers(0, len(SPACE), size) for size in (3, 2)) for _ in range(6)]
    for meter in METERS:
        simulated = [simulate_numbers(load, numbers, meter, seed) for numbers in choices]
        known = sorted(p95_s for _, p95_s in simulated if np.isfinite(p95_s))
        if not known:
            continue
        slo_s = known[int(rng.integers(len(known)))]
        bound = lower_bound(with_slo(load, slo_s), meter, seed)
        assert bound.reachable
        assert all(bound.cost <= cost for cost, p95_s in simulated if p95_s <= slo_s)


@pytest.mark.slow
@pytest.mark.parametrize("host", [None, replace(HOST, noise=Noise.none())], ids=["cores-apart", "shared"])
def test_the_bound_lies_below_the_best_of_all_choices_and_is_worth_something(host: Host | None) -> None:
    scatter = Noise.lognormal(0.3) if host is None else Noise.none()  # the bound there takes the least of all factors
    model = Limited(base_s=0.002, token_s=0.001, power=0.3, scatter=scatter, burst_s=0.004, period_s=0.005)
    one = workload((2, 2), model, hop_s=0.0, host=host, space=TWO, segment_configuration=SEGMENT)
    load = load_of(one, 6.0, 3.0, 1)
    choices = [(np.array(c[:2]), np.array(c[2:])) for c in product(range(len(TWO)), repeat=4)]
    tightest = 0.0
    for meter in METERS:
        cost, p95_s = np.array([simulate_numbers(load, numbers, meter, 1) for numbers in choices]).T
        for share in (0.0, 0.2, 0.5, 1.0):
            slo_s = float(np.quantile(p95_s, share, method="nearest"))
            found, best = lower_bound(with_slo(load, slo_s), meter, 1), cost[p95_s <= slo_s].min()
            assert found.reachable and found.cost <= best
            tightest = max(tightest, found.cost / best) if share < 1 else tightest
        cheapest = lower_bound(with_slo(load, 1e6), meter, 1).cost
        fast = lower_bound(with_slo(load, float(p95_s.min())), meter, 1).cost
        assert fast > cheapest, "the SLO must cost something"
    assert tightest > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("cores", [0.05, 0.4, 1.0])
@pytest.mark.parametrize("host", [None, replace(HOST, noise=Noise.none())], ids=["cores-apart", "shared"])
def test_a_request_alone_takes_just_what_the_bound_says(host: Host | None, cores: float) -> None:
    """Nothing waits and nothing is shared: the SLO can be met from the request's own seconds on, and not below; on a
    shared machine, where a limit has phases that the bound does not know, not 12 % below."""
    space = ConfigurationSpace(128, 128, 128, (cores,), (), 1, 1, 4, 4)
    model = Limited(base_s=0.01, token_s=0.001, burst_s=0.005, alone_use=0.9)
    one, requests = one_expert([0.1], [30], model, host=host, space=space, segment_configuration=SEGMENT)
    load = WindowLoad(Physics(one, requests.most_tokens), requests, 0, 1, 2.0)
    _, seconds = simulate_numbers(load, (np.array([0]),), "busy", 0)
    assert lower_bound(with_slo(load, seconds * (1 + 1e-6)), "busy").reachable
    below = 1e-6 if host is None else 0.12
    assert not lower_bound(with_slo(load, seconds * (1 - below)), "busy").reachable


@pytest.mark.parametrize("faster", [{"overlap": (0.5,)}, {"idle": ((0.1, 0.5),)}], ids=["company", "pauses"])
def test_what_makes_requests_faster_does_not_make_the_bound_wrong(faster: dict[str, Any]) -> None:
    """Two requests at once, each with a replica of its own, in half the seconds that either would need elsewhere."""
    space = ConfigurationSpace(128, 128, 128, (1.0,), (), 2, 2, 4, 4)
    host = replace(HOST, cores=8.0, noise=Noise.none(), **faster)
    model = Limited(base_s=0.01, token_s=0.001, alone_use=0.9)
    one, requests = one_expert([0.1, 0.1], [30, 30], model, host=host, space=space, segment_configuration=SEGMENT)
    load = WindowLoad(Physics(one, requests.most_tokens), requests, 0, 2, 2.0)
    _, seconds = simulate_numbers(load, (np.array([0]),), "busy", 0)
    assert lower_bound(with_slo(load, seconds * (1 + 1e-6)), "busy").reachable


def test_replicas_whose_limits_do_not_give_them_the_cpu_seconds_are_not_enough() -> None:
    """Ten calls of 0.1 CPU seconds in a second: a tenth of a core gives 0.11 of the 0.95 that are needed in time."""
    space = ConfigurationSpace(128, 128, 128, (0.1, 1.0), (), 1, 8, 4, 4)
    model = Limited(base_s=0.1, token_s=1e-9, burst_s=0.0, alone_use=1.0)
    one, requests = one_expert(np.arange(20) / 20, [1] * 20, model, slo_s=10.0, space=space)
    load = WindowLoad(Physics(one, requests.most_tokens), requests, 0, 20, 1.0)
    slow = with_slo(load, 10.0), with_slo(load, 1.5)
    rows = slow[0].physics.experts[0][0]
    there = rows.enough(np.full(2, 1.9), np.arange(1.0, 9.0), 2.5)
    assert there[0].tolist() == [replicas * 0.25 >= 1.9 for replicas in range(1, 9)] and there[1].all()
    patient, hurried = (lower_bound(one, "provisioned").cost for one in slow)
    cheapest = one.prices.unit_per_s(configuration(memory_mb=128, cpu_cores=0.1))
    assert patient >= 2 * cheapest * (1 - 1e-6) and hurried > patient


@pytest.mark.slow
def test_rows_of_a_shared_machine_have_a_choice_above_the_bound_and_say_whether_the_slo_binds() -> None:
    model = Limited(base_s=0.002, token_s=0.001, power=0.3, scatter=Noise.lognormal(0.3), burst_s=0.004)
    one = workload((2, 2), model, hop_s=0.0, host=HOST, space=TWO, segment_configuration=SEGMENT)
    requests = load_of(one, 6.0, 6.0, 2).requests
    by_slo = {}
    for slo_s in (0.001, 0.5, 1e3):
        rows = bound_rows(replace(one, slo_s=slo_s), requests, 2.0, METERS)
        assert len(rows) == 6
        assert all(row.feasible is None or row.lower_bound <= row.feasible for row in rows)
        assert all(row.feasible_p95_s is None or row.feasible_p95_s <= slo_s for row in rows)
        by_slo[slo_s] = [row for row in rows if row.meter == "provisioned"]
    assert not any(row.reachable or row.binds or row.feasible for row in by_slo[0.001])
    assert any(row.binds for row in by_slo[0.5]) and all(row.reachable for row in by_slo[0.5])
    assert all(row.feasible and not row.binds for row in by_slo[1e3])


def test_an_slo_binds_where_the_cheapest_breaks_it_and_another_does_not() -> None:
    slow, fast = (Configuration(128, cores, 0.0, 1, 4) for cores in (0.1, 0.5))
    assert uniform_slo_binds([(fast, 2.0, 0.1), (slow, 1.0, 0.3)], 0.2)
    assert not uniform_slo_binds([(fast, 2.0, 0.1), (slow, 1.0, 0.2)], 0.2)
    assert not uniform_slo_binds([(fast, 2.0, 0.25), (slow, 1.0, 0.3)], 0.2)


def test_uniform_configurations_have_memory_for_the_tokens_of_every_expert() -> None:
    """Eq. (2): 8 MiB of weights, 64 of runtime and twice 4 KiB for each of 1000 tokens, shared by the replicas, over
    0.9: 88.7, 84.3 and 82.9 MiB."""
    space = ConfigurationSpace(4, 512, 4, (0.5, 1.0), (), 1, 3, 1, 6)
    one, requests = one_expert([0.0, 0.01, 5.0], [400, 600, 10], Limited(), slo_s=1.0, space=space)
    found = [(choice.replicas, choice.cpu_cores, choice.memory_mb) for choice in candidates(one, requests)]
    assert found == [(1, 0.5, 92), (1, 1.0, 92), (2, 0.5, 88), (2, 1.0, 88), (3, 0.5, 84), (3, 1.0, 84)]
    assert {choice.concurrency for choice in candidates(one, requests)} == {4}
