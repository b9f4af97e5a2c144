"""The tables that accompany arrivals: execution times and memory of Azure Functions 2019, request lengths of ServeGen,
and the one-hour windows derived from both.

None of them is a trace; each is read whole, by its header, from one file, an archive or a folder (the published days
stand one behind the other then, with the day in column ``day``). Units: execution times ms, memory MB, lengths
tokens (``reason_ratio`` is a fraction), times s, rates requests/s.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from traces.columns import Block, Column, foreign, read_blocks
from traces.errors import TraceError
from traces.model import FloatArray, IntArray
from traces.rows import Row, read_header
from traces.sources import Source, sources

TableKind = Literal["durations", "memory", "lengths", "count-hours", "client-hours"]
MAX_ROWS = 20_000_000
DAY_FILE = re.compile(r"\.d(\d\d)\.csv", re.ASCII)


def _texts(*names: str, empty: bool = False) -> tuple[Column, ...]:
    return tuple(Column(name, "text", may_be_empty=empty) for name in names)


def _whole(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name, "whole", high=1e15) for name in names)


def _real(*names: str, low: float = 0.0) -> tuple[Column, ...]:
    return tuple(Column(name, "real", low=low, high=1e15) for name in names)


PERCENTILES = tuple(f"percentile_Average_{p}" for p in (0, 1, 25, 50, 75, 99, 100))
MEMORY_PERCENTILES = tuple(f"AverageAllocatedMb_pct{p}" for p in (1, 5, 25, 50, 75, 95, 99, 100))
APP = ("HashOwner", "HashApp")
NUMBERS_OF_MEMORY = ("SampleCount", "AverageAllocatedMb", *MEMORY_PERCENTILES)

TABLES: tuple[tuple[TableKind, tuple[Column, ...]], ...] = (
    ("durations", (*_texts(*APP, "HashFunction"), *_real("Average", "Count", "Minimum", "Maximum", *PERCENTILES))),
    ("memory", (*_texts(*APP), *_real(*NUMBERS_OF_MEMORY))),
    ("memory", (*_texts("HashFunction", *APP), *_real(*NUMBERS_OF_MEMORY))),
    (
        "lengths",
        (
            *_texts("category", "model"), *_whole("client", "window_start_s"), *_texts("field"),
            *_real("mean", "p10", "p50", "p90", "p99", "max"),
        ),
    ),
    (
        "count-hours",
        (
            *_texts("file", "row"), *_whole("first_minute", "requests"),
            *_real("mean_rps", "cv_minute_counts", "cv_iat_even", "cv_iat_uniform"), *_texts("pattern", empty=True),
            *_whole("peak_per_minute", "active_minutes"),
        ),
    ),
    (
        "client-hours",
        (
            *_texts("file"), *_whole("client", "start_s"), *_texts("pattern"), *_whole("requests"),
            *_real("rate", "cvmin", "cvmed", "cvmax"),
        ),
    ),
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class PublishedTable:
    """All rows of one kind of table."""

    kind: TableKind
    size: int
    texts: dict[str, list[str]]
    """By column name, [size] each."""
    numbers: dict[str, FloatArray]
    """By column name, [size] float64 each."""
    day: IntArray
    """[size] int64: day in the file's name, 1 where it names none."""


def read_table(path: Path, kind: TableKind) -> PublishedTable:
    """Every row of ``kind`` in a file, archive or folder. Raises TraceError (names line and rule)."""
    texts: dict[str, list[str]] = {}
    numbers: dict[str, list[FloatArray]] = {}
    days: list[IntArray] = []
    size = 0
    for source, block, columns in _blocks(path, kind):
        size += block.size
        if size > MAX_ROWS:
            raise block.refuse(block.size - 1, f"more than {MAX_ROWS} rows")
        found = DAY_FILE.search(source.name)
        days.append(np.full(block.size, int(found[1]) if found else 1, dtype=np.int64))
        for column in columns:
            if column.kind == "text":
                index, names = block.text(column.name)
                texts.setdefault(column.name, []).extend(names[i] for i in index.tolist())
            else:
                numbers.setdefault(column.name, []).append(block.arrays[column.name].astype(np.float64))
    if not size:
        raise TraceError(f"{path}: holds no rows of a {kind} table")
    joined = {name: np.concatenate(parts) for name, parts in numbers.items()}
    return PublishedTable(kind, size, texts, joined, np.concatenate(days))


def _blocks(path: Path, kind: TableKind) -> Iterator[tuple[Source, Block, tuple[Column, ...]]]:
    """Only of files with this kind's header; a single file must have it."""
    wanted = [columns for known, columns in TABLES if known == kind]
    seen: tuple[Column, ...] | None = None
    with closing(sources(path)) as files:
        for source in files:
            alone = source.member is None and source.path == path
            header = _header(source, alone)
            columns = next((some for some in wanted if header and _names(some) == header.cells), None)
            if header is None or columns is None:
                if header is not None and alone:
                    raise foreign(source, header, " or ".join(",".join(_names(some)) for some in wanted))
                continue
            if seen not in (None, columns):
                raise TraceError(f"{source.label}: its columns are not those of the files before it")
            seen = columns
            for block in read_blocks(source, columns, header):
                yield source, block, columns


def _header(source: Source, alone: bool) -> Row | None:
    """None for a file among others that has no readable header: it is another kind of file."""
    try:
        return read_header(source.label, source.stream).header
    except TraceError:
        if alone:
            raise
        return None


def _names(columns: tuple[Column, ...]) -> list[str]:
    return [column.name for column in columns]
