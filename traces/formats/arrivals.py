"""Our own plain format for one trace: ``arrival_s[,context_tokens,generated_tokens]``, remarks first.

``smoe traces clips --out`` writes it, so that a picked hour can be kept, sent to others and replayed exactly.
Remark lines (``# key: value``) hold ``source``, ``duration_s`` and ``sha256``; a hash that does not fit the
numbers is an error.
"""

from __future__ import annotations

import gzip
import hashlib
from array import array
from pathlib import Path

import numpy as np

from traces.errors import TraceError, broken
from traces.model import MAX_REQUESTS, Trace, make_trace
from traces.rows import Table, read_header, real_number, whole_number
from traces.sources import one

COLUMNS = ("arrival_s", "context_tokens", "generated_tokens")
MAX_TIME_S = 1e9
MAX_TOKENS = 100_000_000


def write_arrivals(trace: Trace, path: Path, remarks: tuple[str, ...] = ()) -> None:
    """One line per request, gzip when the name ends in ``.gz``. ``remarks`` are further words for the header."""
    columns = [
        np.char.mod("%.9f", trace.arrival_s),
        *(tokens.astype(str) for tokens in (trace.context_tokens, trace.generated_tokens) if tokens is not None),
    ]
    names = [
        name
        for name, there in zip(
            COLUMNS, (True, trace.context_tokens is not None, trace.generated_tokens is not None), strict=True
        )
        if there
    ]
    stored = _rounded(trace)
    head = [*remarks, f"source: {trace.source}", f"duration_s: {stored.duration_s!r}", f"sha256: {stored.sha256}"]
    lines = [f"# {' '.join(remark.split())}" for remark in head]
    lines.append(",".join(names))
    lines.extend(",".join(cells) for cells in zip(*columns, strict=True))
    data = ("\n".join(lines) + "\n").encode()
    try:
        path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    except OSError as error:
        raise TraceError(f"{path}: cannot be written ({error.strerror or error})") from error


def as_file_name(row: str) -> str:
    """A row's name as a part of a file's: letters, digits and dashes, of a hash the beginning. Where that is not all of
    the name, the beginning of its sha256 follows, so that no two rows of a file share one."""
    short = "-".join(part[:24] for part in row.split("/"))
    name = "".join(letter if letter.isalnum() else "-" for letter in short)
    return name if name == row else f"{name}-{hashlib.sha256(row.encode()).hexdigest()[:8]}"


def read_arrivals(path: Path) -> Trace:
    """Raises TraceError (names line and rule)."""
    with one(path) as source:
        return _read(source.label, read_header(source.label, source.stream))


def is_header(cells: list[str]) -> bool:
    names = tuple(cells)
    return names[:1] == COLUMNS[:1] and names[1:] in ((), COLUMNS[1:], COLUMNS[1:2], COLUMNS[2:])


def _read(path: Path, table: Table) -> Trace:
    names = tuple(table.header.cells)
    if not is_header(table.header.cells):
        raise broken(path, table.header.line, f"foreign columns; the header is arrival_s or {','.join(COLUMNS)}")
    times = array("d")
    tokens = {name: array("q") for name in names[1:]}
    for row in table.rows:
        moment = real_number(path, row.line, COLUMNS[0], row.cells[0], low=0.0, high=MAX_TIME_S)
        if times and moment < times[-1]:
            raise broken(path, row.line, f"times are unsorted: {row.cells[0]} comes before the row above")
        if len(times) >= MAX_REQUESTS:
            raise broken(path, row.line, f"more than {MAX_REQUESTS} requests")
        times.append(moment)
        for name, cell in zip(names[1:], row.cells[1:], strict=True):
            tokens[name].append(whole_number(path, row.line, name, cell, MAX_TOKENS))
    return _assemble(path, table, np.array(times, dtype=np.float64), tokens)


def _assemble(path: Path, table: Table, times: np.ndarray, tokens: dict[str, array[int]]) -> Trace:
    noted = dict(remark.split(": ", 1) for remark in table.remarks if ": " in remark)
    duration_s = None
    if "duration_s" in noted:
        duration_s = real_number(path, 1, "duration_s of the remarks", noted["duration_s"], low=0.0, high=MAX_TIME_S)
        if times.size and duration_s < times[-1]:
            raise broken(path, 1, f"duration_s {duration_s:g} of the remarks ends before the last arrival")
    trace = make_trace(
        times,
        duration_s=duration_s,
        source=noted.get("source", path.name),
        context_tokens=np.array(tokens["context_tokens"]) if "context_tokens" in tokens else None,
        generated_tokens=np.array(tokens["generated_tokens"]) if "generated_tokens" in tokens else None,
    )
    if "sha256" in noted and noted["sha256"] != trace.sha256:
        raise broken(
            path, 1, f"the numbers do not fit the sha256 of the remarks ({noted['sha256'][:12]}…): changed since"
        )
    return trace


def _rounded(trace: Trace) -> Trace:
    """What reading the file back gives: times at the nanosecond."""
    times = np.array([float(text) for text in np.char.mod("%.9f", trace.arrival_s)])
    return make_trace(
        times,
        duration_s=max(trace.duration_s, float(times[-1]) if times.size else 0.0),
        source=trace.source,
        context_tokens=trace.context_tokens,
        generated_tokens=trace.generated_tokens,
    )
