"""Prism's set-up run for real on one machine: ``python -m benchmarks.prism_real --texts FOLDER [--out FOLDER]`` (root).

Three nodes, each a network namespace with an ingress, all segments and a part of the experts, 500 Mbit/s between
them by traffic control (``benchmarks.prism_real.network``); places for 1.3 times the experts there are, shared 1 : 1 :
2. MiniLM's real weights split into more experts than the default pipeline has, so that there is something to place.
Each node's own clients send real texts of one task (arithmetic, code, articles) to their node's ingress, with Poisson
arrivals; ``smoe_dispatch=local-first``. Every change of plan is a move of the running pipeline (``placement.moves``).

* ``table``: the plans of Table II's methods in turn, several rounds, the same requests for each in a round: mean
  latency by node and in all, part of expert calls that stayed on their node (counted by the ingresses).
* ``shift``: tasks change nodes in mid-run (Figs. 6, 7), without and with migration: every interval a plan from the
  ingresses' own counts since the last move, taken when Eq. (4) favours it for the paper's five minutes. Local ratio
  over time; a picture with ``--out``.

Times are measured and hold what else this machine does: two cores compute for three nodes. The last line is one JSON
object.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from rich.console import Console

from benchmarks.harness.options import PRESENT, benchmark, out_option
from benchmarks.harness.report import picture, print_result, print_table
from benchmarks.harness.run_folder import run_folder
from benchmarks.harness.running import START_TIMEOUT_S, RunningPipeline, local_gateway, running_pipeline
from benchmarks.prism.comparison import METHODS, planners
from benchmarks.prism_real.clients import Counts, Served, counted, joined, send_all
from benchmarks.prism_real.network import SWITCH, Node, become_switch, connect, measure
from moe.names import INGRESS
from moe.preset import minilm_folder
from moe.split import split
from placement.cluster import PlanArray, make_cluster
from placement.heterogeneous import BYTES_OF_MBIT, Profile, expert_bytes, places_of
from placement.layout import Floats
from placement.migration import Scale, decide
from placement.moves.coordinator import Coordinator, Options
from placement.moves.managers import NodeSettings
from smoe.deployment import DeploymentSettings
from traces.prompts import load_prompts

NODES = ("a", "b", "c")
GPUS = [1, 1, 2]
TASKS = ("gsm8k", "humaneval", "wikitext")
PLACES_PER_EXPERT = 1.3
BIN_S, WARM_S = 3.0, 2.0


@dataclass(frozen=True)
class Setting:
    """Settings of all runs."""

    rate: float
    """Requests a second at each node."""
    seconds: float
    rounds: int
    shift_s: float
    """Seconds of each half of a run in which tasks change nodes."""
    interval_s: float
    horizon_s: float
    """For how long a new plan is expected to hold (Eq. (4))."""


class Stage:
    """The pipeline on its three nodes, the plan it has, and requests on it."""

    def __init__(self, nodes: tuple[Node, ...], served: RunningPipeline, mbit: float) -> None:
        self._nodes, self._manifest = nodes, served.manifest
        manifest, gateway = served.manifest, served.gateway
        self._coordinator = Coordinator(gateway.connect, manifest, gateway.state, Options(True, START_TIMEOUT_S))
        self.shape = (manifest.layers, len(manifest.experts(0)))
        self.expert_bytes = expert_bytes(manifest)
        room = int(PLACES_PER_EXPERT * self.shape[0] * self.shape[1] / sum(GPUS)) * self.expert_bytes
        rate = mbit * BYTES_OF_MBIT
        self.cluster = make_cluster(GPUS, room, load_bytes_per_s=rate, bytes_per_s=rate)
        self.profile = Profile(NODES, self.cluster)
        self.plan: PlanArray | None = None
        self._coordinator.move({manifest.function_name(INGRESS): dict.fromkeys(NODES, 1)})
        self._addresses = served.addresses(NODES)

    @property
    def pair_s(self) -> float:
        """Seconds on the link of one token's way to an expert on another node and back."""
        return self.profile.pair_s(self._manifest)

    def counts(self) -> Counts:
        """What the ingresses have counted since they were started."""
        return counted(self._addresses, self.shape)

    def take(self, plan: PlanArray) -> float:
        """Move to a plan while requests are served; seconds until it had come about."""
        everywhere = {self._manifest.function_name(one.id): dict.fromkeys(NODES, 1) for one in self._manifest.segments}
        experts = places_of(self.cluster.by_node(plan), self.profile, self._manifest)
        self.plan, moved = plan, self._coordinator.move({**everywhere, **experts})
        return moved.settled_s

    def serve(self, texts: list[list[str]], arrivals: list[Floats]) -> Served:
        """Node n's requests ``texts[n]`` at ``arrivals[n]`` seconds from now, from inside the node."""
        return send_all(self._nodes, self._addresses, texts, arrivals)


def drawn(
    tasks: list[tuple[str, ...]], setting: Setting, seconds: float, seed: int
) -> tuple[list[list[str]], list[Floats]]:
    """For each node: a text of its task for each request, and Poisson arrivals within ``seconds``, [requests]
    float64."""
    rng = np.random.default_rng(seed)
    texts, arrivals = [], []
    for task_texts in tasks:
        count = int(3 * setting.rate * seconds) + 20
        times = rng.exponential(1 / setting.rate, size=count).cumsum()
        times = times[times < seconds]
        arrivals.append(times)
        texts.append([task_texts[i] for i in rng.integers(len(task_texts), size=len(times))])
    return texts, arrivals


def table(stage: Stage, tasks: list[tuple[str, ...]], frequency: Floats, setting: Setting) -> dict[str, Any]:
    """Each method's plan for ``frequency`` [nodes, layers, experts] in turn, the order turned on from round to
    round."""
    results: dict[str, list[tuple[Served, Counts]]] = {name: [] for name in METHODS}
    moved: dict[str, list[float]] = {name: [] for name in METHODS}
    plans = {name: make(frequency, stage.cluster, stage.expert_bytes, None) for name, make in planners(0).items()}
    for turn in range(setting.rounds):
        for name in np.roll(np.array(METHODS), -2 * turn).tolist():
            moved[name].append(stage.take(plans[name]))
            stage.serve(*drawn(tasks, setting, WARM_S, 1000 + turn))  # nothing cold
            before = stage.counts()
            served = stage.serve(*drawn(tasks, setting, setting.seconds, turn))
            results[name].append((served, stage.counts() - before))
    rows = {}
    for name, runs in results.items():
        every, count = joined([served for served, _ in runs]), sum((one for _, one in runs[1:]), runs[0][1])
        rows[name] = {
            "mean_ms": round(every.mean_ms(), 2),
            "by_node_ms": [round(every.of(node).mean_ms(), 2) for node in range(len(NODES))],
            "rounds_ms": [round(served.mean_ms(), 2) for served, _ in runs],
            "p95_ms": round(every.p95_ms(), 2),
            "local_calls": round(count.local_ratio, 4),
            "remote_mb": round(count.remote_bytes / 1e6, 1),
            "requests": len(every.node),
            "failed": every.failed,
            "move_s": round(float(np.mean(moved[name])), 2),
        }
    return rows


def shift(
    stage: Stage, tasks: list[tuple[str, ...]], mixed: Floats, setting: Setting, migrating: bool
) -> dict[str, Any]:
    """Two halves; the second has every task on the next node. Plans by Eq. (4) where ``migrating``; ``mixed`` [nodes,
    layers, experts]: tokens of the first plan."""
    make = planners(0)["Prism, improved"]
    stage.take(make(mixed, stage.cluster, stage.expert_bytes, None))
    turned = tasks[1:] + tasks[:1]
    texts, arrivals = drawn(tasks, setting, setting.shift_s, 77)
    later, afterwards = drawn(turned, setting, setting.shift_s, 78)
    texts = [one + two for one, two in zip(texts, later, strict=True)]
    arrivals = [np.concatenate((one, two + setting.shift_s)) for one, two in zip(arrivals, afterwards, strict=True)]
    since = before = stage.counts()
    began_s = decided_s = since_s = time.monotonic()
    over_time, decisions = [], []
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(stage.serve, texts, arrivals)
        while not running.done():
            time.sleep(BIN_S)
            now, now_s = stage.counts(), time.monotonic()
            over_time.append((round(now_s - began_s, 2), (now - before).local_ratio))
            before = now
            if migrating and now_s - decided_s >= setting.interval_s and not running.done():
                decided_s = now_s
                decisions.append(_decide(stage, (now - since).tokens, now_s - since_s, setting, now_s - began_s))
                if decisions[-1]["taken"]:
                    since, since_s = stage.counts(), time.monotonic()
        served = running.result()
    halves = [served.between(0.0, setting.shift_s), served.between(setting.shift_s, np.inf)]
    return {
        "mean_ms": round(served.mean_ms(), 2),
        "halves_ms": [round(half.mean_ms(), 2) for half in halves],
        "failed": served.failed,
        "requests": len(served.node),
        "decisions": decisions,
        "local_over_time": [(at_s, None if np.isnan(part) else round(part, 4)) for at_s, part in over_time],
    }


def _decide(stage: Stage, frequency: Floats, window_s: float, setting: Setting, at_s: float) -> dict[str, Any]:
    """Eq. (4) on what was seen since the last move, ``window_s`` ago; the move, where it is worth it."""
    assert stage.plan is not None
    candidate = planners(0)["Prism, improved"](frequency, stage.cluster, stage.expert_bytes, stage.plan)
    scale = Scale(stage.pair_s, window_s, setting.horizon_s)
    verdict = decide(stage.plan, candidate, stage.cluster, frequency, stage.expert_bytes, scale)
    decision = {
        "at_s": round(at_s, 2),
        "taken": verdict.worth,
        "now_s": round(verdict.now_s, 4),
        "then_s": round(verdict.then_s, 4),
        "predicted_move_s": round(verdict.move_s, 4),
        "copied": verdict.copied,
    }
    if verdict.worth:
        decision["moved_s"] = round(stage.take(candidate), 2)
    return decision


@contextmanager
def running(nodes: tuple[Node, ...], folder: Path, experts: int, top_k: int, mbit: float) -> Iterator[Stage]:
    """A gateway on the switch, a weights manager on every node, the pipeline deployed. Ends with the block."""
    pipelines = folder / "pipelines"
    with Console(stderr=True).status("splitting MiniLM"):
        split(minilm_folder(), pipelines / "minilm", "minilm", experts, top_k)
    settings = replace(
        local_gateway(folder / "state", machines=NODES),
        host=SWITCH,
        networks=tuple(f"{node.name}={node.address}@{node.namespace}" for node in nodes),
        pipelines_dir=pipelines,
    )
    deployment = DeploymentSettings(extra_environment={"smoe_dispatch": "local-first"})
    with running_pipeline(settings, deployment, str(pipelines / "minilm"), NodeSettings()) as served:
        yield Stage(nodes, served, mbit)


def show(rows: dict[str, Any]) -> None:
    heads = ("plan", *(f"node {name}" for name in NODES), "all, ms", "P95", "local calls", "remote MB", "move s")
    shown = []
    for name, row in rows.items():
        cells = [f"{value:.1f}" for value in (*row["by_node_ms"], row["mean_ms"], row["p95_ms"])]
        shown.append((name, *cells, f"{row['local_calls']:.1%}", f"{row['remote_mb']:.1f}", f"{row['move_s']:.1f}"))
    print_table(None, heads, shown, width=120)


def draw(rows: dict[str, Any], shifted: dict[str, Any], seconds: float, file: Path) -> None:
    """Mean latency by plan, and local ratio over time with and without migration."""
    with picture(file, 1, 2, figsize=(11, 4)) as (_, (left, right)):
        names = list(rows)
        left.barh(names, [rows[name]["mean_ms"] for name in names], color="tab:blue")
        for place, name in enumerate(names):
            left.plot(rows[name]["rounds_ms"], [place] * len(rows[name]["rounds_ms"]), "k.", markersize=4)
        left.invert_yaxis()
        left.set(xlabel="mean latency, ms (points: rounds)")
        for name, part in shifted.items():
            times, ratio = np.array(part["local_over_time"], dtype=np.float64).T
            right.plot(times, ratio, label=f"{name}: {part['mean_ms']:.1f} ms")
            for decision in part["decisions"]:
                if decision["taken"]:
                    right.axvline(decision["at_s"], color="tab:orange", linestyle=":", linewidth=1)
        right.axvline(seconds, color="grey", linewidth=1)
        axis = "seconds (grey: tasks change nodes; dotted: moves)"
        right.set(xlabel=axis, ylabel="local part of expert calls", ylim=(0, 1))
        right.legend(fontsize=8)


@benchmark
@click.option("--texts", type=PRESENT, required=True, help="Folder of text sets.")
@click.option("--experts", type=click.IntRange(2, 64), default=8, help="Experts a layer.")
@click.option("--top-k", type=click.IntRange(1, 64), default=2, help="Experts a token.")
@click.option("--mbit", type=click.FloatRange(1, 100_000), default=500.0, help="Mbit/s of each node's way out.")
@click.option("--delay-ms", type=click.FloatRange(0, 1000), default=0.0, help="Delay of that way; needs netem.")
@click.option("--rate", type=click.FloatRange(0.01, 100), default=1.0, help="Requests/s a node.")
@click.option("--seconds", type=click.FloatRange(3, 3600), default=20.0, help="Length of a run.")
@click.option("--rounds", type=click.IntRange(1, 100), default=3, help="Runs of each plan.")
@click.option(
    "--shift-s", type=click.FloatRange(3, 3600), default=30.0, help="Seconds before tasks change nodes, and after."
)
@click.option(
    "--interval", "interval_s", type=click.FloatRange(1, 3600), default=10.0, help="Seconds between decisions."
)
@click.option("--horizon", "horizon_s", type=click.FloatRange(1), default=300.0, help="Seconds for a move to pay.")
@click.option("--words", type=click.IntRange(1, 400), default=48, help="Longest text in words.")
@out_option(None, "Folder for the picture.")
def main(
    texts: Path, experts: int, top_k: int, mbit: float, delay_ms: float, out: Path | None, words: int, **options: Any
) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    torch.set_num_threads(1)
    become_switch()
    nodes = connect(NODES, mbit, delay_ms)
    way = measure(nodes[0], nodes[1])
    setting = Setting(**options)
    tasks = [load_prompts(texts, words, (task,)).texts for task in TASKS]
    with run_folder("smoe-prism-") as folder, running(nodes, folder, experts, top_k, way.mbit) as stage:
        uniform = np.ones((len(NODES), *stage.shape))
        stage.take(planners(0)["Uniform"](uniform, stage.cluster, stage.expert_bytes, None))
        before = stage.counts()
        stage.serve(*drawn(tasks, setting, setting.seconds, 500))
        counts = stage.counts() - before
        rows = table(stage, tasks, counts.tokens, setting)
        show(rows)
        mixed = counts.mixed()
        shifted = {
            name: shift(stage, tasks, mixed, setting, migrating)
            for name, migrating in (("without migration", False), ("with migration", True))
        }
    if out is not None:
        draw(rows, shifted, setting.shift_s, out / "prism-real.png")
    below = 1 - rows["Prism, improved"]["mean_ms"] / rows["EPLB"]["mean_ms"]
    result = {
        "below_eplb": round(below, 4),
        "migration_gain": round(1 - shifted["with migration"]["mean_ms"] / shifted["without migration"]["mean_ms"], 4),
        "failed": sum(row["failed"] for row in rows.values()) + sum(part["failed"] for part in shifted.values()),
        "link": {"mbit": round(way.mbit, 1), "round_trip_ms": round(way.round_trip_ms, 4), "delay_ms": delay_ms},
        "table": rows,
        "shift": shifted,
        "settings": {"experts": experts, "top_k": top_k, "words": words, **options},
    }
    print_result(result)


if __name__ == "__main__":
    main()
