"""Every baseline, tuned, against the bound: ``python -m benchmarks.baselines``.

First each policy is tuned on validation hours: plans by Bayesian optimisation, settings by a recorded sweep. Then all
meet the same requests of test hours. The table is policy × pattern: both costs above the bound, windows over the SLO.
All of it is simulated on the modelled cluster. What is in ``--out`` already is not done again. The last line is one
JSON object: ``cells`` with intervals, ``policies``, ``missing`` (the paper's baselines that are not here),
``trace_measured``.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from rl.evaluate.grid import Grid
from rl.evaluate.report import write_report
from rl.evaluate.run import evaluate
from rl.evaluate.tables import Row, cells, rows
from rl.tuning.plans import make_plans
from rl.tuning.sweep import CANDIDATES, LAST_WINDOW, sweep

POLICIES = ("serverlessmoe", "elasticmoe", "openfaas", "hpa", "tuned-hpa", "kpa", "keda", LAST_WINDOW)
MISSING = ("faasconf",)


def measure(grid: Grid, out: Path, trials: int, workers: int, progress: Progress) -> tuple[list[dict[str, Any]], Grid]:
    """Summaries of the tuned policies on the test hours, and the grid they ran with."""
    task = progress.add_task("plans", total=None)
    make_plans(grid, out / "plans", trials, lambda name, trial: progress.update(task, description=f"plan of {name}"))
    planned = replace(grid, plans=out / "plans")
    number = sum(len(CANDIDATES.get(policy, ())) for policy in grid.policies)
    task = progress.add_task("sweep", total=number)
    if not (out / "settings" / "sweep.csv").is_file():
        sweep(
            planned,
            out / "settings",
            lambda name, done: progress.update(task, description=f"sweep of {name}", completed=done),
        )
    tuned = replace(planned, settings=out / "settings")
    task = progress.add_task("test hours", total=len(list(tuned.groups())))
    summaries = evaluate(tuned, out, workers, lambda key, _: progress.update(task, description=key, advance=1))
    return summaries, tuned


def as_json(row: Row) -> dict[str, Any]:
    """A row of the table."""
    return json.loads(json.dumps(asdict(row)))  # type: ignore[no-any-return]


@click.command()
@click.option("--workloads", default="bert-4", show_default=True)
@click.option("--patterns", default="bursty,normal,slow", show_default=True)
@click.option("--policies", default=",".join(POLICIES), show_default=True)
@click.option("--seeds", default=3, show_default=True, type=click.IntRange(1))
@click.option("--seconds", default=1800.0, show_default=True)
@click.option("--mean-rps", default=5.0, show_default=True)
@click.option("--trials", default=150, show_default=True, type=click.IntRange(3), help="Of each plan's search.")
@click.option("--workers", default=0, show_default=True, type=click.IntRange(0), help="0: one a core.")
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), default=Path("out/baselines"), show_default=True
)
def main(
    workloads: str,
    patterns: str,
    policies: str,
    seeds: int,
    seconds: float,
    mean_rps: float,
    trials: int,
    workers: int,
    out: Path,
) -> None:
    """Tune every baseline on validation hours, then compare them on test hours."""
    grid = Grid(
        tuple(workloads.split(",")),
        tuple(patterns.split(",")),
        (0,),
        tuple(policies.split(",")),
        tuple(range(seeds)),
        seconds=seconds,
        mean_rps=mean_rps,
    )
    console = Console(stderr=True)
    with Progress(console=console, transient=True) as progress:
        summaries, tuned = measure(grid, out, trials, workers, progress)
    paths = write_report(tuned, summaries, out)
    table = Table(title="simulated: experts' cost above the bound, tuned policies on test hours")
    for name in ("pattern", "policy", "provisioned", "busy", "windows over SLO", "mean excess"):
        table.add_column(name, justify="left" if name in ("pattern", "policy") else "right")
    found = rows(summaries)
    for row in found:
        pattern, policy, _, *figures = cells(row)
        table.add_row(pattern, policy, *figures)
    console.print(table)
    console.print(f"report: {paths.html}")
    measured = all(summary.get("trace_measured", True) for summary in summaries)
    print(
        json.dumps(
            {
                "cells": [as_json(row) for row in found],
                "policies": list(grid.policies),
                "missing": MISSING,
                "trace_measured": measured,
            }
        )
    )


if __name__ == "__main__":
    main()
