"""Azure LLM inference traces (Splitwise, ISCA'24): ``TIMESTAMP,ContextTokens,GeneratedTokens``, one row per request.

Timestamps are UTC with up to nine digits after the second (100 ns in the published files); a trailing ``Z`` or
``+00:00`` is allowed. Time zero is the first request.
"""

from __future__ import annotations

import datetime
import re
from array import array
from functools import lru_cache
from pathlib import Path

import numpy as np

from traces.errors import broken
from traces.rows import read_table, whole_number
from traces.trace import MAX_REQUESTS, Trace, make_trace

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
MAX_TOKENS = 100_000_000
STAMP = re.compile(r"(\d{4}-\d\d-\d\d)[ T]([01]\d|2[0-3]):([0-5]\d):([0-5]\d)(?:\.(\d{1,9}))?(?:Z|\+00:00)?", re.ASCII)


def read_azure_llm(path: Path) -> Trace:
    """The whole file as one trace with tokens. Raises TraceError (names line and rule)."""
    table = read_table(path)
    if tuple(table.header.cells) != COLUMNS:
        raise broken(path, table.header.line, f"foreign columns; the header is {','.join(COLUMNS)}")
    times_ns, context, generated = array("q"), array("q"), array("q")
    for row in table.rows:
        stamp = parse_stamp_ns(path, row.line, row.cells[0])
        if times_ns and stamp < times_ns[-1]:
            raise broken(path, row.line, f"times are unsorted: {row.cells[0]} comes before the row above")
        if len(times_ns) >= MAX_REQUESTS:
            raise broken(path, row.line, f"more than {MAX_REQUESTS} requests")
        times_ns.append(stamp)
        context.append(whole_number(path, row.line, COLUMNS[1], row.cells[1], MAX_TOKENS))
        generated.append(whole_number(path, row.line, COLUMNS[2], row.cells[2], MAX_TOKENS))
    if not times_ns:
        raise broken(path, table.header.line, "the file holds no requests")
    stamps = np.frombuffer(times_ns, dtype=np.int64)
    return make_trace(
        (stamps - stamps[0]) / 1e9,
        source=path.name,
        context_tokens=np.frombuffer(context, dtype=np.int64),
        generated_tokens=np.frombuffer(generated, dtype=np.int64),
    )


def parse_stamp_ns(path: Path, line: int, cell: str) -> int:
    """Nanoseconds since 1970-01-01 UTC. Raises TraceError."""
    match = STAMP.fullmatch(cell)
    day = _day_number(match[1]) if match else None
    if match is None or day is None:
        raise broken(path, line, f"column TIMESTAMP: {cell[:40]!r} is not YYYY-MM-DD HH:MM:SS[.fffffffff] (UTC)")
    seconds = day * 86_400 + int(match[2]) * 3600 + int(match[3]) * 60 + int(match[4])
    return seconds * 1_000_000_000 + int((match[5] or "0").ljust(9, "0"))


@lru_cache(maxsize=1024)
def _day_number(text: str) -> int | None:
    try:
        return datetime.date.fromisoformat(text).toordinal() - datetime.date(1970, 1, 1).toordinal()
    except ValueError:
        return None
