"""Azure LLM inference traces 2023 (Splitwise, ISCA'24) and 2024 (DynamoLLM, HPCA'25): ``TIMESTAMP,ContextTokens,
GeneratedTokens``, one row per request, in order of time.

Timestamps are UTC: 2023 without a zone and with seven digits after the second, 2024 with ``+00:00`` and six digits,
or none where they would all be zero. Both are read. Time zero is the first request (2024: just after midnight).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from traces.batches import Batch, in_order
from traces.columns import Column, foreign, read_blocks
from traces.errors import broken
from traces.rows import read_header
from traces.sources import one

MAX_TOKENS = 100_000_000
COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
KINDS = (
    Column(COLUMNS[0], "stamp"),
    Column(COLUMNS[1], "whole", high=MAX_TOKENS),
    Column(COLUMNS[2], "whole", high=MAX_TOKENS),
)


def is_header(cells: list[str]) -> bool:
    return tuple(cells) == COLUMNS


def read(path: Path, member: str | None = None) -> Iterator[Batch]:
    """Requests in batches. Raises TraceError (names line and rule)."""
    with one(path, member) as source:
        header = read_header(source.label, source.stream).header
        if not is_header(header.cells):
            raise foreign(source, header, ",".join(COLUMNS))
        zero, last = None, 0.0
        for block in read_blocks(source, KINDS, header):
            stamps = block.whole("TIMESTAMP")
            zero = int(stamps[0]) if zero is None else zero
            arrivals = (stamps - zero) / 1e9
            last = in_order(block, arrivals, last, "TIMESTAMP")
            yield Batch(arrivals, block.whole("ContextTokens"), block.whole("GeneratedTokens"))
        if zero is None:
            raise broken(source.label, header.line, "the file holds no requests")
