"""Replica counts and placement on like nodes: ``python -m benchmarks.placement [--eplb FILE] [--routing FOLDER]``.

Rows: DeepSeek-V3 (58×256), V2-Lite (26×64) and Mixtral (32×8) at the sizes of the usual peer, flat and hierarchical.
Next to ours stand EPLB's flat mode in NumPy (``benchmarks.placement.peers``), Janus's Algorithm 2 as published, and,
with ``--eplb``, the original ``eplb.py``. A row's statistics come from its first half of tokens; layouts are judged on
those for tokens and co-activation, and by dispatching batches of the second half for activated experts. Where a layout
has two replicas of an expert on one node, as EPLB's may, they count as one; ``by replica`` counts them as two. Choices
of experts are synthetic (``benchmarks.placement.synthetic_routing``) except in rows named real. ``moved`` is against
the layout of the same method for statistics of another part of the tokens. All run on one thread; ``ms`` is the median
processor time of the placement, ``statistics ms`` that of the sums it needs. Also the distance of Algorithm 2 and of
the local search from the optimum of Eq. (2) on small instances. The last line is one JSON object.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable
from dataclasses import asdict, astuple, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch

from benchmarks.harness.options import benchmark, routing_option, seed_option
from benchmarks.harness.report import print_result, print_table
from benchmarks.placement.activations import Activations, activations_of, tokens_of
from benchmarks.placement.oracles import coactivation_load, least_pairs, token_load
from benchmarks.placement.peers import balanced
from benchmarks.placement.synthetic_routing import Choices, Law, real, synthetic
from functions.dispatch.aebs import ActivatedExpertBalance, replica_table
from placement.janus import EFFORT, Nodes, Objective, place
from placement.layout import Held, arrivals, copies, once

Method = Callable[[Activations, Held | None], Held]
TOKENS = 4096
BATCH, BATCHES, JUDGED_LAYERS = 128, 16, 6
SMALL, SMALL_EFFORTS = 60, (0, EFFORT, 300, 2000)
"""Small instances, and the efforts at which they are compared with the optimum: 0 is Algorithm 2 as published."""
TARGET_OVER = 1.02


@dataclass(frozen=True)
class Size:
    """A model and a cluster."""

    model: str
    layers: int
    experts: int
    k: int
    expert_bytes: int
    nodes: Nodes
    expert_groups: int = 1

    @property
    def name(self) -> str:
        nodes = self.nodes
        kind = f"{self.expert_groups} groups on {nodes.groups}" if nodes.groups > 1 else "flat"
        return f"{self.model} {self.layers}×{self.experts}, {nodes.count * nodes.slots} on {nodes.count}, {kind}"


V3 = ("DeepSeek-V3", 58, 256, 8, 3 * 7168 * 2048)
LITE = ("V2-Lite", 26, 64, 6, 3 * 2048 * 1408 * 2)
MIXTRAL = ("Mixtral", 32, 8, 2, 3 * 4096 * 14336 * 2)
SIZES = (
    Size(*V3, Nodes(32, 9, 8), 8),
    Size(*V3, Nodes(64, 5, 8), 8),
    Size(*V3, Nodes(32, 9)),
    Size(*V3, Nodes(64, 5)),
    Size(*LITE, Nodes(8, 10)),
    Size(*LITE, Nodes(8, 10, 2), 8),
    Size(*MIXTRAL, Nodes(8, 2)),
)


@dataclass(frozen=True)
class Row:
    """One method on one size and law."""

    size: str
    law: str
    method: str
    ms: float
    """Processor time of the placement."""
    statistics_ms: float
    """Processor time of the statistics that it needs, summed from the tokens' choices: tokens of each expert, and for
    all but EPLB co-activations. An ingress sums them as it serves, so a placement finds them there."""
    tokens_mean: float
    """Fullest node's tokens over the mean node's, an expert's split evenly over the nodes that hold it: mean over
    layers, then the worst layer."""
    tokens_worst: float
    replicas_mean: float
    """As ``tokens_mean``, an expert's tokens split evenly over its replicas, also where two of them are on a node."""
    pairs: float
    """Fullest node's co-activation load, Eq. (1), over the ideal of all pairs apart: mean over layers."""
    activated: float
    """Activated experts of the fullest node after AEBS, mean over held-out batches."""
    twice: int
    moved_gb: float


def methods(size: Size, original: Any) -> dict[str, Method]:
    nodes, groups = size.nodes, size.expert_groups

    def placing(objective: Objective, **settings: Any) -> Method:
        same: dict[str, Any] = {"expert_groups": groups, "objective": objective, **settings}
        return lambda given, previous: place(given.tokens, given.together, nodes, previous=previous, **same).held

    by_name: dict[str, Method] = {
        "ours": placing("tokens-first"),
        "Algorithm 2 as published": placing("coactivation", effort=0),
        "Algorithm 2 + search": placing("coactivation"),
        "ours, 200 looks": placing("tokens-first", effort=200),
    }
    if nodes.groups == 1:
        by_name["EPLB in NumPy"] = lambda activations, _: balanced(activations.tokens, nodes.count, nodes.slots)
    if original is not None:
        by_name["EPLB"] = lambda activations, _: _original(original, activations, size)
    return by_name


def _original(module: Any, activations: Activations, size: Size) -> Held:
    nodes = size.nodes
    weight = torch.from_numpy(activations.tokens)
    groups = size.expert_groups if nodes.groups > 1 else 1
    flat, _, _ = module.rebalance_experts(weight, nodes.count * nodes.slots, groups, nodes.groups, nodes.count)
    held: Held = flat.numpy().reshape(size.layers, nodes.count, nodes.slots).astype(np.int32)
    return held


def timed_ms(work: Callable[[], Any], repeats: int) -> float:
    times = []
    work()
    for _ in range(repeats):
        began = time.process_time()
        work()
        times.append((time.process_time() - began) * 1000)
    return float(np.median(times))


def activated(held: Held, experts: int, choices: Choices) -> float:
    """Mean of the fullest node over held-out batches and some layers; no expert twice on a node."""
    counts = []
    for layer in np.linspace(0, len(held) - 1, JUDGED_LAYERS).astype(int):
        choose = ActivatedExpertBalance(replica_table(held[layer], experts)).choose
        out = np.empty((BATCH, choices.shape[2]), dtype=np.int32)
        for at in range(0, min(len(choices) - BATCH + 1, BATCH * BATCHES), BATCH):
            counts.append(choose(np.ascontiguousarray(choices[at : at + BATCH, layer]), out))
    return float(np.mean(counts))


def fullest_over_mean(held: Held, activations: Activations) -> np.ndarray:
    """[layers]: the fullest node's tokens over the mean node's."""
    load = token_load(held, activations.tokens)
    most: np.ndarray = load.max(axis=1) / load.mean(axis=1)
    return most


def judge(size: Size, law: str, choices: Choices, original: Any, repeats: int) -> list[Row]:
    half = len(choices) // 2
    activations, earlier = (activations_of(choices[:end], size.experts) for end in (half, half // 2))
    rows = []
    apart = activations.together.sum(axis=(1, 2), dtype=np.float64) / 2 / size.nodes.count
    for name, method in methods(size, original).items():
        counting = tokens_of if name.startswith("EPLB") else activations_of
        before = method(earlier, None)
        held = method(activations, before)
        most = fullest_over_mean(once(held), activations)
        rows.append(
            Row(
                size.name,
                law,
                name,
                round(timed_ms(partial(method, activations, None), repeats if name != "EPLB" else 1), 3),
                round(timed_ms(partial(counting, choices[:half], size.experts), repeats), 3),
                round(float(most.mean()), 5),
                round(float(most.max()), 5),
                round(float(fullest_over_mean(held, activations).mean()), 5),
                round(float((coactivation_load(held, activations.together).max(axis=1) / apart).mean()), 4),
                round(activated(once(held), size.experts, choices[half:]), 3),
                int((copies(held, size.experts) - 1).clip(0).sum()),
                round(arrivals(before, held) * size.expert_bytes / 1e9, 2),
            )
        )
    return rows


def over_optimum(seed: int) -> dict[int, tuple[float, float]]:
    """By effort of ``coactivation`` (mean, worst) over the optimum of Eq. (2) on small instances, the same replica
    counts for all."""
    rng = np.random.default_rng(seed)
    ratios: dict[int, list[float]] = {effort: [] for effort in SMALL_EFFORTS}
    for _ in range(SMALL):
        experts, nodes = int(rng.integers(5, 10)), int(rng.integers(2, 5))
        slots = -(-experts // nodes) + int(rng.integers(0, 2))
        law: Law = "zipf" if rng.random() < 0.5 else "lognormal"
        choices = synthetic(law, 400, 1, experts, int(rng.integers(2, 4)), int(rng.integers(1 << 30)))
        activations = activations_of(choices, experts)
        for effort, part in ratios.items():
            done = place(
                activations.tokens, activations.together, Nodes(nodes, slots), objective="coactivation", effort=effort
            )
            best = least_pairs(done.counts[0], activations.together[0], nodes, slots)
            load = float(coactivation_load(done.held, activations.together).max())
            part.append(load / best if best > 0 else 1.0 + load)
    return {effort: (round(float(np.mean(part)), 4), round(float(np.max(part)), 4)) for effort, part in ratios.items()}


def show(rows: list[Row]) -> None:
    heads = (
        "method",
        "ms",
        "statistics ms",
        "tokens",
        "worst",
        "by replica",
        "co-activation",
        "activated",
        "twice",
        "moved GB",
    )
    formats = (".2f", ".2f", ".4f", ".4f", ".4f", ".3f", ".2f", "", ".1f")
    for size, law in dict.fromkeys((row.size, row.law) for row in rows):
        of_title = [astuple(row)[2:] for row in rows if (row.size, row.law) == (size, law)]
        cells = [(name, *map(format, figures, formats)) for name, *figures in of_title]
        print_table(f"{size}, {law}", heads, cells, width=130)


def unmet(rows: list[Row]) -> list[str]:
    """Where ours is not slower, not worse balanced, better on co-activation and never twice: the exceptions."""
    missed = []
    for row in rows:
        if row.method in ("EPLB", "EPLB in NumPy"):
            ours = next(o for o in rows if o.method == "ours" and (o.size, o.law) == (row.size, row.law))
            at = f"{row.size}, {row.law}, {row.method}"
            missed += [f"slower: {at}"] if ours.ms > row.ms else []
            both = ours.ms + ours.statistics_ms > row.ms + row.statistics_ms
            missed += [f"slower with statistics: {at}"] if both else []
            missed += [f"balance: {at}"] if ours.tokens_mean > row.tokens_mean + 1e-9 else []
            missed += [f"worst balance: {at}"] if ours.tokens_worst > row.tokens_worst + 1e-9 else []
            missed += [f"co-activation: {at}"] if ours.pairs >= row.pairs else []
            missed += [f"twice: {at}"] if ours.twice else []
            missed += [f"balance by replica: {at}"] if ours.replicas_mean > row.replicas_mean + 1e-9 else []
    return missed


def _module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("eplb_original", path)
    if spec is None or spec.loader is None:
        raise click.BadParameter(f"{path} is not a Python file", param_hint="--eplb")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@benchmark
@click.option("--eplb", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="The original eplb.py.")
@routing_option
@click.option("--repeats", default=7, help="Timings of each cell; their median counts.")
@seed_option
def main(eplb: Path | None, routing: Path | None, repeats: int, seed: int) -> None:
    torch.set_num_threads(1)
    original = None if eplb is None else _module(eplb)
    rows: list[Row] = []
    laws: tuple[Law, ...] = ("zipf", "lognormal")
    for law in laws:
        drawn: dict[str, Choices] = {}
        for size in SIZES:
            if size.model not in drawn:
                drawn = {size.model: synthetic(law, 2 * TOKENS, size.layers, size.experts, size.k, seed)}
            rows += judge(size, law, drawn[size.model], original, repeats)
    if routing is not None:
        log, _ = real(routing)
        for size in SIZES:
            if size.model == "V2-Lite":
                rows += judge(size, "real", np.random.default_rng(seed).permutation(log), original, repeats)
    show(rows)
    over = over_optimum(seed)
    for effort, (mean, worst) in over.items():
        print(
            f"coactivation, effort {effort}: Eq. (2) over the optimum on {SMALL} small instances, "
            f"mean {mean:.4f}, worst {worst:.4f}"
        )
    missed = unmet(rows)
    result = {
        "rows": [asdict(row) for row in rows],
        "over_optimum": over,
        "unmet": missed,
        "targets_met": not missed and over[EFFORT][0] <= TARGET_OVER,
        "seed": seed,
    }
    print_result(result)


if __name__ == "__main__":
    main()
