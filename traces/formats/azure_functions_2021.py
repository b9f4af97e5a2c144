"""Azure Functions invocation trace 2021 (Zhang et al., SOSP'21): ``app,func,end_timestamp,duration``, one row per
invocation, both times in seconds.

A request arrived when it began: ``end_timestamp - duration``. The published rows stand in order of that start (in
the rows at hand, to within rounding), not of their end; as the end gives no order, rows in any order are
read and sorted, for which the whole file (two million rows, 32 bytes each) is held in memory. ``func`` is unique
only within its app, so a row's name is ``APP/FUNC``. The publisher modified the timestamps of the real trace.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from traces.batches import Batch, Names, pairs
from traces.columns import Column, foreign, read_blocks
from traces.errors import broken
from traces.model import MAX_REQUESTS
from traces.rows import read_header
from traces.sources import one

MAX_TIME_S = 1e8
"""Three years: milliseconds of a two-week trace would be above, so a wrong unit is noticed."""
ROUNDING_S = 1e-3
COLUMNS = ("app", "func", "end_timestamp", "duration")
KINDS = (
    Column(COLUMNS[0], "text"),
    Column(COLUMNS[1], "text"),
    Column(COLUMNS[2], "real", high=MAX_TIME_S),
    Column(COLUMNS[3], "real", high=MAX_TIME_S),
)


def is_header(cells: list[str]) -> bool:
    return tuple(cells) == COLUMNS


def read(path: Path, member: str | None = None) -> Iterator[Batch]:
    """All invocations as one batch, by start. Raises TraceError (names line and rule)."""
    with one(path, member) as source:
        header = read_header(source.label, source.stream).header
        if not is_header(header.cells):
            raise foreign(source, header, ",".join(COLUMNS))
        names, starts, rows, held = Names(), [], [], 0
        for block in read_blocks(source, KINDS, header):
            start_s = block.real("end_timestamp") - block.real("duration")
            early = np.flatnonzero(start_s < -ROUNDING_S)
            if early.size:
                raise block.refuse(int(early[0]), "duration is longer than end_timestamp: it began before the trace")
            held += block.size
            if held > MAX_REQUESTS:
                raise block.refuse(block.size - 1, f"more than {MAX_REQUESTS} requests")
            starts.append(np.maximum(start_s, 0.0))
            rows.append(names.numbers(*pairs(block, "app", "func")))
        if not starts:
            raise broken(source.label, header.line, "the file holds no requests")
    together = np.concatenate(starts)
    order = np.argsort(together, kind="stable")
    yield Batch(together[order], row=np.concatenate(rows)[order], names=names.all())
