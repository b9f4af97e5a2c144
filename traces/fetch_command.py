"""``smoe traces fetch``: a published trace onto this machine."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from traces import catalog
from traces.fetch import FetchSettings
from traces.fetch import fetch as download
from traces.options import json_option
from traces.published import published


@click.command("fetch")
@click.argument("name")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help=f"Folder; the file comes to OUT/NAME. [default: ${catalog.DATA_VARIABLE}, else {catalog.FETCHED_PLACE}]",
)
@click.option("--no-check", is_flag=True, help="Take the file although its size or checksum is another.")
@click.option("--timeout-s", type=click.FloatRange(1, 600), default=30.0, show_default=True, help="Longest silence.")
@click.option("--tries", type=click.IntRange(1, 50), default=5, show_default=True, help="Of each address.")
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
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=as_json) as bar:
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
