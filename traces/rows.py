"""Streaming comma-separated rows out of plain or gzip files, and the checks every format shares.

One line is in memory at a time. Lines that start with ``#`` ahead of the header are remarks. Quoting is not part
of any of the formats, so a quote is an ordinary character that the field checks refuse.
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from traces.errors import TraceError, broken

MAX_LINE_BYTES = 1 << 20
GZIP_MAGIC = b"\x1f\x8b"


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


def open_binary(path: Path) -> IO[bytes] | gzip.GzipFile:
    """Plain or gzip by content, not by name. Raises TraceError when the file cannot be opened."""
    try:
        with path.open("rb") as probe:
            zipped = probe.read(2) == GZIP_MAGIC
        return gzip.open(path, "rb") if zipped else path.open("rb")
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror or error})") from error


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """(number from 1, text without its end) of every line. Raises TraceError for damage, long lines and bad text."""
    number = 0
    with open_binary(path) as stream:
        while True:
            number += 1
            try:
                raw = stream.readline(MAX_LINE_BYTES + 1)
            except (OSError, EOFError, zlib.error) as error:
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


def read_table(path: Path) -> Table:
    """Header and rows of a file. Empty lines at the end are ignored, elsewhere they break the rule. Raises
    TraceError.
    """
    lines = read_lines(path)
    remarks: list[str] = []
    for number, text in lines:
        if not text.startswith("#"):
            return Table(path, tuple(remarks), Row(number, text.split(",")), _rows(path, lines, number, text))
        remarks.append(text.lstrip("# "))
    raise broken(path, 1, "the file is empty, a header line is needed")


def _rows(path: Path, lines: Iterator[tuple[int, str]], header_line: int, header: str) -> Iterator[Row]:
    width = header.count(",") + 1
    blank = 0
    for number, text in lines:
        if not text:
            blank = blank or number
            continue
        if blank:
            raise broken(path, blank, "an empty line stands between rows")
        cells = text.split(",")
        if len(cells) != width:
            raise broken(path, number, f"{len(cells)} fields, the header on line {header_line} has {width}")
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
