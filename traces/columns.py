"""Large comma-separated files in blocks of columns: bounded memory, and the same sentences as row by row.

pyarrow parses blocks of about 4 MiB into typed arrays. Where a block breaks a rule the file is read once more, row
by row (:mod:`traces.rows`), only to name the line and the rule; so a fault costs a second pass and a sound file
none. Spaces around numbers are ignored. Quotes are ordinary characters.
"""

from __future__ import annotations

import datetime
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv

from traces.errors import TraceError, broken
from traces.model import FloatArray, IntArray
from traces.rows import MAX_LINE_BYTES, Row, Table, read_header, real_number, rows_of, whole_number
from traces.sources import DAMAGE, Source, one

BLOCK_BYTES = 4 * MAX_LINE_BYTES
STAMP = re.compile(r"(\d{4}-\d\d-\d\d)[ T]([01]\d|2[0-3]):([0-5]\d):([0-5]\d)(?:\.(\d{1,9}))?(?:Z|\+00:00)?", re.ASCII)
STAMP_RULE = "YYYY-MM-DD HH:MM:SS[.fffffffff] in UTC"
WHOLE_SECONDS = len("YYYY-MM-DD HH:MM:SS")
FIRST_YEAR_NS = 0
Kind = Literal["whole", "real", "stamp", "text", "ignored"]


@dataclass(frozen=True)
class Column:
    """What a column may hold. ``whole``: 0 to ``high``. ``real``: finite, ``low`` to ``high``. ``stamp``: a UTC
    time. ``text``: anything, or one of ``allowed``. ``ignored``: not even read."""

    name: str
    kind: Kind
    low: float = 0.0
    high: float = 2.0**62
    allowed: tuple[str, ...] = ()
    may_be_empty: bool = False
    """Only for text."""


@dataclass(frozen=True)
class Block:
    """Neighbouring rows; row i stands on line ``first_line + i`` of the file."""

    source: Source
    first_line: int
    size: int
    arrays: dict[str, Any]
    """By column name: int64 [size] for whole and stamp (nanoseconds since 1970), float64 [size] for real."""

    def whole(self, name: str) -> IntArray:
        array: IntArray = self.arrays[name]
        return array

    def real(self, name: str) -> FloatArray:
        array: FloatArray = self.arrays[name]
        return array

    def text(self, name: str) -> tuple[IntArray, list[str]]:
        """(index into the names [size] int64, names in this block)."""
        encoded = self.arrays[name]
        return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), encoded.dictionary.to_pylist()

    def refuse(self, index: int, rule: str) -> TraceError:
        """An error about row ``index`` of the block."""
        return broken(self.source.label, self.first_line + index, rule)


def read_blocks(source: Source, columns: Sequence[Column], header: Row | None = None) -> Iterator[Block]:
    """Blocks of ``source``, whose header (line and cells) has been read already; None: the file has no header.

    The columns are all columns of the file, in their order. Raises TraceError.
    """
    stream = _Joined(source.stream)
    line = 1 if header is None else header.line + 1
    names = [column.name for column in columns]
    read = [column for column in columns if column.kind != "ignored"]
    try:
        if not stream.has_more():
            return
        reader = pcsv.open_csv(
            stream,
            read_options=pcsv.ReadOptions(use_threads=False, column_names=names, block_size=BLOCK_BYTES),
            parse_options=pcsv.ParseOptions(quote_char=False, newlines_in_values=False, ignore_empty_lines=False),
            convert_options=pcsv.ConvertOptions(
                column_types={column.name: _type(column) for column in read},
                include_columns=[column.name for column in read],
                null_values=[""],
                strings_can_be_null=False,
            ),
        )
        ended = False
        zones: dict[str, bool] = {}
        for batch in reader:
            if stream.perhaps_hexadecimal:
                # pyarrow takes 0x10 for a number; the row-wise check does not, and knows text from numbers
                _diagnose(source, columns, header is not None)
                stream.perhaps_hexadecimal = False
            table, blank_tail = _without_blank_tail(batch, read)
            if ended and table.num_rows:
                raise ValueError("an empty line stands between rows")
            ended = ended or blank_tail
            if table.num_rows:
                yield Block(source, line, table.num_rows, _arrays(table, read, zones))
                line += table.num_rows
    except (pa.ArrowException, ValueError, *DAMAGE) as error:
        _diagnose(source, columns, header is not None)
        if isinstance(error, DAMAGE) and not isinstance(error, pa.ArrowException):
            raise broken(source.label, line, f"the packed data is damaged ({_short(error)})") from error
        raise broken(source.label, line, f"cannot be read as a table ({_short(error)})") from error


def foreign(source: Source, header: Row, wanted: str) -> TraceError:
    """The header is not the one of this format."""
    return broken(source.label, header.line, f"foreign columns {','.join(header.cells)[:80]!r}; the header is {wanted}")


def check_cell(path: Path, line: int, column: Column, cell: str) -> None:
    """Raises the TraceError that one cell deserves, if any."""
    if column.kind == "ignored":
        return
    if column.kind == "whole":
        whole_number(path, line, column.name, cell.strip(" "), int(column.high))
    elif column.kind == "real":
        real_number(path, line, column.name, cell.strip(" "), low=column.low, high=column.high)
    elif column.kind == "stamp":
        parse_stamp_ns(path, line, cell, column.name)
    elif column.allowed and cell not in column.allowed:
        raise broken(path, line, f"column {column.name}: {cell[:40]!r}, allowed are {' and '.join(column.allowed)}")
    elif not cell and not column.may_be_empty:
        raise broken(path, line, f"column {column.name} is empty (a gap)")


def parse_stamp_ns(path: Path, line: int, cell: str, name: str = "TIMESTAMP") -> int:
    """Nanoseconds since 1970-01-01 UTC. Raises TraceError."""
    match = STAMP.fullmatch(cell)
    day = _day_number(match[1]) if match else None
    if match is None or day is None:
        raise broken(path, line, f"column {name}: {cell[:40]!r} is not {STAMP_RULE}")
    seconds = day * 86_400 + int(match[2]) * 3600 + int(match[3]) * 60 + int(match[4])
    return seconds * 1_000_000_000 + int((match[5] or "0").ljust(9, "0"))


@lru_cache(maxsize=1024)
def _day_number(text: str) -> int | None:
    try:
        return datetime.date.fromisoformat(text).toordinal() - datetime.date(1970, 1, 1).toordinal()
    except ValueError:
        return None


class _Joined(io.RawIOBase):
    """A stream with its first bytes read ahead."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._head = b""
        self._last = b""
        self.perhaps_hexadecimal = False

    def has_more(self) -> bool:
        self._head = self._stream.read(1)
        return bool(self._head)

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        head, self._head = self._head, b""
        rest: bytes = self._stream.read(max(0, size - len(head)) if size >= 0 else BLOCK_BYTES)
        chunk = head + rest
        window = self._last + chunk
        self.perhaps_hexadecimal |= b"0x" in window or b"0X" in window
        self._last = chunk[-1:]
        return chunk


def _type(column: Column) -> Any:
    if column.kind == "whole":
        return pa.int64()
    if column.kind == "real":
        return pa.float64()
    return pa.string() if column.kind == "stamp" else pa.dictionary(pa.int32(), pa.string())


def _without_blank_tail(batch: Any, columns: Sequence[Column]) -> tuple[Any, bool]:
    """Empty lines at the end of a file are no rows."""
    number = next((column.name for column in columns if column.kind in ("whole", "real")), None)
    if number is None or not batch.column(number).null_count:
        return batch, False
    empty = np.ones(batch.num_rows, dtype=bool)
    for column in columns:
        array = batch.column(column.name)
        if column.kind in ("whole", "real"):
            empty &= array.is_null().to_numpy(zero_copy_only=False)
        else:
            text = array.dictionary_decode() if column.kind == "text" else array
            empty &= pc.equal(pc.binary_length(pc.fill_null(text, "")), 0).to_numpy(zero_copy_only=False)
    kept = int(np.flatnonzero(~empty)[-1]) + 1 if (~empty).any() else 0
    return batch.slice(0, kept), kept < batch.num_rows


def _arrays(table: Any, columns: Sequence[Column], zones: dict[str, bool]) -> dict[str, Any]:
    """Checked arrays by name; ``zones`` keeps which columns have stamps with a zone. Raises ValueError where a rule is
    broken: the caller then finds out which."""
    arrays: dict[str, Any] = {}
    for column in columns:
        array = table.column(column.name)
        if array.null_count:
            raise ValueError(f"column {column.name} has gaps")
        if column.kind == "text":
            arrays[column.name] = array
            # only the names in use: cutting a blank tail off leaves its name in the dictionary
            used = set(pc.unique(array.indices).to_pylist())
            names = {name for index, name in enumerate(array.dictionary.to_pylist()) if index in used}
            if ("" in names and not column.may_be_empty) or (column.allowed and names - set(column.allowed)):
                raise ValueError(f"column {column.name} holds a text that is not allowed")
            continue
        values = _stamps(array, column.name, zones) if column.kind == "stamp" else array.to_numpy(zero_copy_only=False)
        low, high = (FIRST_YEAR_NS, 2**63 - 1) if column.kind == "stamp" else (column.low, column.high)
        # NaN makes both ends NaN, and a comparison with NaN fails
        if not (values.size == 0 or (low <= values.min() and values.max() <= high)):
            raise ValueError(f"column {column.name} is outside {low:g} to {high:g} or not finite")
        arrays[column.name] = values
    return arrays


def _stamps(array: Any, name: str, zones: dict[str, bool]) -> IntArray:
    """[n] int64 nanoseconds; in the whole file all with a zone or none."""
    if pc.min(pc.binary_length(array)).as_py() < WHOLE_SECONDS:
        raise ValueError(f"column {name} is not {STAMP_RULE}")
    zoned = zones.setdefault(name, _has_zone(array[0].as_py()))
    with_zone = pc.or_(pc.ends_with(array, "Z"), pc.ends_with(array, "+00:00"))
    if pc.any(pc.not_equal(with_zone, zoned)).as_py():
        raise ValueError(f"column {name} has stamps with a zone and without")
    values: IntArray = array.cast(pa.timestamp("ns", tz="UTC" if zoned else None)).cast(pa.int64()).to_numpy()
    return values


def _has_zone(stamp: str) -> bool:
    return stamp.endswith(("Z", "+00:00"))


def _diagnose(source: Source, columns: Sequence[Column], header: bool) -> None:
    """Read again, row by row, and raise the first rule broken; returns when there is none."""
    with one(source.path, source.member) as again:
        if header:
            table: Table = read_header(again.label, again.stream)
            rows = table.rows
        else:
            rows = rows_of(again.label, again.stream, len(columns))
        zones: dict[str, bool] = {}
        for row in rows:
            for column, cell in zip(columns, row.cells, strict=True):
                check_cell(again.label, row.line, column, cell)
                if column.kind == "stamp" and zones.setdefault(column.name, _has_zone(cell)) != _has_zone(cell):
                    has = ("no zone", "a zone")
                    raise broken(
                        again.label,
                        row.line,
                        f"column {column.name}: {cell!r} has {has[_has_zone(cell)]}, those before it have "
                        f"{has[zones[column.name]]}",
                    )


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
