"""Comma-separated rows one at a time, and the checks every format shares.

One line is in memory at a time. Lines that start with ``#`` ahead of the header are remarks. Quoting is not part
of any of the formats, so a quote is an ordinary character that the field checks refuse. Large files are read by
:mod:`traces.columns`, which falls back on this module to name a fault.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from traces.errors import broken
from traces.sources import DAMAGE, one

MAX_LINE_BYTES = 1 << 20


@dataclass(frozen=True)
class Row:
    """One line split at commas; ``line`` counts from 1 and includes remarks and the header."""

    line: int
    cells: list[str]


@dataclass(frozen=True)
class Table:
    """A file's header (with the line it stands on) and its rows, read as they are asked for."""

    path: Path
    remarks: tuple[str, ...]
    header: Row
    rows: Iterator[Row]


def lines_of(path: Path, stream: IO[bytes]) -> Iterator[tuple[int, str]]:
    """(number from 1, text without its end) of every line. Raises TraceError for damage, long lines and bad text."""
    number = 0
    while True:
        number += 1
        try:
            raw = stream.readline(MAX_LINE_BYTES + 1)
        except DAMAGE as error:
            raise broken(path, number, f"the compressed data is damaged ({error})") from error
        if not raw:
            return
        if len(raw) > MAX_LINE_BYTES:
            raise broken(path, number, f"the line is longer than {MAX_LINE_BYTES} bytes")
        try:
            text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise broken(path, number, f"the line is not UTF-8 ({error.reason} at byte {error.start})") from error
        yield number, text.rstrip("\r\n")


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines of a file, packed or not, see :func:`lines_of`. Raises TraceError."""
    with one(path) as source:
        yield from lines_of(source.label, source.stream)


def read_header(path: Path, stream: IO[bytes]) -> Table:
    """Header and rows of a stream; ``path`` is for messages. Raises TraceError."""
    lines = lines_of(path, stream)
    remarks: list[str] = []
    for number, text in lines:
        if not text.startswith("#"):
            rows = _rows(path, lines, text.count(",") + 1, f"the header on line {number}")
            return Table(path, tuple(remarks), Row(number, text.split(",")), rows)
        remarks.append(text.lstrip("# "))
    raise broken(path, 1, "the file is empty, a header line is needed")


def rows_of(path: Path, stream: IO[bytes], width: int) -> Iterator[Row]:
    """Rows of a stream without a header, ``width`` cells each. Raises TraceError."""
    yield from _rows(path, lines_of(path, stream), width, "this format")


def _rows(path: Path, lines: Iterator[tuple[int, str]], width: int, whose: str) -> Iterator[Row]:
    """Empty lines at the end are ignored, elsewhere they break the rule."""
    blank = 0
    for number, text in lines:
        if not text:
            blank = blank or number
            continue
        if blank:
            raise broken(path, blank, "an empty line stands between rows")
        cells = text.split(",")
        if len(cells) != width:
            raise broken(path, number, f"{len(cells)} fields, {whose} has {width}")
        yield Row(number, cells)


def whole_number(path: Path, line: int, column: str, cell: str, largest: int) -> int:
    """A count between 0 and ``largest``. Raises TraceError that names the rule broken."""
    if cell.isascii() and cell.isdigit():
        value = int(cell) if len(cell) <= 18 else largest + 1
        if value > largest:
            raise broken(path, line, f"column {column}: {_shown(cell)} is above the allowed maximum of {largest}")
        return value
    if cell[:1] == "-" and cell[1:].isdigit():
        raise broken(path, line, f"column {column}: {_shown(cell)} is negative, counts start at 0")
    if not cell:
        raise broken(path, line, f"column {column} is empty (a gap); a count is needed, 0 for none")
    raise broken(path, line, f"column {column}: {_shown(cell)} is not a whole number")


def real_number(path: Path, line: int, column: str, cell: str, *, low: float, high: float) -> float:
    """A finite number in [low, high]. Raises TraceError that names the rule broken."""
    if not cell:
        raise broken(path, line, f"column {column} is empty (a gap); a number is needed")
    try:
        value = float(cell) if cell.isascii() and "_" not in cell else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise broken(path, line, f"column {column}: {_shown(cell)} is not a finite number")
    if not low <= value <= high:
        raise broken(path, line, f"column {column}: {_shown(cell)} is outside {low:g} to {high:g}")
    return value


def _shown(cell: str) -> str:
    return repr(cell if len(cell) <= 40 else cell[:37] + "...")
