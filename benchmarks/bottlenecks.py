"""Which layer is the bottleneck, and how it moves: the paper's Observation 3 (Fig. 3b), simulated on a real trace.

``python -m benchmarks.bottlenecks TRACE --out FILE.png``: the arrivals of a trace through a modelled workload under one
fixed configuration. In each window the bottleneck is the layer with the highest P95 from scatter to gather. The picture
shows every layer's P95 over time with the bottleneck marked; the last line is one JSON object. Simulated, not measured.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import matplotlib

from benchmarks.harness.report import print_result

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from autoscaler.contract import Configuration
from autoscaler.state.quantiles import histogram_quantile
from simulation.arrays import Floats
from simulation.engine.requests import draw_requests
from simulation.engine.simulation import BOUNDS, Simulation
from simulation.workloads.paper import PAPER_WORKLOADS, paper_workload
from simulation.workloads.workload import Workload
from traces.errors import TraceError
from traces.loading import load
from traces.model import Trace
from traces.scale import to_rate

FIXED = Configuration(memory_mb=512, cpu_cores=2.0, gpu_share=0.0, replicas=2, concurrency=4)


def layer_tails(workload: Workload, trace: Trace, window_s: float, seed: int) -> Floats:
    """[windows, layers] P95 from scatter to gather in seconds, NaN where a window answered nothing."""
    requests = draw_requests(workload, trace.arrival_s, seed=seed)
    simulation = Simulation(workload, requests, workload.initial(FIXED), seed=seed)
    bounds = [*BOUNDS[:-1].tolist(), float("inf")]
    rows = []
    while simulation.now_s < trace.duration_s:
        window = simulation.advance(simulation.now_s + window_s)
        cumulative = np.cumsum(window.barrier, axis=1)
        tails = [histogram_quantile(0.95, tuple(zip(bounds, row.tolist(), strict=True))) for row in cumulative]
        rows.append([np.nan if tail is None else tail for tail in tails])
    return np.array(rows)


def draw(tails_s: Floats, workload: Workload, trace: Trace, window_s: float, out: Path) -> None:
    """The picture; ``tails_s`` [windows, layers] float64 seconds, NaN where a layer had no call."""
    busy = np.flatnonzero(~np.isnan(tails_s).all(axis=1))
    figure, axes = plt.subplots(figsize=(9, 3.6), layout="constrained")
    minutes = np.arange(tails_s.shape[0] + 1) * window_s / 60
    image = axes.pcolormesh(minutes, np.arange(tails_s.shape[1] + 1) - 0.5, 1000 * tails_s.T, cmap="viridis")
    slowest = np.nanargmax(tails_s[busy], axis=1)
    axes.step((busy + 0.5) * window_s / 60, slowest, where="mid", color="red", linewidth=1, label="bottleneck")
    figure.colorbar(image, label="P95 of the layer (ms)")
    axes.set(xlabel="minutes", ylabel="MoE layer", title=f"{workload.name}, simulated; arrivals: {trace.source[:52]}")
    axes.legend(loc="upper right")
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=130)
    plt.close(figure)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, help="any file that traces.loading knows")
    parser.add_argument("--out", type=Path, default=Path("out/bottlenecks.png"), help="picture to write (%(default)s)")
    parser.add_argument(
        "--workload", choices=PAPER_WORKLOADS, default="bert-4", help="on the modelled cluster (%(default)s)"
    )
    parser.add_argument(
        "--rate", type=float, default=20.0, help="requests per second on average, by moving time (%(default)s)"
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="how much of it is simulated (%(default)s)")
    parser.add_argument("--window", type=float, default=10.0, help="length of a window in seconds (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of all random choices (%(default)s)")
    given = parser.parse_args(arguments)
    try:
        trace = to_rate(load(given.trace), given.rate)
        trace = trace.clip(0.0, min(trace.duration_s, 60 * given.minutes))
    except TraceError as error:
        print(error, file=sys.stderr)
        return 1
    workload = paper_workload(given.workload, seed=given.seed)
    tails_s = layer_tails(workload, trace, given.window, given.seed)
    draw(tails_s, workload, trace, given.window, given.out)
    measured_s = tails_s[~np.isnan(tails_s).all(axis=1)]
    slowest = np.nanargmax(measured_s, axis=1).tolist()
    moves = sum(one != other for one, other in pairwise(slowest))
    counts = {str(layer): slowest.count(layer) for layer in sorted(set(slowest))}
    result = {
        "windows": len(slowest),
        "moves": moves,
        "layers_that_were_bottleneck": counts,
        "p95_over_mean_layer": round(
            float(np.nanmean(np.nanmax(measured_s, axis=1) / np.nanmean(measured_s, axis=1))), 3
        ),
        "requests": trace.requests,
        "trace_sha256": trace.sha256,
        "picture": str(given.out),
    }
    print_result(result, given.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
