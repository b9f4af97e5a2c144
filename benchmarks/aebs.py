"""Dispatch by activated experts: ``python -m benchmarks.aebs [--routing FOLDER]``.

Time of one choice of replicas on one core (512 tokens × top-8 × 256 experts × 16 nodes, and a curve over tokens and
nodes), how far each rule's fullest node is above the least possible (exact, by maximum flow) on batches of those sizes
and on small tables built to mislead a greedy, and Janus's Fig. 11: activated experts of the fullest less those of the
emptiest node, for DeepSeek-V2's size and, where the log is given, for real batches of DeepSeek-V2-Lite. Replicas are
placed by ``placement.janus`` from other tokens than those dispatched. Expert choices are synthetic
(``benchmarks.placement.synthetic_routing``) except in the rows named real. The last line is one JSON object.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from benchmarks.harness.options import benchmark, routing_option, seed_option
from benchmarks.harness.report import print_result, print_table
from benchmarks.placement.activations import activations_of
from benchmarks.placement.oracles import least_fullest
from benchmarks.placement.synthetic_routing import REAL_EXPERTS, Choices, real, synthetic
from benchmarks.replica_rules import RULES, ReplicaRule, activated_by_node
from functions.dispatch.aebs import ActivatedExpertBalance, Places, ReplicaTable, replica_table
from placement.janus import Nodes, place

Chooser = Callable[[Choices, Places], object]
EXPERTS, TOP_K, TOKENS, NODES = 256, 8, 512, 16
CURVE_TOKENS, CURVE_NODES = (64, 128, 256, 512, 1024, 2048, 4096), (8, 16, 32, 64)
SPARE = 1.25
"""Slots per expert."""
BATCHES = (16, 64, 128, 256, 512)
FIG_11 = {"experts": 160, "k": 6, "nodes": 8}
TARGET_US, TARGET_OVER = 50.0, 1.01


def table_for(choices: Choices, experts: int, nodes: int) -> ReplicaTable:
    """Replicas placed from the first layer of ``choices`` [tokens, layers, k]."""
    statistics = activations_of(choices[:, :1], experts)
    slots = int(np.ceil(SPARE * experts / nodes))
    return replica_table(place(statistics.tokens, statistics.together, Nodes(nodes, slots)).held[0], experts)


def choosers(table: ReplicaTable) -> dict[str, Chooser]:
    balanced = {
        "aebs": ActivatedExpertBalance(table).choose,
        "aebs, as published": ActivatedExpertBalance(table, repair=False).choose,
    }
    return {**balanced, **{rule: ReplicaRule(table, rule).choose for rule in RULES}}


def timed_us(choose: Chooser, batches: list[Choices], repeats: int) -> tuple[float, float]:
    """Median microseconds of a call, and processor time per call."""
    out = np.empty(batches[0].shape, dtype=np.int32)
    for batch in batches:
        choose(batch, out)
    times, began_cpu = [], time.thread_time()
    for at in range(repeats):
        batch = batches[at % len(batches)]
        began = time.perf_counter_ns()
        choose(batch, out)
        times.append(time.perf_counter_ns() - began)
    return float(np.median(times)) / 1000, (time.thread_time() - began_cpu) * 1e6 / repeats


def loads(table: ReplicaTable, choose: Chooser, batch: Choices) -> NDArray[np.int64]:
    out = np.empty(batch.shape, dtype=np.int32)
    choose(batch, out)
    return activated_by_node(out, table)


def optimum(table: ReplicaTable, batch: Choices) -> int:
    start = table.start
    hosts = [table.node[start[e] : start[e + 1]].tolist() for e in np.unique(batch)]
    return least_fullest(hosts, table.nodes)


def misleading(seed: int) -> Iterator[tuple[ReplicaTable, Choices]]:
    """Small tables with one to three replicas an expert at random nodes: few ways out, order matters."""
    rng = np.random.default_rng(seed)
    for _ in range(300):
        nodes, experts = int(rng.integers(3, 9)), int(rng.integers(6, 25))
        slots = np.full((nodes, experts), -1, dtype=np.int32)
        for expert in range(experts):
            slots[rng.choice(nodes, size=min(nodes, int(rng.integers(1, 4))), replace=False), expert] = expert
        yield replica_table(slots, experts), np.flatnonzero(rng.random(experts) < 0.7).reshape(-1, 1)


def over_optimum(cases: list[tuple[ReplicaTable, Choices]]) -> dict[str, tuple[float, float]]:
    """(mean, worst) of the fullest node over the least possible, by rule."""
    ratios: dict[str, list[float]] = {}
    for table, batch in cases:
        if batch.size:
            least = optimum(table, batch)
            for name, choose in choosers(table).items():
                ratios.setdefault(name, []).append(loads(table, choose, batch).max() / least)
    return {name: (float(np.mean(ratio)), float(np.max(ratio))) for name, ratio in ratios.items()}


def imbalance(table: ReplicaTable, choices: Choices) -> dict[str, dict[int, float]]:
    """Fig. 11: mean of fullest less emptiest node, by rule and batch size; the batches are cut from ``choices``."""
    gaps_of: dict[str, dict[int, float]] = {}
    for name, choose in choosers(table).items():
        for size in BATCHES:
            cuts = [choices[at : at + size] for at in range(0, min(len(choices) - size + 1, 40 * size), size)]
            gaps = [np.ptp(loads(table, choose, np.ascontiguousarray(cut))) for cut in cuts]
            gaps_of.setdefault(name, {})[size] = round(float(np.mean(gaps)), 2)
    return gaps_of


def curve(repeats: int, seed: int) -> tuple[dict[str, float], list[tuple[ReplicaTable, Choices]]]:
    """Median microseconds by "tokens x nodes", and the batches with their tables."""
    times, cases = {}, []
    drawn = synthetic("lognormal", 8192, 1, EXPERTS, TOP_K, seed)
    for nodes in CURVE_NODES:
        table = table_for(drawn[:4096], EXPERTS, nodes)
        choose = ActivatedExpertBalance(table).choose
        for tokens in CURVE_TOKENS:
            batches = [
                np.ascontiguousarray(drawn[4096 + at : 4096 + at + tokens, 0])
                for at in range(0, 4097 - tokens, max(tokens, 4096 // 8))
            ]
            times[f"{tokens}x{nodes}"] = round(timed_us(choose, batches, repeats)[0], 2)
            cases += [(table, batch) for batch in batches[:4]]
    return times, cases


def gap_rows(gaps: dict[str, dict[int, float]]) -> list[list[str]]:
    return [[name, *(f"{gap:.1f}" for gap in by_size.values())] for name, by_size in gaps.items()]


@benchmark
@routing_option
@click.option("--repeats", default=2000, help="Timed calls of each cell.")
@seed_option
def main(routing: Path | None, repeats: int, seed: int) -> None:
    sample = synthetic("lognormal", 4096 + 16 * TOKENS, 1, EXPERTS, TOP_K, seed)
    table = table_for(sample[:4096], EXPERTS, NODES)
    batches = [np.ascontiguousarray(sample[4096 + at : 4096 + at + TOKENS, 0]) for at in range(0, 16 * TOKENS, TOKENS)]
    timed = {name: timed_us(choose, batches, repeats) for name, choose in choosers(table).items()}
    times, cases = curve(repeats // 4, seed)
    usual = over_optimum([*cases, *((table, batch) for batch in batches)])
    hard = over_optimum(list(misleading(seed)))
    rows = [
        [name, *(f"{us:.1f}" for us in times_us), *(f"{value:.3f}" for value in usual[name] + hard[name])]
        for name, times_us in timed.items()
    ]
    heads = ["rule", "us p50", "us cpu", "over optimum: mean", "worst", "misleading tables: mean", "worst"]
    print_table(f"{TOKENS} tokens × top-{TOP_K} × {EXPERTS} experts × {NODES} nodes", heads, rows, width=130)
    grid = [[str(t), *(f"{times[f'{t}x{n}']:.1f}" for n in CURVE_NODES)] for t in CURVE_TOKENS]
    print_table("AEBS with repair, us p50", ["tokens", *(f"{n} nodes" for n in CURVE_NODES)], grid)
    drawn = synthetic("lognormal", 4096 + 16 * max(BATCHES), 1, FIG_11["experts"], FIG_11["k"], seed + 1)
    fig_11 = imbalance(table_for(drawn[:4096], FIG_11["experts"], FIG_11["nodes"]), drawn[4096:, 0])
    heads = ["rule", *(f"{size} tokens" for size in BATCHES)]
    title = "Fullest less emptiest node (Fig. 11)"
    print_table(f"{title}, synthetic, 160 experts, top-6, 8 nodes", heads, gap_rows(fig_11))
    fig_11_real = None
    if routing is not None:
        log, _ = real(routing)
        tokens = np.random.default_rng(seed).permutation(log[:, [12]])
        fig_11_real = imbalance(table_for(tokens[:40000], REAL_EXPERTS, 8), tokens[40000:, 0])
        print_table(f"{title}, real: DeepSeek-V2-Lite, its middle layer, 8 nodes", heads, gap_rows(fig_11_real))
    over = {name: round((usual[name][0] * len(cases) + hard[name][0] * 300) / (len(cases) + 300), 5) for name in usual}
    mean = max(round(usual["aebs"][0], 5), round(hard["aebs"][0], 5))
    result = {
        "us_p50": round(timed["aebs"][0], 2),
        "us_cpu": round(timed["aebs"][1], 2),
        "curve": times,
        "mean_over_optimum": mean,
        "worst_over_optimum": max(usual["aebs"][1], hard["aebs"][1]),
        "mean_over_optimum_by_rule": over,
        "misleading_by_rule": {name: round(value[0], 4) for name, value in hard.items()},
        "imbalance": fig_11,
        "imbalance_real": fig_11_real,
        "targets_met": timed["aebs"][0] <= TARGET_US and mean <= TARGET_OVER,
        "seed": seed,
    }
    print_result(result)


if __name__ == "__main__":
    main()
