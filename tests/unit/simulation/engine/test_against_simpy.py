"""The simulator against an event-driven model of the same rules, while configurations change all the time."""

from __future__ import annotations

import numpy as np
import pytest

from autoscaler.contract import Configuration
from simulation.engine.requests import draw_requests
from simulation.engine.simulation import Simulation
from simulation.latency.contract import Noise
from tests.parameters import some_fast
from tests.unit.simulation.engine.builders import Arithmetic, Order, configuration, initial, simulate, workload
from tests.unit.simulation.engine.oracle import PipelineModel

SPAN_S, WINDOW_S = 12.0, 1.5


def random_configuration(generator: np.random.Generator) -> Configuration:
    on_gpu = bool(generator.random() < 0.4)
    return Configuration(
        memory_mb=128 * int(generator.integers(1, 4)),
        cpu_cores=0.0 if on_gpu else float(generator.integers(1, 5)),
        gpu_share=int(generator.integers(1, 4)) / 10 if on_gpu else 0.0,
        replicas=int(generator.integers(0 if generator.random() < 0.1 else 1, 5)),
        concurrency=int(generator.integers(1, 6)),
    )


def random_orders(generator: np.random.Generator, functions: list[str]) -> list[Order]:
    moments = np.arange(WINDOW_S, SPAN_S, WINDOW_S)
    return [
        (float(moment), function, random_configuration(generator))
        for moment in moments
        for function in functions
        if generator.random() < 0.4
    ]


@pytest.mark.parametrize("seed", some_fast(range(12)))
def test_agrees_with_the_event_driven_model_under_random_orders(seed: int) -> None:
    """Cold starts, drains, resizes, replacements, functions scaled to zero, backlog, coupled memory, any speed-up."""
    generator = np.random.default_rng(seed)
    rate, cv = generator.uniform(5, 60), generator.choice([0.05, 0.3, 1.0])  # without scatter, ties would decide
    model = Arithmetic(power=generator.uniform(0, 1), scatter=Noise.lognormal(cv))
    small_workload = workload((3, 2), model, memory_mb_per_core=200.0 if seed % 3 == 0 else None)
    arrivals = np.cumsum(generator.gamma(0.3, 1 / (0.3 * rate), int(rate * SPAN_S)))
    requests = draw_requests(small_workload, arrivals, seed=seed)
    functions = [node.function for node in (*small_workload.segments, *small_workload.experts)]
    orders = random_orders(generator, functions)
    # At last everything is given room, so that whatever waits at a function without replicas is answered.
    orders += [(SPAN_S, function, configuration(4, cpu_cores=6.0)) for function in functions]
    simulation = Simulation(small_workload, requests, initial(small_workload), seed=seed)
    windows = [*np.arange(WINDOW_S, SPAN_S + WINDOW_S, WINDOW_S), SPAN_S + 500.0, SPAN_S + 4000.0]
    latency, _ = simulate(simulation, [float(moment) for moment in windows], orders)
    oracle = PipelineModel(small_workload, requests, initial(small_workload), orders, seed)
    oracle.run(SPAN_S + 4000.0)
    expected = oracle.answered_s - arrivals
    assert np.array_equal(np.isnan(latency), np.isnan(expected))
    assert np.nanmax(np.abs(latency - expected), initial=0.0) <= 1e-9


@pytest.mark.parametrize("threads", [2, 3, 5])
def test_threads_change_nothing(threads: int) -> None:
    small_workload = workload((3, 2), Arithmetic(power=0.5, scatter=Noise.lognormal(0.5)))
    requests = draw_requests(small_workload, np.cumsum(np.random.default_rng(5).exponential(0.01, 500)), seed=5)
    moments = [*np.arange(0.25, 8.0, 0.25), 300.0]
    alone, _ = simulate(Simulation(small_workload, requests, initial(small_workload)), moments)
    shared, _ = simulate(Simulation(small_workload, requests, initial(small_workload), threads=threads), moments)
    assert alone.tobytes() == shared.tobytes() and not np.isnan(alone).any()


def test_the_comparison_notices_a_wrong_rule() -> None:
    """The same pipeline with another concurrency is far from equal, so agreement above means something."""
    small_workload = workload((3, 2))
    arrivals = np.cumsum(np.random.default_rng(0).exponential(0.01, 300))
    requests = draw_requests(small_workload, arrivals, seed=0)
    latency, _ = simulate(Simulation(small_workload, requests, initial(small_workload)), [1000.0])
    oracle = PipelineModel(small_workload, requests, initial(small_workload, configuration(concurrency=3)))
    oracle.run()
    assert np.abs(latency - (oracle.answered_s - arrivals)).max() > 1e-3


@pytest.mark.parametrize("window_s", [0.05, 0.7, 100.0])
def test_how_time_is_cut_into_windows_changes_nothing(window_s: float) -> None:
    small_workload = workload((3, 2), Arithmetic(power=0.5, scatter=Noise.lognormal(0.5)))
    arrivals = np.cumsum(np.random.default_rng(5).exponential(0.03, 300))
    requests = draw_requests(small_workload, arrivals, seed=5)
    whole, _ = simulate(Simulation(small_workload, requests, initial(small_workload)), [40.0])
    parts, _ = simulate(
        Simulation(small_workload, requests, initial(small_workload)),
        list(np.arange(window_s, 40.0 + window_s, window_s)),
    )
    assert not np.isnan(whole).any()
    assert np.abs(whole - parts).max() <= 1e-9
