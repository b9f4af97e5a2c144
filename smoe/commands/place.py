"""``smoe placement plan``: which experts on which nodes, from activation statistics; the plan is one for ``smoe
placement migrate``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.table import Table

from moe.manifest import Manifest
from placement.cluster import PlanArray, entropy, local_ratio
from placement.heterogeneous import NODE_NAME, Places, Profile, Seen, places_of, planned, read_profile, seen_by
from placement.janus import OBJECTIVES, Nodes, Objective, Placement, place
from placement.prism import METHODS, Method
from smoe.commands.lines import print_table
from smoe.commands.options import json_option, state_option
from smoe.errors import SmoeError
from smoe.pipelines import ensure_pipeline

Rows = dict[str, dict[str, float]]
"""Node → what a plan means for it."""


@click.command("place")
@click.argument("pipeline", default="minilm")
@click.option(
    "--statistics",
    "files",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    multiple=True,
    required=True,
    help='JSON: {"tokens": [layers][experts]} and, for co-activation, "together": [layers][experts][experts]. '
    "With --nodes: what an ingress answers at /statistics; repeatable, one for each ingress.",
)
@click.option("--node", "nodes", multiple=True, metavar="NAME", help="A machine; repeatable, all are homogeneous.")
@click.option(
    "--nodes",
    "profile",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="In place of --node: profile of heterogeneous machines in JSON: memory, speed, links (docs/placement.md).",
)
@click.option("--slots", type=click.IntRange(1), help="Experts of a layer a node takes. [default: just enough]")
@click.option(
    "--objective",
    type=click.Choice(OBJECTIVES),
    help="What is evened out. [default: tokens-first, or tokens where co-activations are not known]",
)
@click.option("--method", type=click.Choice(METHODS), help="With --nodes: how plans are made. [default: auto]")
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), help="Write the plan for `smoe placement migrate` here."
)
@state_option
@json_option
def place_command(
    pipeline: str,
    files: tuple[Path, ...],
    nodes: tuple[str, ...],
    profile: Path | None,
    slots: int | None,
    objective: Objective | None,
    method: Method | None,
    out: Path | None,
    state: Path,
    as_json: bool,
) -> None:
    """Plan which of PIPELINE's experts go on which machines.

    Homogeneous machines (--node, Janus): so that tokens and co-activations are even; with more slots than experts the
    busiest experts get several replicas, each on a machine of its own. Heterogeneous machines (--nodes, Prism): so that
    as few calls as possible leave the machine they arise on, within every machine's memory.
    """
    _check_options(files, nodes, profile, slots, objective, method)
    _, manifest = ensure_pipeline(pipeline, state / "pipelines")
    if profile is not None:
        title: str = method or "auto"
        plan, rows = _place_heterogeneous(files, read_profile(profile), manifest, method or "auto")
    else:
        tokens, together = _read(files[0], manifest)
        evened: Objective = objective or ("tokens" if together is None else "tokens-first")
        layout = Nodes(len(nodes), slots or -(-tokens.shape[1] // len(nodes)))
        placed = place(tokens, together, layout, objective=evened)
        title, plan, rows = evened, _plan(placed, manifest, nodes), _loads(placed, tokens, nodes)
    if out is not None:
        out.write_text(json.dumps(plan, indent=1) + "\n")
    if as_json:
        click.echo(json.dumps({"plan": plan, "nodes": rows}))
        return
    names = {name: name.replace("_", " ") for row in rows.values() for name in row}
    table = Table("node", *names.values(), title=f"{manifest.name}: {title}")
    for node, row in rows.items():
        table.add_row(node, *(f"{row[name]:.{0 if name in _WHOLE else 3}f}" for name in names))
    print_table(table)
    if out is not None:
        click.echo(f"smoe placement migrate {manifest.name} --plan {out}")


_WHOLE = ("experts", "tokens", "calls")
"""Columns without decimals."""


def _check_options(
    files: tuple[Path, ...],
    nodes: tuple[str, ...],
    profile: Path | None,
    slots: int | None,
    objective: Objective | None,
    method: Method | None,
) -> None:
    """Raises UsageError, SmoeError."""
    if bool(nodes) == (profile is not None):
        raise click.UsageError("give homogeneous machines by --node, or heterogeneous ones by --nodes")
    if profile is not None and (slots or objective):
        raise click.UsageError(
            "--slots and --objective apply to homogeneous machines (--node); a profile states each machine's memory"
        )
    if nodes and (method or len(files) > 1):
        raise click.UsageError("--method and several --statistics apply to heterogeneous machines (--nodes)")
    for node in nodes:
        if NODE_NAME.fullmatch(node) is None:
            raise SmoeError(f"node {node[:40]!r}: names are lower-case letters, digits, '-' and '.'")
    if len(set(nodes)) < len(nodes):
        raise SmoeError(f"a node is given twice: {', '.join(nodes)}")


def _place_heterogeneous(
    files: tuple[Path, ...], profile: Profile, manifest: Manifest, method: Method
) -> tuple[Places, Rows]:
    """Prism's plan and what it means. Raises SmoeError, InfeasibleError."""
    statistics = seen_by([(str(path), _json(path)) for path in files], profile, manifest)
    held = planned(statistics, profile, manifest, method)
    return places_of(held, profile, manifest), _shares(held, statistics, profile)


def _shares(held: PlanArray, statistics: Seen, profile: Profile) -> Rows:
    """For each node: experts held, calls made there, the local share of them, and their entropy in bits (mean over
    layers)."""
    local = local_ratio(held, profile.nodes_as_gpus(), statistics.frequency)
    bits = entropy(statistics.frequency).mean(axis=1)
    return {
        name: {
            "experts": int(held[node].sum()),
            "calls": float(statistics.frequency[node].sum()),
            "local_share": float(local[node]),
            "entropy_bits": float(bits[node]),
        }
        for node, name in enumerate(profile.names)
    }


def _json(path: Path) -> Any:
    """Raises SmoeError."""
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise SmoeError(f"{path} is not JSON: {str(error)[:200]}") from error


def _read(path: Path, manifest: Manifest) -> tuple[np.ndarray, np.ndarray | None]:
    """Tokens [layers, experts] and co-activations [layers, experts, experts]. Raises SmoeError."""
    shape = (manifest.layers, len(manifest.experts(0)))
    table = _json(path)
    form = f'{path} is not of the form {{"tokens": [[…]], "together": [[[…]]]}}'
    if not isinstance(table, dict) or "tokens" not in table:
        raise SmoeError(f"{form}: tokens is missing")
    pairs = table.get("together")
    try:
        tokens = np.array(table["tokens"], dtype=np.float64)
        together = None if pairs is None else np.array(pairs, dtype=np.float32)
    except (ValueError, TypeError) as error:
        raise SmoeError(f"{form}: {str(error)[:100]}") from error
    if tokens.shape != shape:
        raise SmoeError(f"{path}: tokens has shape {list(tokens.shape)}; {manifest.name} has {list(shape)}")
    if together is not None and together.shape != (*shape, shape[1]):
        raise SmoeError(f"{path}: together has shape {list(together.shape)}; {manifest.name} has {[*shape, shape[1]]}")
    for name, array in (("tokens", tokens), ("together", together)):
        if array is not None and not (np.isfinite(array).all() and array.min() >= 0):
            raise SmoeError(f"{path}: {name} holds a number that is not finite, or negative")
    if together is not None and not np.array_equal(together, together.transpose(0, 2, 1)):
        raise SmoeError(f"{path}: together is not symmetric; tokens that chose both experts are counted at both places")
    return tokens, together


def _plan(placed: Placement, manifest: Manifest, nodes: tuple[str, ...]) -> dict[str, dict[str, int]]:
    """Function → node → replicas, for ``smoe placement migrate --plan``."""
    plan: dict[str, dict[str, int]] = {}
    for layer in range(manifest.layers):
        for expert in manifest.experts(layer):
            at = [node for node, held in zip(nodes, placed.held[layer], strict=True) if expert.expert in held]
            plan[manifest.function_name(expert.id)] = dict.fromkeys(at, 1)
    return plan


def _loads(placed: Placement, tokens: np.ndarray, nodes: tuple[str, ...]) -> Rows:
    """For each node: experts held, its tokens (replicas of an expert share evenly), and their ratio to the mean."""
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
