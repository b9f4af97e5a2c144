"""Dispatch over the batch of an iteration or text by text: ``python -m benchmarks.aebs_batch --routing FOLDER``.

An iteration of a decoder's instance computes one token of each of its texts and parts of prompts. Janus (section 3.3,
Algorithm 1, line 1) collects the activated experts over all these tokens before it chooses replicas. Here the same
iterations are dispatched with all tokens at once, with the texts of ``--instances`` instances at once (each chooses for
its own texts), and text by text, next to rules that decide without a plan. Iterations are drawn from the routing log of
DeepSeek-V2-Lite: each text gives one token at a random place of a prompt of its own (the log has prompts only), a
prompt's part consecutive tokens of another one. Replicas are placed by ``placement.janus`` from prompts that no
iteration is drawn from.

``fullest``: distinct replicas that compute on the fullest node in one layer, what Algorithm 1 minimises; a replica that
several texts chose counts once, as calls that wait together are one product at the worker. ``least``: the least
possible, by maximum flow. ``calls``: distinct replicas of all nodes, the messages of direct transfer. ``kB``: rows sent
where a token goes to each node once, whatever it needs there (two-phase transfer); direct transfer sends k rows a token
whichever replicas are chosen. Means over layers and iterations; the last line is one JSON object.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from benchmarks.aebs import optimum
from benchmarks.harness.options import AT_LEAST_1, benchmark, listed, seed_option
from benchmarks.harness.report import print_result, print_table
from benchmarks.placement.activations import activations_of
from benchmarks.placement.synthetic_routing import REAL_EXPERTS, Choices, real
from benchmarks.replica_rules import ReplicaRule, Rule, activated_by_node, node_of
from functions.dispatch.aebs import ActivatedExpertBalance, Places, ReplicaTable, replica_table
from placement.janus import Nodes, place

ROW_BYTES = 2 * 2048
"""A row of DeepSeek-V2-Lite in bfloat16."""
PEERS: tuple[Rule, ...] = ("random", "round-robin", "random-expert", "least-loaded")

Chosen = Callable[[Choices, Sequence[int]], Places]
"""Experts [tokens, k] of an iteration and where its texts end, to the replica of each choice [tokens, k] int32."""


@dataclass(frozen=True)
class Iteration:
    """Rows of the log, text after text, and where each text ends."""

    rows: NDArray[np.int64]
    ends: tuple[int, ...]


def draw(prompts: NDArray[np.int64], texts: int, part: int, rng: np.random.Generator) -> Iteration:
    """``texts`` tokens of different prompts, and ``part`` consecutive tokens of one more where that is above 0.

    ``prompts`` [tokens]: the prompt of each row, those of a prompt one after the other. Raises ValueError where there
    are too few prompts, or none with ``part`` tokens.
    """
    first = np.flatnonzero(np.diff(prompts, prepend=prompts[0] - 1))
    sizes = np.diff(np.append(first, len(prompts)))
    long = np.flatnonzero(sizes >= part) if part else np.array([], np.int64)
    if texts + bool(part) > len(first) or (part and not len(long)):
        raise ValueError(f"{len(first)} prompts cannot give {texts} texts and {part} tokens of another one")
    parted = int(rng.choice(long)) if part else -1
    others = rng.choice(np.delete(np.arange(len(first)), [parted] if part else []), texts, replace=False)
    rows = first[others] + rng.integers(sizes[others])
    if not part:
        return Iteration(rows, tuple(range(1, texts + 1)))
    begin = first[parted] + int(rng.integers(sizes[parted] - part + 1))
    return Iteration(np.concatenate([rows, np.arange(begin, begin + part)]), (*range(1, texts + 1), texts + part))


def in_parts(table: ReplicaTable, parts: int) -> Chosen:
    """AEBS for each of ``parts`` groups of texts, one after the other in turn, on its own; 0: for each text."""
    balance = ActivatedExpertBalance(table)

    def choose(ids: Choices, ends: Sequence[int]) -> Places:
        text = np.repeat(np.arange(len(ends)), np.diff((0, *ends)))
        group = text if parts == 0 else text % parts
        out = np.empty(ids.shape, np.int32)
        for number in np.unique(group):
            rows = np.flatnonzero(group == number)
            chosen = np.empty((len(rows), ids.shape[1]), np.int32)
            balance.choose(np.ascontiguousarray(ids[rows]), chosen)
            out[rows] = chosen
        return out

    return choose


def by_rule(table: ReplicaTable, rule: Rule, seed: int) -> Chosen:
    peer = ReplicaRule(table, rule, seed)

    def choose(ids: Choices, ends: Sequence[int]) -> Places:
        out = np.empty(ids.shape, np.int32)
        peer.choose(ids, out)
        return out

    return choose


def ways(table: ReplicaTable, instances: int, seed: int) -> dict[str, Chosen]:
    balanced = {"aebs, batch": 1, f"aebs, {instances} instances": instances, "aebs, text by text": 0}
    chosen = {name: in_parts(table, parts) for name, parts in balanced.items()}
    return chosen | {rule: by_rule(table, rule, seed) for rule in PEERS}


def measured(chosen: Places, table: ReplicaTable) -> tuple[int, int, int]:
    """Distinct replicas among ``chosen`` [tokens, k] on the fullest node, in all, and (token, node) pairs."""
    load = activated_by_node(chosen, table)
    node = node_of(chosen, table)  # [tokens, k]
    pairs = np.unique(np.arange(len(chosen))[:, None] * table.nodes + node)
    return int(load.max()), int(load.sum()), len(pairs)


def tables(choices: Choices, nodes: int, slots: int) -> list[ReplicaTable]:
    """Each layer's replicas, placed from ``choices`` [tokens, layers, k]."""
    statistics = activations_of(choices, REAL_EXPERTS)
    held = place(statistics.tokens, statistics.together, Nodes(nodes, slots)).held
    return [replica_table(layer, REAL_EXPERTS) for layer in held]


def compare(
    choices: Choices, drawn: Sequence[Iteration], layer_tables: Sequence[ReplicaTable], instances: int, seed: int
) -> dict[str, dict[str, float]]:
    """By way: means of ``measured`` over layers and iterations; ``over``: iterations and layers in which the
    fullest node has more than with the batch at once. ``choices`` [tokens, layers, k]."""
    counted: dict[str, list[tuple[int, int, int]]] = {}
    least = []
    for layer, table in enumerate(layer_tables):
        by_name = ways(table, instances, seed)
        for one in drawn:
            ids = np.ascontiguousarray(choices[one.rows, layer])
            least.append(optimum(table, ids))
            for name, choose in by_name.items():
                counted.setdefault(name, []).append(measured(choose(ids, one.ends), table))
    means = {name: np.mean(rows, axis=0) for name, rows in counted.items()}
    batch = np.array(counted["aebs, batch"])[:, 0]
    result = {
        name: {
            "fullest": float(fullest),
            "calls": float(calls),
            "kB": float(pairs * ROW_BYTES / 1000),
            "over": float((np.array(counted[name])[:, 0] > batch).mean()),
        }
        for name, (fullest, calls, pairs) in means.items()
    }
    return result | {"least": {"fullest": float(np.mean(least))}}


def show(title: str, by_size: dict[str, dict[str, dict[str, float]]]) -> None:
    names = next(iter(by_size.values()))
    rows = [
        [name, *(" / ".join(f"{value:.2f}" for value in one[name].values()) for one in by_size.values())]
        for name in names
    ]
    print_table(title, ["fullest / calls / kB / part over the batch's", *by_size], rows, width=150)


@benchmark
@click.option("--routing", type=click.Path(path_type=Path, exists=True), required=True, help="Folder with the log.")
@click.option("--batches", callback=listed(int), default="1,4,16,64", help="Texts of an iteration.")
@click.option("--part", default=64, type=click.IntRange(0), help="Tokens of a prompt in the iterations with one.")
@click.option("--iterations", default=20, type=AT_LEAST_1, help="Of each size, each in all layers.")
@click.option("--layouts", callback=listed(), default="8x10,8x16,2x64", help="Nodes x slots of a layer's 64 experts.")
@click.option("--instances", default=4, type=AT_LEAST_1, help="That share the texts in the second row.")
@seed_option
def main(
    routing: Path, batches: tuple[int, ...], part: int, iterations: int, layouts: tuple[str, ...], instances: int,
    seed: int,
) -> None:  # fmt: skip
    log, prompts = real(routing)
    cut = int(np.flatnonzero(prompts >= np.median(np.unique(prompts)))[0])
    held_out, of_prompt = log[cut:], prompts[cut:]
    rng = np.random.default_rng(seed)
    drawn = {str(size): [draw(of_prompt, size, 0, rng) for _ in range(iterations)] for size in batches}
    mixed = f"{batches[-1]} + {part} of a prompt"
    if part:
        drawn[mixed] = [draw(of_prompt, batches[-1], part, rng) for _ in range(iterations)]
    results: dict[str, Any] = {}
    for layout in layouts:
        nodes, slots = map(int, layout.split("x"))
        layer_tables = tables(log[:cut], nodes, slots)
        results[layout] = {
            size: compare(held_out, given, layer_tables, instances, seed) for size, given in drawn.items()
        }
        show(f"DeepSeek-V2-Lite, {nodes} nodes of {slots} slots", results[layout])
    print_result({"layouts": results, "iterations": iterations, "layers": log.shape[1], "instances": instances})


if __name__ == "__main__":
    main()
