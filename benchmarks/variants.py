"""What each part of the agent is worth (Figures 9 and 10): ``python -m benchmarks.variants --minutes 40``.

Each variant of the ablation (``docs/agent.md``) is trained as ``smoe lab train --arm`` does, for as many ``--minutes``
of one core and each of ``--seeds``, with the same settings; then every actor is simulated on the same test hours by the
machinery of ``smoe lab evaluate``, with the bound of the same requests next to it. Actors are chosen on validation
hours by training, never on test hours. What is in ``--out`` goes on or is read, so a stopped run loses nothing, and
variants can be added later. All of it is simulated. ``--publish`` writes ``results.csv`` (every run), ``curves.json``
and a README, which the notebooks read. The last line is one JSON object: ``cells`` with intervals, ``arms``, ``seeds``,
``minutes`` and ``windows`` of training.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from benchmarks.harness.report import print_result, table_of
from evaluation.comparison.episode import BOUND, prepare, run_bound
from evaluation.comparison.grid import Grid
from evaluation.comparison.run import evaluate
from evaluation.comparison.store import load_run, path_of, save_run
from evaluation.comparison.tables import COLUMNS, HEAD, cells, markdown, rows, runs_of
from rl.agent.settings import ARMS
from rl.train.commands import changed, line_of
from rl.train.run import BEST, Run
from rl.train.settings import TrainingSettings
from simulation.workloads.paper import PAPER_WORKLOADS
from traces.model import PATTERNS
from traces.provenance import file_sha256

PAPER_VARIANTS = ("full", "no-dagnn", "no-pointer", "ddpg-only", "no-concurrency")
POLICY = "smoe"
OWN = ("arm", "training_seed", "minutes", "trained_windows")
"""Columns of ``results.csv`` in front of those of an evaluation."""
Summary = dict[str, Any]


@dataclass(frozen=True)
class Trained:
    """One actor, and how it came about."""

    variant: str
    seed: int
    actor: Path
    minutes: float
    windows: int
    curve: list[dict[str, Any]]


def train(settings: TrainingSettings, minutes: float, out: Path, console: Console) -> Trained:
    """A run of ``smoe lab train`` that goes on where it was."""
    run = Run(settings, out)
    run.go(minutes, on_validation=lambda entry: console.print(f"{settings.arm} {settings.seed}: {line_of(entry)}"))
    curve = [{key: value for key, value in entry.items() if key != "clips"} for entry in run.progress.curve]
    return Trained(
        settings.arm, settings.seed, out / BEST, round(run.progress.minutes, 2), run.agent.num_timesteps, curve
    )


def test(grid: Grid, trained: Trained, out: Path, workers: int) -> list[Summary]:
    """The actor's runs on the test hours, named by its variant; an actor that got better since is simulated again."""
    settings = out / "settings"
    settings.mkdir(parents=True, exist_ok=True)
    (settings / f"{POLICY}.toml").write_text(f"actor = {json.dumps(str(trained.actor.resolve()))}\n")
    actor_columns: Summary = {
        "arm": trained.variant, "training_seed": trained.seed, "minutes": trained.minutes,
        "trained_windows": trained.windows, "policy": trained.variant, "actor": file_sha256(trained.actor),
    }  # fmt: skip
    summaries = evaluate(
        replace(grid, settings=settings, bound=False), out / f"evaluation-{actor_columns['actor'][:12]}", workers
    )
    return [{**summary, **actor_columns} for summary in summaries]


def bounds(grid: Grid, out: Path) -> list[Summary]:
    """The bound of every group, once for all variants."""
    summaries = []
    for group in grid.groups():
        work = prepare(grid, group)
        path, fingerprint = path_of(out, group, BOUND), grid.fingerprint(group, BOUND, work.requests.sha256)
        summary = load_run(path, fingerprint)
        if summary is None:
            summary = {**run_bound(work), "fingerprint": fingerprint}
            save_run(path, summary, None)
        summaries.append(summary)
    return summaries


def write(path: Path, summaries: Sequence[Summary]) -> None:
    """Every run in a row."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, (*OWN, *COLUMNS), extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(runs_of(summaries))


def publish(to: Path, trained: Sequence[Trained], summaries: Sequence[Summary], grid: Grid) -> None:
    """What documents cite."""
    to.mkdir(parents=True, exist_ok=True)
    write(to / "results.csv", summaries)
    curves = [
        {"arm": actor.variant, "seed": actor.seed, "minutes": actor.minutes, "curve": actor.curve} for actor in trained
    ]
    (to / "curves.json").write_text(json.dumps(curves, indent=1) + "\n")
    actors = ", ".join(f"{one.variant} seed {one.seed} ({one.minutes:g} min)" for one in trained)
    lines = [
        "# Variants of the ablation (simulated)",
        f"Command: `python -m benchmarks.variants {' '.join(sys.argv[1:])}`. "
        f"{len(trained)} actors: {actors}. "
        f"Test hours: seeds {', '.join(map(str, grid.seeds))}, {grid.seconds:g} s at {grid.mean_rps:g} requests/s, the "
        f"first {grid.warm_up_windows} windows not counted. Costs are the experts'.",
        markdown(summaries),
    ]
    (to / "README.md").write_text("\n\n".join(line.rstrip("\n") for line in lines) + "\n")


def show(summaries: Sequence[Summary], console: Console) -> None:
    """For people."""
    heads = ["variant" if name == "policy" else name for name in HEAD]
    title = "simulated: experts' cost above the bound on test hours, by variant"
    console.print(table_of(title, heads, map(cells, rows(summaries)), texts=2))


def _chosen(_: click.Context, __: click.Parameter, value: str) -> tuple[str, ...]:
    variants = tuple(value.split(","))
    unknown = [name for name in variants if name not in ARMS]
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r} is no variant; there are {', '.join(ARMS)}")
    return variants


@click.command()
@click.option(
    "--variants",
    "--arms",
    "variants",
    default=",".join(PAPER_VARIANTS),
    show_default=True,
    callback=_chosen,
    help="Comma list (docs/agent.md).",
)
@click.option(
    "--minutes",
    default=40.0,
    show_default=True,
    type=click.FloatRange(0.01),
    help="Minutes of one core, for each actor.",
)
@click.option("--seeds", default="0,1,2", show_default=True, help="Seeds of training, comma list.")
@click.option("--workloads", default=",".join(PAPER_WORKLOADS), show_default=True, help="To train and to test on.")
@click.option("--patterns", default=",".join(PATTERNS), show_default=True, help="To test on.")
@click.option("--set", "changes", multiple=True, metavar="KEY=JSON", help="Setting of training, as of smoe lab train.")
@click.option("--test-seeds", default=3, show_default=True, type=click.IntRange(1), help="Test hours of each kind.")
@click.option("--seconds", default=600.0, show_default=True, help="Length of a test hour in seconds.")
@click.option(
    "--mean-rps",
    default=20.0,
    show_default=True,
    type=click.FloatRange(0.1, 1e4),
    help="Requests per second on average.",
)
@click.option(
    "--workers", default=1, show_default=True, type=click.IntRange(0), help="Processes of testing; 0: one a core."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("out/arms"),
    show_default=True,
    help="Actors and runs; what is there is not trained again.",
)
@click.option(
    "--publish",
    "to",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help="Folder for table and curves.",
)
def main(
    variants: tuple[str, ...], minutes: float, seeds: str, workloads: str, patterns: str, changes: tuple[str, ...],
    test_seeds: int, seconds: float, mean_rps: float, workers: int, out: Path, to: Path | None,
) -> None:  # fmt: skip
    """Train every variant, and simulate the same test hours under each."""
    console = Console(stderr=True)
    named = tuple(workloads.split(","))
    grid = Grid(
        named, tuple(patterns.split(",")), (0,), (POLICY,), tuple(range(test_seeds)), seconds=seconds, mean_rps=mean_rps
    )
    base = changed(TrainingSettings(workloads=named), changes)
    summaries, trained = bounds(grid, out / "bound"), list[Trained]()
    for seed in map(int, seeds.split(",")):
        for variant in variants:
            folder = out / f"{variant}-{seed}"
            trained.append(train(replace(base, arm=variant, seed=seed), minutes, folder / "training", console))
            summaries += test(grid, trained[-1], folder, workers)
            if to is not None:
                publish(to, trained, summaries, grid)
    show(summaries, console)
    print_result(
        {
            "cells": [{**asdict(row), "arm": row.policy} for row in rows(summaries)],
            "arms": list(variants),
            "seeds": sorted({actor.seed for actor in trained}),
            "minutes": {f"{one.variant}-{one.seed}": one.minutes for one in trained},
            "windows": {f"{one.variant}-{one.seed}": one.windows for one in trained},
        }
    )


if __name__ == "__main__":
    main()
