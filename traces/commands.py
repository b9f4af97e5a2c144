"""The commands ``traces`` and ``replay``; the ``smoe`` command line mounts them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table

from traces import catalog, loading, plots
from traces.clip_command import clips
from traces.fetch import FetchSettings
from traces.fetch import fetch as download
from traces.options import clip_options, data_option, json_option, placement_option, seed_option
from traces.published import PUBLISHED, published
from traces.replay_command import replay
from traces.results import describe
from traces.traffic_command import hours


@click.command("fetch")
@click.argument("name")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help=f"Folder; the file comes to OUT/NAME. [default: ${catalog.DATA_VARIABLE}, else {catalog.FETCHED_PLACE}]",
)
@click.option("--no-check", is_flag=True, help="Take the file although its size or checksum is another.")
@click.option("--timeout-s", type=click.FloatRange(1, 600), default=30.0, help="Longest silence.")
@click.option("--tries", type=click.IntRange(1, 50), default=5, help="Of each address.")
@json_option
def fetch(name: str, out: Path | None, no_check: bool, timeout_s: float, tries: int, as_json: bool) -> None:
    """Download the published trace NAME (`smoe traces list` shows them); one that breaks off is begun again.

    Afterwards NAME can be used wherever a TRACE is asked for.
    """
    what = published(name)
    settings = FetchSettings(tries=tries, read_timeout_s=timeout_s, check=not no_check)
    folder = out if out is not None else catalog.fetch_folder()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=as_json or not console.is_terminal) as bar:
        task = bar.add_task(what.name, total=what.bytes)
        got = download(
            what, folder, settings, progress=lambda done, total: bar.update(task, completed=done, total=total)
        )
    if as_json:
        click.echo(json.dumps({**asdict(got), "path": str(got.path)}))
        return
    happened = "was there already" if got.was_there else "fetched"
    click.echo(f"{got.path} {happened}: {got.bytes} bytes, sha256 {got.sha256}, checked against {got.checked}")
    click.echo(f"licence {got.licence}, cite {what.cite}")


@click.group()
def traces() -> None:
    """List, fetch, describe and clip request traces.

    A TRACE is a data set's name (`smoe traces list`) or a file: Azure Functions 2019 and 2021, Azure LLM 2023 and
    2024, BurstGPT, Mooncake, ServeGen, or arrivals as `smoe traces clips --out` writes them. Packed or not.
    """


traces.add_command(clips)
traces.add_command(fetch)
traces.add_command(hours)


@traces.command("list")
@data_option
@json_option
def list_(data: Path | None, as_json: bool) -> None:
    """Show which data sets are there, and which can be fetched."""
    folder = catalog.data_folder(data)
    here: list[dict[str, Any]] = [
        {"name": d.name, "path": str(d.path), "format": d.format, "measured": d.measured, "about": d.about}
        for d in catalog.datasets(folder)
    ]
    afar: list[dict[str, Any]] = [
        {
            "name": entry.name,
            "path": None if (path := catalog.fetched_path(entry, folder)) is None else str(path),
            "format": entry.format,
            "measured": entry.measured,
            "about": entry.about,
            "bytes": entry.bytes,
        }
        for entry in PUBLISHED
    ]
    if as_json:
        click.echo(json.dumps([*here, *afar]))
        return
    table = Table(box=None, pad_edge=False)
    for column in ("name", "where", "what"):
        table.add_column(column, no_wrap=column != "what")
    for entry in [*here, *afar]:
        where = "here" if entry["path"] else "to fetch"
        table.add_row(entry["name"], where if entry["measured"] else f"{where}, synthetic", entry["about"])
    Console().print(table)


@traces.command("describe")
@click.argument("trace")
@clip_options
@data_option
@placement_option
@seed_option
@click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), help="PNG of requests per second.")
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
    if plot is not None:
        plots.plot_arrivals(loaded, plot, plots.title_of(loaded))
    summary = describe(loaded)
    if as_json:
        click.echo(json.dumps(summary))
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    indices = {f"dispersion at {scale} s": value for scale, value in summary.pop("dispersion").items()}
    for key, value in (summary | indices).items():
        if value is not None:
            table.add_row(key, f"{value:.4g}" if isinstance(value, float) else str(value))
    Console().print(table)


__all__ = ["replay", "traces"]
