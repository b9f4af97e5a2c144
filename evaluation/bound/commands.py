"""``smoe lab bound``: what any policy must at least pay for a trace."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from autoscaler.prices import Meter
from evaluation.bound.inputs import asked_for, input_options, trace_requests
from evaluation.bound.report import BoundRow, bound_rows, write_rows
from evaluation.destination import make_writable
from evaluation.progress import LongWork
from traces.options import json_option

METERS: dict[str, tuple[Meter, ...]] = {
    "busy": ("busy",),
    "provisioned": ("provisioned",),
    "both": ("provisioned", "busy"),
}
SHOWN = 12
"""Windows in the table for people; the file has all."""


@click.command()
@input_options
@click.option(
    "--window", "window_s", type=click.FloatRange(0.1, 86400), default=60.0, help="Length of a window in seconds."
)
@click.option(
    "--meter", type=click.Choice(list(METERS)), default="both", help="Cost that is bounded (docs/controller.md#costs)."
)
@click.option("--no-oracle", is_flag=True, help="Leave out the search for a feasible choice.")
@click.option("--windows", "most", type=click.IntRange(min=1), help="Only the first N windows.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False, writable=True), help="Write all windows as CSV.")
@json_option
def bound(trace: str, data: Path | None, as_json: bool, out: Path | None, **options: Any) -> None:
    """Enclose the least cost of serving a trace within the SLO, window by window.

    The lower bound holds for every policy that meets the SLO and decides once a window; next to it stands a feasible
    choice found by simulation, which is not an optimum. Everything is simulated: a workload of the paper's on the
    modelled cluster, a custom pipeline on the machine of its profile. Each window is taken by itself.
    """
    if out is not None and not out.exists():
        make_writable(out.parent)
    asked = asked_for(options)
    workload, name = asked.workload, asked.workload.name
    until_s = options["most"] * options["window_s"] if options["most"] else None
    clip = {key: options[key] for key in ("row", "start_s", "duration_s", "seed")}
    requests = trace_requests(
        workload, trace, data, **clip, mean_rps=asked.mean_rps, speed=asked.speed, until_s=until_s
    )
    meters = METERS[options["meter"]]
    console = Console(stderr=True)
    with LongWork(console) as progress:
        count = int(np.unique(requests.arrival_s // options["window_s"]).size) * len(meters)
        task = progress.add_task("windows", total=count)
        rows = bound_rows(
            workload, requests, options["window_s"], meters, seed=options["seed"], oracle=not options["no_oracle"],
            on_row=lambda row: progress.update(task, advance=1),
        )  # fmt: skip
    if out is not None:
        write_rows(rows, out)
    totals: dict[str, dict[str, Any]] = {meter: _total(rows, meter) for meter in meters}
    about = {
        "workload": name,
        "trace": requests.source,
        "slo_ms": 1000 * workload.slo_s,
        "simulated": True,
        "latency": workload.latency.name,
        "measured_part": _measured(rows),
        "prices": workload.prices.name,
    }
    if as_json:
        click.echo(json.dumps({**about, "totals": totals, "windows": [asdict(row) for row in rows]}))
        return
    title = f"simulated, seconds of calls {workload.latency.name}{_lies(about['measured_part'])}\n"
    title += f"{name}, {requests.source}"
    _show(rows, totals, f"{title}, SLO {1000 * workload.slo_s:g} ms", console)


def _measured(rows: Sequence[BoundRow]) -> float | None:
    """The least ``measured_part`` of a window; None without a feasible choice."""
    return min((row.measured_part for row in rows if row.measured_part is not None), default=None)


def _lies(measured: object) -> str:
    """A number from :func:`_measured` in words."""
    if not isinstance(measured, float):
        return ""
    return f",\nunder the feasible choice at least {measured:.0%} of a window's calls lie where it was measured"


def _total(rows: Sequence[BoundRow], meter: Meter) -> dict[str, Any]:
    metered = [row for row in rows if row.meter == meter]
    both = [row for row in metered if row.feasible is not None]
    lower, upper = sum(row.lower_bound for row in both), sum(row.feasible or 0.0 for row in both)
    return {
        "windows": len(metered),
        "unreachable": sum(not row.reachable for row in metered),
        "binding": sum(row.binds for row in metered),
        "lower_bound": sum(row.lower_bound for row in metered),
        "feasible": upper if len(both) == len(metered) else None,
        "feasible_above_bound": upper / lower - 1 if lower else None,
    }


def _show(rows: Sequence[BoundRow], totals: dict[str, dict[str, Any]], title: str, console: Console) -> None:
    table = Table("from s", "requests", "meter", "lower bound", "feasible", "above", "P95 ms", "SLO", title=title)
    for row in rows[: SHOWN * len(totals)]:
        table.add_row(
            f"{row.start_s:g}",
            str(row.requests),
            row.meter,
            f"{row.lower_bound:.4g}",
            "–" if row.feasible is None else f"{row.feasible:.4g}",
            "–" if row.above is None else f"{row.above:.0%}",
            "–" if row.feasible_p95_s is None else f"{1000 * row.feasible_p95_s:.1f}",
            "unmet" if not row.reachable else "binds" if row.binds else "loose",
        )
    console.print(table)
    for meter, total in totals.items():
        above = total["feasible_above_bound"]
        text = f"{meter}: at least {total['lower_bound']:.6g} in {total['windows']} windows"
        click.echo(text + ("" if above is None else f"; a feasible choice is {above:.1%} above, where one was found"))
        if not total["binding"]:
            console.print(
                f"[yellow]{meter}: the SLO binds in no window, so costs say nothing about keeping it.[/yellow]"
            )
