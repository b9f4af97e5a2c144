"""The commands ``traces`` and ``replay``; the ``smoe`` command line mounts them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from traces import arrivals, catalog, loading, patterns, plots
from traces.options import clip_options, data_option, json_option, placement_option, seed_option
from traces.replay_command import replay
from traces.results import describe
from traces.trace import PATTERNS, Trace

SPLITS = ("train", "validation", "test")


@click.group()
def traces() -> None:
    """List, pick and describe request traces.

    A TRACE is a data set's name (`smoe traces list`) or a file: Azure Functions per-minute counts, Azure LLM
    requests, ServeGen window statistics, or arrivals as `smoe traces pick --out` writes them. Plain or gzip.
    """


@traces.command("list")
@data_option
@json_option
def list_(data: Path | None, as_json: bool) -> None:
    """Show which data sets are there."""
    found = catalog.datasets(catalog.data_folder(data))
    if as_json:
        click.echo(
            json.dumps(
                [
                    {"name": d.name, "path": str(d.path), "format": d.format, "measured": d.measured, "about": d.about}
                    for d in found
                ]
            )
        )
        return
    table = Table(box=None, pad_edge=False)
    for column in ("name", "format", "", "what"):
        table.add_column(column, no_wrap=column != "what")
    for dataset in found:
        table.add_row(dataset.name, dataset.format, "measured" if dataset.measured else "made", dataset.about)
    Console().print(table)


@traces.command("describe")
@click.argument("trace")
@clip_options
@data_option
@placement_option
@seed_option
@click.option(
    "--plot", type=click.Path(path_type=Path, dir_okay=False), default=None, help="PNG of requests per second."
)
@json_option
def describe_(
    trace: str,
    row: str | None,
    start_s: float | None,
    duration_s: float | None,
    data: Path | None,
    placement: Any,
    seed: int,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Count, rate, CV of inter-arrival times and pattern of a TRACE or a part of it."""
    path = catalog.resolve(trace, catalog.data_folder(data))
    loaded = loading.load(path, row=row, start_s=start_s, duration_s=duration_s, placement=placement, seed=seed)
    _plot(loaded, plot)
    _show([describe(loaded)], as_json)


@traces.command("pick")
@click.argument("trace")
@click.option(
    "--pattern",
    type=click.Choice(PATTERNS),
    default="bursty",
    show_default=True,
    help="slow CV<1, normal 1-3, bursty >=3.",
)
@click.option("--count", type=click.IntRange(1, 1000), default=1, show_default=True, help="How many hours.")
@click.option(
    "--requests",
    nargs=2,
    type=click.IntRange(min=3),
    default=(300, 20_000),
    show_default=True,
    help="Fewest and most requests.",
)
@click.option(
    "--split", type=click.Choice(SPLITS), default=None, help="Only rows of this split; a row is in exactly one."
)
@data_option
@placement_option
@seed_option
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    help="Write the (first) hour as arrivals, .csv or .csv.gz.",
)
@click.option(
    "--plot", type=click.Path(path_type=Path, dir_okay=False), default=None, help="PNG of requests per second."
)
@json_option
def pick_(
    trace: str,
    pattern: str,
    count: int,
    requests: tuple[int, int],
    split: Any,
    data: Path | None,
    placement: Any,
    seed: int,
    out: Path | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Pick one-hour clips of a pattern out of a TRACE at random (seeded)."""
    chosen = patterns.pick(
        catalog.resolve(trace, catalog.data_folder(data)),
        catalog.allowed(pattern),
        count=count,
        min_requests=requests[0],
        max_requests=requests[1],
        seed=seed,
        split=split,
        placement=placement,
    )
    if out is not None:
        arrivals.write_arrivals(chosen[0][1], out)
    _plot(chosen[0][1], plot)
    _show(
        [
            {"row": clip.row, "start_s": clip.start_s, "split": patterns.split_of(clip.row), **describe(hour)}
            for clip, hour in chosen
        ],
        as_json,
    )


def _plot(trace: Trace, path: Path | None) -> None:
    if path is not None:
        cv = trace.iat_cv
        about = f"CV {cv:.2f}, {trace.pattern}" if cv is not None else "too few requests for a CV"
        plots.plot_arrivals(trace, path, f"{trace.source}\n{trace.requests} requests, {about}")


def _show(found: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(found[0] if len(found) == 1 else found))
        return
    console = Console()
    for entry in found:
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for key, value in entry.items():
            if value is not None:
                table.add_row(key, f"{value:.4g}" if isinstance(value, float) else str(value))
        console.print(table)


__all__ = ["replay", "traces"]
