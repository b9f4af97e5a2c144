"""Janus's Figures 8 and 10 for a decode batch, simulated: ``python -m benchmarks.janus.figures --out out/janus``.

The model of ``benchmarks.janus.decode``. *Figure 8*: TPOT with activated-expert-balanced dispatch over TPOT with random
dispatch, at the same A and E, for the paper's variants of DeepSeek: Scaled-DS-1 (8 of 160 experts of width 1024) on
eight expert instances, Scaled-DS-2 (8 of 200 of width 1536) on eight and on sixteen; A is what the paper's Figure 7 has
for the batch. *Figure 10*: DeepSeek-V2's TPOT without this system's parts (``base``: gate on the attention side, every
instance to every instance, experts in turn on instances, random dispatch by token), with adaptive two-phase transfer
(``+2PC``), and with balanced dispatch and placement from activations as well (``+LB``). ``2PC saves`` and ``LB saves``
are parts of the TPOT before each, ``over random by expert`` is the second against all tokens of an expert to one random
replica, the better opponent. ``two_phase_saves_by_message_us`` varies what a message between nodes costs, which the
paper does not give; ``ways`` counts messages and bytes of one layer.

Means over seeds, which draw routing; the last line is one JSON object.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.aebs import choosers
from benchmarks.harness.options import benchmark, listed, out_option
from benchmarks.harness.report import picture, print_result, print_table
from benchmarks.janus.decode import BATCHES, FABRIC, LAYERS, SAMPLES, V2, Model, layer_s, table_on
from benchmarks.janus.transfer import WAYS, Fabric, layout, traffic, transfer_s
from benchmarks.placement.synthetic_routing import Choices, synthetic
from benchmarks.replica_rules import activated_by_node
from functions.dispatch.aebs import ReplicaTable, replica_table

VARIANTS = {
    "Scaled-DS-1, 8E": (Model(160, 8, 1024), 8),
    "Scaled-DS-2, 8E": (Model(200, 8, 1536), 8),
    "Scaled-DS-2, 16E": (Model(200, 8, 1536), 16),
}
ATTENTION_OF = {4: 1, 16: 1, 64: 1, 256: 4, 512: 8}
"""Attention instances that the paper's Figure 7 has for a batch."""
OPPONENTS = ("random", "random-expert")
SPLITS = ((8, 16), (4, 8), (1, 8))
STEPS = {
    "base": ("in turn", "random", "routed"),
    "+2PC": ("in turn", "random", "adaptive"),
    "+LB": ("activations", "aebs", "adaptive"),
    "+2PC, random by expert": ("in turn", "random-expert", "adaptive"),
    "base, gate with the experts": ("in turn", "random", "direct"),
    "+LB, sliced": ("activations", "aebs", "sliced"),
}
"""Placement, dispatch and way; the last three are not the paper's."""
SAVED = {
    "2PC saves": ("base", "+2PC"),
    "LB saves": ("+2PC", "+LB"),
    "over random by expert": ("+2PC, random by expert", "+LB"),
}
MESSAGE_US = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0)


@dataclass(frozen=True, eq=False)
class Instances:
    """A model on so many instances of either kind, and routing of one layer for it."""

    model: Model
    attention: int
    expert: int
    drawn: Choices
    """[tokens, 1, k]: the first half places replicas, batches are cut from the second."""
    context: int

    def tables(self) -> dict[str, ReplicaTable]:
        """By placement: from the first half's activations, or experts in turn."""
        first, slots = self.drawn[: len(self.drawn) // 2], self.model.slots
        turn = np.arange(self.expert * slots).reshape(self.expert, slots) % self.model.experts
        placed = table_on(first, self.expert, self.model)
        return {"activations": placed, "in turn": replica_table(turn, self.model.experts)}

    def tpot_s(self, batch: int, table: ReplicaTable, rule: str, way: str, fabric: Fabric = FABRIC) -> float:
        """Mean over batches."""
        choose, half = choosers(table)[rule], len(self.drawn) // 2
        taken_s = []
        for at in range(half, half + SAMPLES * batch, batch):
            ids = np.ascontiguousarray(self.drawn[at : at + batch, 0])
            replicas = np.empty(ids.shape, dtype=np.int32)
            choose(ids, replicas)
            fullest = int(activated_by_node(replicas, table).max())
            served = (replicas // self.model.slots).astype(np.int64)
            moved_s = transfer_s(layout(served, self.attention, self.expert), fabric, way)
            taken_s.append(
                LAYERS * layer_s(batch, self.attention, self.expert, fullest, self.context, moved_s, self.model)
            )
        return float(np.mean(taken_s))


def instances(model: Model, attention: int, expert: int, context: int, seed: int) -> Instances:
    drawn = synthetic("lognormal", 2 * SAMPLES * max(BATCHES), 1, model.experts, model.top_k, seed)
    return Instances(model, attention, expert, drawn, context)


def figure_8(context: int, seeds: Sequence[int]) -> dict[str, dict[str, dict[int, float]]]:
    """Variant → opponent → batch: TPOT over the opponent's, mean over seeds."""
    by_variant: dict[str, dict[str, dict[int, float]]] = {}
    for name, (model, expert) in VARIANTS.items():
        ratios: dict[tuple[str, int], list[float]] = {}
        for seed in seeds:
            here = instances(model, 1, expert, context, seed)
            table = here.tables()["activations"]
            for batch in BATCHES:
                split = replace(here, attention=ATTENTION_OF[batch])
                balanced_s = split.tpot_s(batch, table, "aebs", "adaptive")
                for rule in OPPONENTS:
                    over = balanced_s / split.tpot_s(batch, table, rule, "adaptive")
                    ratios.setdefault((rule, batch), []).append(over)
        by_variant[name] = {rule: {batch: mean(ratios[rule, batch]) for batch in BATCHES} for rule in OPPONENTS}
    return by_variant


def figure_10(context: int, seeds: Sequence[int]) -> dict[str, dict[int, dict[str, Any]]]:
    """Split → batch: milliseconds of each step, and what the paper's two save, means over seeds and the range."""
    by_split: dict[str, dict[int, dict[str, Any]]] = {}
    for attention, expert in SPLITS:
        by_batch = by_split.setdefault(f"{attention}A{expert}E", {})
        worlds = [instances(V2, attention, expert, context, seed) for seed in seeds]
        tables = [world.tables() for world in worlds]
        for batch in BATCHES:
            taken = {
                step: [
                    world.tpot_s(batch, table[placed], rule, way) for world, table in zip(worlds, tables, strict=True)
                ]
                for step, (placed, rule, way) in STEPS.items()
            }
            saved = {what: saves(taken[before], taken[after]) for what, (before, after) in SAVED.items()}
            by_batch[batch] = {step: 1000 * mean(seconds) for step, seconds in taken.items()} | {
                what: [mean(parts), min(parts), max(parts)] for what, parts in saved.items()
            }
    return by_split


def saves(before_s: Sequence[float], after_s: Sequence[float]) -> list[float]:
    return [1 - after / before for before, after in zip(before_s, after_s, strict=True)]


def mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def message_cost(context: int, seed: int) -> dict[int, dict[float, float]]:
    """Batch → microseconds of a message → part of the TPOT that two-phase transfer saves, at 8A16E."""
    here = instances(V2, 8, 16, context, seed)
    table = here.tables()["in turn"]
    by_batch: dict[int, dict[float, float]] = {batch: {} for batch in (16, 64, 512)}
    for us in MESSAGE_US:
        fabric = replace(FABRIC, between=replace(FABRIC.between, message_s=us / 1e6))
        for batch, by_us in by_batch.items():
            base_s, two_s = (here.tpot_s(batch, table, "random", way, fabric) for way in ("routed", "adaptive"))
            by_us[us] = 1 - two_s / base_s
    return by_batch


def counted(batch: int, seed: int) -> dict[str, dict[str, float]]:
    """Way → messages and megabytes of one layer there and back at 8A16E, and their microseconds."""
    here = instances(V2, 8, 16, 1, seed)
    table, ids = here.tables()["activations"], np.ascontiguousarray(here.drawn[-batch:, 0])
    replicas = np.empty(ids.shape, dtype=np.int32)
    choosers(table)["aebs"](ids, replicas)
    given = layout((replicas // V2.slots).astype(np.int64), 8, 16)
    by_way = {}
    for name, ways in WAYS.items():
        there, back = (traffic(way(given), FABRIC.row_bytes) for way in ways)
        total = {key: there[key] + back[key] for key in there}
        by_way[name] = {
            "messages between nodes": total["messages_between"], "MB": total["bytes_between"] / 1e6,
            "inside": total["messages_inside"], "MB inside": total["bytes_inside"] / 1e6,
            "us": 1e6 * transfer_s(given, FABRIC, name),
        }  # fmt: skip
    return by_way


def draw(eighth: Mapping[str, Any], tenth: Mapping[str, Any], out: Path) -> None:
    """Both figures, one picture."""
    with picture(out, 2, 3, figsize=(11, 6.5)) as (figure, axes):
        places = np.arange(len(BATCHES))
        for axis, (name, by_rule) in zip(axes[0], eighth.items(), strict=True):
            for rule, by_batch in by_rule.items():
                axis.plot(places, list(by_batch.values()), "o-", label=f"over {rule} dispatch")
            axis.set(title=f"Fig. 8: {name}", ylim=(0.6, 1.02), ylabel="TPOT, normalised")
        for axis, (split, of_batch) in zip(axes[1], tenth.items(), strict=True):
            for number, step in enumerate(list(STEPS)[:3]):
                axis.bar(places + 0.27 * (number - 1), [row[step] for row in of_batch.values()], 0.25, label=step)
            axis.set(title=f"Fig. 10: {split}", ylabel="TPOT (ms)", xlabel="batch")
        for axis in axes.flat:
            axis.set_xticks(places, [str(batch) for batch in BATCHES])
        axes[0, 0].legend(loc="lower right")
        axes[1, 0].legend()
        figure.suptitle("Simulated: a decode batch on attention and expert instances")


@benchmark
@out_option("out/janus", "Folder of the picture.")
@click.option("--context", default=1000, type=click.IntRange(1), help="Tokens of each text.")
@click.option("--seeds", callback=listed(int), default="0,1,2,3,4", help="Of the routing.")
def main(out: Path, context: int, seeds: Sequence[int]) -> None:
    eighth, tenth = figure_8(context, seeds), figure_10(context, seeds)
    swept, ways = message_cost(context, seeds[0]), {batch: counted(batch, seeds[0]) for batch in (16, 512)}
    rows = [
        (name, rule, *(f"{one:.3f}" for one in by.values()))
        for name, rules in eighth.items()
        for rule, by in rules.items()
    ]
    print_table("Fig. 8: TPOT over that of random dispatch", ("model", "over", *map(str, BATCHES)), rows, texts=2)
    for split, of_batch in tenth.items():
        cells = [
            (batch, *(f"{row[step]:.1f}" for step in STEPS), *(words(row[what]) for what in SAVED))
            for batch, row in of_batch.items()
        ]
        print_table(f"Fig. 10, {split}: TPOT, ms", ("batch", *STEPS, *SAVED), cells, width=150)
    cells = [(batch, *(f"{part:.1%}" for part in by.values())) for batch, by in swept.items()]
    print_table("2PC saves, 8A16E, by us of a message", ("batch", *map(str, MESSAGE_US)), cells)
    for batch, by_way in ways.items():
        cells = [(name, *(f"{one:.1f}" for one in row.values())) for name, row in by_way.items()]
        print_table(f"A layer of {batch} tokens, 8A16E, there and back", ("way", *by_way["routed"]), cells)
    draw(eighth, tenth, out / "figures.png")
    result = {"figure_8": eighth, "figure_10": tenth, "two_phase_saves_by_message_us": swept, "ways": ways}
    print_result({"simulated": True, **result, "context": context})


def words(part: Sequence[float]) -> str:
    """Mean and range."""
    return "{:.1%} ({:.0%} to {:.0%})".format(*part)


if __name__ == "__main__":
    main()
