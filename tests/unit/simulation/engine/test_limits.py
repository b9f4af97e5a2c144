"""CPU limits as token buckets: by hand, against the event-driven model and against the profile's own plain rule."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.contract import Configuration
from simulation.engine import kernel
from simulation.engine.requests import draw_requests
from simulation.engine.simulation import Simulation
from simulation.profiles.measure import open_loop as openloop
from tests.parameters import examples, some_fast
from tests.unit.simulation.engine.builders import (
    EXPERT,
    SPAN_S,
    WINDOW_S,
    Limited,
    Order,
    configuration,
    initial,
    limited_orders,
    one_expert,
    poisson,
    random_limited,
    simulate,
    workload,
)
from tests.unit.simulation.engine.oracle import PipelineModel


def lone_expert(
    arrivals: list[float], tokens: list[int], expert: Configuration, model: Limited, orders: list[Order] | None = None
) -> tuple[np.ndarray, Simulation]:
    """Seconds of each request at the expert, before which it was at a segment with a core of its own."""
    found, requests = one_expert(arrivals, tokens, model)
    start = {f: configuration(8) for f in initial(found)} | {EXPERT: expert}
    simulation = Simulation(found, requests, start)
    latency, _ = simulate(simulation, [1.0, 2.0, 300.0], orders or [])
    return np.asarray(latency - 2 * (model.base_s + np.array(tokens) * model.token_s)), simulation


def test_a_call_within_the_burst_is_not_slowed_down_and_one_beyond_goes_on_at_the_refill() -> None:
    model = Limited(base_s=1e-9, token_s=0.001, burst_s=0.02, alone_use=1.0)
    seconds, _ = lone_expert([0.0, 5.0], [10, 100], configuration(1, cpu_cores=0.25), model)
    burst = 0.02 * 0.75  # work beyond burst / (1 - refill) waits for the refill
    assert seconds == pytest.approx([0.010, (0.100 - burst) / 0.25], abs=1e-6)


def test_the_bucket_refills_while_idle_and_no_further_than_its_burst() -> None:
    model = Limited(base_s=1e-9, token_s=0.001, burst_s=0.02, alone_use=1.0)
    expert = configuration(1, cpu_cores=0.25)
    found = [lone_expert([0.0, gap_s], [100, 10], expert, model)[0][1] for gap_s in (0.43, 0.46, 9.0)]
    # The first call is at the expert from 0.1 to 0.44 s and leaves nothing; the second comes 10 ms after its gap.
    assert found == pytest.approx([0.01 / 0.25, (0.01 - 0.03 * 0.25) / 0.25, 0.01], abs=1e-6)


def test_a_replica_that_uses_less_than_its_refill_is_never_stopped() -> None:
    model = Limited(base_s=1e-9, token_s=0.001, burst_s=0.0, alone_use=0.5)
    seconds, _ = lone_expert([0.0], [100], configuration(1, cpu_cores=0.5), model)
    assert seconds == pytest.approx([0.1], abs=1e-6)


def test_a_resize_changes_the_refill_at_once() -> None:
    """100 ms of work from 1 s on, without a burst: 25 ms of it at 0.1 until the change holds at 1.25 s, then at 0.5."""
    model = Limited(base_s=1e-9, token_s=0.01, burst_s=0.0, alone_use=1.0)
    orders = [(1.0, EXPERT, configuration(1, cpu_cores=0.5))]
    seconds, _ = lone_expert([0.9], [10], configuration(1, cpu_cores=0.1), model, orders)
    assert seconds == pytest.approx([0.25 + 0.075 / 0.5], abs=1e-6)


def test_cpu_seconds_are_those_of_the_work() -> None:
    model = Limited(base_s=1e-9, token_s=0.001, alone_use=1.0)
    found, requests = one_expert(poisson(30, 60), [10] * 60, model)
    simulation = Simulation(found, requests, initial(found, configuration(1, cpu_cores=0.4)))
    _, windows = simulate(simulation, [1.0, 9.0, 40.0])
    node = simulation.index[EXPERT]
    assert sum(window.meter[node, kernel.CPU_S] for window in windows) == pytest.approx(60 * 0.01, rel=1e-6)


@settings(max_examples=examples(25), deadline=None)
@given(
    seed=st.integers(0, 2**31),
    rate=st.floats(1, 80),
    cores=st.floats(0.05, 1.5),
    slots=st.integers(1, 6),
    burst=st.floats(0, 0.1),
    use=st.floats(0.2, 1.0),
    power=st.floats(0, 1),
)
def test_a_replica_agrees_with_the_plain_rule_of_the_profile(
    seed: int, rate: float, cores: float, slots: int, burst: float, use: float, power: float
) -> None:
    model = Limited(base_s=1e-9, token_s=0.001, power=power, burst_s=burst, alone_use=use)
    tokens = np.random.default_rng(seed).integers(1, 40, 80)
    found, requests = one_expert(poisson(rate, 80, seed), tokens, model)
    start = {f: configuration(80, concurrency=8) for f in initial(found)}
    simulation = Simulation(
        found, requests, start | {EXPERT: configuration(1, cpu_cores=cores, concurrency=slots)}, most_calls=8
    )
    simulation.open(1e4)
    simulation.run_stage()
    arrived = simulation._reached.copy()
    simulation.run_stage()
    limit = model.throttle(found.costs["expert-0-0"], cores, 0.0)
    order = np.argsort(arrived, kind="stable")
    expected = openloop.simulate(
        arrived[order],
        np.asarray(0.001 * tokens[order] + 1e-9, dtype=np.float64),
        slots,
        np.array([0.0, *np.arange(1, slots + 1, dtype=np.float64) ** power]),
        np.array([0.0, use, *np.ones(slots - 1)]),
        float(limit.burst_s),
        float(limit.refill),
    )
    assert simulation._left[order] - arrived[order] == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("seed", some_fast(range(10)))
def test_limits_agree_with_the_event_driven_model_under_random_orders(seed: int) -> None:
    generator = np.random.default_rng(seed)
    rate = generator.uniform(5, 60)
    model = random_limited(generator)
    small_workload = workload((3, 2), model)
    arrivals = np.cumsum(generator.gamma(0.3, 1 / (0.3 * rate), int(rate * SPAN_S)))
    requests = draw_requests(small_workload, arrivals, seed=seed)
    functions = [node.function for node in (*small_workload.segments, *small_workload.experts)]
    orders = limited_orders(generator, functions)
    windows = [*np.arange(WINDOW_S, SPAN_S + WINDOW_S, WINDOW_S), SPAN_S + 500.0, SPAN_S + 4000.0]
    start = initial(small_workload, configuration(cpu_cores=0.5))
    latency, _ = simulate(
        Simulation(small_workload, requests, start, seed=seed), [float(moment) for moment in windows], orders
    )
    oracle = PipelineModel(small_workload, requests, start, orders, seed)
    oracle.run(SPAN_S + 4000.0)
    expected = oracle.answered_s - arrivals
    assert np.array_equal(np.isnan(latency), np.isnan(expected))
    assert np.nanmax(np.abs(latency - expected), initial=0.0) <= 1e-9
