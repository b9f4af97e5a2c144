"""Azure Functions 2019 (Shahrad et al., ATC'20): requests per function and minute.

Columns are ``HashOwner,HashApp,HashFunction,Trigger`` or ``RowId,SourceBlob,SourcePath,Multiplicity`` followed by one
column per minute of the day, named by its number (1 to 1440; a part of the day, such as 480 to 959, is allowed, a
gap is not).

The trace gives no times inside a minute. *even* spaces the requests of a minute equally (gap 60/count, half a gap
at both ends): a lower bound of the burstiness. *uniform* draws each request's second at random, as if the minute
were Poisson. An hour's pattern is only certain where both agree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np

from traces.errors import NoMatchError, TraceError, broken
from traces.rows import Row, read_table, whole_number
from traces.trace import MAX_REQUESTS, FloatArray, IntArray, Trace, make_trace

Placement = Literal["even", "uniform"]

FUNCTION_COLUMNS = ("HashOwner", "HashApp", "HashFunction", "Trigger")
ROW_COLUMNS = ("RowId", "SourceBlob", "SourcePath", "Multiplicity")
LAST_MINUTE = 1440
MAX_PER_MINUTE = 100_000_000
MINUTE_S = 60.0


@dataclass(frozen=True, eq=False)
class MinuteCounts:
    """One function's requests per minute."""

    path: Path
    line: int
    row: str
    """HashFunction, or RowId in the files made of unnamed rows."""
    trigger: str | None
    first_minute: int
    """Number of the first minute column (1 = first minute of the day in the original files)."""
    counts: IntArray
    """[minutes] int64."""

    def hour(self, first_minute: int, minutes: int = 60) -> MinuteCounts:
        """``minutes`` columns from column ``first_minute`` on. Raises TraceError when they are not all there."""
        start = first_minute - self.first_minute
        if start < 0 or minutes < 1 or start + minutes > self.counts.size:
            last = self.first_minute + self.counts.size - 1
            raise TraceError(
                f"{self.path}:{self.line}: minutes {first_minute} to {first_minute + minutes - 1} are wanted, "
                f"the row holds {self.first_minute} to {last}"
            )
        part = self.counts[start : start + minutes]
        return MinuteCounts(self.path, self.line, self.row, self.trigger, first_minute, part)


def read_minute_counts(path: Path) -> Iterator[MinuteCounts]:
    """Every row of a file, one at a time. Raises TraceError (names line and rule)."""
    table = read_table(path)
    names, first = _check_header(path, table.header)
    for row in table.rows:
        yield _parse(path, row, names, first)


def find_row(path: Path, row: str) -> MinuteCounts:
    """The row whose id starts with ``row``. Raises NoMatchError if none, TraceError if several do."""
    found = [counts for counts in read_minute_counts(path) if counts.row.startswith(row)]
    if not found:
        raise NoMatchError(f"{path}: no row's id starts with {row!r}")
    if len(found) > 1:
        lines = ", ".join(str(counts.line) for counts in found[:5])
        raise TraceError(f"{path}: {len(found)} rows start with {row!r} (lines {lines}); give more of the id")
    return found[0]


def place(counts: IntArray, placement: Placement, seed: int = 0) -> FloatArray:
    """Arrival seconds [sum(counts)] float64 for ``counts`` [minutes], see the module text. Raises TraceError."""
    total = int(counts.sum())
    if total > MAX_REQUESTS:
        raise TraceError(f"{total} requests in one trace, at most {MAX_REQUESTS} are allowed; choose a shorter span")
    starts = np.repeat(np.arange(counts.size, dtype=np.float64) * MINUTE_S, counts)
    if placement == "uniform":
        offsets = np.random.default_rng(seed).random(total) * MINUTE_S
        return np.sort(starts + offsets)
    position = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    return starts + (position + 0.5) * MINUTE_S / np.repeat(counts, counts)


def to_trace(counts: MinuteCounts, placement: Placement = "uniform", seed: int = 0) -> Trace:
    """Arrivals of one row. Raises TraceError when there are too many to hold."""
    how = "placed evenly" if placement == "even" else f"placed uniformly, seed {seed}"
    last = counts.first_minute + counts.counts.size - 1
    return make_trace(
        place(counts.counts, placement, seed),
        duration_s=counts.counts.size * MINUTE_S,
        source=f"{counts.path.name} row {counts.row[:16]} minutes {counts.first_minute} to {last}, {how}",
    )


def is_header(cells: list[str]) -> bool:
    return tuple(cells[:4]) in (FUNCTION_COLUMNS, ROW_COLUMNS)


def _check_header(path: Path, header: Row) -> tuple[tuple[str, ...], int]:
    """The four leading names and the number of the first minute column."""
    if not is_header(header.cells):
        raise broken(
            path,
            header.line,
            f"foreign columns {','.join(header.cells[:4])[:120]!r}; the header starts with "
            f"{','.join(FUNCTION_COLUMNS)} or {','.join(ROW_COLUMNS)}",
        )
    minutes = [
        whole_number(path, header.line, f"{index + 5} of the header", cell, LAST_MINUTE)
        for index, cell in enumerate(header.cells[4:])
    ]
    if not minutes:
        raise broken(path, header.line, "no minute columns after the first four")
    if minutes[0] < 1:
        raise broken(path, header.line, "minute columns are named 1 to 1440, got 0")
    for before, after in pairwise(minutes):
        if after != before + 1:
            raise broken(
                path, header.line, f"minute columns have a gap or are unsorted: {before} is followed by {after}"
            )
    return tuple(header.cells[:4]), minutes[0]


def _parse(path: Path, row: Row, names: tuple[str, ...], first_minute: int) -> MinuteCounts:
    by_function = names == FUNCTION_COLUMNS
    identity = row.cells[2] if by_function else row.cells[0]
    if not identity:
        raise broken(path, row.line, f"column {names[2] if by_function else names[0]} is empty")
    cells = row.cells[4:]
    if all(cell.isascii() and cell.isdigit() and len(cell) <= 8 for cell in cells):
        counts = np.array(cells, dtype=np.int64)
    else:
        numbers = (
            whole_number(path, row.line, str(first_minute + index), cell, MAX_PER_MINUTE)
            for index, cell in enumerate(cells)
        )
        counts = np.fromiter(numbers, dtype=np.int64, count=len(cells))
    counts.setflags(write=False)
    return MinuteCounts(path, row.line, identity, row.cells[3] if by_function else None, first_minute, counts)
