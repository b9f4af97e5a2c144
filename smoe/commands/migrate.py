"""``smoe placement migrate``: replicas to other nodes, or more and fewer of them, while the pipeline serves."""

from __future__ import annotations

import fnmatch
import json
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from functions.memory.move_plan import MovePlan
from placement.moves.cluster import Places, deployed
from placement.moves.coordinator import Coordinator, Moved
from placement.moves.errors import MoveError
from smoe.commands.lines import print_table
from smoe.commands.options import connect, gateway_option, json_option, password_option, state_option
from smoe.pipelines import ensure_pipeline


class _Replicas(click.ParamType[dict[str, int]]):
    """``NODE=REPLICAS``, comma-separated."""

    name = "node=replicas"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, int]:
        counts: dict[str, int] = {}
        for part in str(value).split(","):
            node, _, count = (piece.strip() for piece in part.partition("="))
            if not node or not count.isdigit() or node in counts:
                self.fail(f"{value!r} is not of the form a=1,b=2", param, ctx)
            counts[node] = int(count)
        if not any(counts.values()):
            self.fail(f"{value!r} leaves no replica anywhere", param, ctx)
        return counts


@click.command()
@click.argument("pipeline", default="minilm")
@click.option("--to", "to", type=_Replicas(), help="Replicas by node, such as a=1,b=1, of each function.")
@click.option(
    "--only", "patterns", multiple=True, metavar="PATTERN", help="With --to: functions, such as '*-expert-0-*'."
)
@click.option(
    "--plan",
    "plan_file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help='JSON: {"FUNCTION": {"NODE": REPLICAS}}; functions it leaves out stay.',
)
@click.option("--resume", is_flag=True, help="Finish a move that was broken off.")
@click.option("--roll-back", is_flag=True, help="Take back a move that was broken off.")
@click.option("--dry-run", is_flag=True, help="Print what would be moved, and move nothing.")
@state_option
@gateway_option
@password_option
@json_option
def migrate(
    pipeline: str,
    to: dict[str, int] | None,
    patterns: tuple[str, ...],
    plan_file: Path | None,
    resume: bool,
    roll_back: bool,
    dry_run: bool,
    state: Path,
    gateway_url: str | None,
    password_file: Path | None,
    as_json: bool,
) -> None:
    """Move PIPELINE's replicas between nodes, or change their number, without a moment in which none serves.

    Weights come first: reused where they are, copied from a peer node, or read from disk once.
    """
    if (to is not None) + (plan_file is not None) + resume + roll_back != 1:
        raise click.UsageError("give one of --to, --plan, --resume, --roll-back")
    _, manifest = ensure_pipeline(pipeline, state / "pipelines")
    with Coordinator(lambda: connect(state, gateway_url, password_file), manifest, state) as coordinator:
        if resume or roll_back:
            moved = coordinator.resume() if resume else coordinator.roll_back()
            if moved is None:
                raise MoveError(f"no move of {manifest.name} was broken off")
            _print(moved.plan, moved, as_json)
            return
        functions = list(deployed(connect(state, gateway_url, password_file), manifest.name).deployments)
        target = _read(plan_file) if plan_file else _target(functions, to or {}, patterns)
        if dry_run:
            _print(coordinator.plan(target), None, as_json)
        else:
            moved = coordinator.move(target)
            _print(moved.plan, moved, as_json)


def _target(functions: list[str], to: dict[str, int], patterns: tuple[str, ...]) -> Places:
    chosen = [name for name in functions if not patterns or any(fnmatch.fnmatchcase(name, one) for one in patterns)]
    if not chosen:
        raise MoveError(f"no function matches {', '.join(patterns)}")
    return dict.fromkeys(chosen, to)


def _read(path: Path) -> Places:
    """A target from a file. Raises MoveError."""
    try:
        document = json.loads(path.read_text())
        target = {str(name): {str(node): _count(n) for node, n in places.items()} for name, places in document.items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise MoveError(f'{path} is not of the form {{"FUNCTION": {{"NODE": REPLICAS}}}}: {error}') from error
    if not target or not all(any(places.values()) for places in target.values()):
        raise MoveError(f"{path}: every function needs one replica or more on some node")
    return target


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is no number of replicas")
    return value


def _print(plan: MovePlan, moved: Moved | None, as_json: bool) -> None:
    """The plan by node, and what the move took when it was made."""
    document: dict[str, Any] = {
        "nodes": {node: _of_node(plan, node) for node in sorted({s.node for s in plan.steps} | plan.release.keys())},
        "predicted_s": round(plan.predicted_s, 4),
        "peer_bytes": plan.nbytes("peer"),
        "disk_bytes": plan.nbytes("disk"),
    }
    if moved is not None:
        document |= {
            "copied_s": round(moved.copied_s, 4),
            "ready_s": round(moved.ready_s, 4),
            "settled_s": round(moved.settled_s, 4),
            "released_bytes": moved.released_bytes,
        }
    if as_json:
        click.echo(json.dumps(document))
        return
    table = Table("node", "reused", "from peers", "MB", "from disk", "MB", "released", title="Weights")
    for node in document["nodes"]:
        of_node = document["nodes"][node]
        peer, disk = f"{of_node['peer_bytes'] / 1e6:.1f}", f"{of_node['disk_bytes'] / 1e6:.1f}"
        table.add_row(
            node, *map(str, (of_node["reuse"], of_node["peer"], peer, of_node["disk"], disk, of_node["released"]))
        )
    print_table(table)
    click.echo(f"copying is predicted to take {plan.predicted_s:.2f} s")
    if moved is not None:
        click.echo(
            f"copied after {moved.copied_s:.2f} s, ready after {moved.ready_s:.2f} s, old replicas gone after "
            f"{moved.settled_s:.2f} s, {moved.released_bytes / 1e6:.1f} MB released"
        )


def _of_node(plan: MovePlan, node: str) -> dict[str, int]:
    steps = [step for step in plan.steps if step.node == node]
    steps_by_source = {source: sum(step.source == source for step in steps) for source in ("reuse", "peer", "disk")}
    for source in ("peer", "disk"):
        steps_by_source[f"{source}_bytes"] = sum(step.nbytes for step in steps if step.source == source)
    return {**steps_by_source, "released": len(plan.release.get(node, ()))}
