"""BurstGPT (KDD'25): ``Timestamp,[Session ID,Elapsed time,]Model,Request tokens,Response tokens,Total tokens,Log
Type``, one row per request, in order of time; the two columns in brackets only in its third file.

``Timestamp`` counts seconds (whole ones in the published files) from midnight of the first day of *all* files, so
the second file begins at 5,270,414 s. Time zero here is the midnight before the file's first request. Requests
whose answer failed have 0 response tokens; they were sent all the same and are kept. Rows are ``MODEL/LOG TYPE``:
``ChatGPT/API log``. ``Total tokens`` are by the publisher's definition (README of github.com/HPMLL/BurstGPT) those of
request and response together, so a row that breaks this is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from traces.batches import Batch, Names, in_order, pairs
from traces.columns import Block, Column, foreign, read_blocks
from traces.errors import broken
from traces.model import IntArray
from traces.rows import read_header
from traces.sources import one

DAY_S = 86_400
MAX_TIME_S = 1e9
"""About 30 years: milliseconds since 1970 would be above, so a wrong unit is noticed."""
MAX_TOKENS = 100_000_000
SHORT = ("Timestamp", "Model", "Request tokens", "Response tokens", "Total tokens", "Log Type")
LONG = (SHORT[0], "Session ID", "Elapsed time", *SHORT[1:])
KINDS = {
    SHORT[0]: Column(SHORT[0], "real", high=MAX_TIME_S),
    LONG[1]: Column(LONG[1], "ignored"),
    LONG[2]: Column(LONG[2], "ignored"),
    SHORT[1]: Column(SHORT[1], "text"),
    SHORT[2]: Column(SHORT[2], "whole", high=MAX_TOKENS),
    SHORT[3]: Column(SHORT[3], "whole", high=MAX_TOKENS),
    SHORT[4]: Column(SHORT[4], "whole", high=2 * MAX_TOKENS),
    SHORT[5]: Column(SHORT[5], "text", allowed=("Conversation log", "API log")),
}


def is_header(cells: list[str]) -> bool:
    return tuple(cells) in (SHORT, LONG)


def read(path: Path, member: str | None = None) -> Iterator[Batch]:
    """Requests in batches. Raises TraceError (names line and rule)."""
    with one(path, member) as source:
        header = read_header(source.label, source.stream).header
        if not is_header(header.cells):
            raise foreign(source, header, f"{','.join(SHORT)}, or {','.join(LONG)}")
        zero, last, names = None, 0.0, Names()
        for block in read_blocks(source, [KINDS[name] for name in header.cells], header):
            times = block.real("Timestamp")
            zero = times[0] // DAY_S * DAY_S if zero is None else zero
            last = in_order(block, times - zero, last, "Timestamp")
            rows = names.numbers(*pairs(block, "Model", "Log Type"))
            asked, answered = block.whole("Request tokens"), block.whole("Response tokens")
            _check_totals(block, asked, answered)
            yield Batch(times - zero, asked, answered, rows, names.all())
        if zero is None:
            raise broken(source.label, header.line, "the file holds no requests")


def _check_totals(block: Block, asked: IntArray, answered: IntArray) -> None:
    """Refuses the first row whose tokens do not add up."""
    totals = block.whole("Total tokens")
    wrong = np.flatnonzero(asked + answered != totals)
    if wrong.size:
        at = int(wrong[0])
        raise block.refuse(
            at, f"column Total tokens: {totals[at]} is not {asked[at]} + {answered[at]}, request and response tokens"
        )
