"""How fast the simulator is, and how exactly it agrees with an event-driven SimPy model of the same rules.

``python -m benchmarks.simulator``: 12 layers of 8 experts (the modelled bert-8), bursty arrivals, processor sharing
with 4 slots an expert or more, and in each window new configurations for a tenth of the experts: replicas started cold
and drained, live resizes, workers replaced behind a switchover, backlog carried from window to window. Requests are
routed beforehand, as when several policies are compared on them; what that takes is printed separately. The best of
several rounds counts. ``ratio`` compares one thread with one thread, in CPU seconds: what other processes take away is
none of theirs. ``requests_per_s`` is the larger of that and of the speed by the wall clock with as many threads as
there are cores (four at most), which only an idle machine shows; both are printed. A run of both models without orders
or cold starts is refused: it would prove nothing of them. The last line is one JSON object.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

import click
import numpy as np

from autoscaler.contract import Configuration
from benchmarks.harness.options import benchmark
from benchmarks.harness.report import print_figures, print_result
from simulation.engine.requests import Requests, draw_requests
from simulation.engine.simulation import Simulation
from simulation.workloads.paper import paper_workload
from simulation.workloads.workload import Workload

try:
    from tests.unit.simulation.engine.oracle import PipelineModel
except ModuleNotFoundError as error:
    raise SystemExit(f"python -m benchmarks.simulator runs in the source tree, after make setup: {error}") from error

START = Configuration(memory_mb=512, cpu_cores=0.0, gpu_share=0.1, replicas=2, concurrency=4)
RATE_PER_S, BURST = 500.0, 16.0
"""Mean arrivals a second, and the squared coefficient of variation of the gaps."""
WINDOW_S, SHORT_WINDOW_S = 10.0, 1.5
"""Seconds of a window of the long run, and of the one that both models make: it must see several changes too."""
CHANGED = 0.1
"""Share of the functions that get a new configuration in each window."""

Order = tuple[float, str, Configuration]


@dataclass(frozen=True)
class Run:
    """One run of the simulator. ``latency_s [requests]``."""

    wall_s: float
    cpu_s: float
    """Processor seconds of the calling thread."""
    latency_s: np.ndarray
    most_in_flight: int
    cold_starts: int
    waited_s: float


def bursty(workload: Workload, count: int, seed: int) -> Requests:
    """Routed requests with gamma-distributed gaps."""
    generator = np.random.default_rng(seed)
    gaps_s = generator.gamma(1 / BURST, BURST / RATE_PER_S, count)
    return draw_requests(workload, np.cumsum(gaps_s), seed=seed)


def random_orders(workload: Workload, until_s: float, window_s: float, seed: int) -> list[Order]:
    """New configurations of at least four slots: other replicas, concurrency, GPU share, or six CPU cores."""
    generator = np.random.default_rng(seed)
    orders = []
    for moment_s in np.arange(window_s, until_s, window_s):
        for node in workload.experts:
            if generator.random() < CHANGED:
                share = 0.0 if generator.random() < 0.2 else int(generator.integers(1, 4)) / 10
                replicas, concurrency = int(generator.integers(2, 5)), int(generator.integers(2, 9))
                target = Configuration(512, 0.0 if share else 6.0, share, replicas, concurrency)
                orders.append((float(moment_s), node.function, target))
    return orders


def simulate(
    workload: Workload, requests: Requests, orders: Sequence[Order], window_s: float, seed: int, threads: int = 1
) -> Run:
    """All requests through the simulator, window by window."""
    latency_s = np.full(requests.arrival_s.size, np.nan)
    by_moment: dict[float, list[Order]] = {}
    for order in orders:
        by_moment.setdefault(order[0], []).append(order)
    simulation = Simulation(workload, requests, workload.initial(START), seed=seed, threads=threads)
    most, waited_s, answered = 0, 0.0, 0
    wall_s, cpu_s = time.perf_counter(), time.thread_time()
    while answered < requests.arrival_s.size:
        window = simulation.advance(simulation.now_s + window_s)
        for _, function, target in by_moment.get(simulation.now_s, ()):
            simulation.order(function, target)
        latency_s[window.finished] = window.latency_s
        most, answered = max(most, window.in_flight), answered + window.finished.size
        waited_s += float(window.meter[:, 3].sum())
    wall_s, cpu_s = time.perf_counter() - wall_s, time.thread_time() - cpu_s
    return Run(wall_s, cpu_s, latency_s, most, simulation.fleet.cold_starts, waited_s)


def event_driven(
    workload: Workload, requests: Requests, orders: Sequence[Order], seed: int
) -> tuple[float, np.ndarray]:
    """CPU seconds and latencies [requests] of the SimPy model."""
    model = PipelineModel(workload, requests, workload.initial(START), orders, seed)
    begun_s = time.thread_time()
    model.run()
    return time.thread_time() - begun_s, model.answered_s - requests.arrival_s


def too_short(compared: int, seconds: float, orders: int, cold_starts: int) -> str:
    """Why a run that both models make shows nothing of orders and cold starts."""
    return (
        f"--compared {compared} spans {seconds:.2f} s with {orders} orders and {cold_starts} cold starts, and orders "
        f"come every {SHORT_WINDOW_S:g} s: take more requests, so that the models are compared in both"
    )


@benchmark
@click.option("--requests", "asked", default=40_000, help="Of the simulator's run.")
@click.option("--compared", default=3_000, help="Requests of the run that both models make.")
@click.option("--rounds", default=5, help="Timed runs; the best counts.")
@click.option("--seed", default=7, help="Of all random choices.")
def main(asked: int, compared: int, rounds: int, seed: int) -> None:
    workload = paper_workload("bert-8")
    begun_s = time.perf_counter()
    many, few = (bursty(workload, count, seed) for count in (asked, compared))
    routing_s = time.perf_counter() - begun_s
    many_orders = random_orders(workload, many.arrival_s[-1], WINDOW_S, seed)
    few_orders = random_orders(workload, few.arrival_s[-1], SHORT_WINDOW_S, seed)
    same = simulate(workload, few, few_orders, SHORT_WINDOW_S, seed)  # compiles, too
    if not few_orders or not same.cold_starts:
        raise click.UsageError(too_short(compared, float(few.arrival_s[-1]), len(few_orders), same.cold_starts))
    threads = min(4, len(os.sched_getaffinity(0)))
    runs: list[Run] = []
    shared: list[Run] = []
    slow: list[tuple[float, float]] = []
    for _ in range(rounds):
        runs.append(simulate(workload, many, many_orders, WINDOW_S, seed))
        shared.append(simulate(workload, many, many_orders, WINDOW_S, seed, threads) if threads > 1 else runs[-1])
        if len(slow) < 2:
            seconds, expected_s = event_driven(workload, few, few_orders, seed)
            slow.append((seconds, float(np.abs(same.latency_s - expected_s).max())))
    best = min(runs, key=lambda run: run.cpu_s)
    one, several = (asked / min(run.wall_s for run in group) for group in (runs, shared))
    alone, simpy_speed = asked / best.cpu_s, compared / min(slow)[0]
    visits = float((many.counts[1:] > 0).sum()) / asked + len(workload.segments)
    result = {
        "requests_per_s": round(max(alone, several)),
        "simpy_requests_per_s": round(simpy_speed, 1),
        "ratio": round(alone / simpy_speed),
        "max_abs_diff_s": max(difference for _, difference in slow),
        "requests_per_s_one_thread": round(alone),
        "threads": threads,
        "requests_per_wall_s": [round(one), round(several)],
        "requests_per_s_rounds": [round(asked / run.cpu_s) for run in runs],
        "node_calls_per_request": round(visits, 1),
        "ns_per_node_call": round(1e9 * best.cpu_s / asked / visits, 1),
        "routed_per_s": round((asked + compared) / routing_s),
        "orders": [len(many_orders), len(few_orders)],
        "cold_starts": [best.cold_starts, same.cold_starts],
        "most_in_flight_between_windows": [best.most_in_flight, same.most_in_flight],
        "call_seconds_waited": [round(best.waited_s, 1), round(same.waited_s, 1)],
        "p95_s": round(float(np.quantile(best.latency_s, 0.95)), 6),
    }
    print_figures(None, result)
    print_result(result)


if __name__ == "__main__":
    main()
