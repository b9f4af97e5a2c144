"""One door to all formats: what a file is, by its content, and one trace out of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from traces import arrival_process as placing
from traces.arrival_process import Placement
from traces.batches import Batch, gather
from traces.errors import NoMatchError, TraceError, broken
from traces.formats import (
    arrivals,
    azure_functions_2019,
    azure_functions_2021,
    azure_llm,
    burstgpt,
    mooncake,
    servegen,
    servegen_lengths,
)
from traces.model import Trace
from traces.rows import lines_of
from traces.sources import Source, sources

Format = Literal[
    "azure-functions-2019", "azure-functions-2021", "azure-llm", "burstgpt", "mooncake", "servegen", "arrivals"
]
READERS: dict[Format, Callable[[Path, str | None], Iterator[Batch]]] = {
    "azure-functions-2021": azure_functions_2021.read,
    "azure-llm": azure_llm.read,
    "burstgpt": burstgpt.read,
    "mooncake": mooncake.read,
}
"""Formats that name every request."""
BY_HEADER: tuple[tuple[Format, Callable[[list[str]], bool]], ...] = (
    ("azure-functions-2019", azure_functions_2019.is_header),
    ("azure-functions-2021", azure_functions_2021.is_header),
    ("azure-llm", azure_llm.is_header),
    ("burstgpt", burstgpt.is_header),
    ("servegen", servegen.is_header),
    ("arrivals", arrivals.is_header),
)
KNOWN = (
    "Azure Functions 2019 (HashOwner,HashApp,HashFunction,Trigger,1,2,… or RowId,…) and 2021 (app,func,…), Azure LLM "
    "(TIMESTAMP,…), BurstGPT (Timestamp,…), Mooncake (JSON lines), ServeGen (client,window_start_s,… or chunk-N-trace"
    ".csv) and arrivals (arrival_s,…)"
)


@dataclass(frozen=True)
class Found:
    """What a path holds."""

    format: Format
    path: Path
    """The file; for the formats of many files (Azure Functions 2019, ServeGen) what was asked for."""
    member: str | None
    """Member of an archive, for the formats of one file."""


def identify(path: Path) -> Found:
    """Format of a file, folder or archive by its first file in a known form. Raises TraceError when there is none."""
    refusals: list[str] = []
    with closing(sources(path)) as files:
        for source in files:
            try:
                kind = _format_of(source)
            except TraceError as error:
                refusals.append(str(error))
                continue
            if kind in ("azure-functions-2019", "servegen"):
                return Found(kind, path, None)
            return Found(kind, source.path, source.member)
    if not refusals:
        raise TraceError(f"{path}: holds no files")
    several = f"{path}: none of its {len(refusals)} files is in a known form; the first: "
    raise TraceError(f"{several if len(refusals) > 1 else ''}{refusals[0]}")


def batches(file: Found) -> Iterator[Batch]:
    """Requests of a format that names them. Raises TraceError."""
    return READERS[file.format](file.path, file.member)


def load(
    path: Path,
    *,
    row: str | None = None,
    start_s: float | None = None,
    duration_s: float | None = None,
    placement: Placement = "uniform",
    seed: int = 0,
    placement_cv: float = placing.GAMMA_CV,
    lengths: Path | None = None,
) -> Trace:
    """A trace out of any known file, packed or not.

    ``row``: function, model (a leading part is enough) or client; without it the busiest function or client is
    taken of formats that hold no requests, and all requests of formats that do. ``start_s`` and ``duration_s`` clip
    it, in seconds of the file (for per-minute counts 0 is the first minute of its first day). ``placement`` sets
    how per-minute counts become times, see :mod:`traces.arrival_process`. ``lengths``: table that ServeGen's requests
    get their tokens from. Raises TraceError, NoMatchError.
    """
    file = identify(path)
    if file.format == "servegen":
        return _load_servegen(path, row, start_s, duration_s, seed, lengths)
    if lengths is not None:
        raise TraceError(f"{path}: only ServeGen's requests get their tokens from a table of lengths")
    if file.format == "azure-functions-2019":
        counts = azure_functions_2019.find_row(path, row) if row is not None else _busiest_row(path)
        counts, start_s, duration_s = _whole_minutes(counts, start_s, duration_s)
        return _clip(placing.to_trace(counts, placement, seed, placement_cv), start_s, duration_s)
    if file.format == "arrivals":
        if row is not None:
            raise NoMatchError(f"{path}: the file holds one trace, it has no row {row!r}")
        return _clip(arrivals.read_arrivals(file.path), start_s, duration_s)
    return gather(batches(file), file.path, row=row, start_s=start_s, duration_s=duration_s)


def _format_of(source: Source) -> Format:
    """Raises TraceError when the first lines are those of no known format."""
    if servegen.is_chunk(source.name):
        return "servegen"
    lines = lines_of(source.label, source.stream)
    number, text = next((line for line in lines if not line[1].startswith("#")), (1, ""))
    if mooncake.is_first_line(text):
        return "mooncake"
    for kind, is_header in BY_HEADER:
        if is_header(text.split(",")):
            return kind
    if not text:
        raise broken(source.label, number, "the file is empty (or holds remarks only), a header line is needed")
    raise broken(source.label, number, f"foreign columns {text[:80]!r}; known are {KNOWN}")


def _clip(trace: Trace, start_s: float | None, duration_s: float | None) -> Trace:
    if start_s is None and duration_s is None:
        return trace
    begin = start_s or 0.0
    return trace.clip(begin, begin + duration_s if duration_s is not None else max(trace.duration_s, begin))


def _whole_minutes(
    counts: azure_functions_2019.MinuteCounts, start_s: float | None, duration_s: float | None
) -> tuple[azure_functions_2019.MinuteCounts, float | None, float | None]:
    """Cut to minutes before times are drawn, so that a clip does not depend on what lies around it; else leave it
    to be clipped.
    """
    whole = 60.0 * counts.counts.size
    begin, length = start_s or 0.0, duration_s if duration_s is not None else whole - (start_s or 0.0)
    if begin % 60 or length % 60 or length <= 0 or begin + length > whole:
        return counts, start_s, duration_s
    return counts.hour(counts.first_minute + int(begin // 60), int(length // 60)), None, None


def _busiest_row(path: Path) -> azure_functions_2019.MinuteCounts:
    """The function with the most requests over all days; totals first, then its days."""
    totals: Counter[str] = Counter()
    for block in azure_functions_2019.read_blocks_of_days(path):
        for name, total in zip(block.rows, block.counts.sum(axis=1).tolist(), strict=True):
            totals[name] += total
    if not totals:
        raise NoMatchError(f"{path}: the file holds no rows")
    busiest = totals.most_common(1)[0][0]
    return azure_functions_2019.find_row(path, busiest)


def _load_servegen(
    path: Path, row: str | None, start_s: float | None, duration_s: float | None, seed: int, lengths: Path | None
) -> Trace:
    client = row
    if client is None:
        totals: Counter[str] = Counter()
        for window in servegen.read_windows(path):
            totals[window.client] += window.requests
        if not totals:
            raise NoMatchError(f"{path}: the file holds no rows")
        client = totals.most_common(1)[0][0]
    windows = list(servegen.read_windows(path, client))
    if not windows:
        raise NoMatchError(f"{path}: there is no client {client!r} with an active window")
    for name, seconds in (("start", start_s), ("duration", duration_s)):
        if seconds is not None and seconds != int(seconds):
            raise TraceError(f"{path}: the {name} of a ServeGen clip is whole seconds; got {seconds:g}")
    begin = int(start_s) if start_s is not None else min(window.window_start_s for window in windows)
    length = int(duration_s) if duration_s is not None else 3600
    drawn_from = None if lengths is None else servegen_lengths.lengths_of(lengths, path, windows[0].client)
    return servegen.draw(path, windows, start_s=begin, duration_s=length, seed=seed, lengths=drawn_from)
