"""Mooncake (FAST'25): one JSON object a line with ``timestamp`` (ms from the trace's start), ``input_length``,
``output_length`` (tokens) and ``hash_ids`` (prefix blocks of 512 tokens), in order of time.

The real traces' timestamps are batched to about three seconds, which raises their CV; the synthetic one's are
Poisson. ``hash_ids`` are checked and dropped: no cache of prefixes is modelled here. Rows without them, which
``aiperf`` needs, are read, too.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from traces.batches import Batch
from traces.errors import TraceError, broken
from traces.rows import lines_of
from traces.sources import one

NUMBERS = ("timestamp", "input_length", "output_length")
KEYS = (*NUMBERS, "hash_ids")
LARGEST = {"timestamp": 10**12, "input_length": 100_000_000, "output_length": 100_000_000}
BATCH = 8192


def is_first_line(text: str) -> bool:
    return text.startswith("{") and '"timestamp"' in text


def read(path: Path, member: str | None = None) -> Iterator[Batch]:
    """Requests in batches. Raises TraceError (names line and rule)."""
    times, asked, answered, last = array("q"), array("q"), array("q"), 0
    any_yet = False
    blank = 0
    with one(path, member) as source:
        for line, text in lines_of(source.label, source.stream):
            if not text:
                blank = blank or line
                continue
            if blank:
                raise broken(source.label, blank, "an empty line stands between rows")
            moment, context, generated = _parse(source.label, line, text)
            if moment < last:
                raise broken(source.label, line, f"times are unsorted: timestamp {moment} comes before the row above")
            last = moment
            times.append(moment)
            asked.append(context)
            answered.append(generated)
            any_yet = True
            if len(times) == BATCH:
                yield _batch(times, asked, answered)
                times, asked, answered = array("q"), array("q"), array("q")
        if not any_yet:
            raise broken(source.label, 1, "the file is empty, a request per line is needed")
    if times:
        yield _batch(times, asked, answered)


def _batch(times: array[int], asked: array[int], answered: array[int]) -> Batch:
    return Batch(np.array(times) / 1e3, np.array(asked, dtype=np.int64), np.array(answered, dtype=np.int64))


def _parse(path: Path, line: int, text: str) -> tuple[int, int, int]:
    try:
        entry: Any = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise broken(path, line, f"not a JSON object ({error})") from error
    if not isinstance(entry, dict) or not set(NUMBERS) <= set(entry) <= set(KEYS):
        keys = ",".join(entry)[:80] if isinstance(entry, dict) else type(entry).__name__
        raise broken(path, line, f"foreign keys {keys!r}; the keys are {', '.join(KEYS)}")
    blocks = entry.get("hash_ids", [])
    if not isinstance(blocks, list) or any(type(block) is not int or block < 0 for block in blocks):
        raise broken(path, line, "key hash_ids: a list of numbers of blocks from 0 on is needed")
    moment, context, generated = (_whole(path, line, key, entry[key]) for key in NUMBERS)
    return moment, context, generated


def _whole(path: Path, line: int, key: str, value: object) -> int:
    rule: str | None = None
    if type(value) is not int:
        rule = f"{str(value)[:40]!r} is not a whole number"
    elif value < 0:
        rule = f"{value} is negative, it starts at 0"
    elif value > LARGEST[key]:
        rule = f"{value} is above the allowed maximum of {LARGEST[key]}"
    if rule is not None or type(value) is not int:
        error: TraceError = broken(path, line, f"key {key}: {rule}")
        raise error
    return value
