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

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click

from benchmarks.harness.learnt import trained
from benchmarks.harness.options import (
    AT_LEAST_1,
    benchmark,
    changes_option,
    listed,
    out_option,
    publish_option,
    rate_option,
    workloads_option,
)
from benchmarks.harness.report import command, print_result, print_table, write_csv
from evaluation.comparison.episode import BOUND, prepare, run_bound
from evaluation.comparison.grid import Grid
from evaluation.comparison.run import evaluate
from evaluation.comparison.store import load_run, path_of, save_run
from evaluation.comparison.tables import COLUMNS, HEAD, cells, markdown, rows, runs_of
from rl.agent.settings import ARMS, Arm
from rl.train.commands import changed
from rl.train.run import BEST
from rl.train.settings import TrainingSettings
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


def train(settings: TrainingSettings, minutes: float, out: Path) -> Trained:
    """A run of ``smoe lab train`` that goes on where it was."""
    run = trained(settings, minutes, out, f"{settings.arm} {settings.seed}: ")
    spent, windows = round(run.progress.minutes, 2), run.agent.num_timesteps
    curve = [{key: value for key, value in entry.items() if key != "clips"} for entry in run.progress.curve]
    return Trained(settings.arm, settings.seed, out / BEST, spent, windows, curve)


def test(grid: Grid, actor: Trained, out: Path, workers: int) -> list[Summary]:
    """The actor's runs on the test hours, named by its variant; an actor that got better since is simulated again."""
    settings = out / "settings"
    settings.mkdir(parents=True, exist_ok=True)
    (settings / f"{POLICY}.toml").write_text(f"actor = {json.dumps(str(actor.actor.resolve()))}\n")
    actor_columns: Summary = {
        "arm": actor.variant, "training_seed": actor.seed, "minutes": actor.minutes,
        "trained_windows": actor.windows, "policy": actor.variant, "actor": file_sha256(actor.actor),
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


def publish(to: Path, actors: Sequence[Trained], summaries: Sequence[Summary], grid: Grid) -> None:
    """What documents cite."""
    to.mkdir(parents=True, exist_ok=True)
    write_csv(to / "results.csv", runs_of(summaries), (*OWN, *COLUMNS))
    curves = [{"arm": one.variant, "seed": one.seed, "minutes": one.minutes, "curve": one.curve} for one in actors]
    (to / "curves.json").write_text(json.dumps(curves, indent=1) + "\n")
    named = ", ".join(f"{one.variant} seed {one.seed} ({one.minutes:g} min)" for one in actors)
    lines = [
        "# Variants of the ablation (simulated)",
        f"Command: `{command()}`. "
        f"{len(actors)} actors: {named}. "
        f"Test hours: seeds {', '.join(map(str, grid.seeds))}, {grid.seconds:g} s at {grid.mean_rps:g} requests/s, the "
        f"first {grid.warm_up_windows} windows not counted. Costs are the experts'.",
        markdown(summaries),
    ]
    (to / "README.md").write_text("\n\n".join(line.rstrip("\n") for line in lines) + "\n")


@benchmark
@click.option(
    "--variants", "--arms", "variants", callback=listed(choices=ARMS), default=",".join(PAPER_VARIANTS),
    help="Comma list (docs/agent.md).")  # fmt: skip
@click.option("--minutes", default=40.0, type=click.FloatRange(0.01), help="Minutes of one core, for each actor.")
@click.option("--seeds", callback=listed(int), default="0,1,2", help="Seeds of training, comma list.")
@workloads_option
@click.option("--patterns", callback=listed(), default=",".join(PATTERNS), help="To test on.")
@changes_option
@click.option("--test-seeds", default=3, type=AT_LEAST_1, help="Test hours of each kind.")
@click.option("--seconds", default=600.0, help="Length of a test hour in seconds.")
@rate_option
@click.option("--workers", default=1, type=click.IntRange(0), help="Processes of testing; 0: one a core.")
@out_option("out/arms", "Actors and runs; what is there is not trained again.")
@publish_option
def main(
    variants: tuple[Arm, ...], minutes: float, seeds: Sequence[int], workloads: tuple[str, ...],
    patterns: tuple[str, ...], changes: tuple[str, ...], test_seeds: int, seconds: float, mean_rps: float, workers: int,
    out: Path, to: Path | None,
) -> None:  # fmt: skip
    grid = Grid(workloads, patterns, (0,), (POLICY,), tuple(range(test_seeds)), seconds=seconds, mean_rps=mean_rps)
    base = changed(TrainingSettings(workloads=workloads), changes)
    summaries, actors = bounds(grid, out / "bound"), list[Trained]()
    for seed in seeds:
        for variant in variants:
            folder = out / f"{variant}-{seed}"
            actors.append(train(replace(base, arm=variant, seed=seed), minutes, folder / "training"))
            summaries += test(grid, actors[-1], folder, workers)
            if to is not None:
                publish(to, actors, summaries, grid)
    heads = ["variant" if name == "policy" else name for name in HEAD]
    title = "simulated: experts' cost above the bound on test hours, by variant"
    print_table(title, heads, map(cells, rows(summaries)), texts=2)
    result = {
        "cells": [{**asdict(row), "arm": row.policy} for row in rows(summaries)],
        "arms": list(variants),
        "seeds": sorted({actor.seed for actor in actors}),
        "minutes": {f"{one.variant}-{one.seed}": one.minutes for one in actors},
        "windows": {f"{one.variant}-{one.seed}": one.windows for one in actors},
    }
    print_result(result)


if __name__ == "__main__":
    main()
