"""The paper's observations 1 to 3 (Figures 2 and 3) in the simulator: ``python -m benchmarks.motivation``.

The arrivals of a real hour go through a modelled workload whose tokens are routed as in a log of a real model
(``traces.routing_logs``; without the public traces a synthetic hour and Zipf routing stand in, and the results say so).
Every expert has one fixed configuration. Two files of one row a window: ``experts.csv`` (tokens, mean calls in flight
and P95 of each expert) and ``layers.csv`` (P95 from scatter to gather of each layer). ``surface.csv``: P95 of an
expert over memory that brings CPU with it × concurrency, several seeds, at one fixed rate of Poisson arrivals.
``about.json`` holds what was simulated. P95 are read from the ingress's histograms, whose bounds are a factor of 1.3
apart. Simulated, not measured. The last line is one JSON object.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from autoscaler.contract import Configuration
from autoscaler.state.quantiles import histogram_quantile
from benchmarks.harness.options import (
    FOLDER,
    benchmark,
    out_option,
    pattern_option,
    rate_option,
    seed_option,
    workload_option,
)
from benchmarks.harness.report import print_table, write_csv
from evaluation.comparison.arrivals import arrivals
from evaluation.comparison.grid import Grid, Group
from simulation.arrays import Floats
from simulation.engine import kernel
from simulation.engine.requests import draw_requests
from simulation.engine.simulation import BOUNDS, Simulation, Window
from simulation.workloads.paper import paper_workload
from simulation.workloads.routing import RoutingStatistics, logged_routing
from simulation.workloads.workload import Workload
from traces import catalog
from traces.provenance import file_sha256
from traces.routing_logs import read_choices

LOG = Path("moe_routing", "deepseek_v2_lite_chat_prefill_experts.parquet")
FIXED = Configuration(memory_mb=512, cpu_cores=4.0, gpu_share=0.0, replicas=2, concurrency=4)
MIB_PER_CORE = 1769.0
"""Ratio on the surface: what a large provider's functions have, as in measured profiles (``docs/profiles.md``)."""
MEMORY_MIB = (1024, 1792, 2688, 3584, 5312, 7104, 10240)
CONCURRENCIES = (1, 2, 3, 4, 6, 8, 10)
SURFACE_RPS, SURFACE_S = 100.0, 60.0
_BOUNDS = (*BOUNDS[:-1].tolist(), float("inf"))


def p95_ms(counts: NDArray[np.int64]) -> list[float | None]:
    """P95 of each row of ``counts [rows, bounds]``; None where it has no call."""
    rows = np.cumsum(counts, axis=1).tolist()
    seconds = [histogram_quantile(0.95, tuple(zip(_BOUNDS, row, strict=True))) for row in rows]
    return [None if value is None else round(1000 * value, 3) for value in seconds]


def routing_of(workload: Workload, folder: Path | None, phase_s: float) -> RoutingStatistics | None:
    """The log's routing for the workload's layers, one of its 24 parts each ``phase_s``; None without the log."""
    path = None if folder is None else folder / LOG
    if path is None or not path.is_file():
        return None
    layers = range(workload.topology.layers)
    return logged_routing(read_choices(path), [len(workload.topology.experts(at)) for at in layers], phase_s=phase_s)


def windows_of(simulation: Simulation, window_s: float, until_s: float) -> Iterator[Window]:
    """Windows of the episode in which something was answered."""
    while simulation.now_s + window_s <= until_s + 1e-9:
        window = simulation.advance(simulation.now_s + window_s)
        if window.finished.size:
            yield window


def rows_of(workload: Workload, window: Window, number: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(one row an expert, one row a layer) of a window."""
    first = len(workload.segments)
    tails = p95_ms(window.histogram[first:])
    length_s = window.end_s - window.start_s
    experts = []
    for node, meter, tail in zip(workload.experts, window.meter[first:], tails, strict=True):
        in_flight = (meter[kernel.SERVED_S] + meter[kernel.WAITED_S]) / length_s
        totals = {"tokens": int(meter[kernel.TOKENS]), "calls": int(meter[kernel.CALLS])}
        place = {"window": number, "layer": node.layer, "expert": node.expert}
        experts.append({**place, **totals, "in_flight": round(float(in_flight), 5), "p95_ms": tail})
    answered = int(window.finished.size)
    layers = [
        {"window": number, "layer": layer, "answered": answered, "p95_ms": tail}
        for layer, tail in enumerate(p95_ms(window.barrier))
    ]
    return experts, layers


def surface(workload: Workload, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """P95 of the first layer's first expert, every expert configured the same; the same arrivals for all of a seed."""
    coupled = replace(workload, memory_mb_per_core=MIB_PER_CORE)
    node = len(coupled.segments)
    rows = []
    for seed in seeds:
        gaps = np.random.default_rng(seed).exponential(1 / SURFACE_RPS, int(2 * SURFACE_RPS * SURFACE_S))
        times = np.cumsum(gaps)
        requests = draw_requests(coupled, times[times < SURFACE_S], seed=seed)
        for memory in MEMORY_MIB:
            for concurrency in CONCURRENCIES:
                configuration = Configuration(memory, coupled.space.cpu_cores[-1], 0.0, 1, concurrency)
                simulation = Simulation(coupled, requests, coupled.initial(configuration), seed=seed)
                window = simulation.advance(SURFACE_S)
                cores = round(coupled.cores(configuration), 3)
                point = {"memory_mib": memory, "cores": cores, "concurrency": concurrency, "seed": seed}
                rows.append({**point, "p95_ms": p95_ms(window.histogram[node : node + 1])[0]})
    return rows


def shares(rows: Sequence[dict[str, Any]], name: str) -> Floats:
    """[windows, layers, experts] part of ``name`` in its layer; NaN where a layer had none."""
    axes = [sorted({row[axis] for row in rows}) for axis in ("window", "layer", "expert")]
    values = np.array([row[name] for row in rows], dtype=np.float64).reshape([len(axis) for axis in axes])
    whole = values.sum(axis=2, keepdims=True)
    return np.asarray(np.divide(values, whole, out=np.full_like(values, np.nan), where=whole > 0))


def summary(experts: Sequence[dict[str, Any]], layers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How skewed, how unlike each other, and how the bottleneck moves."""
    tokens, calls = shares(experts, "tokens"), shares(experts, "in_flight")
    tails = np.array([row["p95_ms"] for row in layers], dtype=np.float64).reshape(len(tokens), -1)
    slowest = np.nanargmax(tails, axis=1)
    return {
        "windows": len(tokens),
        "busiest_tokens_over_mean": round(float(np.nanmean(tokens.max(2)) * tokens.shape[2]), 3),
        "busiest_calls_over_mean": round(float(np.nanmean(calls.max(2)) * calls.shape[2]), 3),
        "tokens_against_calls": round(float(np.nanmean(np.abs(tokens - calls).sum(2) / 2)), 4),
        "bottlenecks": len(set(slowest.tolist())),
        "bottleneck_moves": int((np.diff(slowest) != 0).sum()),
        "slowest_over_mean_layer": round(float(np.mean(np.nanmax(tails, 1) / np.nanmean(tails, 1))), 3),
    }


def tables_of(
    simulation: Simulation, workload: Workload, window_s: float, seconds: float
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of experts and of layers, window by window of a run of ``seconds``."""
    experts: list[dict[str, Any]] = []
    layers: list[dict[str, Any]] = []
    for window in windows_of(simulation, window_s, seconds):
        more_experts, more_layers = rows_of(workload, window, round(window.start_s / window_s))
        experts += more_experts
        layers += more_layers
    return experts, layers


@benchmark
@workload_option("bert-8")
@pattern_option
@rate_option
@click.option("--minutes", type=click.FloatRange(1.0), default=20.0, help="How much of the hour is simulated.")
@click.option("--window", "window_s", type=click.FloatRange(1.0), default=30.0, help="Length of a window in seconds.")
@seed_option
@click.option("--surface-seeds", type=click.IntRange(2), default=5, help="Runs of each point of the surface.")
@click.option("--traces", "given", type=FOLDER, help="Public traces.")
@out_option("out/motivation", "Folder of the tables.")
def main(
    name: str, pattern: str, mean_rps: float, minutes: float, window_s: float, seed: int, surface_seeds: int,
    given: Path | None, out: Path,
) -> None:  # fmt: skip
    folder = catalog.data_folder(given)
    plain = paper_workload(name, seed=seed)
    routing = routing_of(plain, folder, phase_s=60.0)
    workload = paper_workload(name, seed=seed, routing=routing)
    grid = Grid(
        (name,), (pattern,), (0,), ("static",), (seed,), start=FIXED, window_s=window_s, seconds=60 * minutes,
        mean_rps=mean_rps, warm_up_windows=0, data=given,
    )  # fmt: skip
    hour = arrivals(grid, Group(name, pattern, 0, seed))
    requests = draw_requests(workload, hour.arrival_s, seed=seed, source=hour.source)
    simulation = Simulation(workload, requests, workload.initial(FIXED), seed=seed)
    experts, layers = tables_of(simulation, workload, window_s, hour.seconds)
    result = summary(experts, layers)
    out.mkdir(parents=True, exist_ok=True)
    write_csv(out / "experts.csv", experts)
    write_csv(out / "layers.csv", layers)
    write_csv(out / "surface.csv", surface(plain, range(surface_seeds)))
    about = {
        **{"workload": name, "pattern": pattern, "window_s": window_s, "seed": seed, "simulated": True},
        **{"configuration": asdict(FIXED), "slo_ms": 1000 * workload.slo_s},
        "arrivals": hour.source,
        "arrivals_measured": hour.measured,
        "cv": hour.cv,
        "requests": int(requests.arrival_s.size),
        "requests_sha256": requests.sha256,
        "routing": workload.routing.source,
        "routing_sha256": None if routing is None or folder is None else file_sha256(folder / LOG),
        "surface": {
            "node": plain.experts[0].id, "arrivals": "Poisson", "rps": SURFACE_RPS, "seconds": SURFACE_S,
            "mib_per_core": MIB_PER_CORE, "tokens": plain.tokens.source,
        },
        "result": result,
    }  # fmt: skip
    (out / "about.json").write_text(json.dumps(about, indent=1) + "\n")
    numbers = [(what.replace("_", " "), value) for what, value in result.items()]
    print_table("simulated: one fixed configuration", ("what", "number"), numbers)
    click.echo(json.dumps(about))


if __name__ == "__main__":
    main()
