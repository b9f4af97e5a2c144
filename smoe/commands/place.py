"""``smoe place``: which experts on which nodes, from activation statistics; the plan is one for ``smoe migrate``."""

from __future__ import annotations

import json
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from autoscaler.placement.janus import OBJECTIVES, Nodes, Objective, Placement, place
from moe.manifest import Manifest
from smoe.commands.options import json_option, state_option
from smoe.errors import SmoeError
from smoe.pipelines import ensure_pipeline


@click.command("place")
@click.argument("pipeline", default="minilm")
@click.option(
    "--statistics",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    required=True,
    help='JSON: {"tokens": [layers][experts]} and, for co-activation, "together": [layers][experts][experts].',
)
@click.option(
    "--node", "nodes", multiple=True, required=True, metavar="NAME", help="A node; repeatable, all are alike."
)
@click.option(
    "--slots", type=click.IntRange(1), default=None, help="Experts of a layer a node takes. [default: just enough]"
)
@click.option(
    "--objective",
    type=click.Choice(OBJECTIVES),
    default=None,
    help="What is evened out. [default: tokens-first, or tokens where co-activations are not known]",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    help="Write the plan for `smoe migrate` here.",
)
@state_option
@json_option
def place_command(
    pipeline: str,
    statistics: Path,
    nodes: tuple[str, ...],
    slots: int | None,
    objective: Objective | None,
    out: Path | None,
    state: Path,
    as_json: bool,
) -> None:
    """Place PIPELINE's experts on like nodes (Janus) so that tokens and co-activations are even.

    With more slots than experts the busiest experts get several replicas, each on a node of its own.
    """
    _, manifest = ensure_pipeline(pipeline, state / "pipelines")
    if len(set(nodes)) < len(nodes):
        raise SmoeError(f"a node is given twice: {', '.join(nodes)}")
    tokens, together = _read(statistics, manifest)
    layout = Nodes(len(nodes), slots or -(-tokens.shape[1] // len(nodes)))
    chosen: Objective = objective or ("tokens" if together is None else "tokens-first")
    placed = place(tokens, together, layout, objective=chosen)
    plan = _plan(placed, manifest, nodes)
    if out is not None:
        out.write_text(json.dumps(plan, indent=1) + "\n")
    if as_json:
        click.echo(json.dumps({"plan": plan, "nodes": _loads(placed, tokens, nodes)}))
        return
    table = Table("node", "experts", "tokens", "of the mean", title=f"{manifest.name}: {chosen}")
    for node, load in _loads(placed, tokens, nodes).items():
        table.add_row(node, str(load["experts"]), f"{load['tokens']:.0f}", f"{load['of_mean']:.3f}")
    Console().print(table)
    if out is not None:
        click.echo(f"smoe migrate {manifest.name} --plan {out}")


def _read(path: Path, manifest: Manifest) -> tuple[np.ndarray, np.ndarray | None]:
    """Tokens [layers, experts] and co-activations [layers, experts, experts]. Raises SmoeError."""
    shape = (manifest.layers, len(manifest.experts(0)))
    try:
        found = json.loads(path.read_text())
        tokens = np.array(found["tokens"], dtype=np.float64)
        together = np.array(found["together"], dtype=np.float32) if "together" in found else None
    except (ValueError, KeyError, TypeError) as error:
        raise SmoeError(f'{path} is not of the form {{"tokens": [[…]], "together": [[[…]]]}}: {error!r}') from error
    if tokens.shape != shape:
        raise SmoeError(f"{path}: tokens has shape {list(tokens.shape)}; {manifest.name} has {list(shape)}")
    return tokens, together


def _plan(placed: Placement, manifest: Manifest, nodes: tuple[str, ...]) -> dict[str, dict[str, int]]:
    """Function → node → replicas, for ``smoe migrate --plan``."""
    plan: dict[str, dict[str, int]] = {}
    for layer in range(manifest.layers):
        for expert in manifest.experts(layer):
            at = [node for node, held in zip(nodes, placed.held[layer], strict=True) if expert.expert in held]
            plan[manifest.function_name(expert.id)] = dict.fromkeys(at, 1)
    return plan


def _loads(placed: Placement, tokens: np.ndarray, nodes: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """By node: experts held, tokens that come to it (replicas of an expert share evenly), and those over the mean."""
    share = tokens / np.maximum(placed.counts, 1)
    totals = {}
    for number, node in enumerate(nodes):
        held = placed.held[:, number]
        layers, places = np.nonzero(held >= 0)
        totals[node] = (layers.size, float(share[layers, held[layers, places]].sum()))
    mean = sum(load for _, load in totals.values()) / len(nodes)
    return {
        node: {"experts": n, "tokens": load, "of_mean": load / mean if mean else 1.0}
        for node, (n, load) in totals.items()
    }
