"""Does the simulation predict the running pipeline? ``python -m benchmarks.fidelity``.

Each cell plays real prompts at the arrivals of a trace against the default pipeline on the embedded gateway, with real
limits, while a script scales functions up and resizes them in place; then the same arrivals, the same texts with the
routing the model gives them, and the same script run in the simulator on the profile of this machine. Both are driven
by the controller's own loop and billed by its own meters. Patterns, loads and configurations are not those that the
profile was fitted on. ``p50_err``, ``p95_err`` and ``cost_err`` are the worst relative errors over ``cells`` (cost:
provisioned). The last line is one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from autoscaler.contract import Configuration, Observation, Proposal, TickReport, Topology
from autoscaler.decision.limits import LimitSettings
from autoscaler.loop import Controller
from autoscaler.loop import run as run_loop
from autoscaler.monitor.scrape import ScrapeSource
from autoscaler.monitor.source import Monitor
from autoscaler.platform.openfaas import OpenFaasPlatform
from autoscaler.prices import load_prices
from autoscaler.topology import load_topology
from moe.manifest import Manifest, load
from moe.reference import WholeModel
from rl.profile.machine import this_machine
from rl.profile.model import fitted_model, ingress_work, lifecycle
from rl.profile.shelf import find, open_profile
from rl.profile.storage import Profile
from rl.sim.play import play
from rl.sim.requests import Requests
from rl.sim.simulation import Simulation
from rl.workload import TokenLengths, Workload, manifest_cost, pipeline_workload
from smoe import lifecycle as service
from smoe.deployment import DeploymentSettings
from smoe.gateway_client import GatewayClient
from smoe.pipelines import ensure_pipeline
from smoe.state import read_password
from traces import catalog, generate, prompts, scale
from traces.replay import ReplayResult, ReplaySettings, replay
from traces.trace import Trace

MAX_WORDS = 24
WINDOW_S = 2.0
MEMORY_MB = 256
SEED = 11
INGRESS = Configuration(MEMORY_MB, 1.0, 0.0, 1, 10)
"""As deployed; in the simulator it costs what it costs and serves nothing."""


@dataclass(frozen=True)
class Cell:
    """One play: arrivals, what functions start with, and what is changed at a third and at two thirds."""

    pattern: str
    mean_rps: float
    cores: float
    """Of every segment and expert at first."""
    scaled: int
    """Replicas from the first third on."""
    resized: float
    """Cores from the second third on."""

    @property
    def name(self) -> str:
        return f"{self.pattern} {self.mean_rps:g}/s {self.cores:g}→{self.resized:g} cores ×1→{self.scaled}"


CELLS = (
    Cell("slow", 2.0, 0.35, 2, 0.55),
    Cell("normal", 3.0, 0.55, 2, 0.35),
    Cell("bursty", 2.0, 0.45, 3, 0.3),
    Cell("bursty", 4.0, 0.8, 2, 0.5),
)


@dataclass(frozen=True)
class Outcome:
    """What one side of a cell came to."""

    p50_ms: float
    p95_ms: float
    provisioned: float
    busy: float | None
    answered: int
    failed: int


class Script:
    """A policy that wishes, for every segment and expert, what the cell says at each time since ``begun_s``."""

    name = "script"

    def __init__(self, cell: Cell, functions: Sequence[str], begun_s: float, seconds: float) -> None:
        self._steps = steps(cell, seconds)
        self._functions = functions
        self._begun_s = begun_s

    def propose(self, observation: Observation, now_s: float, memory: object) -> Proposal:
        at_s = now_s - self._begun_s
        wish = [configuration for from_s, configuration in self._steps if at_s >= from_s - WINDOW_S / 2][-1]
        return Proposal(dict.fromkeys(self._functions, wish), dict.fromkeys(self._functions, "script"))


def steps(cell: Cell, seconds: float) -> list[tuple[float, Configuration]]:
    """(seconds from the start, configuration from then on)."""
    first = Configuration(MEMORY_MB, cell.cores, 0.0, 1, 8)
    second = replace(first, replicas=cell.scaled)
    third = seconds / 3 // WINDOW_S * WINDOW_S
    return [(-1e9, first), (third, second), (2 * third, replace(second, cpu_cores=cell.resized))]


def arrivals(cell: Cell, seconds: float) -> Trace:
    """Real where the public traces are there and the pattern is bursty; else made with the pattern's CV."""
    if cell.pattern == "bursty":
        return scale.fit(catalog.bursty_hour(catalog.data_folder(None), "uniform", SEED), seconds, cell.mean_rps, SEED)
    count = round(seconds * cell.mean_rps)
    return generate.synthetic(count, seconds, {"slow": 0.7, "normal": 1.8}[cell.pattern], SEED)


def routing_of(model: WholeModel, texts: Sequence[str]) -> np.ndarray:
    """[1 + experts, texts] uint16: tokens of each text, then those of each expert, as the model routes them."""
    topology = {(node.layer, node.expert): place for place, node in enumerate(_experts(model.manifest))}
    counts = np.zeros((1 + len(topology), len(texts)), dtype=np.uint16)
    for column, text in enumerate(texts):
        ids = model.tokenizer.encode(text)
        counts[0, column] = len(ids)

        def see(node_id: str, tensors: Mapping[str, Any], reply: Mapping[str, Any], column: int = column) -> None:
            node = model.manifest.node(node_id)
            if node.kind == "expert":
                counts[1 + topology[node.layer, node.expert], column] = tensors["x"].shape[0]

        model.trace = see
        model.embed_ids([ids])
    return counts


def _experts(manifest: Manifest) -> list[Any]:
    return [node for layer in range(manifest.layers) for node in manifest.experts(layer)]


def simulated(cell: Cell, workload: Workload, sent_s: np.ndarray, counts: np.ndarray, seconds: float) -> Outcome:
    """The cell in the simulator."""
    requests = Requests(sent_s, counts, cell.name)
    functions = [node.function for node in workload.topology.nodes if node.kind != "ingress"]
    first = steps(cell, seconds)[0][1]
    simulation = Simulation(workload, requests, workload.initial(first) | dict.fromkeys(functions, first), seed=SEED)
    policy = Script(cell, functions, 0.0, seconds)
    limits = LimitSettings(space=workload.space, runtime_mb=0)
    played = play(simulation, policy, limits, window_s=WINDOW_S, until_s=seconds)
    latencies = [step.window.latency_s for step in played]
    if simulation.requests.arrival_s.size > sum(found.size for found in latencies):
        latencies.append(simulation.advance(simulation.now_s + 60.0).latency_s)
    return _outcome(np.concatenate(latencies), [step.report for step in played], 0)


def measured(
    cell: Cell,
    client: GatewayClient,
    topology: Topology,
    state: Path,
    trace: Trace,
    texts: Sequence[str],
    seconds: float,
) -> tuple[Outcome, ReplayResult, float]:
    """The cell on the running pipeline; also when the replay began, in seconds after the controller's start."""
    auth = ("admin", read_password(state))
    platform = OpenFaasPlatform(client.url, topology.pipeline, auth)
    functions = [node.function for node in topology.nodes if node.kind != "ingress"]
    _settle(client, platform, functions, steps(cell, seconds)[0][1])
    begun_s = time.time()
    controller = Controller(
        topology,
        Monitor(topology, ScrapeSource(client.url, auth)),
        Script(cell, functions, begun_s, seconds),
        platform,
        LimitSettings(runtime_mb=0),
        load_prices(),
        window_s=WINDOW_S,
    )
    reports: list[TickReport] = []
    stop = threading.Event()
    thread = threading.Thread(
        target=run_loop,
        args=(controller, WINDOW_S, stop.wait, reports.append),
        kwargs={"window_s": WINDOW_S},
        daemon=True,
    )
    thread.start()
    url = f"{client.url}/function/{topology.pipeline}"
    offset_s = time.time() - begun_s
    try:
        result = asyncio.run(replay(trace, list(texts), ReplaySettings(url=url, timeout_s=60.0, seed=SEED)))
        stop.wait(max(0.0, begun_s + seconds + 0.5 - time.time()))
    finally:
        stop.set()
        thread.join(30)
    answered = np.array([one.latency_s for one in result.records if one.outcome == "ok" and one.latency_s is not None])
    counted = [report for report in reports if report.observation.end_s <= begun_s + seconds + WINDOW_S / 2]
    return _outcome(answered, counted, len(result.records) - answered.size), result, offset_s


def _settle(client: GatewayClient, platform: OpenFaasPlatform, functions: Sequence[str], wanted: Configuration) -> None:
    """Every function as the cell begins, with all replicas ready."""
    present = platform.configurations()
    for function in functions:
        if present[function] != wanted:
            platform.apply(function, present[function], wanted)
    client.wait_ready(list(functions), 60.0)
    time.sleep(2.0)


def _outcome(latencies_s: np.ndarray, reports: Sequence[TickReport], failed: int) -> Outcome:
    p50, p95 = 1000 * np.quantile(latencies_s, (0.5, 0.95))
    busy = [report.cost.busy for report in reports if report.cost.busy is not None]
    provisioned = [report.cost.provisioned for report in reports if report.cost.provisioned is not None]
    seconds = sum(report.observation.window_s for report in reports if report.cost.provisioned is not None)
    return Outcome(
        float(p50),
        float(p95),
        float(sum(provisioned) / seconds * 3600),
        float(sum(busy) / seconds * 3600) if len(busy) == len(provisioned) else None,
        int(latencies_s.size),
        failed,
    )


def workload_of(directory: Path, profile: Profile, tokens: np.ndarray) -> Workload:
    """The pipeline on the machine of the profile."""
    manifest = load(directory, verify=False)
    costs = {node.id: manifest_cost(manifest, node) for node in manifest.nodes}
    work = ingress_work(profile, 2 * manifest.layers + 1, int(np.median(tokens)))
    return pipeline_workload(
        directory,
        fitted_model(profile, costs, 1.0),
        lifecycle(profile),
        slo_s=1.0,
        tokens=TokenLengths.from_samples(tokens, "the prompts"),
        segment_configuration=INGRESS,
        request_s=work.request_s,
        hop_s=work.hop_s,
    )


def compare(theirs: Outcome, ours: Outcome) -> dict[str, float]:
    """Relative errors of the simulation."""
    return {
        "p50_err": abs(ours.p50_ms / theirs.p50_ms - 1),
        "p95_err": abs(ours.p95_ms / theirs.p95_ms - 1),
        "cost_err": abs(ours.provisioned / theirs.provisioned - 1),
    }


def run_cells(
    cells: Sequence[Cell], profile_path: Path | None, seconds: float, progress: Callable[[str, int], object]
) -> list[dict[str, Any]]:
    """Every cell on both sides."""
    with tempfile.TemporaryDirectory(prefix="smoe-fidelity-") as folder:
        gateway = service.GatewaySettings(Path(folder), port=0, metrics_port=0)
        directory, manifest = ensure_pipeline("minilm", gateway.pipelines)
        machine = this_machine()
        profile = open_profile(profile_path, directory, machine) if profile_path else find(directory, machine)
        model, topology = WholeModel(directory), load_topology(directory)
        chosen = prompts.load_prompts(catalog.text_folder(catalog.data_folder(None)), MAX_WORDS)
        found = []
        process = service.start_gateway(gateway, detach=False)
        try:
            client = GatewayClient.from_state(gateway.state)
            service.deploy_pipeline(client, manifest, DeploymentSettings(ingress_concurrency=512))
            for number, cell in enumerate(cells):
                progress(cell.name, number)
                trace = arrivals(cell, seconds)
                texts = list(chosen.choose(trace.requests, SEED))
                counts = routing_of(model, texts)
                theirs, result, offset_s = measured(cell, client, topology, gateway.state, trace, texts, seconds)
                sent = np.array([(one.sent_s or one.scheduled_s) + offset_s for one in result.records])
                order = np.argsort(sent, kind="stable")
                ours = simulated(
                    cell, workload_of(directory, profile, counts[0]), sent[order], counts[:, order], seconds
                )
                found.append(
                    {
                        "cell": asdict(cell),
                        "measured": asdict(theirs),
                        "simulated": asdict(ours),
                        **compare(theirs, ours),
                    }
                )
        finally:
            service.stop_process(process)
    progress("done", len(cells))
    return found


@click.command()
@click.option("--profile", type=click.Path(path_type=Path, exists=True), default=None, help="[default: the one here]")
@click.option("--seconds", default=60.0, show_default=True, type=click.FloatRange(12), help="Of a cell.")
@click.option("--cells", "count", default=len(CELLS), show_default=True, type=click.IntRange(1, len(CELLS)))
def main(profile: Path | None, seconds: float, count: int) -> None:
    """Replay against the gateway and simulate the same, cell by cell."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("cells", total=count)
        found = run_cells(
            CELLS[:count], profile, seconds, lambda what, done: bar.update(task, description=what, completed=done)
        )
    table = Table(title="the running pipeline and its simulation")
    for name in ("cell", "P50 ms", "simulated", "P95 ms", "simulated", "cost/h", "simulated", "failed"):
        table.add_column(name, justify="left" if name == "cell" else "right")
    for row, cell in zip(found, CELLS, strict=False):
        real, sim = row["measured"], row["simulated"]
        figures = [
            *(f"{side[name]:.0f}" for name in ("p50_ms", "p95_ms") for side in (real, sim)),
            *(f"{side['provisioned']:.3f}" for side in (real, sim)),
        ]
        table.add_row(cell.name, *figures, str(real["failed"]))
    console.print(table)
    worst = {name: round(max(row[name] for row in found), 4) for name in ("p50_err", "p95_err", "cost_err")}
    failed = sum(row["measured"]["failed"] for row in found)
    print(json.dumps({**worst, "failed": failed, "cores": os.cpu_count(), "cells": found}))


if __name__ == "__main__":
    main()
