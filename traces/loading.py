"""One door to all formats: what a file is, told from its header, and one trace out of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Literal

from traces import arrivals, azure_functions, azure_llm, servegen
from traces.azure_functions import Placement
from traces.errors import NoMatchError, broken
from traces.rows import read_table
from traces.trace import Trace

Format = Literal["azure-functions", "azure-llm", "servegen", "arrivals"]


def detect(path: Path) -> Format:
    """Format of a file by its header. Raises TraceError when it is none of ours."""
    header = read_table(path).header
    if azure_functions.is_header(header.cells):
        return "azure-functions"
    if tuple(header.cells) == azure_llm.COLUMNS:
        return "azure-llm"
    if tuple(header.cells) == servegen.COLUMNS:
        return "servegen"
    if arrivals.is_header(header.cells):
        return "arrivals"
    raise broken(
        path,
        header.line,
        f"foreign columns {','.join(header.cells)[:80]!r}; known are Azure Functions per-minute counts, Azure LLM "
        "(TIMESTAMP,...), ServeGen windows (client,window_start_s,...) and arrivals (arrival_s,...)",
    )


def load(
    path: Path,
    *,
    row: str | None = None,
    start_s: float | None = None,
    duration_s: float | None = None,
    placement: Placement = "uniform",
    seed: int = 0,
) -> Trace:
    """A trace out of any known file.

    ``row``: function or RowId (a leading part is enough), or ServeGen's client number; without it the busiest row
    is taken. ``start_s`` and ``duration_s`` clip it, in seconds of the file (for per-minute counts 0 is the first
    minute column). Raises TraceError, NoMatchError.
    """
    kind = detect(path)
    if kind == "servegen":
        return _load_servegen(path, row, start_s, duration_s, seed)
    if kind == "azure-functions":
        found = azure_functions.find_row(path, row) if row is not None else _busiest_row(path)
        found, start_s, duration_s = _whole_minutes(found, start_s, duration_s)
        trace = azure_functions.to_trace(found, placement, seed)
    else:
        if row is not None:
            raise NoMatchError(f"{path}: a {kind} file holds one trace, it has no row {row!r}")
        trace = azure_llm.read_azure_llm(path) if kind == "azure-llm" else arrivals.read_arrivals(path)
    if start_s is None and duration_s is None:
        return trace
    begin = start_s or 0.0
    return trace.clip(begin, begin + duration_s if duration_s is not None else max(trace.duration_s, begin))


def _whole_minutes(
    counts: azure_functions.MinuteCounts, start_s: float | None, duration_s: float | None
) -> tuple[azure_functions.MinuteCounts, float | None, float | None]:
    """Cut to minutes before times are drawn, so that a clip does not depend on what lies around it; else leave it
    to be clipped.
    """
    begin, length = (
        start_s or 0.0,
        duration_s if duration_s is not None else 60.0 * counts.counts.size - (start_s or 0.0),
    )
    if begin % 60 or length % 60 or length <= 0 or begin + length > 60 * counts.counts.size:
        return counts, start_s, duration_s
    return counts.hour(counts.first_minute + int(begin // 60), int(length // 60)), None, None


def _busiest_row(path: Path) -> azure_functions.MinuteCounts:
    best = max(azure_functions.read_minute_counts(path), key=lambda counts: int(counts.counts.sum()), default=None)
    if best is None:
        raise NoMatchError(f"{path}: the file holds no rows")
    return best


def _load_servegen(path: Path, row: str | None, start_s: float | None, duration_s: float | None, seed: int) -> Trace:
    if row is None:
        totals: Counter[int] = Counter()
        for window in servegen.read_windows(path):
            totals[window.client] += window.requests
        if not totals:
            raise NoMatchError(f"{path}: the file holds no rows")
        client = totals.most_common(1)[0][0]
    elif row.isascii() and row.isdigit():
        client = int(row)
    else:
        raise NoMatchError(f"{path}: ServeGen's clients are numbers, got {row!r}")
    windows = list(servegen.read_windows(path, (client,)))
    if not windows:
        raise NoMatchError(f"{path}: there is no client {client}")
    begin = int(start_s) if start_s is not None else min(window.window_start_s for window in windows)
    length = int(duration_s) if duration_s is not None else 3600
    return servegen.draw(path, windows, start_s=begin, duration_s=length, seed=seed)
