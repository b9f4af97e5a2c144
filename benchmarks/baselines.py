"""Every baseline, tuned, against the bound: ``python -m benchmarks.baselines``.

First each policy is tuned on validation hours, of which ``--tune-seconds`` are simulated, those whose CV is nearest to
the hour's: plans by a search for each workload and pattern that goes on until it has converged, settings by a recorded
sweep for each workload of ``--sweep-on`` and for all of them together, which the other workloads get; FaaSConf was
trained on training hours (``docs/policies.md``).
Then all meet the same requests of test hours. The table is policy × pattern: both costs above the bound, P95 over the
SLO, windows over it. All of it is simulated on the modelled cluster. What is in ``--out`` already is not done again.
``--publish`` writes table, figures, search curves and README to a folder of results. The last line is one JSON object:
``cells`` with intervals, ``policies``, ``refused`` (groups that nothing can be measured with and policies that cannot
serve a workload, each with the reason), ``searches`` (trials and whether each converged), ``trace_measured``,
``traces`` (file → sha256).
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import shutil
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress

from benchmarks.harness.report import print_result, table_of
from evaluation.comparison.arrivals import DATASETS
from evaluation.comparison.grid import Grid
from evaluation.comparison.report import ReportPaths, heading, write_report
from evaluation.comparison.run import evaluate
from evaluation.comparison.store import write_windows
from evaluation.comparison.tables import HEAD, Row, cells, markdown, rows
from evaluation.tuning.curves import best_so_far, picture
from evaluation.tuning.search import SearchSettings
from evaluation.tuning.searches import PLANNED, make_plans
from evaluation.tuning.sweep import CANDIDATES, sweep
from simulation.workloads.paper import PAPER_WORKLOADS
from traces import catalog
from traces.provenance import path_sha256

POLICIES = (
    *("serverlessmoe", "elasticmoe", "faasconf", "openfaas"),
    *("hpa", "tuned-hpa", "kpa", "keda", "last-window"),
)


@dataclass(frozen=True)
class Tuning:
    """How settings and plans are found on validation hours."""

    swept: tuple[str, ...]
    """Workloads that settings are swept on."""
    trials: int
    """Most deployments judged in a search."""
    seconds: float
    """The part of each hour that is most like the whole."""


def measure(
    grid: Grid, tuning: Tuning, out: Path, workers: int, progress: Progress
) -> tuple[list[dict[str, Any]], Grid, dict[str, str]]:
    """Summaries of the tuned policies on the test hours, the grid they ran with, and groups that nothing can be
    measured with, each with the reason."""
    short = replace(grid, seconds=min(grid.seconds, tuning.seconds))
    planned, tuned = replace(short, plans=out / "plans"), replace(grid, plans=out / "plans", settings=out / "settings")
    task = progress.add_task("plans", total=None)
    searched = SearchSettings(tuning.trials, least_trials=min(tuning.trials, SearchSettings.least_trials))
    make_plans(short, out / "plans", searched, lambda name, trial: progress.update(task, description=f"plan of {name}"))
    number = sum(len(CANDIDATES.get(policy, ())) for policy in grid.policies)
    task = progress.add_task("sweep", total=number * len(tuning.swept))
    sweep(
        replace(planned, workloads=tuning.swept),
        out / "settings",
        lambda name, done: progress.update(task, description=name, completed=done),
        workers or os.cpu_count() or 1,
    )
    task = progress.add_task("test hours", total=len(list(tuned.groups())))
    refused: dict[str, str] = {}
    summaries = evaluate(tuned, out, workers, lambda key, _: progress.update(task, description=key, advance=1), refused)
    return summaries, tuned, refused


def as_json(row: Row) -> dict[str, Any]:
    """A row of the table."""
    return json.loads(json.dumps(asdict(row)))  # type: ignore[no-any-return]


def searches(plans: Path) -> dict[str, dict[str, Any]]:
    """Each search in a folder of plans: how many trials, and whether it converged."""
    summary_of = {}
    for path in sorted(plans.glob("*.csv")):
        plan = next(iter(sorted(plans.glob(f"{path.stem}.*.json"))), None)
        made_by = json.loads(plan.read_text())["made_by"] if plan else {}
        summary_of[path.stem] = {"trials": len(best_so_far(path)), "converged": made_by.get("converged")}
    return summary_of


def write_searches(path: Path, plans: Path) -> None:
    """Every trial of every search in a folder of plans as one table, the search's name first."""
    with path.open("w", newline="") as file:
        writer = None
        for search in sorted(plans.glob("*.csv")):
            with search.open(newline="") as file_of_search:
                for trial in csv.DictReader(file_of_search):
                    row = {"search": search.stem, **trial}
                    if writer is None:
                        writer = csv.DictWriter(file, row)
                        writer.writeheader()
                    writer.writerow(row)


def pack_plans(path: Path, plans: Path) -> None:
    """Every plan of a folder in one archive, the same bytes from the same plans."""
    with gzip.GzipFile(path, "wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        for plan in sorted(plans.glob("*.json")):
            entry = tarfile.TarInfo(f"plans/{plan.name}")
            entry.size = plan.stat().st_size
            with plan.open("rb") as file:
                archive.addfile(entry, file)


def trace_hashes(grid: Grid) -> dict[str, str]:
    """File → sha256 of the traces that hours are taken from."""
    paths = {dataset.name: dataset.path for dataset in catalog.datasets(catalog.data_folder(grid.data))}
    used = next((paths[name] for name in DATASETS if name in paths), None)
    return {} if used is None else {used.name: path_sha256(used)}


def publish(to: Path, out: Path, paths: ReportPaths, summaries: Sequence[Mapping[str, Any]], page: str) -> None:
    """Copy what documents cite into ``to``: runs and their windows, figures, sweep and search curves, the tuned
    settings and plans themselves, with ``page`` as README."""
    to.mkdir(parents=True, exist_ok=True)
    write_windows(to / "windows.parquet", summaries, out)
    for path in (paths.csv, *paths.figures, out / "settings" / "sweep.csv"):
        shutil.copyfile(path, to / path.name)
    shutil.rmtree(to / "settings", ignore_errors=True)
    (to / "settings").mkdir()
    for path in sorted((out / "settings").glob("*.toml")):
        shutil.copyfile(path, to / "settings" / path.name)
    pack_plans(to / "plans.tar.gz", out / "plans")
    write_searches(to / "searches.csv", out / "plans")
    curves = {path.stem: best_so_far(path) for path in sorted((out / "plans").glob("*.csv"))}
    picture(to / "searches.png", curves, columns=len(PLANNED))
    (to / "README.md").write_text(page)


def page_of(
    grid: Grid, summaries: Sequence[Mapping[str, Any]], result: Mapping[str, Any], command: str, tune_s: float
) -> str:
    """Markdown: what was run, the table, and what the files hold. ``tune_s``: seconds of each validation hour."""
    done = result["searches"].values()
    converged = sum(bool(search["converged"]) for search in done)
    traces = (
        "; ".join(f"`{name}` sha256 `{digest}`" for name, digest in result["traces"].items()) or "synthetic arrivals"
    )
    lines = [
        "# Baselines, tuned, against the bound (simulated)",
        f"Command: `{command}`. {heading(grid, summaries)} At {grid.mean_rps:g} requests/s on average. "
        f"Tuned on {min(tune_s, grid.seconds):g} s of validation hours. Hours: {traces}. Requests of each run: "
        "`requests_sha256` in `results.csv`.",
        f"Searches of plans: {len(done)}, of which {converged} converged (every step away from the best was tried); "
        f"{min((search['trials'] for search in done), default=0)} to "
        f"{max((search['trials'] for search in done), default=0)} trials each (`searches.png`, "
        "`searches.csv`). Settings: every trial "
        "in `sweep.csv`. To evaluate with the same ones: `tar xzf plans.tar.gz` here, then `smoe lab evaluate --plans "
        "plans --policy-settings settings` from here, or with these folders' paths.",
        *([f"Left out: {'; '.join(dict.fromkeys(result['refused'].values()))}."] if result["refused"] else []),
        markdown(summaries),
        "![cost and P95 by workload, bursty](figure-7.png)",
        "![cost and P95 by pattern](figure-8.png)",
        "![searches](searches.png)",
    ]
    return "\n\n".join(line.rstrip("\n") for line in lines) + "\n"


@click.command()
@click.option("--workloads", default=",".join(PAPER_WORKLOADS), show_default=True, help="Comma list.")
@click.option("--patterns", default="bursty,normal,slow", show_default=True, help="Comma list.")
@click.option("--policies", default=",".join(POLICIES), show_default=True, help="Comma list (docs/policies.md).")
@click.option(
    "--sweep-on",
    default="bert-4,gpt2-4,b2b-4",
    show_default=True,
    help="Workloads whose settings are swept; others get what is best for all of these.",
)
@click.option(
    "--seeds", default=5, show_default=True, type=click.IntRange(1), help="Test hours of each workload and pattern."
)
@click.option("--seconds", default=3600.0, show_default=True, help="Seconds of each test hour.")
@click.option("--tune-seconds", default=600.0, show_default=True, help="Seconds of each validation hour.")
@click.option("--mean-rps", default=20.0, show_default=True, help="Requests per second on average.")
@click.option(
    "--trials",
    default=SearchSettings.trials,
    show_default=True,
    type=click.IntRange(3),
    help="Most deployments judged in a search.",
)
@click.option("--workers", default=0, show_default=True, type=click.IntRange(0), help="Processes; 0: one a core.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("out/baselines"),
    show_default=True,
    help="Folder of all results; what is there is not computed again.",
)
@click.option(
    "--publish",
    "to",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help="Folder for table, runs and figures.",
)
def main(
    workloads: str,
    patterns: str,
    policies: str,
    sweep_on: str,
    seeds: int,
    seconds: float,
    tune_seconds: float,
    mean_rps: float,
    trials: int,
    workers: int,
    out: Path,
    to: Path | None,
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
    tuning = Tuning(tuple(sweep_on.split(",")), trials, tune_seconds)
    with Progress(console=console, transient=True) as progress:
        summaries, tuned, refused = measure(grid, tuning, out, workers, progress)
    paths = write_report(tuned, summaries, out)
    title = "simulated: experts' cost above the bound, tuned policies on test hours"
    console.print(table_of(title, HEAD, map(cells, rows(summaries)), texts=2))
    console.print(f"report: {paths.html}")
    result = {
        "cells": [as_json(row) for row in rows(summaries)],
        "policies": list(grid.policies),
        "refused": refused,
        "searches": searches(out / "plans"),
        "trace_measured": all(summary.get("trace_measured", True) for summary in summaries),
        "traces": trace_hashes(grid),
    }
    if to is not None:
        publish(
            to,
            out,
            paths,
            summaries,
            page_of(tuned, summaries, result, f"python -m benchmarks.baselines {_asked()}".strip(), tuning.seconds),
        )
    print_result(result)


def _asked() -> str:
    """What was given on the command line."""
    return " ".join(sys.argv[1:])


if __name__ == "__main__":
    main()
