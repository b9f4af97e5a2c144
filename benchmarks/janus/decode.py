"""Janus's Figure 7 for a decode batch, simulated: ``python -m benchmarks.janus.decode``.

A batch of decodes passes DeepSeek-V2's layers on A attention and E expert instances of one GPU each, eight to a node. A
layer takes the attention instances' reading of their weights and of their texts' keys and values, its rows' way to the
expert instances and back (``benchmarks.janus.transfer``, adaptive two-phase transfer), and the reading of the activated
experts on the fullest expert instance (:func:`layer_s`, arithmetic from data sheets, nothing overlaps). Which experts
are activated comes from synthetic routing of the whole batch, and where from this project's dispatch
(activated-expert-balanced) or, as engines do, at random by token; replicas are placed by ``placement.janus``.

By batch size: the fewest GPUs within ``--tpot-ms`` for each dispatch where A and E are chosen one by one, and where
each comes in whole machines of eight; TPOT and tokens/s a GPU. ``aebs_over``: TPOT at the same A and E over random
dispatch by token, and over that by expert (all tokens of an expert to one of its replicas). Seeds
draw routing. Figures 8 and 10: ``benchmarks.janus.figures``. The last line is one JSON object.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import click
import numpy as np

from benchmarks.aebs import choosers, loads
from benchmarks.harness.options import benchmark, seed_option
from benchmarks.harness.report import print_result, print_table
from benchmarks.janus.transfer import Fabric, Port, layout, transfer_s
from benchmarks.placement.activations import activations_of
from benchmarks.placement.synthetic_routing import Choices, synthetic
from functions.dispatch.aebs import ReplicaTable, replica_table
from placement.janus import Nodes, place

LAYERS, HIDDEN = 60, 5120
READ_BYTES_S = 0.8 * 3.35e12
ATTENTION_BYTES, CONTEXT_BYTES = 0.39e9, 1152
"""Bytes of a layer: attention and shared experts, keys and values of one token; bfloat16."""
FLOP_S = 0.5 * 990e12
EXPERTS_BYTES = 77e9
"""What an instance of 80 GB has for experts of all layers."""
FABRIC = Fabric(Port(6e-6, 1e-6, 0.8 * 450e9), Port(10e-6, 5e-6, 0.9 * 50e9), 2 * HIDDEN)
"""NVLink and one 400 Gbit/s adapter a GPU. NVLink's latency is what NCCL takes to reduce 128 bytes over two H100
(github.com/NVIDIA/nccl issue 1259: 6 us); nine tenths of 50 GB/s is what DeepEP reaches. Latency and cost of a message
between nodes are assumptions: the paper gives none, and ``benchmarks.janus.figures`` varies the second."""
BATCHES = (4, 16, 64, 256, 512)
ATTENTION, EXPERT = (1, 2, 4, 8, 16), tuple(range(6, 25))
RULES = ("aebs", "random", "random-expert")
SAMPLES = 6
"""Batches that a mean of fullest instances is taken over."""


@dataclass(frozen=True)
class Model:
    """A layer's experts: how many, how many of them a token takes, and their inner width."""

    experts: int = 160
    top_k: int = 6
    width: int = 1536

    @property
    def expert_bytes(self) -> float:
        """Three matrices, bfloat16."""
        return 2 * 3 * HIDDEN * self.width

    @property
    def slots(self) -> int:
        """Experts of all layers whose weights fit an instance."""
        return int(EXPERTS_BYTES / LAYERS / self.expert_bytes)


V2 = Model()


def layer_s(
    batch: int, attention: int, expert: int, fullest: float, context: int, moved_s: float, model: Model = V2
) -> float:
    """Seconds of one layer; ``fullest``: activated experts on the fullest expert instance; ``moved_s``: seconds of the
    rows there and back."""
    texts = -(-batch // attention)
    attend_s = (ATTENTION_BYTES + texts * context * CONTEXT_BYTES) / READ_BYTES_S
    compute_s = batch * model.top_k / expert * model.expert_bytes / FLOP_S  # two operations a weight of two bytes
    return attend_s + moved_s + max(fullest * model.expert_bytes / READ_BYTES_S, compute_s)


@cache
def two_phase_s(batch: int, attention: int, expert: int) -> float:
    """Seconds of a layer's rows there and back by the paper's adaptive transfer, whatever the routing."""
    return transfer_s(layout(np.zeros((batch, 1), np.int64), attention, expert), FABRIC, "adaptive")


def table_on(choices: Choices, expert: int, model: Model = V2) -> ReplicaTable:
    """Replicas on ``expert`` instances, placed from ``choices`` [tokens, 1, k]."""
    statistics = activations_of(choices, model.experts)
    placed = place(statistics.tokens, statistics.together, Nodes(expert, model.slots))
    return replica_table(placed.held[0], model.experts)


def fullest_of(expert: int, drawn: Choices, batches: Iterable[int]) -> dict[tuple[str, int], float]:
    """By rule and batch size: mean activated experts of the fullest of ``expert`` instances. ``drawn`` [tokens, 1, k],
    the first half of which places replicas."""
    half = len(drawn) // 2
    table = table_on(drawn[:half], expert)
    by_rule = choosers(table)
    return {
        (rule, batch): float(
            np.mean(
                [
                    loads(table, by_rule[rule], np.ascontiguousarray(drawn[at : at + batch, 0])).max()
                    for at in range(half, half + SAMPLES * batch, batch)
                ]
            )
        )
        for rule in RULES
        for batch in batches
    }


def fewest(
    batch: int, rule: str, fullest: dict[int, dict[tuple[str, int], float]], tpot_s: float, context: int, whole: bool
) -> dict[str, Any] | None:
    """The fewest GPUs within ``tpot_s``, the fastest of those; ``whole``: in eights. None where none are."""

    def taken_s(attention: int, expert: int, by: dict[tuple[str, int], float]) -> float:
        moved_s = two_phase_s(batch, attention, expert)
        return LAYERS * layer_s(batch, attention, expert, by[rule, batch], context, moved_s)

    least = [
        (attention + expert, taken_s(attention, expert, by), attention, expert)
        for expert, by in fullest.items()
        for attention in ATTENTION
        if not whole or (attention % 8 == 0 and expert % 8 == 0)
    ]
    kept = min((one for one in least if one[1] <= tpot_s), default=None)
    if kept is None:
        return None
    gpus, kept_s, attention, expert = kept
    return {"gpus": gpus, "split": f"{attention}A{expert}E", "tpot_ms": 1000 * kept_s, "rate": batch / kept_s / gpus}


@benchmark
@click.option("--tpot-ms", default=45.0, type=click.FloatRange(1, 1000), help="SLO.")
@click.option("--context", default=1000, type=click.IntRange(1), help="Tokens of each text.")
@seed_option
def main(tpot_ms: float, context: int, seed: int) -> None:
    drawn = synthetic("lognormal", 2 * SAMPLES * max(BATCHES), 1, V2.experts, V2.top_k, seed)
    fullest = {expert: fullest_of(expert, drawn, BATCHES) for expert in EXPERT}
    ways = {
        f"{rule}, {'eights' if whole else 'one by one'}": (rule, whole) for rule in RULES for whole in (False, True)
    }
    chosen = {
        batch: {
            way: fewest(batch, rule, fullest, tpot_ms / 1000, context, whole) for way, (rule, whole) in ways.items()
        }
        for batch in BATCHES
    }
    ratio = {
        rule: {
            batch: {
                expert: layer_s(batch, 1, expert, fullest[expert]["aebs", batch], context, moved_s)
                / layer_s(batch, 1, expert, fullest[expert][rule, batch], context, moved_s)
                for expert in (8, 12, 16)
                for moved_s in (two_phase_s(batch, 1, expert),)
            }
            for batch in BATCHES
        }
        for rule in RULES[1:]
    }
    rows = [(batch, *map(_words, by.values())) for batch, by in chosen.items()]
    print_table(f"Simulated: fewest GPUs within {tpot_ms:g} ms, TPOT, tokens/s a GPU", ("batch", *ways), rows)
    for rule, batches in ratio.items():
        rates = [(batch, *(f"{one:.2f}" for one in by.values())) for batch, by in batches.items()]
        print_table(f"TPOT of balanced over {rule} dispatch, 1A", ("batch", "8E", "12E", "16E"), rates)
    print_result({"simulated": True, "chosen": chosen, "aebs_over": ratio, "tpot_ms": tpot_ms})


def _words(one: dict[str, Any] | None) -> str:
    return "none" if one is None else f"{one['split']}, {one['tpot_ms']:.0f} ms, {one['rate']:.1f}"


if __name__ == "__main__":
    main()
