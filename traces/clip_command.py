"""``smoe traces clips``: one-hour clips of a pattern, with where they come from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from traces import catalog, plots
from traces import clips as choosing
from traces.clips import MAX_REQUESTS, MIN_REQUESTS, Clip
from traces.dispersion import HEADING, as_text, dispersions
from traces.formats.arrivals import as_file_name, write_arrivals
from traces.hours import HourTable, hours
from traces.model import PATTERNS, Trace
from traces.options import data_option, json_option, placement_option, seed_option
from traces.results import describe
from traces.splits import SPLITS, SPLITS_BY


@click.command("clips")
@click.argument("trace")
@click.option("--pattern", type=click.Choice(PATTERNS), help="slow CV<1, normal 1-3, bursty >=3. [default: all]")
@click.option("--split", type=click.Choice(SPLITS), help="Only hours of this set.")
@click.option("--split-by", type=click.Choice(SPLITS_BY), default="both", help="What keeps the sets apart.")
@click.option("--count", type=click.IntRange(1, 1000), default=1, help="How many hours a pattern.")
@click.option(
    "--requests",
    nargs=2,
    type=click.IntRange(min=3),
    default=(MIN_REQUESTS, MAX_REQUESTS),
    help="Fewest and most requests of an hour.",
)
@data_option
@placement_option
@seed_option
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Folder for the clips, .csv.gz each.")
@click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), help="PNG of the chosen clips.")
@json_option
def clips(
    trace: str,
    pattern: Any,
    split: Any,
    split_by: Any,
    count: int,
    requests: tuple[int, int],
    data: Path | None,
    placement: Any,
    seed: int,
    out: Path | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Choose one-hour clips by pattern out of a TRACE at random (seeded), split for training and testing.

    An hour belongs to a set only where its function and its time do, so neither is ever in two sets. With --split-by
    time, or function, only that keeps them apart.
    """
    path = catalog.resolve(trace, catalog.data_folder(data))
    table = hours(path, *requests)
    chosen: list[tuple[Clip, Trace]] = []
    for wanted in PATTERNS if pattern is None else (catalog.allowed(pattern),):
        chosen += choosing.choose(table, wanted, count=count, split=split, by=split_by, seed=seed, placement=placement)
    files = [None] * len(chosen) if out is None else [_write(out, clip, hour) for clip, hour in chosen]
    if plot is not None:
        plots.plot_clips([(f"{clip.row[:16]} {clip.split or ''}", hour) for clip, hour in chosen], plot)
    if as_json:
        written = [
            {**clip.as_json(), "file": None if file is None else str(file), "arrivals": describe(hour)}
            for (clip, hour), file in zip(chosen, files, strict=True)
        ]
        click.echo(json.dumps({"path": str(path), "hours": _counts(table, split_by), "clips": written}))
        return
    _show(table, chosen, split_by)


def _counts(table: HourTable, by: Any) -> dict[str, dict[str, int]]:
    """Hours per set and pattern."""
    return {
        split: {pattern: int(choosing.candidates(table, pattern, split, by).size) for pattern in PATTERNS}
        for split in SPLITS
    }


def _write(folder: Path, clip: Clip, hour: Trace) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{clip.pattern}-{clip.split or 'any'}-{as_file_name(clip.row)}-{clip.start_s}.csv.gz"
    remark = f"clip of {clip.path.name} (sha256 {clip.file_sha256}), minutes {clip.minutes[0]} to {clip.minutes[1]}"
    write_arrivals(hour, path, (remark,))
    return path


def _show(table: HourTable, chosen: list[tuple[Clip, Trace]], by: Any) -> None:
    console = Console()
    counts = _counts(table, by)
    for split in SPLITS:
        inside = ", ".join(f"{number} {pattern}" for pattern, number in counts[split].items())
        console.print(f"{split}: {inside} hours", highlight=False)
    shown = Table(box=None, pad_edge=False, padding=(0, 1))
    for column in ("row", "minutes", "split", "pattern", "requests", "req/s", "CV", "steady"):
        shown.add_column(column, no_wrap=True)
    for clip, hour in chosen:
        shown.add_row(
            clip.row[:12], f"{clip.minutes[0]}-{clip.minutes[1]}", clip.split or "-", clip.pattern or "-",
            str(clip.requests), f"{clip.mean_rps:.3g}", f"{hour.iat_cv or 0:.2f}", f"{clip.stationarity:.2f}",
        )  # fmt: skip
    console.print(shown)
    for clip, hour in chosen:
        console.print(f"{clip.row[:12]}  {HEADING}: {as_text(dispersions(hour))}", highlight=False)
