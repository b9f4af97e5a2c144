"""Lone requests whose experts have small CPU limits, live and simulated: what the kernel's limits do to single calls.

No policy decides, nothing queues, and no two requests meet, so what differs is the model of limits alone. The kernel's
own counters of every expert's replica are read before each request and after it: CPU time of a call, how often its
limit stopped the replica, and for how long while there was something to compute. The first of ``--cores`` sets the
simulation's pace; segments and the ingress have a core each.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import requests

from autoscaler.contract import Configuration, Topology
from autoscaler.platforms.openfaas import OpenFaasPlatform
from autoscaler.topology import load_topology
from benchmarks.closed_loop.runs import SPACE
from benchmarks.fidelity.runs import routing_of, settle
from benchmarks.harness.options import PRESENT, benchmark, listed
from benchmarks.harness.report import print_result, print_table, progress
from benchmarks.harness.running import RunningPipeline, local_gateway, running_pipeline
from moe.reference import WholeModel
from simulation.arrays import Floats, Ints
from simulation.engine.requests import Requests
from simulation.engine.simulation import Simulation
from simulation.profiles.measure.counters import ReplicaCounters, listening_pid
from simulation.profiles.measure.machine import this_machine
from simulation.profiles.model.bundled import fitting, open_profile
from simulation.profiles.model.pipeline import measured_workload
from simulation.workloads.workload import Workload
from smoe.deployment import DeploymentSettings
from traces import catalog, prompts

MEMORY_MB, CPU_SCALE, MAX_WORDS = 1024, 0.01, 24
PAUSE_S = 0.3
"""Before and after each request: the kernel's periods are up to 0.17 s long, and a call's end may come after it."""
WARM, DEADLINE_S, SIMULATIONS, WAITED_MS = 12, 30.0, 10, 2.0
QUANTILES = (0.1, 0.5, 0.95)
COLUMNS = ("cores", "side", "mean_ms", "p10_ms", "p50_ms", "p95_ms", "call_cpu_ms", "stops", "waited", "wait_ms")


def look(counters: Sequence[ReplicaCounters]) -> Floats:
    """CPU milliseconds so far of each replica, stops, and milliseconds stopped [3, replicas]. Raises ClickException
    where the kernel does not count them."""
    read = [one.read() for one in counters]
    rows = [(one.cpu_s, one.throttled_periods, one.throttled_s) for one in read]
    if any(value is None for row in rows for value in row):
        raise click.ClickException("this machine does not count CPU seconds and stops of replicas; root on Linux does")
    return np.array(rows, dtype=np.float64).T * [[1000.0], [1.0], [1000.0]]


def configuration(cores: float) -> Configuration:
    """One replica with so many real cores."""
    return Configuration(MEMORY_MB, cores / CPU_SCALE, 0.0, 1, 8)


def configurations(topology: Topology, cores: float) -> dict[str, Configuration]:
    """Function → one replica with a real core, experts with ``cores``; the ingress stays as deployed."""
    return {node.function: configuration(cores if node.kind == "expert" else 1.0) for node in topology.nodes[1:]}


def measured(served: RunningPipeline, cores: float, texts: Sequence[str], counts: Ints) -> tuple[Floats, Floats]:
    """Milliseconds of each request [requests]; and of each call its CPU milliseconds, stops and milliseconds stopped
    [3, calls]. ``counts`` [experts, texts]: tokens."""
    topology = load_topology(served.directory)
    experts = [node.function for node in topology.nodes if node.kind == "expert"]
    platform = OpenFaasPlatform(served.client.url, topology.pipeline, served.gateway.auth)
    session, took_ms, calls = requests.Session(), [], []

    def send(text: str) -> float:
        begun_s = time.perf_counter()
        session.post(served.url, json={"inputs": text}, timeout=DEADLINE_S).raise_for_status()
        return 1000 * (time.perf_counter() - begun_s)

    settle(served.client, platform, configurations(topology, 1.0))
    for text in texts[:WARM]:
        send(text)
    settle(served.client, platform, configurations(topology, cores))
    replicas = served.client.replicas()
    counters = [ReplicaCounters(listening_pid(replicas[name][0]["address"])) for name in experts]
    for number, text in enumerate(texts):
        time.sleep(PAUSE_S)
        before = look(counters)
        took_ms.append(send(text))
        time.sleep(PAUSE_S)
        calls.append((look(counters) - before)[:, counts[:, number] > 0])
    return np.array(took_ms), np.concatenate(calls, axis=1)


def simulated(workload: Workload, cores: float, counts: Ints) -> Floats:
    """Milliseconds of each request [requests], ``SIMULATIONS`` times. ``counts`` [1 + experts, texts]: tokens."""
    start = configurations(workload.topology, cores)
    many = SIMULATIONS * counts.shape[1]
    asked = Requests(np.arange(many) * (2 * PAUSE_S + DEADLINE_S / 10), np.tile(counts, SIMULATIONS), "lone requests")
    simulation, took_s = Simulation(workload, asked, start), np.full(many, np.nan)
    window = simulation.advance(float(asked.arrival_s[-1]) + DEADLINE_S)
    took_s[window.finished] = window.latency_s
    return np.asarray(1000 * took_s[np.isfinite(took_s)])


def row_of(cores: float, side: str, took_ms: Floats, calls: Floats | None) -> dict[str, Any]:
    """One line of the table. ``took_ms`` [requests]; ``calls`` [3, calls], where they were counted."""
    values = [round(float(value), 1) for value in (took_ms.mean(), *np.quantile(took_ms, QUANTILES))]
    if calls is not None:
        cpu_ms, stops, wait_ms = calls
        counted = (cpu_ms.mean(), stops.mean(), (wait_ms > WAITED_MS).mean(), wait_ms.mean())
        values += [round(float(value), 2) for value in counted]
    return dict(zip(COLUMNS, [cores, side, *values], strict=False))


def rows_of(served: RunningPipeline, profile: Path | None, cores: Sequence[float], count: int) -> list[dict[str, Any]]:
    """Two lines for each of ``cores``; the simulation's pace is that of the first."""
    opened = open_profile(profile or fitting(served.directory, this_machine()), served.directory, this_machine())
    texts = prompts.load_prompts(catalog.text_folder(catalog.data_folder(None)), MAX_WORDS).choose(count, 0)
    counts = routing_of(WholeModel(served.directory), texts)
    workload = measured_workload(
        served.directory, opened, counts[0], slo_s=1.0, cpu_scale=CPU_SCALE, space=SPACE, shared=True,
        segment_configuration=configuration(1.0),
    )  # fmt: skip
    host, rows, pace = workload.host, [], 0.0
    assert host is not None
    with progress(len(cores), "lone requests") as show:
        for number, share in enumerate(cores):
            show(f"{share:g} cores", number)
            took_ms, calls = measured(served, share, texts, counts[1:])
            if not pace:
                pace = float(np.median(took_ms) / np.median(simulated(workload, share, counts)))
                workload = replace(workload, host=replace(host, pace=pace))
            rows.append(row_of(share, "live", took_ms, calls) | {"pace": round(pace, 3)})
            rows.append(row_of(share, "simulated", simulated(workload, share, counts), None))
    return rows


@benchmark
@click.option("--pipeline", default="minilm", help="Preset, or folder of a pipeline.")
@click.option("--profile", type=PRESENT, help="Of this machine and pipeline; without it the tree's own, if one fits.")
@click.option("--cores", callback=listed(float), default="1,0.12,0.012,0.006", help="Real cores of every expert.")
@click.option("--requests", "count", type=click.IntRange(5, 1000), default=40, help="Texts, one after the other.")
def main(pipeline: str, profile: Path | None, cores: tuple[float, ...], count: int) -> None:
    if not cores or not all(0 < share <= 1 for share in cores):
        raise click.BadParameter("one or more numbers above 0, at most 1", param_hint="--cores")
    with tempfile.TemporaryDirectory(prefix="smoe-lone-") as folder:
        gateway = local_gateway(Path(folder) / "state", cpu_scale=CPU_SCALE)
        settings = DeploymentSettings(cpu_cores=1 / CPU_SCALE, ingress_cpu_cores=1 / CPU_SCALE)
        with running_pipeline(gateway, settings, pipeline) as served:
            rows = rows_of(served, profile, cores, count)
    title = "lone requests; of each call of an expert: CPU ms, stops, part that waited, ms stopped"
    print_table(title, COLUMNS, [[row.get(name, "–") for name in COLUMNS] for row in rows])
    print_result({"requests": count, "rows": rows}, "texts 0")


if __name__ == "__main__":
    main()
