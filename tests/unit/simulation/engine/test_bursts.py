"""Standbys in the simulator: against the event-driven model, and by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autoscaler.contract import Policy
from autoscaler.decision.limits import LimitSettings
from autoscaler.policy.bursting import BurstingPolicy
from autoscaler.policy.hpa import HpaPolicy, HpaSettings
from functions.dispatch.activation import Burst
from simulation.engine.bursts import BurstSettings
from simulation.engine.controlled import simulate_policy
from simulation.engine.kernel import BUSY_S
from simulation.engine.metrics import SimulatedMetrics
from simulation.engine.requests import draw_requests
from simulation.engine.simulated_platform import SimulatedPlatform
from simulation.engine.simulation import Simulation
from simulation.latency.contract import Noise
from tests.parameters import some_fast
from tests.unit.simulation.engine.builders import (
    EXPERT,
    SPAN_S,
    WINDOW_S,
    Arithmetic,
    configuration,
    initial,
    limited_orders,
    one_expert,
    poisson,
    random_bursts,
    random_limited,
    simulate,
    with_standbys,
    workload,
)
from tests.unit.simulation.engine.oracle import PipelineModel


@pytest.mark.slow
@pytest.mark.parametrize("seed", some_fast(range(16)))
def test_agrees_with_the_event_driven_model_while_standbys_come_and_go(seed: int) -> None:
    """With orders at window starts, CPU limits for odd seeds, and holds longer than a window or than nothing."""
    generator = np.random.default_rng(seed)
    rate = generator.uniform(5, 60)
    model = random_limited(generator) if seed % 2 else Arithmetic(power=0.3, scatter=Noise.lognormal(0.3))
    pipeline = workload((3, 2), model)
    arrivals = np.cumsum(generator.gamma(0.3, 1 / (0.3 * rate), int(rate * SPAN_S)))
    requests = draw_requests(pipeline, arrivals, seed=seed)
    functions = [node.function for node in (*pipeline.segments, *pipeline.experts)]
    drawn = limited_orders(generator, functions, gpu=0.15)
    bursts, settings = random_bursts(generator, functions)
    orders = [(when, name, replace(target, burst=bursts.get(name))) for when, name, target in drawn]
    start = with_standbys(initial(pipeline), bursts)
    simulation = Simulation(pipeline, requests, start, seed=seed, bursts=settings)
    moments = [*np.arange(WINDOW_S, SPAN_S + WINDOW_S, WINDOW_S), SPAN_S + 500.0, SPAN_S + 4000.0]
    latency, _ = simulate(simulation, [float(moment) for moment in moments], orders)
    oracle = PipelineModel(pipeline, requests, start, orders, seed, settings)
    oracle.run(SPAN_S + 4000.0)
    expected = oracle.answered_s - arrivals
    assert np.array_equal(np.isnan(latency), np.isnan(expected))
    assert np.nanmax(np.abs(latency - expected), initial=0.0) <= 1e-9


def test_standbys_that_are_never_wanted_change_nothing() -> None:
    pipeline = workload((3, 2), Arithmetic(scatter=Noise.lognormal(0.3)))
    requests = draw_requests(pipeline, poisson(20, 300), seed=1)
    none = with_standbys(initial(pipeline), {node.function: Burst(0) for node in pipeline.experts})
    without, _ = simulate(Simulation(pipeline, requests, initial(pipeline)), [10.0, 40.0])
    with_none, windows = simulate(Simulation(pipeline, requests, none), [10.0, 40.0])
    assert np.array_equal(without, with_none)
    assert not any(window.activated_s.any() for window in windows)


def test_four_requests_at_once_find_three_standbys_before_the_layer() -> None:
    """A token takes a second of a replica: each of four requests wants a replica of its own, at once, so all end after
    one second. Without standbys they would wait for each other; activated late they wait for the activation."""
    pipeline, requests = one_expert([1.0] * 4, [1] * 4, Arithmetic(base_s=1e-9, token_s=1.0, power=0.0))
    start = initial(pipeline, configuration(1, concurrency=1))
    burst = {EXPERT: Burst(3, headroom=1.0, spare=0.0, hold_s=5.0, look_back_s=1.0)}

    def latencies(activation_s: float, standbys: bool = True) -> list[float]:
        settings = BurstSettings(activation_s, {EXPERT: 1.0})
        quick = {**start, **{node.function: configuration(4, cpu_cores=1e6) for node in pipeline.segments}}
        found, _ = simulate(
            Simulation(pipeline, requests, with_standbys(quick, burst if standbys else {}), bursts=settings), [20.0]
        )
        return sorted(np.round(found, 6).tolist())

    at_once, late, without = latencies(0.0), latencies(0.4), latencies(0.0, standbys=False)
    assert at_once[3] - at_once[0] < 1e-6, "all go side by side"
    assert at_once[3] == pytest.approx(1.0, abs=1e-4)
    assert late == pytest.approx([1.0, 1.4, 1.4, 1.4], abs=1e-4)
    assert without == pytest.approx([1.0, 2.0, 3.0, 4.0], abs=1e-4)


def test_activated_seconds_are_those_from_the_first_to_the_last_request_for_it_and_the_hold() -> None:
    """Two requests in one second want one standby from 2.5 s on; it is held 3 s: 2.5 to 5.5 s, over two windows."""
    pipeline, requests = one_expert([2.0, 2.5, 9.0], [1, 1, 1], Arithmetic(token_s=0.1))
    burst = Burst(2, headroom=1.0, spare=0.0, hold_s=3.0, look_back_s=1.0)
    start, settings = with_standbys(initial(pipeline), {EXPERT: burst}), BurstSettings(0.1, {EXPERT: 1.0})
    simulation = Simulation(pipeline, requests, start, bursts=settings)
    node = simulation.index[EXPERT]
    _, windows = simulate(simulation, [4.0, 8.0, 12.0])
    assert [float(window.activated_s[node]) for window in windows] == pytest.approx([1.5, 1.5, 0.0])
    assert [int(window.replicas["ready"][node]) for window in windows] == [1, 1, 1], "standbys are counted apart"


def test_with_nothing_that_always_runs_a_request_after_a_pause_waits_for_an_activation() -> None:
    """Two requests in a row and one after a pause: the first and the last find nothing activated."""
    pipeline, requests = one_expert([1.0, 1.5, 9.0], [1, 1, 1], Arithmetic(base_s=1e-9, token_s=0.1, power=0.0))
    burst = Burst(1, headroom=1.0, spare=0.0, hold_s=0.5, look_back_s=0.2, sleep_s=2.0)
    quick = {**initial(pipeline), **{n.function: configuration(4, cpu_cores=1e6) for n in pipeline.segments}}
    start = with_standbys(quick, {EXPERT: burst})
    simulation = Simulation(pipeline, requests, start, bursts=BurstSettings(0.3))
    node = simulation.index[EXPERT]
    latency, windows = simulate(simulation, [8.0, 20.0])
    assert np.round(latency, 3).tolist() == [0.4, 0.1, 0.4]
    assert [float(window.activated_s[node]) for window in windows] == pytest.approx([2.5, 2.0])
    observed = SimulatedPlatform(simulation)
    assert observed.configurations()[EXPERT].standbys == 2


def test_without_given_seconds_the_windows_before_are_measured() -> None:
    pipeline, requests = one_expert(poisson(10, 400, seed=3), [5] * 400, Arithmetic(token_s=0.05))
    burst = {EXPERT: Burst(6, hold_s=1.0)}
    simulation = Simulation(pipeline, requests, with_standbys(initial(pipeline), burst))
    node = simulation.index[EXPERT]
    _, windows = simulate(simulation, [10.0, 20.0, 30.0])
    assert windows[0].activated_s[node] == 0, "nothing is known yet"
    assert windows[1].activated_s[node] > 0


def test_under_overload_a_token_costs_what_answered_ones_did() -> None:
    """Divided by tokens that only arrive, the cost of one falls as more come, and standbys would stay shut."""
    pipeline, requests = one_expert(poisson(20, 800, seed=3), [5] * 800, Arithmetic(token_s=0.04, power=0.0))
    burst = {EXPERT: Burst(8, headroom=1.0, spare=0.0, hold_s=1.0)}
    simulation = Simulation(pipeline, requests, with_standbys(initial(pipeline), burst))
    _, windows = simulate(simulation, [10.0, 20.0, 30.0])
    assert windows[0].in_flight > 100, "one replica has the work of four"
    assert windows[2].activated_s[simulation.index[EXPERT]] > 25


def test_the_cpu_time_of_standbys_counts_after_they_are_shut_again() -> None:
    burst_at = np.concatenate([np.linspace(0.0, 1.0, 40), [9.9]])
    pipeline, requests = one_expert(burst_at, [5] * 41, Arithmetic(token_s=0.02))
    given = BurstSettings(seconds_per_token={EXPERT: 0.02})
    start = with_standbys(initial(pipeline), {EXPERT: Burst(6, hold_s=0.5)})
    simulation = Simulation(pipeline, requests, start, bursts=given)
    metrics, window, place = SimulatedMetrics(simulation, 0.0), simulation.advance(10.0), simulation.index[EXPERT]
    metrics.add(window)
    assert window.activated_s[place] > 3 and window.replicas["ready"][place] < 3
    node = metrics.observe(10.0, 10.0).node("expert-0-0")
    assert node is not None and node.cpu_utilisation is not None and node.measured_replicas
    used_s = node.cpu_utilisation * node.measured_replicas * 10.0
    assert used_s == pytest.approx(float(window.meter[place, BUSY_S]) * simulation.fleet.used(place))


def test_a_rule_that_says_what_a_token_costs_is_followed_as_if_that_had_been_given() -> None:
    pipeline, requests = one_expert(poisson(10, 400, seed=3), [5] * 400, Arithmetic(token_s=0.05))
    stated = with_standbys(initial(pipeline), {EXPERT: Burst(6, hold_s=1.0, token_s=0.05)})
    given = with_standbys(initial(pipeline), {EXPERT: Burst(6, hold_s=1.0)})
    subjects = [
        Simulation(pipeline, requests, stated),
        Simulation(pipeline, requests, given, bursts=BurstSettings(seconds_per_token={EXPERT: 0.05})),
    ]
    (ours, _), (theirs, _) = (simulate(subject, [10.0, 20.0, 30.0]) for subject in subjects)
    assert np.array_equal(ours, theirs, equal_nan=True)


def test_a_copy_goes_on_as_the_original_does() -> None:
    pipeline, requests = one_expert(poisson(20, 400, seed=3), [5] * 400, Arithmetic(token_s=0.02))
    start = with_standbys(initial(pipeline), {EXPERT: Burst(6, hold_s=2.0)})
    simulation = Simulation(pipeline, requests, start)
    simulation.advance(10.0)
    copy = simulation.fork()
    ours, theirs = simulation.advance(20.0), copy.advance(20.0)
    assert np.array_equal(ours.latency_s, theirs.latency_s) and np.array_equal(ours.activated_s, theirs.activated_s)


def test_an_order_brings_standbys_and_takes_them_away() -> None:
    """The first window measures, the second's requests activate, the third's find none."""
    pipeline, requests = one_expert(poisson(20, 800, seed=3), [5] * 800, Arithmetic(token_s=0.02))
    simulation = Simulation(pipeline, requests, initial(pipeline))
    node, plain = simulation.index[EXPERT], simulation.configuration(EXPERT)
    platform, activated_s = SimulatedPlatform(simulation), []
    for target in (plain, replace(plain, burst=Burst(6, hold_s=2.0)), plain):
        platform.apply(EXPERT, simulation.configuration(EXPERT), target)
        assert platform.configurations()[EXPERT] == target
        activated_s.append(float(simulation.advance(simulation.now_s + 10.0).activated_s[node]))
    assert activated_s[0] == 0 and activated_s[1] > 1 and activated_s[2] == 0


def test_hpa_may_have_standbys_in_a_simulated_run_and_they_answer_sooner() -> None:
    pipeline, requests = one_expert(poisson(20, 1200, seed=3), [5] * 1200, Arithmetic(token_s=0.009))

    def run(policy: Policy) -> tuple[float, float]:
        simulation = Simulation(pipeline, requests, initial(pipeline))
        steps = simulate_policy(simulation, policy, LimitSettings(space=pipeline.space), window_s=10.0, until_s=60.0)
        p95_s = float(np.quantile(np.concatenate([step.window.latency_s for step in steps[2:]]), 0.95))
        return p95_s, sum(step.report.cost.provisioned or 0.0 for step in steps[2:])

    hpa = HpaPolicy(HpaSettings(max_replicas=1))
    (p95_s, cost), (p95_without_s, cost_without) = run(BurstingPolicy(hpa, Burst(6, hold_s=5.0))), run(hpa)
    assert p95_s < 0.8 * p95_without_s
    memory = 6 * pipeline.prices.standby_per_s(configuration()) * 40.0
    assert cost > cost_without + memory, "standbys are paid for, and activated ones in full"
