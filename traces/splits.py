"""Train, validation and test, by time and by function, never mixed.

*By time*: the file's span is cut into three runs, 60 / 20 / 20 %, at whole days where it has five or more, else at
whole hours; the earliest is for training. *By function*: a hash of a row's name (function, model, client) puts 60 /
20 / 20 % of the rows into the three sets; the hash needs no list and never changes, so a function is in the same set
in every file that names it.

*Both* (the default) takes an hour of a function into a set only where time and function agree; all other hours
belong to no set. So no function and no moment of time is in two sets, at the price of 56 % of the hours. A file of a
single function cannot be split by function: choose *time* there.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

import numpy as np

from traces.errors import TraceError
from traces.model import IntArray

Split = Literal["train", "validation", "test"]
SplitBy = Literal["both", "time", "function"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
SPLITS_BY: tuple[SplitBy, ...] = ("both", "time", "function")
NONE = -1
HOUR_S = 3600
DAY_S = 86_400
FEWEST_DAYS = 5


def split_of(row: str) -> Split:
    """The one split a row belongs to."""
    bucket = int.from_bytes(hashlib.sha256(row.encode()).digest()[:8], "big") % 10
    if bucket < 6:
        return "train"
    return "validation" if bucket < 8 else "test"


@dataclass(frozen=True)
class TimeCuts:
    """Where the span is cut, in seconds from the file's zero."""

    validation_s: int
    test_s: int

    def of(self, start_s: IntArray) -> IntArray:
        """[n] int64 index into SPLITS for hours that begin at ``start_s`` [n]."""
        number: IntArray = (start_s >= self.validation_s).astype(np.int64) + (start_s >= self.test_s)
        return number


def cuts(span_s: float) -> TimeCuts:
    """Cuts of a file that lasts ``span_s``, whole hours of it counted. Raises TraceError."""
    if not span_s > 0:
        raise TraceError(f"a span of {span_s:g} s cannot be split")
    hours = max(1, int(span_s // HOUR_S))
    unit_s = DAY_S if hours >= FEWEST_DAYS * 24 else HOUR_S
    units = -(-hours * HOUR_S // unit_s)
    training = round(0.6 * units) if units != 3 else 1  # rounded, three would leave none for validation
    return TimeCuts(training * unit_s, round(0.8 * units) * unit_s)


def assign(rows: IntArray, names: list[str], start_s: IntArray, span_s: float, by: SplitBy = "both") -> IntArray:
    """[n] int64 index into SPLITS, or -1 for no set, for hours of ``names[rows]`` [n] from ``start_s`` [n] on."""
    by_time = cuts(span_s).of(start_s)
    if by == "time":
        return by_time
    by_name = np.array([SPLITS.index(split_of(name)) for name in names], dtype=np.int64)
    by_function: IntArray = by_name[rows] if len(names) else rows
    if by == "function":
        return by_function
    return np.where(by_time == by_function, by_time, NONE)
