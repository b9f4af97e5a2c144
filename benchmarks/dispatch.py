"""What the choice of replicas and the way to them cost, on a running pipeline: ``python -m benchmarks.dispatch``.

The default pipeline with some replicas of every segment and expert over machines emulated on this one (replica r of
function f is on node (f + r) mod nodes; the ingress is on the first). One set of workers, an ingress for each row,
asked in turns with the same texts, so that rows can be compared on a noisy machine; every row's first answer is
compared with the whole model's.

``--mbit 0`` (default): the link between two machines is the loopback device, so bytes cost next to nothing.
``--mbit 100``: each node is a network namespace whose way out is limited by traffic control
(``benchmarks.prism_real.network``; root).

By pass (one request): ``fullest`` activated experts of the fullest node, mean over layers; ``remote`` experts served
on other nodes; ``messages`` to and ``kB`` sent to other nodes, segments included; processor milliseconds of the ingress
and of all workers; median milliseconds to the answer. ``links`` are the numbers that the adaptive rule measured. The
last line is one JSON object.
"""

from __future__ import annotations

import json
import secrets
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console

from benchmarks.harness import answers
from benchmarks.harness.local_pipeline import LocalPipeline, OneMachine, WorkerProcess
from benchmarks.harness.options import AT_LEAST_1, benchmark, seed_option
from benchmarks.harness.report import print_result, print_table, progress
from benchmarks.pipeline import make_texts
from benchmarks.prism_real.clients import samples_of
from benchmarks.prism_real.network import SWITCH, become_switch, connect
from functions.serving import metric_names as names
from gateway.backends.process.kernel import enter_network
from moe.reference import WholeModel
from platform_words.headers import CALLER_KEY
from simulation.profiles.measure.machine import cpu_s
from smoe.pipelines import ensure_pipeline

ROWS = (
    *((rule, "direct") for rule in ("least-loaded", "local-first", "round-robin", "random", "token-balanced", "aebs")),
    *((rule, transfer) for rule in ("local-first", "aebs") for transfer in ("two-phase", "adaptive")),
)
"""(``smoe_dispatch``, ``smoe_transfer``) of each row."""
WARM_UP = 12


@dataclass(frozen=True)
class Counted:
    """Counters of one ingress at one moment, and processor seconds of it and of all workers."""

    passes: float
    fullest: float
    scatters: float
    remote: float
    messages: float
    sent_bytes: float
    ingress_cpu_s: float
    workers_cpu_s: float

    def since(self, earlier: Counted) -> Counted:
        before = asdict(earlier)
        return Counted(**{name: value - before[name] for name, value in asdict(self).items()})


@dataclass
class Row:
    """One rule and transfer, what its turns counted, and the milliseconds of each answer."""

    rule: str
    transfer: str
    ingress: WorkerProcess
    key: str = ""
    """What the ingress takes calls with."""
    turns: list[Counted] = field(default_factory=list)
    taken_ms: list[float] = field(default_factory=list)

    def figures(self, layers: int) -> dict[str, Any]:
        """By pass; medians over turns where processor time is meant."""

        def total(name: str) -> float:
            return sum(float(getattr(turn, name)) for turn in self.turns)

        def cpu_ms(name: str) -> float:
            return statistics.median(1000 * float(getattr(turn, name)) / turn.passes for turn in self.turns)

        passes = total("passes")
        return {
            "dispatch": self.rule,
            "transfer": self.transfer,
            "passes": int(passes),
            "fullest": round(total("fullest") / total("scatters"), 3),
            "remote": round(total("remote") / passes, 2),
            "messages": round(total("messages") / passes, 2),
            "kB": round(total("sent_bytes") / passes / 1000, 1),
            "ingress_cpu_ms": round(cpu_ms("ingress_cpu_s"), 3),
            "workers_cpu_ms": round(cpu_ms("workers_cpu_s"), 3),
            "p50_ms": round(statistics.median(self.taken_ms), 2),
            "scatters_a_pass": round(total("scatters") / passes / layers, 2),
        }


def read(ingress: WorkerProcess, workers: Iterable[WorkerProcess]) -> Counted:
    """Counters now."""
    samples = samples_of(ingress.address)

    def total(name: str, **labels: str) -> float:
        return sum(one.value for one in samples if one.name == name and labels.items() <= one.labels.items())

    return Counted(
        passes=total(names.REQUESTS, code="200"),
        fullest=total(names.FULLEST_EXPERTS),
        scatters=total(names.SCATTERS),
        remote=total(names.MACHINE_CALLS, place="remote", kind="expert"),
        messages=total(names.MACHINE_MESSAGES, place="remote"),
        sent_bytes=total(names.MACHINE_BYTES, place="remote", direction="sent"),
        ingress_cpu_s=cpu_s([ingress.pid]),
        workers_cpu_s=cpu_s(worker.pid for worker in workers),
    )


def ask(row: Row, texts: Sequence[str]) -> dict[str, Any]:
    """The pipeline's answer."""
    answer: dict[str, Any] = _read(row, "/", json.dumps({"inputs": list(texts)}).encode())
    return answer


def _read(row: Row, path: str, body: bytes | None = None) -> Any:
    headers = {"content-type": "application/json", CALLER_KEY: row.key}
    with urllib.request.urlopen(
        urllib.request.Request(f"http://{row.ingress.address}{path}", body, headers), timeout=60
    ) as reply:
        return json.load(reply)


def turn(row: Row, workers: Sequence[WorkerProcess], requests: Sequence[Sequence[str]]) -> None:
    """Ask and count."""
    before = read(row.ingress, workers)
    for texts in requests:
        begun_s = time.perf_counter()
        ask(row, texts)
        row.taken_ms.append((time.perf_counter() - begun_s) * 1000)
    row.turns.append(read(row.ingress, workers).since(before))


def links_of(row: Row) -> dict[str, dict[str, float]]:
    """What the row's ingress measured of its links."""
    links: dict[str, dict[str, float]] = _read(row, "/statistics")["links"]
    return links


def wait_for_links(row: Row, nodes: int, within_s: float = 30.0) -> None:
    """Until the adaptive rule has measured every other node. Raises RuntimeError."""
    ends_s = time.monotonic() + within_s
    while len(links_of(row)) < nodes - 1:
        if time.monotonic() > ends_s:
            raise RuntimeError(f"{row.rule}, {row.transfer}: not all links were measured in {within_s:g} s")
        time.sleep(0.1)


class Network:
    """Emulated machines with networks of their own; workers are forked on threads that are inside them."""

    feed_host = SWITCH

    def __init__(self, names: Sequence[str], mbit: float) -> None:
        """Raises NotPermittedError. The calling thread's network must be the switch's already."""
        self._nodes = {node.name: node for node in connect(names, mbit)}
        self._threads = {
            name: ThreadPoolExecutor(1, initializer=enter_network, initargs=(node.namespace,))
            for name, node in self._nodes.items()
        }

    def host(self, node: str) -> str:
        return self._nodes[node].address

    def fork(self, node: str, start: Callable[[], WorkerProcess]) -> WorkerProcess:
        return self._threads[node].submit(start).result()


@dataclass(frozen=True)
class Load:
    """What every row is asked."""

    count: int
    """Nodes."""
    replicas: int
    tokens: tuple[int, ...]
    texts: int
    rounds: int
    calls: int
    seed: int


@benchmark
@click.option("--pipeline", default="minilm", help="Preset or folder.")
@click.option("--nodes", "count", default=3, type=click.IntRange(2, 16), help="Machines emulated.")
@click.option("--replicas", default=2, type=click.IntRange(1, 16), help="Of each function.")
@click.option("--tokens", default=(8, 32), multiple=True, help="Tokens of a text; a table each.")
@click.option("--texts", default=1, type=click.IntRange(1, 64), help="Texts of a request.")
@click.option("--mbit", default=0.0, type=click.FloatRange(0), help="Mbit/s of a node's link; 0: loopback.")
@click.option("--rounds", default=8, type=AT_LEAST_1, help="Turns of each row.")
@click.option("--calls", default=20, type=click.IntRange(2), help="Requests a turn.")
@seed_option
def main(pipeline: str, mbit: float, **load: Any) -> None:
    directory, _ = ensure_pipeline(pipeline, Path(".smoe/pipelines"))
    asked = Load(**{**load, "tokens": tuple(load["tokens"])})
    nodes = [f"node-{number}" for number in range(asked.count)]
    if mbit:
        become_switch()
    ground = Network(nodes, mbit) if mbit else OneMachine()
    with tempfile.NamedTemporaryFile("w", suffix=".token") as token:
        token.write(secrets.token_hex(16))
        token.flush()
        # With a key, as gateways give one: without, workers relay to loopback addresses only.
        environ = {"smoe_feed_token_file": token.name, "smoe_caller_key_file": token.name}
        with LocalPipeline(
            directory, replicas=asked.replicas, max_inflight=16, nodes=nodes, environ=environ, ground=ground
        ) as served:
            cells, links = _measure(served, directory, asked, f"{mbit:g} Mbit/s" if mbit else "loopback")
    result = {"pipeline": directory.name, "mbit": mbit or None, **asdict(asked), "cells": cells, "links": links}
    print_result(result)


def _measure(
    served: LocalPipeline, directory: Path, asked: Load, line: str
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Figures of all rows for each size of texts, and the lines as they were measured last."""
    model = WholeModel(directory)
    ingresses = [served.add_ingress({"smoe_dispatch": rule, "smoe_transfer": transfer}) for rule, transfer in ROWS]
    cells: list[dict[str, Any]] = []
    links: dict[str, Any] = {}
    for size in asked.tokens:
        texts = make_texts(model, 64, size, asked.seed)
        total = asked.calls * asked.rounds
        requests = [[texts[(i * asked.texts + j) % 64] for j in range(asked.texts)] for i in range(total)]
        rows = [Row(rule, transfer, one, served.key) for (rule, transfer), one in zip(ROWS, ingresses, strict=True)]
        _measure_in_turns(rows, served.workers, requests, model, asked)
        figures = [{"tokens": size * asked.texts, **row.figures(model.manifest.layers)} for row in rows]
        links = {row.rule: links_of(row) for row in rows if row.transfer == "adaptive"}
        _show(figures, f"{directory.name}: {size * asked.texts} tokens a pass, {asked.count} nodes, {line}")
        cells += figures
    return cells, links


def _measure_in_turns(
    rows: Sequence[Row],
    workers: Sequence[WorkerProcess],
    requests: Sequence[Sequence[str]],
    model: WholeModel,
    asked: Load,
) -> None:
    """Warm up, check, then all rows in turns, in another order each round."""
    expected = model.embed(requests[0]).numpy()
    for row in rows:  # what is measured must also be right
        answers.check_equal(ask(row, requests[0])["embeddings"], expected, f"{row.rule}, {row.transfer}")
        if row.transfer == "adaptive":
            wait_for_links(row, asked.count)
        for texts in requests[:WARM_UP]:
            ask(row, texts)
    order = np.random.default_rng(asked.seed)
    with progress(len(requests)) as show:
        for start in range(0, len(requests), asked.calls):
            for number in order.permutation(len(rows)):
                turn(rows[number], workers, requests[start : start + asked.calls])
            show("requests", start + asked.calls)


def _show(cells: Sequence[dict[str, Any]], title: str) -> None:
    columns = [name for name in cells[0] if name not in ("tokens", "passes", "scatters_a_pass")]
    width = max(Console().width, 120)
    print_table(title, columns, [[cell[name] for name in columns] for cell in cells], texts=2, width=width, stdout=True)


if __name__ == "__main__":
    main()
