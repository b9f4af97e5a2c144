"""The measured side of ``benchmarks.fidelity``: cells replayed on the running pipeline, kept as records.

A record holds all that the simulated side needs (when requests were sent, their texts' routing) and all that it is
compared with, so that a stored one can be compared again with another profile or another simulator.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from autoscaler.contract import Configuration, Memory, Observation, Proposal, TickReport, Topology
from autoscaler.decision.limits import LimitSettings
from autoscaler.loop import Controller
from autoscaler.monitor.scrape import ScrapeSource
from autoscaler.monitor.source import Monitor
from autoscaler.platforms.openfaas import OpenFaasPlatform
from autoscaler.prices import load_prices
from autoscaler.state.readings import Series
from benchmarks.fidelity.clock import SpeedClock, typical_s
from benchmarks.fidelity.machine import SINGLES, SINGLES_PER_S, WARM, Singles, Usage
from benchmarks.harness.controlling import controlling
from benchmarks.harness.replay_process import ReplayProcess
from gateway.client.client import GatewayClient
from gateway.client.state import read_password, running_pid
from moe.manifest import Manifest
from moe.reference import WholeModel
from platform_words.memory import RuntimeMemory
from simulation.profiles.measure.machine import cpu_s
from traces import catalog, generate, scale
from traces.model import Trace

IDLE_END_S = 2.0
LATE_S = 10.0
"""How late the controller's last look may be."""
SETTLE_S = 120.0
"""Replicas with small CPU limits take long to start."""
THIRDS = 3
"""Parts of a cell; the controller looks at it that often, as a look costs the pipeline some 50 ms of both cores."""
MEMORY_MB = 256
FULL = Configuration(MEMORY_MB, 1.0, 0.0, 1, 8)
"""Configuration of every segment and expert while single requests are sent."""
IDLE_S = 2.0
"""How long gateway and client are looked at while there is nothing to do."""
EVEN_CV = 0.05
"""Coefficient of variation of the gaps between single requests."""
SEED = 11


@dataclass(frozen=True)
class Cell:
    """One run: arrivals, what functions start with, and what is changed at a third and at two thirds."""

    pattern: str
    mean_rps: float
    cores: float
    """Cores of every segment and expert at first."""
    scaled: int
    """Replicas of the first layer's experts from the first third on: starting thirty functions at once would keep both
    cores busy for half a second, which would measure starting more than the pipeline."""
    resized: float
    """Cores of every segment and expert from the second third on."""

    @property
    def name(self) -> str:
        return f"{self.pattern} {self.mean_rps:g}/s {self.cores:g}→{self.resized:g} cores ×1→{self.scaled}"


@dataclass(frozen=True)
class Outcome:
    """What one side of a cell came to."""

    p50_ms: float
    p95_ms: float
    provisioned: float
    """Currency per hour."""
    answered: int
    failed: int
    measured_part: float | None = None
    """In a simulation: the part of its calls whose tokens and resource lie where the profile measured them."""


@dataclass(frozen=True)
class Record:
    """One cell, measured once."""

    cell: Cell
    seconds: float
    sent_s: list[float]
    """When each request was sent, after the controller's start."""
    counts: list[list[int]]
    """[1 + experts, requests], see ``simulation.engine.requests``."""
    measured: Outcome
    latency_s: list[float]
    """Latencies of the requests that were answered, in order of ``sent_s``."""
    host_cores: float
    """Cores in use on the whole machine meanwhile, on average."""
    front_s: float
    """Seconds of a request that the ingress does not see."""
    others_cores: float | None = None
    """Those of ``host_cores`` that processes outside this benchmark used."""
    singles: Singles | None = None
    """Single requests just before; older records have none, and ``front_s`` from before all cells."""
    after: Singles | None = None
    """Single requests just after; of the last record only."""
    at_s: float = 0.0
    """Unix time of the run's beginning; 0 in older records, which do not know it."""


class Script:
    """A policy that proposes what the cell holds for each time since ``begun_s``."""

    name = "script"

    def __init__(self, cell: Cell, topology: Topology, begun_s: float, seconds: float) -> None:
        self._steps = steps(cell, topology, seconds)
        self._begun_s = begun_s

    def propose(self, observation: Observation, now_s: float, memory: Memory) -> Proposal:
        at_s = now_s - self._begun_s
        desired = [configurations for from_s, configurations in self._steps if at_s >= from_s - 1.0][-1]
        return Proposal(desired, dict.fromkeys(desired, "script"))


def steps(cell: Cell, topology: Topology, seconds: float) -> list[tuple[float, dict[str, Configuration]]]:
    """(seconds from the start, configurations of segments and experts from then on)."""
    alone = Configuration(MEMORY_MB, cell.cores, 0.0, 1, 8)
    first = {node.function: alone for node in topology.nodes if node.kind != "ingress"}
    scaled = {node.function: replace(alone, replicas=cell.scaled) for node in topology.experts(0)}
    second = first | scaled
    third = {function: replace(one, cpu_cores=cell.resized) for function, one in second.items()}
    return [(-1e9, first), (seconds / THIRDS, second), (2 * seconds / THIRDS, third)]


def arrivals(cell: Cell, seconds: float) -> Trace:
    """Real where the public traces are there and the pattern is bursty; else synthetic with the pattern's CV. They end
    a little before the cell, so that the controller's last look meets no request."""
    seconds -= IDLE_END_S
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


@dataclass(frozen=True)
class Bench:
    """The pipeline under test, and how long a run takes."""

    client: GatewayClient
    sender: ReplayProcess
    topology: Topology
    state: Path
    seconds: float
    full: Configuration = FULL
    """Configuration of every segment and expert while single requests are sent: a real core."""

    @property
    def auth(self) -> tuple[str, str]:
        return "admin", read_password(self.state)

    def front_cpu_s(self) -> float:
        """CPU seconds so far of client and gateway."""
        gateway = running_pid(self.state)
        return cpu_s([self.sender.pid, *([] if gateway is None else [gateway])])

    def functions_cpu_s(self) -> float:
        """CPU seconds so far of all functions, the ingress included."""
        gateway = running_pid(self.state)
        return 0.0 if gateway is None else cpu_s([one.pid for one in psutil.Process(gateway).children(recursive=True)])

    @property
    def platform(self) -> OpenFaasPlatform:
        return OpenFaasPlatform(self.client.url, self.topology.pipeline, self.auth)


def send_singles(bench: Bench, texts: Sequence[str], counts: np.ndarray) -> Singles:
    """Single requests of ``texts`` in turn, every function with a full core. ``counts [1 + experts, texts]``."""
    settle(bench.client, bench.platform, {node.function: bench.full for node in bench.topology.nodes[1:]})
    bench.sender.replay(generate.synthetic(WARM, WARM / SINGLES_PER_S, EVEN_CV, SEED), texts)
    idle = bench.front_cpu_s()
    time.sleep(IDLE_S)
    idle_cores = (bench.front_cpu_s() - idle) / IDLE_S
    source, begun_s, usage = ScrapeSource(bench.client.url, bench.auth), time.time(), Usage()
    source.read(begun_s, 1.0)
    before_s, front_s, functions_s = time.perf_counter(), bench.front_cpu_s(), bench.functions_cpu_s()
    with SpeedClock() as clock:
        _, result = bench.sender.replay(generate.synthetic(SINGLES, SINGLES / SINGLES_PER_S, EVEN_CV, SEED), texts)
    front_s = bench.front_cpu_s() - front_s - idle_cores * (time.perf_counter() - before_s)
    functions_s = bench.functions_cpu_s() - functions_s
    _, others_cores = usage.cores()
    now_s = time.time()
    values = source.read(now_s, now_s - begun_s).values
    spent_s, count = sum(values[Series.REQUEST_SECONDS_SUM].values()), sum(values[Series.REQUESTS].values())
    latencies_s = [
        record.latency_s for record in result.records if record.outcome == "ok" and record.latency_s is not None
    ]
    return Singles(
        latencies_s,
        counts.tolist(),
        float(np.mean(latencies_s) - spent_s / count),
        others_cores,
        max(0.0, front_s / count),
        begun_s,
        functions_s / count,
        typical_s(clock.samples),
    )


def measure(bench: Bench, cell: Cell, texts: Sequence[str], counts: np.ndarray, singles: Singles) -> Record:
    """The cell on the running pipeline. ``texts``: those of :func:`arrivals` in turn, ``counts`` [1 + experts, texts]
    their routing."""
    topology, platform, seconds = bench.topology, bench.platform, bench.seconds
    settle(bench.client, platform, steps(cell, topology, seconds)[0][1])
    begun_s, usage = time.time(), Usage()
    controller = Controller(
        topology,
        Monitor(topology, ScrapeSource(bench.client.url, bench.auth)),
        Script(cell, topology, begun_s, seconds),
        platform,
        LimitSettings(runtime=RuntimeMemory.same(0)),
        load_prices(),
        window_s=seconds / THIRDS,
    )
    controller.tick(begun_s)  # the first look has nothing to compare with: no window, and so no change
    with controlling(controller, seconds / THIRDS, seconds / THIRDS) as reports:
        replayed_s, result = bench.sender.replay(arrivals(cell, seconds), texts)
        while len(reports) < THIRDS and time.time() < begun_s + seconds + LATE_S:
            time.sleep(0.1)
    cores, others_cores = usage.cores()
    sent = np.array([(record.sent_s or record.scheduled_s) + replayed_s - begun_s for record in result.records])
    order = np.argsort(sent, kind="stable")
    records = [result.records[place] for place in order]
    answered = [record.latency_s for record in records if record.outcome == "ok" and record.latency_s is not None]
    counted = reports[:THIRDS]
    return Record(
        cell,
        seconds,
        sent[order].tolist(),
        counts[:, order].tolist(),
        outcome(np.array(answered), counted, len(records) - len(answered)),
        answered,
        cores,
        singles.front_s,
        others_cores,
        singles,
        at_s=begun_s,
    )


def settle(client: GatewayClient, platform: OpenFaasPlatform, wanted: Mapping[str, Configuration]) -> None:
    """Every function as a run begins, with all replicas ready."""
    present = platform.configurations()
    for function, configuration in wanted.items():
        if present[function] != configuration:
            platform.apply(function, present[function], configuration)
    client.wait_ready(list(wanted), SETTLE_S)
    time.sleep(2.0)


def outcome(latencies_s: np.ndarray, reports: Sequence[TickReport], failed: int) -> Outcome:
    """What one side came to, measured or simulated; ``latencies_s`` [requests] float64."""
    p50, p95 = 1000 * np.quantile(latencies_s, (0.5, 0.95))
    provisioned = [report.cost.provisioned for report in reports if report.cost.provisioned is not None]
    seconds = sum(report.observation.window_s for report in reports if report.cost.provisioned is not None)
    return Outcome(
        float(p50),
        float(p95),
        float(sum(provisioned) / seconds * 3600),
        int(latencies_s.size),
        failed,
    )


def save(records: Sequence[Record], path: Path) -> None:
    """One JSON line for each record."""
    path.write_text("".join(json.dumps(asdict(record)) + "\n" for record in records))


def load_records(path: Path) -> list[Record]:
    """What :func:`save` wrote."""
    records = []
    for line in path.read_text().splitlines():
        document = json.loads(line)
        document["cell"] = Cell(**document["cell"])
        document["measured"] = Outcome(**_known(Outcome, document["measured"]))
        for name in ("singles", "after"):
            if document.get(name) is not None:
                document[name] = Singles(**document[name])
        records.append(Record(**_known(Record, document)))
    return records


def _known(kind: type[Outcome | Record], document: dict[str, Any]) -> dict[str, Any]:
    """What older records hold and nothing reads any more is left out."""
    return {field.name: document[field.name] for field in fields(kind) if field.name in document}
