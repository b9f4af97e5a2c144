"""``smoe lab evaluate``: scaling policies side by side in the simulator."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import click
import orjson
from click.core import ParameterSource
from pydantic import Field
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from autoscaler.checked import Checked, Flag, FromOne, FromZero, NotNegative, Share
from autoscaler.contract import Configuration
from autoscaler.errors import AutoscalerError
from autoscaler.options import options_of
from evaluation.comparison.episode import BOUND
from evaluation.comparison.errors import EvaluationError
from evaluation.comparison.grid import FROM_FILE, Grid
from evaluation.comparison.report import verdict, write_report
from evaluation.comparison.run import evaluate as run_all
from evaluation.comparison.run import names_of
from evaluation.comparison.tables import HEAD, always_failed, cells, failure_sentences, rows, without_interval
from evaluation.destination import make_writable
from evaluation.progress import LongWork
from simulation.engine.errors import SimulationError
from simulation.profiles.model.errors import ProfileError
from simulation.workloads.custom import HOUR_S, CustomPipeline, CustomPipelineError
from simulation.workloads.custom_options import custom_options, custom_pipelines, prices_option, slo_option
from simulation.workloads.paper import PAPER_WORKLOADS
from simulation.workloads.worlds import World
from smoe.errors import SmoeError
from traces.errors import TraceError
from traces.options import clip_options, data_option
from traces.traffic import REPLAYED_PATTERNS

DEFAULT_WORKLOADS = ("bert-4",)
REFUSED = (EvaluationError, CustomPipelineError, ProfileError, TraceError, SimulationError, AutoscalerError)
"""What an evaluation raises where nothing can be measured."""
NEXT_STEP = "next: `smoe up` and `smoe autoscale --policy NAME` run one of them on a live pipeline"
FULL_WIDTH = 140
"""Columns of a terminal that has room for intervals."""
Start = tuple[FromOne, NotNegative, Share, FromOne, FromOne]
"""Memory in MiB, cores, share of a GPU, replicas, concurrency."""


@dataclass(frozen=True)
class GridSettings(Checked):
    """Options of ``smoe lab evaluate`` and ``smoe lab compare``, named as in
    :class:`evaluation.comparison.grid.Grid`."""

    error = SmoeError
    workloads: Annotated[tuple[str, ...], Flag(allowed=PAPER_WORKLOADS)] = ()
    """[default: bert-4; none with --pipeline]"""
    patterns: Annotated[tuple[str, ...], Flag(allowed=REPLAYED_PATTERNS)] = ("bursty",)
    """Hours of these patterns are replayed."""
    tokens: Annotated[tuple[int, ...], Flag("--input-sizes")] = (0,)
    """Mean tokens of a request; 0: the workload's."""
    policies: tuple[str, ...] = ("static", "hpa", "kpa", "keda", "elasticmoe", "openfaas")
    """Names (docs/policies.md), MODULE:MAKER or FILE.py:MAKER (docs/own-policy.md)."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Each chooses clip, lengths, routing and noise."""
    out: Path = Path("out/evaluation")
    """Folder of the results; runs there stay."""
    mean_rps: Annotated[float | None, Field(ge=0, le=1e5)] = None
    """Requests per second on average; 0: as the trace is. [default: 20; with --pipeline 2.83, 14.1 with --cluster]"""
    speed: Annotated[float | None, Field(ge=0.01, le=3600)] = None
    """Factor by which a trace's time is divided; windows, seconds and rate are those after the division. [default: 1;
    with --pipeline 30, without --cluster]"""
    seconds: Annotated[float | None, Field(ge=10, le=86400)] = None
    """Length of an episode in seconds. [default: 3600; with --pipeline an hour of the trace, 3600 / speed]"""
    window_s: Annotated[float | None, Field(ge=0.1, le=3600)] = None
    """Length of a window in seconds. [default: 30; with --pipeline 2, without --cluster]"""
    warm_up_windows: Annotated[FromZero, Flag("--warm-up")] = 4
    """Windows that are not counted."""
    world: World | None = None
    """Cluster of the paper's workloads: with the paper's GPUs (mixed), without them, or with room for everything.
    [default: mixed; a custom pipeline runs on its own machine]"""
    relative_slo: Annotated[float | None, Field(gt=1, le=1000)] = None
    """SLO as so many times the P95 of the same requests with unlimited capacity. [default: the workload's]"""
    hop_factor: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """Sensitivity: factor of the modelled cost of a hop."""
    gpu_price_factor: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """Sensitivity: factor of the price of a GPU."""
    bound: Annotated[bool, Flag("--bound/--no-bound")] = True
    """Compute the lower bound of cost, or not."""
    start: Annotated[Start | None, Flag(metavar="MEMORY_MB CORES GPU_SHARE REPLICAS CONCURRENCY")] = None
    """What every expert starts with. [default: the optimum at the warm-up's load]"""


@dataclass(frozen=True)
class EvaluateSettings(GridSettings):
    """Options of ``smoe lab evaluate``."""

    trace: str | None = None
    """A trace file, or a name of `smoe traces list`. [default: hours by pattern]"""
    plans: Annotated[Path | None, Flag(folder=True)] = None
    """Folder of stored plans, POLICY.WORKLOAD.json."""
    settings: Annotated[Path | None, Flag("--policy-settings", folder=True)] = None
    """Folder of policies' settings, POLICY.toml."""


@click.command()
@options_of(EvaluateSettings)
@custom_options(slo_option)
@clip_options
@data_option
@prices_option
@click.option("--workers", type=click.IntRange(0), default=0, help="Processes; 0: one a core.")
@click.option("--json", "as_json", is_flag=True, help="Print the runs as JSON.")
def evaluate(**options: Any) -> None:
    """Simulate the same arrivals with the same routing under several policies, and compare cost and P95.

    All runs are simulated: the paper's workloads on the modelled cluster, a custom pipeline on the machine of its
    profile, or with --cluster there too. Exit status 1 where a policy fails in every window or one that was named is
    left out. A run that is in --out already is not simulated again, so an evaluation that was stopped goes on where it
    was. Writes results.csv, results.md, results.json, two figures and report.html.
    """
    console = Console(stderr=True)
    custom = custom_of(options)
    left_out: dict[str, str] = {}
    try:
        grid = grid_of(options, given_of(EvaluateSettings, options), custom)
        make_writable(options["out"])
        runs = len(list(grid.groups())) * len(names_of(grid))
        with progress_bar(console) as bar:
            task = bar.add_task("arrivals and bound", total=runs)
            summaries = run_all(
                grid, options["out"], options["workers"],
                lambda what, more: bar.update(task, advance=more, description=what), refused=left_out,
            )  # fmt: skip
        if all(summary["policy"] == BOUND for summary in summaries):
            raise EvaluationError("; ".join(dict.fromkeys(left_out.values())))
        paths = write_report(grid, summaries, options["out"], left_out)
    except REFUSED as error:
        raise SmoeError(str(error)) from error
    if options["as_json"]:
        sys.stdout.buffer.write(orjson.dumps(summaries, option=orjson.OPT_APPEND_NEWLINE))
    else:
        show(Console(), summaries, left_out)
        console.print(f"report: {paths.html}")
        console.print(NEXT_STEP, soft_wrap=True)
    given = click.get_current_context().get_parameter_source("policies") is not ParameterSource.DEFAULT
    check_all_judged(grid, summaries, left_out, options["policies"] if given else ())


def check_all_judged(
    grid: Grid, summaries: list[dict[str, Any]], left_out: Mapping[str, str], named: Sequence[str]
) -> None:
    """Raises SmoeError where a policy failed in every window, or one that was ``named`` was left out of a group: their
    rows say nothing about them, or are not there."""
    faults = [f"{policy} failed in every window ({first})" for policy, first in always_failed(summaries).items()]
    for policy in dict.fromkeys(named):
        reasons = [left_out[key] for group in grid.groups() if (key := f"{group.key}.{policy}") in left_out]
        faults += [f"{policy} was left out, as {reasons[0]}"] if reasons else []
    if faults:
        raise SmoeError("; ".join(faults))


def progress_bar(console: Console) -> LongWork:
    """What is under way, how much of how much is done, and the time left."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return LongWork(console, *columns, TimeRemainingColumn())


def custom_of(options: dict[str, Any]) -> CustomPipeline | None:
    """The custom pipeline of a command's options. Raises UsageError."""
    targets = () if options["slo_ms"] is None else (options["slo_ms"],)
    machine = (options[key] for key in ("profile", "cpu_scale", "other_machine", "slo_factor", "cluster"))
    return next(iter(custom_pipelines(options["folder"], targets, *machine)), None)


def given_of(kind: type[GridSettings], options: dict[str, Any]) -> dict[str, Any]:
    """The settings among a command's options, checked. Raises SmoeError."""
    return vars(kind(**{entry.name: options[entry.name] for entry in fields(kind)}))


def grid_of(options: dict[str, Any], given: dict[str, Any], custom: CustomPipeline | None) -> Grid:
    """One clock for all workloads: that of the custom pipeline where there is one, except for given options."""
    clock: dict[str, float] = {}
    if custom is not None:
        speed = given["speed"] or custom.speed
        clock = {"window_s": custom.window_s, "seconds": HOUR_S / speed, "mean_rps": custom.rate_rps, "speed": speed}
    named = {name: value for name, value in given.items() if value is not None and name not in ("out", "workloads")}
    if custom is not None or given["workloads"]:
        named["workloads"] = (*given["workloads"], *([custom.pipeline] if custom is not None else []))
    if given.get("trace"):
        named |= {"trace": Path(given["trace"]), "patterns": (FROM_FILE,)}
    if given["start"]:
        named["start"] = Configuration(*given["start"])
    parts: dict[str, Any] = {
        key: options[key] for key in ("row", "start_s", "duration_s", "prices", "data") if key in options
    }
    every: dict[str, Any] = {"workloads": DEFAULT_WORKLOADS, "custom": custom, **parts, **clock, **named}
    return Grid(**every)


def show(console: Console, summaries: list[dict[str, Any]], left_out: Mapping[str, str]) -> None:
    """One row a policy and pattern, and who was cheapest within the SLO; a narrow terminal gets values alone. On stderr
    what was left out, and why."""
    table_rows, narrow = rows(summaries), console.width < FULL_WIDTH
    bounded = any(interval is not None for row in table_rows for interval in row.over_bound.values())
    hidden = {"provisioned", "busy"} if bounded else {"provisioned over bound", "busy over bound"}
    hidden |= {"standbys", "decision P99", "beyond the cluster"} if narrow else set()
    shown = [place for place, name in enumerate(HEAD) if name not in hidden]
    more = "\nwith intervals in results.md" if narrow else ""
    table = Table(
        title=f"simulated: experts' cost of a run, P95, windows over the SLO, mean excess{more}", pad_edge=not narrow
    )
    if narrow:
        table.box, table.show_edge, table.collapse_padding = box.SIMPLE_HEAD, False, True
    for place in shown:
        head = HEAD[place].replace(" ", "\n") if narrow else HEAD[place]  # else words break where columns are levelled
        table.add_column(head, justify="left" if place < 2 else "right", no_wrap=place < 2, overflow="fold")
    for row in table_rows:
        row_cells = cells(row)
        table.add_row(*(without_interval(row_cells[place]) if narrow else row_cells[place] for place in shown))
    console.print(table)
    console.print(verdict(table_rows, always_failed(summaries)), markup=False, highlight=False)
    if unchanged := _without_changes(summaries):
        console.print(
            f"no decision changed anything under {', '.join(unchanged)}: what such a row shows is the configuration at "
            "the start (--start)", markup=False, highlight=False,
        )  # fmt: skip
    for sentence in failure_sentences(summaries):
        console.print(sentence, markup=False, highlight=False)
    for key, why in left_out.items():
        Console(stderr=True).print(f"left out: {key}, as {why}", markup=False, highlight=False)


def _without_changes(summaries: list[dict[str, Any]]) -> list[str]:
    """Policies that left every configuration as it was in all of their runs, but for those that are to hold a plan."""
    changes: dict[str, int] = {}
    for summary in summaries:
        if "changes" in summary and not summary["policy"].startswith("constant"):
            changes[summary["policy"]] = changes.get(summary["policy"], 0) + summary["changes"]
    return [policy for policy, count in changes.items() if not count]
