"""``smoe lab evaluate``: scaling policies side by side in the simulator."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
import orjson
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from autoscaler.contract import Configuration
from autoscaler.errors import AutoscalerError
from evaluation.comparison.episode import BOUND
from evaluation.comparison.errors import EvaluationError
from evaluation.comparison.grid import FROM_FILE, Grid
from evaluation.comparison.report import write_report
from evaluation.comparison.run import evaluate as run_all
from evaluation.comparison.tables import HEAD, cells, rows, without_interval
from simulation.engine.errors import SimulationError
from simulation.profiles.model.errors import ProfileError
from simulation.workloads.custom import HOUR_S, CustomPipeline, CustomPipelineError
from simulation.workloads.custom_options import custom_options, custom_pipelines, prices_option, slo_option
from simulation.workloads.paper import PAPER_WORKLOADS
from simulation.workloads.worlds import WORLDS
from smoe.errors import SmoeError
from traces.errors import TraceError
from traces.options import clip_options, data_option
from traces.traffic import REPLAYED_PATTERNS

DEFAULT_POLICIES = "static,hpa,kpa,keda,elasticmoe,openfaas"
DEFAULT_WORKLOADS = ("bert-4",)
FULL_WIDTH = 140
"""Columns of a terminal that has room for intervals."""
_INPUT = click.Path(path_type=Path, file_okay=False, exists=True)


def _names(_: click.Context, option: click.Parameter, text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def _numbers(_: click.Context, option: click.Parameter, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise click.BadParameter(f"{text!r} is no list of whole numbers such as 0,1,2") from None


@click.command()
@click.option(
    "--workloads",
    default=None,
    callback=_names,
    help=f"Comma list of {','.join(PAPER_WORKLOADS)}. [default: {','.join(DEFAULT_WORKLOADS)}; none with --pipeline]",
)
@custom_options(slo_option)
@click.option(
    "--patterns",
    default="bursty",
    show_default=True,
    callback=_names,
    help=f"Comma list of {','.join(REPLAYED_PATTERNS)}.",
)
@click.option(
    "--input-sizes",
    default="0",
    show_default=True,
    callback=_numbers,
    help="Mean tokens of a request, comma list; 0: the workload's.",
)
@click.option(
    "--policies",
    default=DEFAULT_POLICIES,
    show_default=True,
    callback=_names,
    help="Comma list of names (docs/policies.md), or MODULE:MAKER.",
)
@click.option(
    "--seeds",
    default="0,1,2",
    show_default=True,
    callback=_numbers,
    help="Each chooses clip, lengths, routing and scatter.",
)
@click.option(
    "--trace", default=None, help="A trace file, or a name of `smoe traces list`. [default: hours by pattern]"
)
@clip_options
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("out/evaluation"),
    show_default=True,
    help="Results; runs there stay.",
)
@click.option(
    "--mean-rps",
    type=click.FloatRange(0, 1e5),
    default=None,
    help="Requests per second on average; 0: as the trace is. [default: 20; with --pipeline 2.83, 14.1 with --cluster]",
)
@click.option(
    "--speed",
    type=click.FloatRange(0.01, 3600),
    default=None,
    help="Factor by which a trace's time is divided; windows, seconds and rate are those after the division. "
    "[default: 1; with --pipeline 30, without --cluster]",
)
@click.option(
    "--seconds",
    type=click.FloatRange(10, 86400),
    default=None,
    help="Length of an episode in seconds. [default: 3600; with --pipeline an hour of the trace, 3600 / speed]",
)
@click.option(
    "--window",
    "window_s",
    type=click.FloatRange(0.1, 3600),
    default=None,
    help="Length of a window in seconds. [default: 30; with --pipeline 2, without --cluster]",
)
@click.option("--warm-up", type=click.IntRange(0), default=4, show_default=True, help="Windows that are not counted.")
@click.option("--plans", type=_INPUT, default=None, help="Folder of stored plans, POLICY.WORKLOAD.json.")
@click.option("--policy-settings", type=_INPUT, default=None, help="Folder of policies' settings, POLICY.toml.")
@data_option
@prices_option
@click.option(
    "--world",
    type=click.Choice(WORLDS),
    default=None,
    help="Cluster of the paper's workloads: with the paper's GPUs (mixed), without them, or with room for everything. "
    "[default: mixed; a custom pipeline runs on its own machine]",
)
@click.option(
    "--relative-slo",
    type=click.FloatRange(1, 1000, min_open=True),
    default=None,
    help="SLO as so many times the P95 of the same requests with unlimited capacity. [default: the workload's]",
)
@click.option(
    "--hop-factor",
    type=click.FloatRange(0, 1000, min_open=True),
    default=1.0,
    show_default=True,
    help="Sensitivity: factor of the modelled cost of a hop.",
)
@click.option(
    "--gpu-price-factor",
    type=click.FloatRange(0, 1000, min_open=True),
    default=1.0,
    show_default=True,
    help="Sensitivity: factor of the price of a GPU.",
)
@click.option("--bound/--no-bound", default=True, show_default=True, help="Compute the lower bound of cost.")
@click.option(
    "--start",
    type=(click.IntRange(1), click.FloatRange(0), click.FloatRange(0, 1), click.IntRange(1), click.IntRange(1)),
    metavar="MEMORY_MB CORES GPU_SHARE REPLICAS CONCURRENCY",
    default=None,
    help="What every expert starts with. [default: the optimum at the warm-up's load]",
)
@click.option("--workers", type=click.IntRange(0), default=0, show_default=True, help="Processes; 0: one a core.")
@click.option("--json", "as_json", is_flag=True, help="Print the runs as JSON.")
def evaluate(**options: Any) -> None:
    """Simulate the same arrivals with the same routing under several policies, and compare cost and P95.

    All runs are simulated: the paper's workloads on the modelled cluster, a custom pipeline on the machine of its
    profile, or with --cluster there too. A run that is in --out already is not simulated again, so an evaluation that
    was stopped goes on where it was. Writes results.csv, results.md, results.json, two figures and report.html.
    """
    console = Console(stderr=True)
    slo_ms = options["slo_ms"]
    targets = () if slo_ms is None else (slo_ms,)
    machine = (options[key] for key in ("profile", "cpu_scale", "other_machine", "slo_factor", "cluster"))
    pipeline = custom_pipelines(options["folder"], targets, *machine)
    left_out: dict[str, str] = {}
    try:
        grid = _grid(options, pipeline[0] if pipeline else None)
        groups = list(grid.groups())
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
            task = bar.add_task("groups", total=len(groups))
            summaries = run_all(
                grid, options["out"], options["workers"], lambda key, _: bar.update(task, advance=1, description=key),
                refused=left_out,
            )  # fmt: skip
        if all(summary["policy"] == BOUND for summary in summaries):
            raise EvaluationError("; ".join(dict.fromkeys(left_out.values())))
        paths = write_report(grid, summaries, options["out"], left_out)
    except (EvaluationError, CustomPipelineError, ProfileError, TraceError, SimulationError, AutoscalerError) as error:
        raise SmoeError(str(error)) from error
    if options["as_json"]:
        sys.stdout.buffer.write(orjson.dumps(summaries, option=orjson.OPT_APPEND_NEWLINE))
        return
    _show(Console(), summaries)
    for key, why in left_out.items():
        console.print(f"left out: {key}, as {why}", markup=False, highlight=False)
    console.print(f"report: {paths.html}")


def _grid(options: dict[str, Any], custom: CustomPipeline | None) -> Grid:
    """One clock for all workloads: that of the custom pipeline where there is one, except for given options."""
    named = {key: options[key] for key in ("window_s", "seconds", "mean_rps", "speed") if options[key] is not None}
    clock: dict[str, float] = {}
    if custom is not None:
        speed = named.get("speed", custom.speed)
        clock = {"window_s": custom.window_s, "seconds": HOUR_S / speed, "mean_rps": custom.rate_rps, "speed": speed}
    workloads = (*options["workloads"], *([custom.pipeline] if custom is not None else []))
    return Grid(
        workloads=workloads or DEFAULT_WORKLOADS,
        patterns=(FROM_FILE,) if options["trace"] else options["patterns"],
        tokens=options["input_sizes"],
        policies=options["policies"],
        seeds=options["seeds"],
        start=Configuration(*options["start"]) if options["start"] else None,
        warm_up_windows=options["warm_up"],
        trace=None if options["trace"] is None else Path(options["trace"]),
        **{key: options[key] for key in ("row", "start_s", "duration_s", "prices")},
        **{key: options[key] for key in ("world", "relative_slo", "hop_factor", "gpu_price_factor")},
        data=options["data"],
        plans=options["plans"],
        settings=options["policy_settings"],
        bound=options["bound"],
        custom=custom,
        **{**clock, **named},
    )


def _show(console: Console, summaries: list[dict[str, Any]]) -> None:
    """One row a policy and pattern; a narrow terminal gets values alone."""
    table_rows, narrow = rows(summaries), console.width < FULL_WIDTH
    bounded = any(interval is not None for row in table_rows for interval in row.over_bound.values())
    hidden = {"provisioned", "busy"} if bounded else {"provisioned over bound", "busy over bound"}
    hidden |= {"standbys", "decision P99", "beyond the cluster"} if narrow else set()
    shown = [place for place, name in enumerate(HEAD) if name not in hidden]
    more = "\nwith intervals in results.md" if narrow else ""
    table = Table(title=f"simulated: experts' cost, P95, windows over the SLO, mean excess{more}", pad_edge=not narrow)
    if narrow:
        table.box, table.show_edge, table.collapse_padding = box.SIMPLE_HEAD, False, True
    for place in shown:
        table.add_column(HEAD[place], justify="left" if place < 2 else "right", no_wrap=place < 2, overflow="fold")
    for row in table_rows:
        row_cells = cells(row)
        table.add_row(*(without_interval(row_cells[place]) if narrow else row_cells[place] for place in shown))
    console.print(table)
