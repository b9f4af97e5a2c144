"""Azure Functions 2019 (Shahrad et al., ATC'20): requests per function and minute.

Columns are ``HashOwner,HashApp,HashFunction,Trigger`` or ``RowId,SourceBlob,SourcePath,Multiplicity`` followed by one
column per minute of the day, named by its number (1 to 1440; a part of the day, such as 480 to 959, is allowed, a
gap is not). The published form is one file a day, ``invocations_per_function_md.anon.d01.csv`` to ``d14``, in a
``.tar.xz``; that archive, a folder of the days or one of them are all read. A function that a day's file leaves out
had no requests that day; a day between others whose file is missing is refused.

The trace gives no times inside a minute; :mod:`traces.arrival_process` draws them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from traces.columns import Block, Column, read_blocks
from traces.errors import NoMatchError, TraceError, broken
from traces.model import IntArray
from traces.rows import Row, read_header, whole_number
from traces.sources import Source, sources

FUNCTION_COLUMNS = ("HashOwner", "HashApp", "HashFunction", "Trigger")
ROW_COLUMNS = ("RowId", "SourceBlob", "SourcePath", "Multiplicity")
IDENTITY: dict[tuple[str, ...], str] = {FUNCTION_COLUMNS: "HashFunction", ROW_COLUMNS: "RowId"}
LAST_MINUTE = 1440
MAX_DAYS = 99
MAX_PER_MINUTE = 100_000_000
DAY_FILE = re.compile(r"\.d(\d\d)\.csv", re.ASCII)
OTHER_FILES = ("function_durations", "app_memory")
SUMMED_MARK = "14day_sum"
"""Rows summed over days (see the traces' README): an hour of them is no hour of any arrivals."""


@dataclass(frozen=True, eq=False)
class MinuteCounts:
    """One function's requests per minute."""

    path: Path
    """With the member of an archive, for messages."""
    line: int
    row: str
    """HashFunction, or RowId in the files made of unnamed rows."""
    trigger: str | None
    first_minute: int
    """Number of the first minute (1 = first minute of day 1; day 2 begins with 1441)."""
    counts: IntArray
    """[minutes] int64."""

    def hour(self, first_minute: int, minutes: int = 60) -> MinuteCounts:
        """``minutes`` minutes from minute ``first_minute`` on. Raises TraceError when they are not all there."""
        start = first_minute - self.first_minute
        if start < 0 or minutes < 1 or start + minutes > self.counts.size:
            last = self.first_minute + self.counts.size - 1
            raise TraceError(
                f"{self.path}:{self.line}: minutes {first_minute} to {first_minute + minutes - 1} are wanted, "
                f"the row holds {self.first_minute} to {last}"
            )
        part = self.counts[start : start + minutes]
        return MinuteCounts(self.path, self.line, self.row, self.trigger, first_minute, part)


@dataclass(frozen=True, eq=False)
class CountBlock:
    """Neighbouring rows of one day's file."""

    label: Path
    first_line: int
    rows: list[str]
    """[n] names."""
    triggers: list[str] | None
    """[n], where the file names them."""
    first_minute: int
    counts: IntArray
    """[n, minutes] int64."""


def is_header(cells: list[str]) -> bool:
    return tuple(cells[:4]) in IDENTITY


def is_day_file(name: str) -> bool:
    """Not one of the durations and memory files that share archive and folder."""
    return not name.startswith(OTHER_FILES)


def read_blocks_of_days(path: Path) -> Iterator[CountBlock]:
    """Every row, about 1400 whole-day rows at a time, days in the order of the archive or folder. Raises TraceError
    (names line and rule), at the end where a day between others is not there.
    """
    days: dict[int, str] = {}
    for source in sources(path, is_day_file):
        named = DAY_FILE.search(source.name) is not None
        if path.is_dir() and not named:
            continue
        header = _header_of(source, must_be_ours=named or source.member is None)
        if header is None:
            continue
        day = _day_of(source)
        if day in days:
            raise TraceError(f"{source.label}: day {day} is there twice")
        days[day] = source.name
        yield from _read_day(source, header, day)
    if not days:
        raise TraceError(f"{path}: holds no day file (invocations_per_function_md.anon.dNN.csv)")
    missing = sorted(set(range(min(days), max(days))) - days.keys())
    if missing:
        name = DAY_FILE.sub(f".d{missing[0]:02d}.csv", days[min(days)])
        more = f" and {len(missing) - 1} more are" if len(missing) > 1 else " is"
        raise TraceError(
            f"{path}: {name}{more} missing, while days {min(days)} and {max(days)} are there; its hours would "
            f"be read as hours without requests"
        )


def find_row(path: Path, row: str) -> MinuteCounts:
    """The row whose name starts with ``row``, over all days of the file, with zeros for days that leave it out.

    Raises NoMatchError if no name does, TraceError if several do.
    """
    matches: list[MinuteCounts] = []
    first, end = 2**62, 0
    for block in read_blocks_of_days(path):
        first, end = min(first, block.first_minute), max(end, block.first_minute + block.counts.shape[1])
        matches.extend(row_of(block, index) for index, name in enumerate(block.rows) if name.startswith(row))
    matches = [counts for counts in matches if counts.row == row] or matches
    if not matches:
        raise NoMatchError(f"{path}: no row's id starts with {row!r}")
    days = {counts.first_minute for counts in matches}
    if len({counts.row for counts in matches}) > 1 or len(days) < len(matches):
        lines = ", ".join(str(counts.line) for counts in matches[:5])
        raise TraceError(f"{path}: {len(matches)} rows start with {row!r} (lines {lines}); give more of the id")
    return _joined(matches, first, end)


def _joined(days: list[MinuteCounts], first: int, end: int) -> MinuteCounts:
    """One function's days as one row, over the whole file: minutes ``first`` to below ``end``."""
    whole = np.zeros(end - first, dtype=np.int64)
    for counts in days:
        at = counts.first_minute - first
        whole[at : at + counts.counts.size] = counts.counts
    whole.setflags(write=False)
    return MinuteCounts(days[0].path, days[0].line, days[0].row, days[0].trigger, first, whole)


def row_of(block: CountBlock, index: int) -> MinuteCounts:
    """Row ``index`` of a block, alone."""
    counts = block.counts[index].copy()
    counts.setflags(write=False)
    trigger = None if block.triggers is None else block.triggers[index]
    return MinuteCounts(block.label, block.first_line + index, block.rows[index], trigger, block.first_minute, counts)


def _header_of(source: Source, must_be_ours: bool) -> Row | None:
    """None for another file of an archive, such as its README."""
    try:
        header = read_header(source.label, source.stream).header
    except TraceError:
        if must_be_ours:
            raise
        return None
    return header if must_be_ours or is_header(header.cells) else None


def _read_day(source: Source, header: Row, day: int) -> Iterator[CountBlock]:
    names, first = _check_header(source.label, header)
    minutes = header.cells[4:]
    identity = IDENTITY[names]
    kinds = [Column(name, "text", may_be_empty=name != identity) for name in names]
    kinds += [Column(minute, "whole", high=MAX_PER_MINUTE) for minute in minutes]
    for block in read_blocks(source, kinds, header):
        yield CountBlock(
            label=source.label,
            first_line=block.first_line,
            rows=_texts(block, identity),
            triggers=_texts(block, "Trigger") if names == FUNCTION_COLUMNS else None,
            first_minute=(day - 1) * LAST_MINUTE + first,
            counts=np.stack([block.whole(minute) for minute in minutes], axis=1),
        )


def _texts(block: Block, name: str) -> list[str]:
    index, names = block.text(name)
    return [names[i] for i in index]


def _day_of(source: Source) -> int:
    match = DAY_FILE.search(source.name)
    day = int(match[1]) if match else 1
    if not 1 <= day <= MAX_DAYS:
        raise TraceError(f"{source.label}: the file's name gives day {day}, days are 01 to {MAX_DAYS}")
    return day


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
