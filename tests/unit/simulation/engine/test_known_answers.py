"""Cases with answers of their own: single requests, queues with formulas, conservation laws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulation.engine import kernel
from simulation.engine.requests import draw_requests
from simulation.engine.simulation import Simulation
from simulation.latency.contract import Noise
from tests.parameters import examples
from tests.unit.simulation.engine.builders import (
    Arithmetic,
    configuration,
    initial,
    one_expert,
    poisson,
    simulate,
    workload,
)


def test_one_request_alone_takes_the_sum_of_its_calls() -> None:
    found, requests = one_expert([1.0], [10], Arithmetic(base_s=0.002, token_s=0.001))
    latency, _ = simulate(Simulation(found, requests, initial(found)), [5.0])
    assert latency[0] == pytest.approx(3 * (0.002 + 0.010), abs=1e-12)


def test_ingress_work_and_hops_are_added_between_stages() -> None:
    small_workload = workload((1, 1), request_s=0.5, hop_s=0.25)
    requests = draw_requests(small_workload, [0.0], seed=0, tokens=[1])
    latency, _ = simulate(Simulation(small_workload, requests, initial(small_workload)), [9.0])
    assert latency[0] == pytest.approx(0.5 + 5 * 0.002 + 4 * 0.25, abs=1e-12)


def test_two_calls_at_once_share_one_unit_evenly() -> None:
    found, requests = one_expert([0.0, 0.0], [100, 300], Arithmetic(base_s=1e-9, token_s=0.01))
    start = {**initial(found), "m-segment-0": configuration(2, cpu_cores=6.0, concurrency=1)}
    simulation = Simulation(found, requests, start)
    simulation.open(100.0)
    simulation.run_stage()
    simulation.run_stage()
    # 1/6 s and 1/2 s at the first segment; then the expert: one alone until 0.5 s, both until 1 + 1/6 + 1/3, the rest.
    assert simulation._left[:2] == pytest.approx([0.5 + 2 * (1 - 1 / 3), 1 / 6 + 4 - 1 / 6 + 1 / 6], abs=1e-6)


@pytest.mark.parametrize(("power", "expected_s"), [(0.0, 4.0), (0.5, 4 / 2**0.5), (1.0, 2.0)])
def test_speedup_of_two_calls_is_the_latency_models(power: float, expected_s: float) -> None:
    found, requests = one_expert([0.0, 0.0], [200, 200], Arithmetic(base_s=1e-9, token_s=0.01, power=power))
    simulation = Simulation(found, requests, initial(found))
    simulation.open(100.0)
    simulation.run_stage()
    before = simulation._left[:2].copy()
    assert before == pytest.approx([2.0, 2.0], abs=1e-6)
    simulation.run_stage()
    assert simulation._left[:2] - before == pytest.approx([expected_s, expected_s], abs=1e-6)


@pytest.mark.parametrize(
    ("concurrency", "power"), [pytest.param(1, 0.0, id="first come first served"), pytest.param(64, 0.0, id="shared")]
)
def test_the_mean_of_a_single_server_queue_is_its_formula(concurrency: int, power: float) -> None:
    """M/M/1, first come first served or processor sharing: 1 / (μ - λ)."""
    exponential = Noise.from_samples(-np.log(1 - (np.arange(40000) + 0.5) / 40000), 4097)
    mean_s, rate, count = 0.01, 60.0, 150_000
    found, requests = one_expert(
        poisson(rate, count, seed=3), np.ones(count, dtype=int), Arithmetic(mean_s - 1e-6, 1e-6, power, exponential)
    )
    start = {f: configuration(40, concurrency=64) for f in initial(found)}
    start["m-expert-0-0"] = configuration(1, concurrency=concurrency)
    simulation = Simulation(found, requests, start, most_calls=64)
    _, windows = simulate(simulation, [count / rate + 100])
    expert = windows[0].meter[2]
    mean = expert[kernel.LATENCY_S] / expert[kernel.CALLS]
    assert mean == pytest.approx(1 / (1 / mean_s - rate), rel=0.04)


def test_more_replicas_than_calls_never_queue() -> None:
    found, requests = one_expert(poisson(20, 400), np.full(400, 5))
    _, windows = simulate(Simulation(found, requests, {f: configuration(60) for f in initial(found)}), [60.0])
    assert windows[0].meter[:, kernel.WAITED_S].max() == 0.0
    assert windows[0].latency_s == pytest.approx(np.full(400, 3 * 0.006), abs=1e-12)


@settings(max_examples=examples(15), deadline=None)
@given(seed=st.integers(0, 10**6), rate=st.floats(5, 300), replicas=st.integers(1, 4), concurrency=st.integers(1, 8))
def test_conservation_laws_hold_in_every_window(seed: int, rate: float, replicas: int, concurrency: int) -> None:
    """Little's law, tokens in = tokens routed, busy time within bounds, every request answered."""
    small_workload = workload((3, 2), Arithmetic(power=0.3, scatter=Noise.lognormal(0.4)))
    requests = draw_requests(small_workload, poisson(rate, 300, seed), seed=seed)
    simulation = Simulation(
        small_workload, requests, initial(small_workload, configuration(replicas, concurrency=concurrency))
    )
    latency, windows = simulate(simulation, [*np.arange(0.5, 10, 0.5), 5000.0])
    meters = np.array([window.meter for window in windows])
    total = meters.sum(axis=0)
    assert not np.isnan(latency).any() and windows[-1].in_flight == 0
    assert total[:, kernel.SERVED_S] + total[:, kernel.WAITED_S] == pytest.approx(total[:, kernel.LATENCY_S], rel=1e-9)
    assert total[:, kernel.CALLS].tolist() == [300.0] * 3 + [float(n) for n in (requests.counts[1:] > 0).sum(axis=1)]
    assert total[:, kernel.TOKENS].tolist() == [requests.tokens.sum()] * 3 + requests.counts[1:].sum(axis=1).tolist()
    length = np.array([window.end_s - window.start_s for window in windows])
    slots = replicas * length[:, None]
    assert (meters[:, 3:, kernel.BUSY_S] <= slots + 1e-9).all()
    assert (meters[:, 3:, kernel.SERVED_S] <= slots * concurrency + 1e-9).all()
    assert (meters[:, :, kernel.BUSY_S] <= meters[:, :, kernel.SERVED_S] + 1e-9).all()
    assert np.abs(meters[-1, :, kernel.FLIGHT]).max() == 0
    assert [window.histogram.sum() for window in windows] == meters[:, :, kernel.CALLS].sum(axis=1).tolist()


def test_an_expert_without_sharing_works_off_exactly_its_work() -> None:
    """Work conservation: with concurrency 1 the seconds at replicas are the calls' seconds alone."""
    found, requests = one_expert(poisson(50, 500), np.arange(500) % 30 + 1)
    simulation = Simulation(found, requests, initial(found, configuration(2, concurrency=1)))
    _, windows = simulate(simulation, [100.0])
    alone_s = (0.001 + requests.tokens * 0.001).sum()
    assert windows[0].meter[2, kernel.SERVED_S] == pytest.approx(alone_s, rel=1e-12)
    assert windows[0].meter[2, kernel.BUSY_S] == pytest.approx(alone_s, rel=1e-12)
