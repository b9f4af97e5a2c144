"""Which hours there are at which rate, and whether they vary as their sources do: ``python -m benchmarks.traffic``.

Each cell (pattern x rate x set) holds up to ``--count`` hours of :mod:`traces.traffic`. For every hour the index of
dispersion of counts at 0.1, 1, 10 and 60 s of the replay stands over the one that theory gives its source at that rate
(:func:`traces.dispersion.expected`). The last line is one JSON object: ``worst_dispersion_ratio`` is the largest of
that ratio and its inverse, over all hours of at least 1,000 requests and all scales; ``distinct_hours`` the least of
any cell, and by pattern; ``missing`` the cells with fewer than ten hours or eight sources, with why.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np

from benchmarks.harness.options import benchmark, data_option, out_option, seed_option, workers_option
from benchmarks.harness.report import picture, print_result, print_table
from traces import catalog, loading, scale
from traces.dispersion import HEADING, SCALES_S, dispersion
from traces.model import Trace, make_trace
from traces.splits import SPLITS, Split
from traces.traffic import RATES_RPS, REPLAYED_PATTERNS, has_sources, hours_of, why_few

ENOUGH_REQUESTS, ENOUGH_HOURS, ENOUGH_SOURCES = 1000, 10, 8
PICTURED = (
    ("functions-8h", "133fcb56b63e", 240, "a steady function"),
    ("functions-day", "b8e22791", 420, "a bursty one"),
)
"""Data set, row, first minute of the file, name."""
PICTURED_RPS = 20.0


Cell = tuple[str, float, Split]


def hours_in(cell: Cell, *, count: int, data: Path | None, seed: int) -> list[dict[str, Any]]:
    """Up to ``count`` hours of a cell, described."""
    return [hour.as_json() for hour in islice(hours_of(*cell, seed, data=data), count)]


def ratios(hour: dict[str, Any]) -> list[float]:
    """[scales] replayed over expected index; none for an hour with too few requests."""
    if hour["requests"] < ENOUGH_REQUESTS:
        return []
    return [hour["dispersion"][scale_s] / expected for scale_s, expected in hour["expected_dispersion"].items()]


def worst(values: Iterable[float]) -> float:
    """The largest of ``values`` and their inverses; 1 without any."""
    return max((max(value, 1 / value) for value in values), default=1.0)


def sources_of(hours: Sequence[dict[str, Any]]) -> int:
    """Distinct functions or clients."""
    return len({tuple(part[:2]) for hour in hours for part in hour["parts"]})


def row_of(cell: Cell, hours: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A cell's numbers: medians over its hours."""
    by_scale = list(zip(*(ratios(hour) for hour in hours if ratios(hour)), strict=True))
    kinds = sorted({hour["kind"] for hour in hours})
    return {
        "pattern": cell[0],
        "rate": cell[1],
        "split": cell[2],
        "hours": len(hours),
        "sources": sources_of(hours),
        "kinds": "+".join(kinds) or "-",
        "cv": median(hour["iat_cv"] for hour in hours) if hours else None,
        "ratios": [median(values) for values in by_scale],
        "worst": worst(value for hour in hours for value in ratios(hour)) if hours else None,
        "busiest": median(hour["busiest_second_over_mean"] for hour in hours) if hours else None,
    }


def missing(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Sentences on the cells that hold less than was asked for."""
    return [
        f"{row['pattern']} at {row['rate']:g}/s, {row['split']}: {row['hours']} hours of {row['sources']} sources; "
        f"{why_few(row['pattern'])}"
        for row in rows
        if row["hours"] < ENOUGH_HOURS or row["sources"] < ENOUGH_SOURCES
    ]


def evenly_added(trace: Trace, factor: float) -> Trace:
    """The removed method, for the picture: requests put evenly between those there are."""
    count = round(trace.requests * factor)
    places = (np.arange(count) + 0.5) * trace.requests / count
    corners = np.concatenate(([0.0], trace.arrival_s))
    return make_trace(
        np.interp(places, np.arange(trace.requests + 1), corners), duration_s=trace.duration_s, source=trace.source
    )


def draw_dispersion(path: Path, data: Path | None, seed: int) -> list[dict[str, Any]]:
    """Index against scale of two functions' hours: source, removed method, this one; also as numbers."""
    scales_s = np.geomspace(0.05, 60, 15)
    numbers: list[dict[str, Any]] = []
    with picture(path, 1, len(PICTURED), figsize=(9, 3.6)) as (_, panels):
        for axes, (name, row, minute, title) in zip(panels, PICTURED, strict=True):
            file = catalog.resolve(name, catalog.data_folder(data))
            source = loading.load(file, row=row, start_s=minute * 60.0, duration_s=3600.0, seed=seed)
            traces = {
                f"source, {source.mean_rps:.2g}/s": source,
                f"removed method, {PICTURED_RPS:g}/s": evenly_added(source, PICTURED_RPS / source.mean_rps),
                f"many users, {PICTURED_RPS:g}/s": scale.at_rate(source, PICTURED_RPS, seed),
            }
            for (label, trace), style in zip(traces.items(), ("k:", "C3--", "C0-"), strict=True):
                axes.loglog(scales_s, [dispersion(trace, float(scale_s)) for scale_s in scales_s], style, label=label)
                busiest = int(np.bincount(trace.arrival_s.astype(np.int64)).max())
                numbers.append({"hour": title, "line": label, "busiest_second": busiest, "iat_cv": trace.iat_cv})
            axes.set_title(title, loc="left", fontsize=9)
            axes.set_xlabel("scale (s)")
            axes.set_ylabel("index of dispersion of counts")
            axes.grid(alpha=0.25)
            axes.legend(fontsize=8)
    return numbers


def cell_of(row: dict[str, Any]) -> list[str]:
    """A row of the printed table."""
    if not row["hours"]:
        return [row["pattern"], f"{row['rate']:g}", row["split"], "0", *["-"] * 6]
    return [
        row["pattern"], f"{row['rate']:g}", row["split"], str(row["hours"]), str(row["sources"]), row["kinds"],
        f"{row['cv']:.2f}", " ".join(f"{value:.2f}" for value in row["ratios"]), f"{row['worst']:.2f}",
        f"{row['busiest']:.1f}",
    ]  # fmt: skip


@benchmark
@click.option("--count", type=click.IntRange(1, 100), default=12, help="Hours of a cell.")
@data_option
@seed_option
@workers_option
@out_option(None, "Folder for traffic.json (every hour) and dispersion.png.")
def main(count: int, data: Path | None, seed: int, workers: int, out: Path | None) -> None:
    if not has_sources(data):
        raise click.UsageError("the public traces are not here, and synthetic ones have no sources to be held to")
    keys = [(pattern, rate, split) for pattern in REPLAYED_PATTERNS for rate in RATES_RPS for split in SPLITS]
    with ProcessPoolExecutor(workers or os.cpu_count()) as pool:
        cells = dict(zip(keys, pool.map(partial(hours_in, count=count, data=data, seed=seed), keys), strict=True))
    rows = [row_of(cell, hours) for cell, hours in cells.items()]
    head = ("pattern", "req/s", "set", "hours", "sources", "kinds", "CV", f"replayed / expected {HEADING}", "worst",
            "busiest s / mean")  # fmt: skip
    print_table("Hours by pattern, rate and set", head, [cell_of(row) for row in rows])
    absent = missing(rows)
    for sentence in absent:
        click.echo(sentence)
    result = {
        "worst_dispersion_ratio": worst(value for hours in cells.values() for hour in hours for value in ratios(hour)),
        "distinct_hours": min(row["hours"] for row in rows),
        "distinct_hours_by_pattern": {
            pattern: min(row["hours"] for row in rows if row["pattern"] == pattern) for pattern in REPLAYED_PATTERNS
        },
        "full_cells": len(rows) - len(absent),
        "cells": len(rows),
        "scales_s": SCALES_S,
        "missing": absent,
    }
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        pictured = draw_dispersion(out / "dispersion.png", data, seed)
        every = [hour for hours in cells.values() for hour in hours]
        stored = {**result, "rows": rows, "pictured": pictured, "hours": every}
        (out / "traffic.json").write_text(json.dumps(stored, indent=None) + "\n")
    print_result(result)


if __name__ == "__main__":
    main()
