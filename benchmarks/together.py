"""Everything at once on one running pipeline: ``python -m benchmarks.together [--out FOLDER]``.

The default pipeline (real weights) on the embedded gateway, under real limits, on two emulated machines with a limited
link between their memories. Each node has an ingress, all segments, and memory for two thirds of the experts. Each
node's clients send real texts of a task of their own (arithmetic, code) to their node's ingress, at the arrivals of two
seeds of a bursty hour; half-way the tasks change nodes. Meanwhile, at once:

* *placement decides where*: at intervals Prism looks whether other places are worth their move, Eq. (3) and (4);
* *live scaling moves*: experts go there as ``smoe placement migrate`` moves them (ElasticMoE);
* *dispatch balances*: each ingress chooses among an expert's replicas by AEBS (Janus; ``--dispatch``: another rule);
* *the learnt policy sizes*: every expert's memory, cores, replicas and concurrency, at every window.

At three quarters of the run layer 0's experts are ordered to node a and then to node b, whose weights manager is
killed in mid-copy. The same requests are then replayed again with experts as they are at the end, nothing sizing or
moving them (``still``): what all the changing cost. Latency counts from when a request was due. All of it is measured,
on a machine whose cores both nodes share. The last line is one JSON object: ``failed``, ``moves``, ``orders`` (of the
policy), ``p95_ms``, ``p95_over_slo``, ``still_p95_ms``, ``max_rel_err`` (answers afterwards against the whole model),
``local_over_time``, ``decisions``.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import click
import numpy as np
import torch

from autoscaler.build import build_controller
from autoscaler.contract import ConfigurationSpace, TickReport
from autoscaler.settings import ControllerSettings
from benchmarks.fidelity.runs import SEED
from benchmarks.harness.controlling import controlling
from benchmarks.harness.options import benchmark, data_option, out_option, seed_option
from benchmarks.harness.replay_process import ReplayProcess
from benchmarks.harness.report import picture, print_result, print_table, progress
from benchmarks.harness.run_folder import run_folder
from benchmarks.harness.running import RunningPipeline, listening, local_gateway, running_pipeline
from benchmarks.prism_real.clients import Counts, counted
from functions.serving.settings import Dispatch
from gateway.client.client import GatewayClient
from gateway.client.errors import GatewayClientError
from gateway.client.state import read_gateway, read_password
from moe.manifest import INGRESS
from placement.cluster import make_cluster
from placement.heterogeneous import Profile, Seen, expert_bytes, places_of, planned
from placement.moves.cluster import deployed, places_now
from placement.moves.coordinator import Coordinator
from placement.moves.errors import MoveError
from placement.moves.managers import Managers, NodeSettings, read_feed_token
from smoe.commands.rebalance import decided
from smoe.deployment import DeploymentSettings
from smoe.errors import SmoeError
from smoe.parity import compare_with_whole_model
from traces import catalog, prompts, scale
from traces.model import Trace
from traces.results import RequestRecord

NODES = ("a", "b")
TASKS = ("gsm8k", "humaneval")
MEMORY_PART = 2 / 3
"""Part of all experts that each node has memory for."""
POLICY, STILL = "smoe", "still"
MAX_WORDS = 24
LOOK_S = 2.0
HORIZON_S = 300.0
"""For how long a new place is expected to hold (Eq. (4))."""
STOP_TIMEOUT_S = 120.0
STATISTICS = 2
"""Intervals of placement that the ingresses' statistics reach back: longer than one, as few calls are noise."""
WARM_TEXTS = 8


@dataclass(frozen=True)
class Setting:
    """How it is run. Seconds are of the clock; rates of each node."""

    seconds: float
    mean_rps: float
    slo_factor: float
    window_s: float
    every_s: float
    cpu_scale: float
    mbit: float
    dispatch: str
    seed: int


@dataclass
class Timeline:
    """What happened, seconds from the beginning of the run."""

    began_s: float = field(default_factory=time.monotonic)
    decisions: list[dict[str, Any]] = field(default_factory=list)
    reports: list[TickReport] = field(default_factory=list)
    looks: list[tuple[float, Counts, dict[str, int]]] = field(default_factory=list)
    """Moment, what the ingresses had counted, expert replicas by node."""

    def now_s(self) -> float:
        return time.monotonic() - self.began_s


class Stage:
    """The pipeline on its nodes."""

    def __init__(self, served: RunningPipeline, setting: Setting) -> None:
        self.state, self.directory, manifest = served.gateway.state, served.directory, served.manifest
        self.client, self.manifest = served.client, manifest
        self.coordinator = Coordinator(served.gateway.connect, manifest, self.state)
        self.shape = (manifest.layers, len(manifest.experts(0)))
        size, bytes_per_s = expert_bytes(manifest), setting.mbit * 125_000
        room = math.ceil(MEMORY_PART * self.shape[0] * self.shape[1]) * size
        self.profile = Profile(
            NODES, make_cluster([1, 1], [room, room], load_bytes_per_s=bytes_per_s, bytes_per_s=bytes_per_s)
        )
        self._place()
        self.addresses = served.addresses(NODES)
        """The ingresses, in order of nodes."""

    def _place(self) -> None:
        """Ingress and segments on every node, experts where Prism puts them when all are called equally often."""
        both = dict.fromkeys(NODES, 1)
        target: dict[str, Mapping[str, int]] = {self.manifest.function_name(INGRESS): both}
        target |= {self.manifest.function_name(segment.id): both for segment in self.manifest.segments}
        equal = Seen(np.ones((len(NODES), *self.shape)), HORIZON_S)
        target |= places_of(planned(equal, self.profile, self.manifest), self.profile, self.manifest)
        self.coordinator.move(target)

    def experts_by_node(self) -> dict[str, int]:
        """Ready replicas of experts on each node."""
        replicas, count_of = self.client.replicas(), dict.fromkeys(NODES, 0)
        for layer in range(self.manifest.layers):
            for expert in self.manifest.experts(layer):
                for one in replicas.get(self.manifest.function_name(expert.id), []):
                    count_of[one["node"]] += one["state"] == "ready"
        return count_of


def manager_pid(client: GatewayClient, state: Path, node: str) -> int:
    """Process of the node's weights manager, found by the port that the feed names. Raises SmoeError."""
    address = client.replicas()[f"weights-{node}"][0]["address"]
    pid = listening(int(read_gateway(state)["pid"])).get(int(address.rsplit(":", 1)[1]))
    if pid is None:
        raise SmoeError(f"nobody listens on {address}, where the manager of node {node} is to be")
    return pid


@contextmanager
def running(setting: Setting, folder: Path) -> Iterator[Stage]:
    """Gateway, managers, pipeline. Ends with the block."""
    environment = {"smoe_dispatch": setting.dispatch, "smoe_statistics_window": f"{STATISTICS * setting.every_s:g}"}
    cores = max(1, math.ceil(1 / setting.cpu_scale))
    deployment = DeploymentSettings(
        cpu_cores=6.0, ingress_cpu_cores=cores, ingress_concurrency=512, extra_environment=environment
    )
    gateway = local_gateway(folder / "state", cpu_scale=setting.cpu_scale, machines=NODES, standbys=4)
    memory = NodeSettings(link_bytes_per_s=setting.mbit * 125_000)
    with running_pipeline(gateway, deployment, memory=memory) as served:
        yield Stage(served, setting)


def requests_of(setting: Setting, data: Path | None) -> list[tuple[Trace, list[str]]]:
    """By node: arrivals, and texts of its task until half of the time, of the other's afterwards."""
    texts = [prompts.load_prompts(catalog.text_folder(data), MAX_WORDS, (task,)).texts for task in TASKS]
    by_node = []
    for node in range(len(NODES)):
        hour = catalog.bursty_hour(data, "uniform", setting.seed + node)
        trace = scale.fit(hour, setting.seconds, setting.mean_rps, setting.seed + node)
        rng = np.random.default_rng((setting.seed, node))
        task = [(node + int(at_s > setting.seconds / 2)) % len(TASKS) for at_s in trace.arrival_s]
        by_node.append((trace, [texts[one][int(rng.integers(len(texts[one])))] for one in task]))
    return by_node


class Changing:
    """What sizes and moves experts while requests are served: controller and placement, each in a thread."""

    def __init__(self, stage: Stage, setting: Setting, slo_s: float, timeline: Timeline) -> None:
        self._stage, self._setting, self._timeline = stage, setting, timeline
        self._controller, self._window_s = build_controller(
            ControllerSettings(
                gateway_url=stage.client.url,
                manifest_dir=stage.directory,
                password=read_password(stage.state),
                policy=POLICY,
                policy_settings={"cpu_scale": setting.cpu_scale},
                space=ConfigurationSpace(gpu_shares=()),
                interval_s=setting.window_s,
                slo_s=slo_s,
                scale_segments=False,
            )
        )

    @contextmanager
    def at_work(self) -> Iterator[None]:
        stop, ticks = threading.Event(), controlling(self._controller, self._setting.window_s, self._window_s)
        with ticks as self._timeline.reports, ThreadPoolExecutor(1) as pool:
            placing = pool.submit(self._place, stop)
            try:
                yield
            finally:
                stop.set()
                placing.result(STOP_TIMEOUT_S)

    def _place(self, stop: threading.Event) -> None:
        """A decision every interval; at three quarters a move whose receiving manager is killed."""
        killed = False
        while not stop.wait(self._setting.every_s):
            begun_s, report = self._timeline.now_s(), dict[str, Any]()
            try:
                if begun_s >= 0.75 * self._setting.seconds and not killed:
                    killed, report = True, self._move_and_kill()
                else:
                    stage = self._stage
                    report = decided(
                        stage.client, stage.coordinator, stage.profile, stage.manifest, HORIZON_S, "improved", False
                    )
            except (SmoeError, GatewayClientError, MoveError) as error:
                report = {"moved": False, "error": str(error)}
            self._timeline.decisions.append({"at_s": round(begun_s, 2), **report})

    def _move_and_kill(self) -> dict[str, Any]:
        """Layer 0's experts go to ``a`` and then, all of them, to ``b``, whose manager dies while it copies."""
        stage = self._stage
        places = places_now(stage.client, deployed(stage.client, stage.manifest.name).deployments)
        names = [stage.manifest.function_name(expert.id) for expert in stage.manifest.experts(0)]
        stage.coordinator.move({name: {"a": max(places[name].values())} for name in names})
        target = {name: {"b": max(places[name].values())} for name in names}
        pid, struck = manager_pid(stage.client, stage.state, "b"), threading.Event()
        with ThreadPoolExecutor(1) as pool:
            moving = pool.submit(stage.coordinator.move, target)
            with closing(Managers(stage.client, read_feed_token(stage.state))) as managers:
                while not moving.done() and not struck.wait(0.01):
                    with suppress(SmoeError, GatewayClientError, MoveError):
                        if managers.held("b")["unfinished"]:
                            os.kill(pid, signal.SIGKILL)
                            struck.set()
            moved = moving.result()
        return {"moved": True, "moved_s": round(moved.settled_s, 3), "manager_killed": struck.is_set()}


def replay(
    stage: Stage, asked: list[tuple[Trace, list[str]]], timeline: Timeline, what: str
) -> list[list[RequestRecord]]:
    """Every node's requests at once, and a look at the counters every :data:`LOOK_S`; records by node."""
    with ExitStack() as stack:
        senders = [stack.enter_context(ReplayProcess(f"http://{address}/", SEED)) for address in stage.addresses]
        pool = stack.enter_context(ThreadPoolExecutor(len(senders)))
        show_progress = stack.enter_context(progress(max(trace.duration_s for trace, _ in asked)))
        timeline.began_s = time.monotonic()
        parts = [pool.submit(sender.replay, *given) for sender, given in zip(senders, asked, strict=True)]
        while not all(part.done() for part in parts):
            time.sleep(LOOK_S)
            moment = timeline.now_s()
            timeline.looks.append((moment, counted(stage.addresses, stage.shape), stage.experts_by_node()))
            show_progress(what, moment)
        return [part.result()[1].records for part in parts]


def latencies(records: list[list[RequestRecord]]) -> tuple[np.ndarray, np.ndarray, int]:
    """(moments at which requests were due [requests], seconds from then to their answers [requests], requests without
    one)."""
    every = [one for rows in records for one in rows]
    rows = [
        (one.scheduled_s, one.sent_s + one.latency_s)
        for one in every
        if one.outcome == "ok" and one.latency_s is not None and one.sent_s is not None
    ]
    due, ended = np.array(rows).reshape(-1, 2).T
    return due, ended - due, len(every) - len(rows)


def local_over_time(timeline: Timeline) -> list[tuple[float, float | None]]:
    """Part of expert calls that stayed on their node, between two looks."""
    ratios: list[tuple[float, float | None]] = []
    for (_, before, _), (at_s, now, _) in zip(timeline.looks, timeline.looks[1:], strict=False):
        part = (now - before).local_ratio
        ratios.append((round(at_s, 2), None if math.isnan(part) else round(part, 4)))
    return ratios


def draw(
    timeline: Timeline, due_s: np.ndarray, latency_s: np.ndarray, slo_s: float, setting: Setting, file: Path
) -> None:
    """Latency of each request (``latency_s`` [requests] by ``due_s`` [requests]), where experts are, local calls, and
    what happened when."""
    events = [(setting.seconds / 2, "tasks change nodes", "black", "-")]
    for decision in timeline.decisions:
        if decision["moved"]:
            killed = decision.get("manager_killed", False)
            colour, words = ("tab:red", "move, manager killed") if killed else ("tab:orange", "move")
            events.append((decision["at_s"], words, colour, ":"))
    with picture(file, 3, 1, figsize=(10, 8), sharex=True) as (_, (top, middle, bottom)):
        top.plot(due_s, 1000 * latency_s, ".", markersize=3, color="tab:blue")
        top.axhline(1000 * slo_s, color="tab:red", linewidth=1, label=f"SLO {1000 * slo_s:.0f} ms")
        top.set(yscale="log", ylabel="ms, each request")
        moments = [at_s for at_s, _, _ in timeline.looks]
        for node, colour in zip(NODES, ("tab:green", "tab:purple"), strict=True):
            middle.step(moments, [counts[node] for _, _, counts in timeline.looks], color=colour, label=f"node {node}")
        middle.set(ylabel="ready replicas of experts", ylim=(0, None))
        bottom.plot(*np.array(local_over_time(timeline), dtype=np.float64).T, color="tab:grey")
        bottom.set(ylabel="local part of expert calls", ylim=(0, 1), xlabel="seconds")
        labelled: set[str] = set()
        for at_s, words, colour, style in events:
            for axis in (top, middle, bottom):
                new = axis is top and words not in labelled
                axis.axvline(at_s, color=colour, linestyle=style, linewidth=1, label=words if new else None)
            labelled.add(words)
        top.legend(fontsize=8, loc="upper left")
        middle.legend(fontsize=8, loc="upper left")


def show(result: Mapping[str, Any]) -> None:
    heads = ("run", "requests", "failed", "P50 ms", "P95 ms", "P95/SLO", "local calls", "moves", "orders")
    rows = [
        (
            name, part["requests"], part["failed"], f"{part['p50_ms']:.0f}", f"{part['p95_ms']:.0f}",
            f"{part['p95_ms'] / result['slo_ms']:.2f}", f"{part['local']:.0%}", part["moves"], part["orders"],
        )
        for name, part in result["plays"].items()
    ]  # fmt: skip
    print_table(f"everything at once, two nodes; SLO: P95 within {result['slo_ms']:.0f} ms", heads, rows, width=120)


def summary(records: list[list[RequestRecord]], timeline: Timeline) -> dict[str, Any]:
    """Figures of one run."""
    _, latency_s, failed = latencies(records)
    local = (timeline.looks[-1][1] - timeline.looks[0][1]).local_ratio
    return {
        "requests": sum(len(rows) for rows in records),
        "failed": failed,
        "p50_ms": round(1000 * float(np.median(latency_s)), 1),
        "p95_ms": round(1000 * float(np.quantile(latency_s, 0.95)), 1),
        "local": round(local, 4),
        "moves": sum(bool(decision["moved"]) for decision in timeline.decisions),
        "orders": sum(len(report.applied) for report in timeline.reports),
    }


@benchmark
@click.option("--seconds", default=120.0, type=click.FloatRange(30), help="Length of a run.")
@click.option("--mean-rps", default=1.5, type=click.FloatRange(0.1), help="Requests/s of each node.")
@click.option("--slo-factor", default=4.0, help="SLO over a warm prompt's time through the nodes.")
@click.option("--interval", "window_s", default=2.0, type=click.FloatRange(0.5), help="Seconds between decisions.")
@click.option("--every", "every_s", default=20.0, type=click.FloatRange(2), help="Seconds between placements.")
@click.option("--cpu-scale", default=0.03, help="Real cores per configured core.")
@click.option("--mbit", default=200.0, type=click.FloatRange(1), help="Mbit/s between memories.")
@click.option("--dispatch", default="aebs", type=click.Choice(get_args(Dispatch)), help="Rule of ingresses.")
@data_option
@out_option(None, "Folder for the picture.")
@seed_option
def main(data: Path | None, out: Path | None, **options: Any) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    torch.set_num_threads(1)
    setting, timelines = Setting(**options), {"all at once": Timeline(), STILL: Timeline()}
    asked, records = requests_of(setting, catalog.data_folder(data)), dict[str, list[list[RequestRecord]]]()
    with run_folder("smoe-together-") as folder, running(setting, folder) as stage:
        texts = asked[0][1][:WARM_TEXTS]
        parity = compare_with_whole_model(stage.client, stage.manifest.name, stage.directory, texts)
        slo_s = setting.slo_factor * parity.unloaded_p50_s
        for name, timeline in timelines.items():
            with nullcontext() if name == STILL else Changing(stage, setting, slo_s, timeline).at_work():
                records[name] = replay(stage, asked, timeline, name)
        after = compare_with_whole_model(stage.client, stage.manifest.name, stage.directory, texts)
    runs = {name: summary(records[name], timelines[name]) for name in timelines}
    first = timelines["all at once"]
    if out is not None:
        due_s, latency_s, _ = latencies(records["all at once"])
        draw(first, due_s, latency_s, slo_s, setting, out / "together.png")
    one = runs["all at once"]
    result = {
        "failed": sum(part["failed"] for part in runs.values()),
        **{name: one[name] for name in ("moves", "orders", "p95_ms")},
        "p95_over_slo": round(one["p95_ms"] / 1000 / slo_s, 4),
        "still_p95_ms": runs[STILL]["p95_ms"],
        "max_rel_err": after.max_rel_err,
        "slo_ms": round(1000 * slo_s, 1),
        "plays": runs,
        "decisions": first.decisions,
        "local_over_time": local_over_time(first),
        "settings": options,
    }
    show(result)
    print_result(result)


if __name__ == "__main__":
    main()
