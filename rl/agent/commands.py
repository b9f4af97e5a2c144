"""``smoe lab explain``: one decision of the learnt policy, expert by expert."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from autoscaler.contract import Configuration
from rl.agent.explain import ExpertReasons
from rl.agent.explain import explain as reasons_of
from rl.agent.log_options import manifest_option
from rl.agent.policy import only_fewer_calls
from rl.agent.windows import fresh, logged
from simulation.workloads.paper import PAPER_WORKLOADS
from traces.model import PATTERNS
from traces.options import json_option, seed_option


@click.command()
@click.option("--log", type=click.Path(path_type=Path, exists=True, file_okay=False), default=None,
              help="A controller's log folder: explain a stored decision.")  # fmt: skip
@manifest_option
@click.option(
    "--at", "at_s", type=float, default=None, help="With --log: end of the window, Unix time. [default: last]"
)
@click.option("--workload", "name", type=click.Choice(PAPER_WORKLOADS), default="bert-8", show_default=True,
              help="Without --log: a fresh window of this workload on the modelled cluster.")  # fmt: skip
@click.option(
    "--pattern",
    type=click.Choice(PATTERNS),
    default="bursty",
    show_default=True,
    help="Without --log: of the hour that is simulated.",
)
@click.option(
    "--mean-rps",
    type=click.FloatRange(0.1, 1e4),
    default=20.0,
    show_default=True,
    help="Without --log: requests per second on average.",
)
@click.option(
    "--window",
    "number",
    type=click.IntRange(0, 119),
    default=5,
    show_default=True,
    help="Without --log: which of the episode, from 0.",
)
@seed_option
@click.option("--actor", "actor_file", type=click.Path(path_type=Path, dir_okay=False), default=None,
              help="File of the actor. [default: the published one]")  # fmt: skip
@click.option("--layer", "layers", type=click.IntRange(min=0), multiple=True, help="Only this layer; repeatable.")
@click.option(
    "--top", type=click.IntRange(1, 20), default=3, show_default=True, help="Configurations shown for each expert."
)
@json_option
def explain(
    log: Path | None, manifest: Path | None, at_s: float | None, layers: Sequence[int], top: int, as_json: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Show why the learnt policy decides what it decides in one window.

    For each expert: how much the pointer weighed it within its layer, and the configurations with the highest scores
    among all that Eq. (2) allows, with their probability. The window is a stored one of a controller (--log), or a
    fresh one of the simulator, simulated under the policy up to it.
    """
    actor_file = options.pop("actor_file")
    with Console(stderr=True).status("simulating up to the window" if log is None else "reading the log"):
        window = logged(log, at_s, actor_file, manifest) if log is not None else fresh(actor_file, **options)
        every = reasons_of(window.actor, window.encoder, window.state, top)
    reasons = [row for row in every if not layers or row.layer in layers]
    if not reasons:
        raise click.UsageError(f"the pipeline has no layer {layers[0]}; it has 0 to {len(window.state.experts) - 1}")
    about = {**window.about, "arm": window.actor.settings.arm}
    if as_json:
        rows = [{**asdict(row), "stored": _plain(window.stored.get(row.function))} for row in reasons]
        click.echo(json.dumps({**about, "experts": rows}))
        return
    _show(reasons, about, window.stored)


def _plain(stored: Configuration | None) -> dict[str, Any] | None:
    return None if stored is None else asdict(stored)


def _show(reasons: Sequence[ExpertReasons], about: Mapping[str, Any], stored: Mapping[str, Configuration]) -> None:
    console = Console()
    console.print(", ".join(f"{key} {value}" for key, value in about.items()))
    for layer in sorted({row.layer for row in reasons}):
        table = Table("expert", "pointer", "rank", "configuration", "score", "probability", title=f"layer {layer}")
        for row in (row for row in reasons if row.layer == layer):
            shown = [(str(rank), choice) for rank, choice in enumerate(row.best, start=1)]
            if all(choice.configuration != row.chosen.configuration for choice in row.best):
                shown.append(("", row.chosen))
            for place, (rank, choice) in enumerate(shown):
                table.add_row(
                    f"{row.layer}-{row.expert}" if not place else "",
                    f"{row.pointer:.3f}" if not place else "",
                    rank,
                    _text(choice.configuration) + _remark(choice.configuration, row),
                    f"{choice.score:.3f}",
                    f"{choice.probability:.2g}",
                    end_section=place == len(shown) - 1,
                )
        console.print(table)
    allowed = sum(row.allowed for row in reasons) / len(reasons)
    console.print(f"each choice is among {allowed:,.0f} configurations on average, that is all that Eq. (2) allows")
    if stored:
        same = sum(stored.get(row.function) == row.chosen.configuration for row in reasons)
        kept = sum(
            stored.get(row.function) == row.present and only_fewer_calls(row.present, row.chosen.configuration)
            for row in reasons
        )
        more = f"; {kept} were kept as they were, as fewer calls at once would have changed nothing" if kept else ""
        console.print(
            f"{same} of {len(reasons)} desired configurations are those that were stored when it was decided{more}"
        )


def _remark(configuration: Configuration, row: ExpertReasons) -> str:
    is_taken = configuration == row.chosen.configuration != row.best[0].configuration
    return " (taken: the cluster has no room for more)" * is_taken + " (as it is)" * (configuration == row.present)


def _text(configuration: Configuration) -> str:
    compute = (
        f"{configuration.cpu_cores:g} cores" if configuration.cpu_cores else f"{configuration.gpu_share:g} of a GPU"
    )
    return (
        f"{configuration.replicas} × {configuration.memory_mb} MiB, {compute}, concurrency {configuration.concurrency}"
    )
