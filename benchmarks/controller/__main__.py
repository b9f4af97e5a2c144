"""A tick of the controller on a cluster of thousands of functions: time, calls to the API server, memory.

The controller is the one of ``smoe autoscale --platform kubernetes --prometheus`` with its default settings: sources,
HPA policy, limits, actuator, watch caches, rate limit, ``keep``, the function logger, the lines of decisions and ticks,
and one scrape of its own metrics a tick, in this process; API server and Prometheus are another process
(``benchmarks.controller.cluster``). Ticks are 5 s apart on the clock that they and the rate limit are given, and follow
each other at once.
Every tick sees one function in fifty busy, others each time, so that there is something to decide, and applies it. The
first tick lists; it is shown apart. P99 is the slowest tick where there are fewer than 100: it writes the log's files.

    python -m benchmarks.controller            # 100, 500, 1,000 and 5,000 functions
    python -m benchmarks.controller --functions 100 --functions 1000 --ticks 20
    python -m benchmarks.controller --as-served          # objects of an API server's size, events of a cluster
    python -m benchmarks.controller --kubeconfig FILE    # a real API server, with neither controllers nor nodes

With ``--kubeconfig`` Deployments and pods are objects of that API server and go with the benchmark. Orders are carried
out there, replicas neither start nor end. Prometheus is the double.

The last line is one JSON object: ``functions``, ``tick_ms_p50``, ``tick_ms_p95``, ``tick_ms_p99``, ``cpu_ms_p50`` and
``cpu_ms_max`` (CPU time of this process in a tick), ``cycle_cpu_ms_p50`` and ``cycle_cpu_ms_max`` (until its events
have been taken in, too), ``first_tick_ms``, ``first_cpu_ms`` (CPU time in it), ``api_calls`` (a tick, mean),
``changed`` (functions a tick, mean), ``rss_mb`` (peak), of the double ``deployment_bytes`` and ``pod_bytes`` (mean),
``as_served``, ``curve`` (the same for every size).
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from autoscaler.build import build_controller
from autoscaler.cluster import ClusterSide
from autoscaler.describe import line
from autoscaler.exposition import ControllerMetrics
from autoscaler.loop import Controller
from autoscaler.platforms.kubernetes import BURST, RATE_PER_S, Rate
from autoscaler.platforms.kubernetes.metrics import CALLS
from autoscaler.process import spared_collections
from autoscaler.settings import ControllerSettings
from benchmarks.controller.loaded import loaded
from benchmarks.harness.options import AT_LEAST_1, benchmark
from benchmarks.harness.report import print_result, print_table
from gateway.backends.process.kernel import die_with_parent
from moe.manifest import FileRef, Manifest, Node, Router, WeightsRef, save
from moe.names import expected_edges, expert_id, segment_id

SIZES = (100, 500, 1000, 5000)
BEGIN_S = 1_763_750_000.0
"""Unix time of the first tick."""
INTERVAL_S = 5.0
SHOWN = ("functions", "tick_ms_p50", "tick_ms_p99", "cpu_ms_p50", "cycle_cpu_ms_p50", "first_tick_ms", "rss_mb")
"""Columns of the table."""
IDLE_FOR_S, IDLE_SHARE, IDLE_LIMIT_S = 0.1, 0.05, 60.0
"""The process does nothing once it used less than this share of a core for so long; an error after the limit."""
EXPERTS_A_LAYER = 64
ARCHITECTURE = {
    **{"activation": "gelu", "eps": 1e-12, "normalise_embedding": True, "pooling": "mean", "token_types": 2},
    **{"ffn_size": 1536, "heads": 12, "hidden_size": 384, "max_positions": 512, "vocab_size": 30522},
}


def pipeline(folder: Path, functions: int) -> Manifest:
    """A manifest of about ``functions`` functions: ingress, segments, and up to 64 experts a layer."""
    layers = max(1, round((functions - 2) / (EXPERTS_A_LAYER + 1)))
    experts = [(functions - 2 - layers) // layers] * layers
    for i in range(functions - 2 - layers - sum(experts)):
        experts[i] += 1
    first, last = ("token_ids", "lengths"), ("embedding", "states")
    middle, routed = ("hidden", "lengths"), ("residual", "x", "expert_ids", "gates")
    nodes = [
        _node(segment_id(i), "segment", i, None, middle if i else first, routed if i < layers else last)
        for i in range(layers + 1)
    ]
    nodes += [_node(expert_id(i, j), "expert", i, j, ("x",), ("y",)) for i in range(layers) for j in range(experts[i])]
    edges = tuple(expected_edges(layers + 1, experts))
    files = {node.weights.file: FileRef("0" * 64, 1) for node in nodes}
    numbers = {**ARCHITECTURE, "layers": layers}
    router = Router(top_k=1)
    manifest = Manifest("large", "bert", "embedding", "float32", numbers, router, None, tuple(nodes), edges, files)
    folder.mkdir(parents=True)
    save(manifest, folder)
    return manifest


def _node(
    name: str, kind: Any, layer: int, expert: int | None, inputs: tuple[str, ...], outputs: tuple[str, ...]
) -> Node:
    weights = WeightsRef(f"weights/{name}.safetensors")
    return Node(name, kind, layer, expert, weights, 1_200_000, 300_000, 600_000, 1536, 1536, inputs, outputs)


def measure(
    functions: int, ticks: int, folder: Path, kubeconfig: Path | None = None, *, as_served: bool = False
) -> dict[str, Any]:
    """One size, in a process of its own (this one)."""
    directory = folder / "large"
    manifest = pipeline(directory, functions)
    command = [
        sys.executable,
        "-m",
        "benchmarks.controller.cluster",
        str(directory),
        *(["--as-served"] if as_served else []),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as cluster:
        try:
            assert cluster.stdout is not None
            port, deployment_bytes, pod_bytes = map(int, cluster.stdout.readline().split())
            url = f"http://127.0.0.1:{port}"
            chosen = kubeconfig or _kubeconfig(folder / "kubeconfig", url)
            measured = _run(functions, ticks, manifest, directory, chosen, url)
            sizes = {"deployment_bytes": deployment_bytes, "pod_bytes": pod_bytes}
            return measured if kubeconfig else measured | sizes
        finally:
            cluster.kill()


@dataclass
class Passed:
    """A clock for the rate limit: the time that passes, and what is skipped of it between ticks."""

    skipped_s: float = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.skipped_s


@dataclass
class Ticks:
    """What was measured of each tick, in order."""

    seconds: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    """Processor time of this process, watches included."""
    cycle_cpu_s: list[float] = field(default_factory=list)
    """The same until the events that its orders caused have been taken in."""
    calls: list[int] = field(default_factory=list)
    changed: list[int] = field(default_factory=list)


def _run(functions: int, ticks: int, manifest: Manifest, directory: Path, kubeconfig: Path, url: str) -> dict[str, Any]:
    settings = ControllerSettings(
        url, directory, prometheus_url=url, policy="hpa", platform="kubernetes", kubeconfig=kubeconfig,
        slo_s=0.5, log_dir=directory.parent / "log",
    )  # fmt: skip
    passed = Passed()
    side = ClusterSide(settings, manifest.name, Rate(RATE_PER_S, BURST, passed))
    controller, _ = build_controller(settings, side.platform)
    stop = threading.Event()
    side.start(stop)
    try:
        metrics = ControllerMetrics(manifest.name, settings.targets)
        measured = _run_ticks(controller, side, metrics, ticks + 2, url, passed)
    finally:
        stop.set()
        side.close()
        controller.close()
    return _summary(functions, ticks, measured)


def _summary(functions: int, ticks: int, measured: Ticks) -> dict[str, Any]:
    steady = measured.seconds[2:]  # the first lists, the second begins with caches that are whole
    return {
        "functions": functions,
        "tick_ms_p50": _milliseconds(steady, 0.5),
        "tick_ms_p95": _milliseconds(steady, 0.95),
        "tick_ms_p99": _milliseconds(steady, 0.99),
        "cpu_ms_p50": _milliseconds(measured.cpu_s[2:], 0.5),
        "cpu_ms_max": _milliseconds(measured.cpu_s[2:], 1.0),
        "cycle_cpu_ms_p50": _milliseconds(measured.cycle_cpu_s[2:], 0.5),
        "cycle_cpu_ms_max": _milliseconds(measured.cycle_cpu_s[2:], 1.0),
        "first_tick_ms": round(1000 * measured.seconds[0], 1),
        "first_cpu_ms": round(1000 * measured.cpu_s[0], 1),
        "api_calls": round(sum(measured.calls[2:]) / ticks, 1),
        "changed": round(sum(measured.changed[2:]) / ticks, 1),
        "rss_mb": peak_rss_mb(),
    }


def _run_ticks(
    controller: Controller, side: ClusterSide, metrics: ControllerMetrics, ticks: int, url: str, passed: Passed
) -> Ticks:
    """What ``smoe autoscale`` does in a tick, and a scrape of its metrics after each."""
    registry = CollectorRegistry()
    registry.register(metrics)
    side.register(registry)
    measured = Ticks()
    with spared_collections() as settle:
        for number in range(ticks):
            before = _calls(registry)
            begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
            report = controller.tick(BEGIN_S + number * INTERVAL_S)
            if not number:
                settle()
            metrics.add(report)
            line(report, None, side.conditions())
            side.keep()
            generate_latest(registry)
            measured.seconds.append(time.perf_counter() - begun_s)
            measured.cpu_s.append(time.process_time() - begun_cpu_s)
            measured.calls.append(_calls(registry) - before)
            measured.changed.append(len(report.applied))
            if report.failures or report.observation.stale:
                raise click.ClickException(f"a tick failed: {report.failures or report.observation.problems}")
            while side.platform.cluster.behind():
                time.sleep(0.01)
            _wait_until_idle()
            measured.cycle_cpu_s.append(time.process_time() - begun_cpu_s)
            passed.skipped_s += max(0.0, INTERVAL_S - (time.perf_counter() - begun_s))
    return measured


def _wait_until_idle() -> None:
    """Until this process does nothing: ticks are 5 s apart, so events come between them. Raises ClickException."""
    end_s = time.monotonic() + IDLE_LIMIT_S
    while time.monotonic() < end_s:
        before_s = time.process_time()
        time.sleep(IDLE_FOR_S)
        if time.process_time() - before_s < IDLE_SHARE * IDLE_FOR_S:
            return
    raise click.ClickException(f"events of a tick were not taken in within {IDLE_LIMIT_S:.0f} s")


def peak_rss_mb() -> float:
    """Peak resident memory of this program in MB (2**20 bytes). ``ru_maxrss`` begins with that of the process that
    started it, which holds all objects where there is a real API server."""
    status = Path("/proc/self/status").read_text()
    return round(next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024, 1)


def _calls(registry: CollectorRegistry) -> int:
    """Answers of the API server so far, those that opened a watch left out."""
    samples = (sample for family in registry.collect() for sample in family.samples if sample.name == CALLS)
    return int(sum(sample.value for sample in samples if sample.labels["verb"] != "WATCH"))


def _milliseconds(seconds: list[float], q: float) -> float:
    """A quantile that is one of the values."""
    return round(1000 * float(np.quantile(seconds, q, method="inverted_cdf")), 1)


def _kubeconfig(path: Path, url: str) -> Path:
    named = {"current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]}
    named |= {"clusters": [{"name": "c", "cluster": {"server": url}}], "users": [{"name": "u", "user": {}}]}
    path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", **named}))
    return path


def _objects(kubeconfig: Path | None, directory: Path, functions: int) -> AbstractContextManager[None]:
    """The size's objects in the API server, where there is a real one."""
    if kubeconfig is None:
        return nullcontext()
    pipeline(directory, functions)
    return loaded(kubeconfig, directory)


@benchmark
@click.option(
    "--functions", "sizes", type=click.IntRange(8, 20000), multiple=True, default=SIZES, help="Size; repeatable."
)
@click.option("--ticks", type=AT_LEAST_1, default=25, help="Measured ticks of each size.")
@click.option("--kubeconfig", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A real API server's.")
@click.option("--as-served", is_flag=True, help="Objects of the double in an API server's form, events of a cluster.")
@click.option("--one", is_flag=True, hidden=True, help="Measure in this process and print JSON alone.")
def main(sizes: tuple[int, ...], ticks: int, kubeconfig: Path | None, as_served: bool, one: bool) -> None:
    if kubeconfig and as_served:
        raise click.UsageError("--as-served is a form of the double's objects; --kubeconfig names a real API server")
    if one:
        die_with_parent(os.getppid())
        logging.basicConfig(level=logging.INFO, filename=os.devnull)
        with tempfile.TemporaryDirectory() as folder:
            click.echo(json.dumps(measure(sizes[0], ticks, Path(folder), kubeconfig, as_served=as_served)))
        return
    curve = []
    for size in sizes:  # a process each, so that memory is its own
        with tempfile.TemporaryDirectory() as folder, _objects(kubeconfig, Path(folder) / "large", size):
            arguments = ["-m", "benchmarks.controller", "--one", "--functions", str(size), "--ticks", str(ticks)]
            arguments += ["--kubeconfig", str(kubeconfig)] if kubeconfig else []
            arguments += ["--as-served"] if as_served else []
            done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            raise click.ClickException(done.stderr[-2000:])
        curve.append(json.loads(done.stdout.splitlines()[-1]) | {"as_served": as_served})
    print_table(None, list(SHOWN), [[row[key] for key in SHOWN] for row in curve], width=120, stdout=True)
    print_result({**curve[-1], "curve": curve})


if __name__ == "__main__":
    main()
