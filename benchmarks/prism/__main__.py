"""Placement on heterogeneous machines: ``python -m benchmarks.prism --routing FOLDER [--out FOLDER]``.

Prism's set-up replayed in simulation (``benchmarks.placement.replay_log``): three nodes with 1, 1 and 2 GPUs of 40 GB
(30 % of the memory for DeepSeek-V2-Lite's size, 70 % for Mixtral's), 500 Mbit/s, a task for each node, Poisson
arrivals. Everything timed in requests is simulated; only planning times are measured. Plans come from one half of a
task's prompts, requests are the other half. Parts:

* ``table``: Table II's rows, mean latency by node and in all, over several seeds, with EPLB without second copies on a
  node and a plan made with hindsight; rows of OLMoE and Mixtral are marked as not comparable with the paper's (their
  tokens are drawn from three logged layers' counts per domain, requests and history from the same shares);
* ``spread``: V2-Lite's row again with the tasks in every order, other clusterings, and prompts of one length;
* ``shift``: tasks change nodes in mid-run (Figs. 6, 7): local-compute ratio over time and latency with and without
  migration, every method under the same Eq. (4); pictures with ``--out``;
* ``optimum``: how far Algorithms 1 and 2, made total, and the improved plan are above the optimum of Eq. (2);
* ``scale``: 4 to 256 GPUs at two loads and three bandwidths (Fig. 8), and the time to plan; 64 experts × 61 layers.

Costs of computing are set from one A100's data sheet, those of a message are a guess (``--message-ms``); the result
is also given for other guesses. The real run with network namespaces is ``benchmarks.prism_real``. The last line is one
JSON object.
"""

from __future__ import annotations

import time
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.harness.options import PRESENT, benchmark, out_option
from benchmarks.harness.report import picture, print_result, print_table
from benchmarks.placement.replay_log import PlanChange, Replay, Requests, replay
from benchmarks.prism.comparison import (
    BIN_S,
    GPUS,
    MBIT,
    METHODS,
    OURS,
    SIZES,
    Planner,
    cluster_for,
    costs_for,
    planners,
    served,
    show_spread,
    show_table,
    spread,
    still,
    table_rows,
)
from benchmarks.prism.workloads import TASKS, Workload, counted, drawn, lite
from placement.cluster import Cluster, local_ratio, make_cluster, remote_calls
from placement.layout import Floats
from placement.migration import Scale, decide
from placement.prism import plan

INTERVAL_S = 300.0
TARGETS = {"below_eplb": 0.306, "over_optimum": 1.02, "plan_s": 1.0}


def plans_over_time(
    planner: Planner, log: Requests, first: Floats, cluster: Cluster, size: int, call_s: float, window_s: float
) -> list[PlanChange]:
    """Plans by Eq. (4) every interval, from what arrived since the last change of plan (Section IV-A) or, if that is
    longer, in the last ``window_s``. ``first`` [nodes, layers, experts]: tokens that the first plan is made from."""
    nodes, layers, experts = first.shape
    changes = still(planner(first, cluster, size, None))
    since, at = 0.0, INTERVAL_S
    while at < log.arrival_s[-1]:
        start = max(since, at - window_s)
        frequency = log.frequency(nodes, layers, experts, (log.arrival_s >= start) & (log.arrival_s < at))
        candidate = planner(frequency, cluster, size, changes[-1].plan)
        verdict = decide(changes[-1].plan, candidate, cluster, frequency, size, Scale(call_s, at - start, INTERVAL_S))
        if verdict.worth:
            changes.append(PlanChange(at + verdict.move_s, candidate))
            since = at
        at += INTERVAL_S
    return changes


def shift(work: Workload, mean_s: float, message_ms: float, mbit: float, seed: int) -> dict[str, Any]:
    """200 requests a node of one task, then 200 of the next node's; the first plans know all tasks mixed."""
    size, cluster, costs = SIZES[work.name][0], cluster_for(work.name, GPUS, mbit), costs_for(work.name, message_ms)
    halves = [served(work, np.roll(np.arange(TASKS), -turn), 200, mean_s, seed + turn)[0] for turn in (0, 1)]
    changed_s = float(halves[0].arrival_s[-1])
    log = _joined(halves[0], halves[1], changed_s)
    past = [prompts[: len(prompts) // 2] for prompts in work.prompts]
    mixed = np.tile(counted(past, work.experts).sum(axis=0), (TASKS, 1, 1))
    bins = int(log.arrival_s[-1] / BIN_S) + 1
    call_s = 2 * costs.token_bytes / (mbit * MBIT)
    result: dict[str, Any] = {"changed_s": round(changed_s, 1), "bin_s": BIN_S}
    every = planners(seed)
    cases = [(name, name, 0.0) for name in ("Uniform", "Redundance", OURS)]
    cases += [(f"{name}, migrating", name, np.inf) for name in METHODS[2:]]
    cases += [("Prism, improved, migrating by the last 10 min", OURS, 600.0)]
    for name, method, window_s in cases:
        changes = still(every[method](mixed, cluster, size, None))
        if window_s:
            changes = plans_over_time(every[method], log, mixed, cluster, size, call_s, window_s)
        done = replay(log, changes, cluster, costs, bin_s=BIN_S, bins=bins)
        result[name] = {
            "latency_s": round(float(done.latency_s.mean()), 4),
            "local": round(float(done.local.sum() / done.calls.sum()), 4),
            "migrations_s": [round(change.active_s, 1) for change in changes[1:]],
            "local_over_time": [None if np.isnan(part) else round(float(part), 4) for part in _smoothed(done)],
        }
    return result


def _smoothed(done: Replay) -> Floats:
    """Local ratio over five bins around each."""
    window = np.ones(5)
    local, calls = (np.convolve(part.sum(axis=0), window, mode="same") for part in (done.local, done.calls))
    ratio: Floats = np.divide(local, calls, out=np.full(len(calls), np.nan), where=calls > 0)
    return ratio


def _joined(one: Requests, two: Requests, later_s: float) -> Requests:
    """``two`` after ``one``."""
    moved = replace(
        two,
        arrival_s=two.arrival_s + later_s,
        first_pass=two.first_pass[1:] + one.first_pass[-1],
        start=two.start[1:] + one.start[-1],
    )
    names = [column.name for column in fields(Requests)]
    return Requests(*(np.concatenate((getattr(one, name), getattr(moved, name))) for name in names))


def synthetic_frequency(nodes: int, layers: int, experts: int, rng: np.random.Generator) -> Floats:
    """Log-normal popularity [nodes, layers, experts], half of its spread common to all nodes."""
    common = rng.standard_normal((1, layers, experts))
    return np.exp(common + rng.standard_normal((nodes, layers, experts))) * rng.uniform(0.2, 5.0, (nodes, 1, 1))


def over_optimum(seed: int) -> dict[str, dict[str, float]]:
    """Remote calls over the optimum of Eq. (2) on random clusters, most of them tight."""
    rng = np.random.default_rng(seed)
    ratios: dict[str, list[float]] = {"published": [], "improved": []}
    for _ in range(60):
        gpus = rng.integers(1, 4, size=int(rng.integers(2, 6))).tolist()
        layers, experts = int(rng.integers(2, 27)), int(rng.choice([8, 16, 64]))
        parts = rng.dirichlet(np.full(sum(gpus), 3.0)) * layers * experts * rng.choice([1.02, 1.1, 1.3, 1.8])
        slots = np.ceil(parts).astype(int)
        cluster = make_cluster(gpus, [int(s) for s in slots], load_bytes_per_s=1.0, bytes_per_s=1.0)
        frequency = synthetic_frequency(len(gpus), layers, experts, rng)
        least = float(remote_calls(plan(frequency, cluster, 1, method="exact"), cluster, frequency).sum())
        for name, values in ratios.items():
            calls = remote_calls(plan(frequency, cluster, 1, method=name), cluster, frequency).sum()  # type: ignore[arg-type]
            values.append(float(calls) / least if least > 0 else 1.0)
    return {name: {"mean": float(np.mean(part)), "worst": float(np.max(part))} for name, part in ratios.items()}


def plan_seconds(seed: int) -> dict[str, dict[str, float]]:
    """Processor seconds to plan 61 layers × 64 experts, by nodes and method; 1.3 places an expert."""
    rng = np.random.default_rng(seed)
    seconds_of: dict[str, dict[str, float]] = {}
    for nodes in (3, 12):
        gpus = GPUS * (nodes // 3)
        frequency = synthetic_frequency(nodes, 61, 64, rng)
        cluster = make_cluster(gpus, int(1.3 * 61 * 64 / sum(gpus)), load_bytes_per_s=1.0, bytes_per_s=1.0)
        seconds_of[f"{nodes} nodes"] = {}
        for method in ("published", "improved", "exact"):
            began = time.process_time()
            plan(frequency, cluster, 1, method=method)
            seconds_of[f"{nodes} nodes"][method] = round(time.process_time() - began, 3)
    return seconds_of


def scaling(work: Workload, message_ms: float, seed: int) -> list[dict[str, Any]]:
    """Fig. 8: mean latency by GPUs, load and bandwidth under the improved plan."""
    size, costs = SIZES[work.name][0], costs_for(work.name, message_ms)
    rows = []
    for gpus in (4, 16, 64, 256):
        cluster = cluster_for(work.name, GPUS * (gpus // 4), 500.0)
        tasks = np.arange(cluster.nodes) % TASKS
        placed, spent = None, 0.0
        for mean_s, mbit in ((15.0, 500.0), (8.0, 500.0), (8.0, 100.0), (8.0, 1000.0)):
            log, history = served(work, tasks, max(12, 240 // cluster.nodes), mean_s, seed)
            machine = cluster_for(work.name, GPUS * (gpus // 4), mbit)
            if placed is None:
                frequency = counted(history, work.experts)[tasks]
                began = time.process_time()
                placed = plan(frequency, machine, size)
                spent = time.process_time() - began
            done = replay(log, still(placed), machine, costs, bin_s=BIN_S, bins=1)
            figures = {
                "latency_s": round(float(done.latency_s.mean()), 4),
                "local": round(float(done.local_ratio[0]), 4),
                "expected_local": round(float(local_ratio(placed, machine, frequency).mean()), 4),
                "plan_s": round(spent, 3),
            }
            rows.append({"gpus": gpus, "arrival_s": mean_s, "mbit": mbit, **figures})
    return rows


def draw(shifted: dict[str, Any], file: Path) -> None:
    """Fig. 6 and 7 (a): local ratio over time."""
    with picture(file, figsize=(8, 4)) as (_, axes):
        for name, part in shifted.items():
            if isinstance(part, dict):
                minutes = np.arange(len(part["local_over_time"])) * shifted["bin_s"] / 60
                values = np.array(part["local_over_time"], dtype=np.float64)
                axes.plot(minutes, values, label=name, linestyle="-" if "migrating" in name else "--")
        axes.axvline(shifted["changed_s"] / 60, color="grey", linewidth=1)
        axes.set(xlabel="minutes (line: tasks change nodes)", ylabel="local-compute ratio", ylim=(0, 1))
        axes.legend(fontsize=7, ncol=2, loc="lower right")


def tables(
    lite_work: Workload, olmoe: Workload, mixtral: Workload, message_ms: float, seeds: range
) -> dict[str, dict[str, Any]]:
    """Table 2 for each workload and mean time between arrivals, shown and by title."""
    table = {}
    for title, work, mean_s in (
        ("V2-Lite, clustered prompts, 10 s", lite_work, 10.0),
        ("V2-Lite size, OLMoE domains, 10 s", olmoe, 10.0),
        ("V2-Lite size, OLMoE domains, 20 s", olmoe, 20.0),
        ("Mixtral, domains, 10 s", mixtral, 10.0),
        ("Mixtral, domains, 20 s", mixtral, 20.0),
    ):
        table[title] = table_rows(work, mean_s, message_ms, 500.0, seeds)
        show_table(title, table[title], comparable=work is lite_work)
    return table


@benchmark
@click.option("--routing", type=PRESENT, required=True, help="Folder of routing logs.")
@out_option(None, "Folder for pictures.")
@click.option("--message-ms", default=1.0, help="Milliseconds of a message, besides its bytes.")
@click.option("--seeds", default=3, help="Seeds, from 0 on; results are means.")
def main(routing: Path, out: Path | None, message_ms: float, seeds: int) -> None:
    lite_work, olmoe = lite(routing, 0), drawn(routing, "olmoe", 26, 150, 0)
    table = tables(lite_work, olmoe, drawn(routing, "mistral", 32, 150, 0), message_ms, range(seeds))
    ranges = spread(routing, lite_work, message_ms)
    show_spread(ranges)
    guesses = {
        f"message {ms:g} ms, {mbit:g} Mbit/s": table_rows(lite_work, 10.0, ms, mbit, range(1))["below_eplb"]
        for ms, mbit in ((0.2, 500.0), (5.0, 500.0), (message_ms, 100.0), (message_ms, 1000.0))
    }
    shifted = {
        "V2-Lite": shift(lite_work, 10.0, message_ms, 500.0, 0),
        "OLMoE": shift(olmoe, 20.0, message_ms, 500.0, 0),
    }
    if out is not None:
        for name, comparison in shifted.items():
            draw(comparison, out / f"prism-shift-{name.lower()}.png")
    over, seconds, grown = over_optimum(0), plan_seconds(0), scaling(lite_work, message_ms, 0)
    heads = ("gpus", "arrival_s", "mbit", "latency_s", "local", "plan_s")
    print_table("Fig. 8, V2-Lite", heads, [[row[head] for head in heads] for row in grown], width=120)
    below = table["V2-Lite, clustered prompts, 10 s"]["below_eplb"]
    result = {
        "below_eplb": below,
        "below_eplb_at": guesses,
        "spread": ranges,
        "over_optimum": over,
        "plan_s": seconds,
        "table": table,
        "shift": shifted,
        "scale": grown,
        "met": {
            "below_eplb": below >= TARGETS["below_eplb"],
            "over_optimum": over["improved"]["mean"] <= TARGETS["over_optimum"],
            "plan_s": seconds["3 nodes"]["improved"] <= TARGETS["plan_s"],
        },
    }
    print_result(result)


if __name__ == "__main__":
    main()
