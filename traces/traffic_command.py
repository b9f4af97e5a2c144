"""``smoe traces hours``: hours and days of a pattern at a rate, out of all public traces that are there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from traces.dispersion import HEADING, as_text
from traces.formats.arrivals import as_file_name, write_arrivals
from traces.options import data_option, json_option, seed_option
from traces.splits import SPLITS
from traces.traffic import REPLAYED_PATTERNS, Hour, choose_hours


@click.command("hours")
@click.option("--pattern", type=click.Choice(REPLAYED_PATTERNS), required=True, help="CV <1, 1-3, >=3; or whole days.")
@click.option("--rate", type=click.FloatRange(0, 1e5), required=True, help="Requests per second; 0: the sources' own.")
@click.option("--split", type=click.Choice(SPLITS), default="train", help="Set of the hours.")
@click.option("--count", type=click.IntRange(1, 1000), default=1, help="How many hours.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Folder, .csv.gz each.")
@data_option
@seed_option
@json_option
def hours(
    pattern: str, rate: float, split: Any, count: int, out: Path | None, data: Path | None, seed: int, as_json: bool
) -> None:
    """Choose hours of a pattern as replayed at a rate: busy clients, sums of clients, or many users of one function.

    No hour is given twice and none is in two sets. diurnal: whole days, each replayed in an hour.
    """
    chosen = choose_hours(pattern, rate, split, count, seed, data=data)
    described = [{**hour.as_json(), "file": None if out is None else str(_write(out, hour))} for hour in chosen]
    if as_json:
        click.echo(json.dumps(described))
        return
    console = Console()
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    for column in ("kind", "from", "parts", "factor", "req/s", "CV", "source's CV"):
        table.add_column(column, no_wrap=True)
    for one in described:
        table.add_row(
            one["kind"], f"{one['parts'][0][0]} {one['parts'][0][1][:8]} {one['parts'][0][2]} s",
            str(len(one["parts"])), f"{one['factor']:.3g}", f"{one['mean_rps']:.3g}", f"{one['iat_cv'] or 0:.2f}",
            f"{one['source_iat_cv'] or 0:.2f}",
        )  # fmt: skip
    console.print(table)
    for one in described:
        console.print(
            f"{one['parts'][0][1][:8]}  {HEADING}: {as_text(one['dispersion'])}, expected "
            f"{as_text(one['expected_dispersion'])}, source {as_text(one['source_dispersion'])}",
            highlight=False,
        )


def _write(folder: Path, hour: Hour) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    table, row, start_s = hour.parts[0]
    path = folder / f"{hour.pattern}-{hour.mean_rps:g}-{hour.split}-{table}-{as_file_name(row)}-{start_s}.csv.gz"
    write_arrivals(hour.replay(), path, (f"{hour.kind} of {len(hour.parts)} parts, seed {hour.seed}",))
    return path
