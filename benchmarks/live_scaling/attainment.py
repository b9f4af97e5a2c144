"""SLO attainment over a rising rate, by way to scale: ElasticMoE's Figure 10.

``python -m benchmarks.live_scaling.attainment``: the default pipeline in ``--functions`` functions on the embedded
gateway, each replica limited to a small CPU quota, so that replicas, not the machine, are what there is too little of.
Requests come at a rate that rises evenly; at a fixed time every function is ordered a second replica. Ways:

- ``elastic``: the move of ``smoe placement migrate`` onto an empty machine (weights from a peer, standbys, switchover);
- ``cold-restart``: everything stops, then the larger configuration starts, each worker a Python of its own. Its quota
  holds only some seconds after all are ready: imports and first calls would take minutes under it;
- ``none``: nothing is ordered.

A request counts for the rate that was offered when it came, and is attained when the right answer came within
``--slo-ms``. ``sustained_rps``: the upper end of the last bin of rates up to which no bin was below ``--target``. The
paper's *Concurrent* has no counterpart: what it lacks is memory for keys and values, of which this pipeline has none.

Prints a table, draws ``attainment.png``; the last line is one JSON object.
"""

from __future__ import annotations

import itertools
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from benchmarks.harness.answers import expected_answers
from benchmarks.harness.options import AT_LEAST_1, benchmark, listed, out_option
from benchmarks.harness.report import picture, print_result, print_table
from benchmarks.harness.run_folder import run_folder
from benchmarks.harness.steady_load import Answers, Load, SteadyLoad
from benchmarks.live_scaling.rows import FRESH, HOME, OTHER, TIMEOUT_S, Running, Setting, deployment, gateway
from gateway.client.client import GatewayClient
from moe.names import INGRESS
from placement.moves.cluster import deployed
from placement.moves.coordinator import Coordinator, Options
from smoe import lifecycle
from smoe.deployment import DeploymentSettings, function_deployments
from smoe.pipelines import ensure_pipeline

PRESET = "minilm"
Floats = NDArray[np.float64]
WARM_S = 5.0
"""Seconds without quota after a cold restart, so that first calls do not leave a queue that no later second drains."""
INGRESS_TIMES = 2
"""Quota of the ingress over a function's: it handles every call of a pass."""


@dataclass(frozen=True)
class Ramp:
    """Requests a second at the beginning and at the end, and the seconds between."""

    first: float
    last: float
    seconds: float

    def arrival_s(self) -> Floats:
        """[requests] float64: when first · t + (last - first) · t² / (2 · seconds) is 0, 1, 2, …"""
        slope = (self.last - self.first) / self.seconds
        number = np.arange(int((self.first + self.last) / 2 * self.seconds))
        if not slope:
            return number / self.first
        return np.asarray((np.sqrt(self.first**2 + 2 * slope * number) - self.first) / slope)

    def rate(self, at_s: Floats) -> Floats:
        """[times] requests a second then; ``at_s`` [times] float64."""
        return self.first + (self.last - self.first) * at_s / self.seconds


@dataclass(frozen=True)
class Cell:
    """One way's requests, judged."""

    attainment: list[float | None]
    """By bin of rates; None where nothing was sent."""
    sustained_rps: float
    failed: int
    scale_s: float | None
    """From the order until all replicas served."""
    command_rps: float


def attained(answers: Answers, ramp: Ramp, edges: Floats, slo_s: float) -> list[float | None]:
    """Share of right answers in time, by offered rate; ``edges`` [bins + 1]."""
    rate = ramp.rate(answers.began_s - answers.began_s.min())
    good = (answers.status == 200) & (answers.ended_s - answers.began_s <= slo_s)
    place = np.clip(np.digitize(rate, edges) - 1, 0, len(edges) - 2)
    sent = np.bincount(place, minlength=len(edges) - 1)
    within = np.bincount(place[good], minlength=len(edges) - 1)
    return [float(one / of) if of else None for one, of in zip(within, sent, strict=True)]


def sustained(attainment: Sequence[float | None], edges: Floats, target: float) -> float:
    """The rate up to which no bin is below ``target``; the lowest where the first one is. ``edges`` [bins + 1]."""
    kept = edges[0]
    for share, edge in zip(attainment, edges[1:], strict=True):
        if share is not None and share < target:
            break
        kept = edge
    return float(kept)


class Stage:
    """The pipeline under quota on one gateway."""

    def __init__(self, setting: Setting, running: Running, functions: int, millicores: int) -> None:
        self._setting, self.running = setting, running
        self._functions, self._millicores = functions, millicores
        self.client: GatewayClient = running.connect()
        lifecycle.deploy_pipeline(self.client, setting.manifest, self._wanted("", 1), timeout_s=TIMEOUT_S)
        self.limit()

    def _wanted(self, image: str, replicas: int) -> DeploymentSettings:
        return replace(deployment(image, replicas), max_functions=self._functions)

    def limit(self) -> None:
        """Every function to its quota, in place."""
        for name, one in deployed(self.client, self._setting.manifest.name).deployments.items():
            times = INGRESS_TIMES if one["envVars"]["smoe_nodes"] == INGRESS else 1
            cpu = f"{times * self._millicores}m"
            self.client.deploy({**one, "service": name, "limits": {**one["limits"], "cpu": cpu}})

    def elastic(self) -> float:
        """Like each way: the monotonic second at which all replicas served."""
        names = deployed(self.client, self._setting.manifest.name).deployments
        options = Options(True, TIMEOUT_S)
        with Coordinator(self.running.connect, self._setting.manifest, self.running.state, options) as coordinator:
            coordinator.move({name: {HOME: 1, OTHER: 1} for name in names})
        return time.monotonic()

    def cold_restart(self) -> float:
        manifest = self._setting.manifest
        for name in deployed(self.client, manifest.name).deployments:
            self.client.remove(name)
        for one in reversed(function_deployments(manifest, self._wanted(FRESH, 2))):
            self.client.deploy(one)
        end_s = time.monotonic() + TIMEOUT_S
        while any(one.get("availableReplicas", 0) < 2 for one in self._pipeline()):
            if time.monotonic() > end_s:
                raise TimeoutError(f"not every function had two replicas after {TIMEOUT_S:g} s")
            time.sleep(0.1)
        ready_s = time.monotonic()
        time.sleep(WARM_S)
        self.limit()
        return ready_s

    def _pipeline(self) -> list[dict[str, Any]]:
        names = deployed(self.client, self._setting.manifest.name).deployments
        return [one for one in self.client.functions() if one["name"] in names]


WAYS: dict[str, Callable[[Stage], float] | None] = {
    "elastic": Stage.elastic,
    "cold-restart": Stage.cold_restart,
    "none": None,
}


def measure(
    way: str, setting: Setting, ramp: Ramp, command_s: float, functions: int, millicores: int
) -> tuple[Answers, float | None]:
    """What the clients saw, and the seconds of the change."""
    with gateway(setting, way, functions + 2) as running:
        stage = Stage(setting, running, functions, millicores)
        url = f"{stage.client.url}/function/{setting.manifest.name}"
        load = Load(url, setting.texts, setting.expected, 0, arrival_s=ramp.arrival_s())
        time.sleep(5.0)  # quotas used up by the start are there again
        with SteadyLoad(load, setting.folder) as clients:
            begun_s = time.monotonic()
            time.sleep(command_s)
            scale, taken_s = WAYS[way], None
            if scale is not None:
                ordered_s = time.monotonic()
                taken_s = scale(stage) - ordered_s
            time.sleep(max(0.0, begun_s + ramp.seconds - time.monotonic()))
        return clients.answers, taken_s


def draw(cells: dict[str, Cell], edges: Floats, target: float, out: Path) -> None:
    with picture(out, figsize=(7, 4)) as (_, axis):
        middle = (edges[1:] + edges[:-1]) / 2
        for way, cell in cells.items():
            axis.plot(middle, [np.nan if one is None else 100 * one for one in cell.attainment], "o-", label=way)
        axis.axhline(100 * target, color="red", linestyle="--", linewidth=1)
        axis.axvline(next(iter(cells.values())).command_rps, color="black", linestyle=":", linewidth=1, label="order")
        axis.set(xlabel="requests/s", ylabel="% within the SLO", ylim=(0, 102), title="ElasticMoE's Fig. 10, measured")
        axis.legend()


@benchmark
@click.option("--ways", callback=listed(choices=WAYS), default=",".join(WAYS), help="Ways to measure.")
@click.option("--from", "first", default=1.0, help="Requests a second at the beginning.")
@click.option("--to", "last", default=25.0, help="And at the end.")
@click.option("--seconds", default=240.0, help="Of the rise.")
@click.option("--command", default=1 / 3, type=click.FloatRange(0, 1), help="Part of the rise after which is ordered.")
@click.option("--slo-ms", default=1000.0, help="Of a request.")
@click.option("--target", default=0.9, type=click.FloatRange(0, 1), help="Attainment to be sustained.")
@click.option("--functions", default=8, type=click.IntRange(3), help="Of the pipeline, with the ingress.")
@click.option("--millicores", default=60, type=click.IntRange(50), help="Quota of a replica; the ingress has twice it.")
@click.option("--bins", default=24, type=AT_LEAST_1, help="Of rates.")
@out_option("out/live-scaling", "Folder of the picture.")
def main(
    ways: tuple[str, ...], first: float, last: float, seconds: float, command: float, slo_ms: float, target: float,
    functions: int, millicores: int, bins: int, out: Path,
) -> None:  # fmt: skip
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    ramp, edges = Ramp(first, last, seconds), np.linspace(first, last, bins + 1)
    command_rps = float(ramp.rate(np.array([command * seconds]))[0])
    cells: dict[str, Cell] = {}
    with run_folder("smoe-attainment-") as folder:
        directory, manifest = ensure_pipeline(PRESET, folder / "pipelines")
        texts, expected = expected_answers(directory)
        links = {"link_bytes_per_s": 1.25e9, "disk_bytes_per_s": 1.25e8}
        setting = Setting(folder, directory, manifest, texts, expected.numpy(), 0, 0.0, 0.0, **links)
        for way in ways:
            answers, taken_s = measure(way, setting, ramp, command * seconds, functions, millicores)
            shares = attained(answers, ramp, edges, slo_ms / 1000)
            cells[way] = Cell(shares, sustained(shares, edges, target), answers.failed, taken_s, command_rps)
            click.echo(f"{way}: {cells[way]}", err=True)
    draw(cells, edges, target, out / "attainment.png")
    shown = [["–" if one is None else f"{one:.0%}" for one in cell.attainment] for cell in cells.values()]
    rates = [f"{low:.0f} to {high:.0f}" for low, high in itertools.pairwise(edges)]
    rows = list(zip(rates, *shown, strict=True))
    print_table(f"Requests within {slo_ms:g} ms; ordered at {command_rps:.1f}/s", ("requests/s", *cells), rows)
    given = {"slo_ms": slo_ms, "target": target, "functions": functions, "millicores": millicores, "ramp": asdict(ramp)}
    print_result({"edges": edges.tolist(), "ways": {way: asdict(cell) for way, cell in cells.items()}, **given})


if __name__ == "__main__":
    main()
