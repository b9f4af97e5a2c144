"""Every baseline, tuned, against the bound: ``python -m benchmarks.baselines``.

First each policy is tuned on validation hours, of which ``--tune-seconds`` are simulated, those whose CV is nearest to
the hour's: plans by a search for each workload and pattern that goes on until it has converged, settings by a recorded
sweep for each workload of ``--sweep-on``, under each pattern, and for all of them together, which the other workloads
get; FaaSConf was
trained on training hours (``docs/policies.md``).
Then all meet the same requests of test hours. The table is policy × pattern: both costs above the bound, P95 over the
SLO, windows over it. All of it is simulated on the modelled cluster. What is in ``--out`` already is not done again.
``--publish`` writes table, figures, search curves and README to a folder of results. The last line is one JSON object:
``cells`` with intervals, ``policies``, ``beyond_cluster`` (runs that ordered more than there is), ``refused`` (groups
that nothing can be measured with and policies that cannot serve a workload, each with the reason), ``searches`` (trials
and whether each converged), ``trace_measured``, ``traces`` (file → sha256).
"""

from __future__ import annotations

import csv
import gzip
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from benchmarks.harness.options import (
    AT_LEAST_1,
    benchmark,
    listed,
    out_option,
    publish_option,
    workers_option,
)
from benchmarks.harness.report import command, print_result, print_table, write_csv
from evaluation.compared import Tuning, compare, result_of
from evaluation.comparison.grid import Grid
from evaluation.comparison.report import ReportPaths, heading, write_report
from evaluation.comparison.store import write_windows
from evaluation.comparison.tables import HEAD, cells, markdown, rows
from evaluation.progress import LongWork
from evaluation.tuning.curves import best_so_far, picture
from evaluation.tuning.search import SearchSettings
from simulation.workloads.worlds import WORLDS, World
from traces import catalog
from traces.provenance import path_sha256
from traces.traffic import DATA_SETS

POLICIES = (
    *("constant", "constant-per-layer", "constant-per-expert"),
    *("constant+burst", "constant-per-layer+burst", "constant-per-expert+burst"),
    *("serverlessmoe", "elasticmoe", "faasconf", "openfaas"),
    *("hpa", "hpa+burst", "tuned-hpa", "vpa", "kpa", "keda", "apa", "slo-aware", "last-window+burst"),
    "rl.staffing.policy:make_rule",
)
"""The last one, the staffing rule with its defaults, is not tuned: by this name it has no candidates."""
WORKLOADS = "bert-4,gpt2-4,b2b-4"


def write_searches(path: Path, plans: Path) -> None:
    """Every trial of every search in a folder of plans as one table, the search's name first."""
    rows = [
        {"search": search.stem, **trial}
        for search in sorted(plans.glob("*.csv"))
        for trial in csv.DictReader(search.read_text().splitlines())
    ]
    if rows:
        write_csv(path, rows)


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
    data_sets = catalog.datasets(catalog.data_folder(grid.data))
    return {dataset.path.name: path_sha256(dataset.path) for dataset in data_sets if dataset.name in DATA_SETS}


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
    picture(to / "searches.png", curves, columns=3)
    (to / "README.md").write_text(page)


def page_of(
    grid: Grid, summaries: Sequence[Mapping[str, Any]], result: Mapping[str, Any], made_by: str, tune_s: float
) -> str:
    """Markdown: what was run, the table, and what the files hold. ``tune_s``: seconds of each validation hour."""
    done = result["searches"].values()
    converged = sum(bool(search["converged"]) for search in done)
    traces = (
        "; ".join(f"`{name}` sha256 `{digest}`" for name, digest in result["traces"].items()) or "synthetic arrivals"
    )
    lines = [
        "# Baselines, tuned, against the bound (simulated)",
        f"Command: `{made_by}`. {heading(grid, summaries)} At {grid.mean_rps:g} requests/s on average. "
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


@benchmark
@click.option("--workloads", callback=listed(), default=WORKLOADS, help="Comma list.")
@click.option("--patterns", callback=listed(), default="bursty,normal,diurnal", help="Comma list.")
@click.option("--policies", callback=listed(), default=",".join(POLICIES), help="Comma list (docs/policies.md).")
@click.option("--sweep-on", callback=listed(), default=WORKLOADS, help="Workloads that settings are swept on.")
@click.option("--seeds", default=6, type=AT_LEAST_1, help="Test hours of each workload and pattern.")
@click.option("--seconds", default=600.0, help="Seconds of each test hour: the part that is most like the whole.")
@click.option("--tune-seconds", default=600.0, help="Seconds of each validation hour.")
@click.option("--mean-rps", type=click.FloatRange(0.1, 1e4), default=50.0, help="Mean requests a second.")
@click.option("--world", type=click.Choice(WORLDS), default="cores-only", help="Cluster.")
@click.option("--relative-slo", type=click.FloatRange(1, 1000, min_open=True), default=5.0, help="λ over the P95.")
@click.option("--trials", default=SearchSettings.trials, type=click.IntRange(3), help="Most deployments of a search.")
@workers_option
@out_option("out/baselines", "Folder of all results; what is there is not computed again.")
@publish_option
def main(
    workloads: tuple[str, ...], patterns: tuple[str, ...], policies: tuple[str, ...], sweep_on: tuple[str, ...],
    seeds: int, seconds: float, tune_seconds: float, mean_rps: float, world: World, relative_slo: float | None,
    trials: int, workers: int, out: Path, to: Path | None,
) -> None:  # fmt: skip
    grid = Grid(
        workloads, patterns, (0,), policies, tuple(range(seeds)), seconds=seconds, mean_rps=mean_rps, world=world,
        relative_slo=relative_slo,
    )  # fmt: skip
    console = Console(stderr=True)
    with LongWork(console) as bar:
        task = bar.add_task("")
        tuning = Tuning(sweep_on, trials, tune_seconds)
        summaries, tuned, refused = compare(
            grid, tuning, out, workers,
            lambda what, done, total: bar.update(task, description=what, completed=done, total=total),
        )  # fmt: skip
    paths = write_report(tuned, summaries, out)
    title = "simulated: experts' cost above the bound, tuned policies on test hours"
    print_table(title, HEAD, map(cells, rows(summaries)), texts=2)
    console.print(f"report: {paths.html}")
    result = result_of(grid, summaries, refused, out) | {"traces": trace_hashes(grid)}
    if to is not None:
        publish(to, out, paths, summaries, page_of(tuned, summaries, result, command(), tune_seconds))
    print_result(result)


if __name__ == "__main__":
    main()
