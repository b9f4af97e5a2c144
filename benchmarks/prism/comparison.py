"""Prism's methods next to each other on one workload: mean latency by node, and how much it hangs on what was chosen.

Which task sits on which node, the clusters that stand for tasks and the prompts' lengths are choices of this benchmark,
not of Prism; :func:`spread` gives the range over them. *Hindsight* is the linear program of Eq. (2) over the very
requests that are replayed: what no planner of Eq. (2) can be expected to exceed by more than chance.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness.report import print_table
from benchmarks.placement.peers import eplb, redundance, smartmoe, uniform
from benchmarks.placement.replay_log import Costs, PlanChange, Requests, replay
from benchmarks.placement.synthetic_routing import Choices
from benchmarks.prism.workloads import TASKS, Workload, arrivals, counted, lite, requests
from placement.cluster import Cluster, PlanArray, make_cluster
from placement.layout import Floats
from placement.prism import plan

Planner = Callable[[Floats, Cluster, int, PlanArray | None], PlanArray]
GPUS = [1, 1, 2]
GPU_BYTES = 40e9
LITE_BYTES, MIXTRAL_BYTES = 3 * 2048 * 1408 * 2, 3 * 4096 * 14336 * 2
SIZES = {
    "DeepSeek-V2-Lite": (LITE_BYTES, 0.3, 2.6e9),
    "OLMoE": (LITE_BYTES, 0.3, 2.6e9),
    "Mixtral": (MIXTRAL_BYTES, 0.7, 3.2e9),
}
"""Bytes of an expert, part of a GPU's memory that is used, bytes of it that are not for experts."""
MBIT = 1e6 / 8
DISK_BYTES_PER_S = 2e9
LITE_COSTS = Costs(0.5e-3, 2e-6, 0.06e-3, 0.2e-6, 4096, 1e-3)
MIXTRAL_COSTS = Costs(0.6e-3, 4e-6, 0.3e-3, 1.5e-6, 8192, 1e-3)
BIN_S = 60.0
OURS, NOT_COMPARABLE = "Prism, improved", "not comparable"
METHODS = ("Uniform", "Redundance", "SmartMoE", "EPLB", "Prism, Alg. 1+2", "Prism, improved")
ONE_COPY, HINDSIGHT = "EPLB, one copy a node", "Prism, hindsight"
"""Further rows of the table: EPLB without second copies on the GPUs of one node, which serve nobody there; and the
plan made from the replayed requests."""
EQUAL_TOKENS = 32
"""Prompts of this length make tasks that differ in routing only."""
CLUSTERINGS = 5


def planners(seed: int) -> dict[str, Planner]:
    return {
        "Uniform": lambda f, c, b, _: uniform(c, f.shape[1], f.shape[2], b, seed),
        "Redundance": lambda f, c, b, _: redundance(c, f.shape[1], f.shape[2], b, seed),
        "SmartMoE": lambda f, c, b, _: smartmoe(c, f, b),
        "EPLB": lambda f, c, b, _: eplb(c, f, b),
        "Prism, Alg. 1+2": lambda f, c, b, before: plan(f, c, b, method="published", previous=before),
        "Prism, improved": lambda f, c, b, before: plan(f, c, b, previous=before),
    }


def cluster_for(model: str, gpus: list[int], mbit: float) -> Cluster:
    _, part, other = SIZES[model]
    return make_cluster(gpus, int(GPU_BYTES * part - other), load_bytes_per_s=DISK_BYTES_PER_S, bytes_per_s=mbit * MBIT)


def costs_for(model: str, message_ms: float) -> Costs:
    return replace(MIXTRAL_COSTS if model == "Mixtral" else LITE_COSTS, message_s=message_ms / 1000)


def still(placed: PlanArray) -> list[PlanChange]:
    return [PlanChange(0.0, placed)]


def served(
    work: Workload, tasks: NDArray[np.int64], count: int, mean_s: float, seed: int
) -> tuple[Requests, list[list[Choices]]]:
    """Requests of node n's task ``tasks[n]``, at most ``count`` a node, and the history [tasks] plans come from."""
    halves = [(prompts[: len(prompts) // 2], prompts[len(prompts) // 2 :]) for prompts in work.prompts]
    rng = np.random.default_rng(seed)
    times, node = arrivals(len(tasks), count, mean_s, seed)
    prompts = [halves[tasks[n]][1][int(rng.integers(len(halves[tasks[n]][1])))] for n in node]
    return requests(times, node, prompts, work.experts), [past for past, _ in halves]


def table_rows(
    work: Workload, mean_s: float, message_ms: float, mbit: float, seeds: range, order: Sequence[int] = range(TASKS)
) -> dict[str, Any]:
    """Mean seconds by node and in all for each method, mean over seeds, and the local ratio. ``order``: each node's
    task."""
    size, cluster = SIZES[work.name][0], cluster_for(work.name, GPUS, mbit)
    costs = costs_for(work.name, message_ms)
    by_method: dict[str, list[list[float]]] = {name: [] for name in (*METHODS, ONE_COPY, HINDSIGHT)}
    for seed in seeds:
        log, history = served(work, np.array(order), 200, mean_s, seed)
        frequency = counted(history, work.experts)[list(order)]
        plans = {name: planner(frequency, cluster, size, None) for name, planner in planners(seed).items()}
        plans[ONE_COPY] = eplb(cluster, frequency, size, one_a_node=True)
        replayed = log.frequency(TASKS, work.layers, work.experts, np.ones(len(log.arrival_s), dtype=np.bool_))
        plans[HINDSIGHT] = plan(replayed, cluster, size, method="exact")
        for name, placed in plans.items():
            done = replay(log, still(placed), cluster, costs, bin_s=BIN_S, bins=1)
            by_node = [float(done.latency_s[log.node == node].mean()) for node in range(TASKS)]
            by_method[name].append([*by_node, float(done.latency_s.mean()), float(done.local_ratio[0])])
    rows = {name: np.mean(values, axis=0).round(4).tolist() for name, values in by_method.items()}
    below = [1 - ours[3] / theirs[3] for ours, theirs in zip(by_method[OURS], by_method["EPLB"], strict=True)]
    return {
        "rows": rows,
        "below_eplb": _below(rows, OURS, "EPLB"),
        "below_one_copy": _below(rows, OURS, ONE_COPY),
        "hindsight_below_eplb": _below(rows, HINDSIGHT, "EPLB"),
        "algorithms_below_eplb": _below(rows, "Prism, Alg. 1+2", "EPLB"),
        "by_seed": below,
    }


def _below(rows: dict[str, list[float]], one: str, other: str) -> float:
    return round(1 - rows[one][3] / rows[other][3], 4)


def spread(routing: Path, work: Workload, message_ms: float) -> dict[str, Any]:
    """What the gain over EPLB is with V2-Lite's own routing when something else is chosen: every order of the tasks on
    the nodes, other clusterings, and prompts of one length in every order. Seed 0, a request each 10 s."""
    orders = list(itertools.permutations(range(TASKS)))

    def each(works: Sequence[Workload], every: Sequence[Sequence[int]]) -> dict[str, Any]:
        cells = [table_rows(one, 10.0, message_ms, 500.0, range(1), order) for one in works for order in every]
        names = ("below_eplb", "below_one_copy", "hindsight_below_eplb", "algorithms_below_eplb")
        slower = sum(cell["below_eplb"] < cell["algorithms_below_eplb"] for cell in cells)
        return {
            **{name: [min(cell[name] for cell in cells), max(cell[name] for cell in cells)] for name in names},
            "improved_slower_than_algorithms": f"{slower} of {len(cells)}",
        }

    return {
        "orders of the tasks": each([work], orders),
        "other clusterings": each([lite(routing, seed) for seed in range(CLUSTERINGS)], orders[:1]),
        f"prompts of {EQUAL_TOKENS} tokens": each([lite(routing, 0, EQUAL_TOKENS)], orders),
    }


def show_table(title: str, comparison: dict[str, Any], comparable: bool) -> None:
    """``comparable``: with the paper's table."""
    rows = [(name, *(f"{value:.2f}" for value in row[:4]), f"{row[4]:.1%}") for name, row in comparison["rows"].items()]
    rows += [(f"{OURS} below EPLB", *[""] * 3, f"{comparison['below_eplb']:.1%}", "" if comparable else NOT_COMPARABLE)]
    print_table(title, ("method", "node 1", "node 2", "node 3", "all", "local"), rows, width=120)


def show_spread(ranges: dict[str, Any]) -> None:
    rows = [
        (name, *(f"{low:.1%} to {high:.1%}" for low, high in list(row.values())[:4]), list(row.values())[4])
        for name, row in ranges.items()
    ]
    heads = ("V2-Lite, 10 s", "below EPLB", "below one copy", "hindsight below EPLB", "Alg. 1+2 below EPLB", "slower")
    print_table("Other choices of the benchmark", heads, rows, width=130)
