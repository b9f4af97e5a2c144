"""Every hour of every function of a file, in numbers: requests, CV of inter-arrival times, stationarity.

One pass over the file; memory follows the hours that are kept (48 bytes each), not the requests in the file. Hours
are aligned to the file's zero; a file of requests that is shorter than an hour counts as one. Where a format names
requests, the CV is theirs. Where it only counts them per minute, two CVs are given, of even and of uniform placement,
in closed form, and a pattern is only certain where both agree. ServeGen's CV is computed from its windows' measured
CVs and rates.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import numpy as np

from traces import loading
from traces.arrival_process import hour_cv
from traces.batches import Batch
from traces.errors import TraceError
from traces.formats import arrivals, azure_functions_2019, servegen
from traces.model import PATTERNS, FloatArray, IntArray, Pattern

HOUR_S = 3600
PARTS = 6
"""Ten-minute parts of an hour, for stationarity."""
PART_S = HOUR_S // PARTS


@dataclass(frozen=True, eq=False)
class HourTable:
    """Hours of a file whose requests lie in the wanted range; all arrays [n], in order of row, then time."""

    path: Path
    format: loading.Format
    names: list[str]
    """Names of the rows: function, client, model; the file's name where it is one function."""
    row: IntArray
    """Index into ``names``."""
    start_s: IntArray
    """Seconds from the file's zero."""
    requests: IntArray
    cv_low: FloatArray
    cv_high: FloatArray
    """CV of inter-arrival times, smallest and largest of what the format leaves open; equal where it is known."""
    stationarity: FloatArray
    """1 - the largest distance of the arrivals' cumulative share from even, at ten-minute cuts: 1 is a constant
    rate, 1/6 is everything in the first or last ten minutes."""
    span_s: float
    """Length of the file in seconds."""
    first_minute: int = 0
    """Number of the file's first minute in its own count (480 for a file of minutes 480 to 959)."""

    @property
    def size(self) -> int:
        return int(self.row.size)

    def pattern(self) -> IntArray:
        """[n] index into PATTERNS, -1 where it is not certain."""
        low, high = (np.digitize(cv, (1.0, 3.0)) for cv in (self.cv_low, self.cv_high))
        return np.where(low == high, low, -1).astype(np.int64)

    def is_pattern(self, pattern: Pattern) -> np.ndarray:
        """[n] bool."""
        same: np.ndarray = self.pattern() == PATTERNS.index(pattern)
        return same


def hours(path: Path, min_requests: int = 3, max_requests: int = 2**62) -> HourTable:
    """Raises TraceError."""
    if not 3 <= min_requests <= max_requests:
        raise TraceError(f"request counts must satisfy 3 <= min <= max, got {min_requests} and {max_requests}")
    file = loading.identify(path)
    if file.format == "azure-functions-2019":
        gathered, first = _of_counts(path, min_requests, max_requests)
    elif file.format == "servegen":
        gathered, first = _of_windows(path, min_requests, max_requests), 0
    elif file.format == "arrivals":
        whole = arrivals.read_arrivals(file.path)
        batch = Batch(whole.arrival_s)
        gathered, first = gather_requests([batch], path, min_requests, max_requests, whole.duration_s), 0
    else:
        gathered, first = gather_requests(loading.batches(file), path, min_requests, max_requests), 0
    return gathered.table(path, file.format, first)


@dataclass
class _Gathered:
    """Hours as they are found."""

    names: list[str] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    columns: list[tuple[IntArray, IntArray, IntArray, FloatArray, FloatArray, FloatArray]] = field(default_factory=list)
    span_s: float = 0.0

    def number(self, name: str) -> int:
        if name not in self.numbers:
            self.numbers[name] = len(self.names)
            self.names.append(name)
        return self.numbers[name]

    def add(
        self, row: IntArray, start_s: IntArray, requests: IntArray, low: FloatArray, high: FloatArray, still: FloatArray
    ) -> None:
        finite = np.isfinite(low) & np.isfinite(high)
        both = np.minimum(low, high), np.maximum(low, high)
        self.columns.append(
            (row[finite], start_s[finite], requests[finite], both[0][finite], both[1][finite], still[finite])
        )

    def table(self, path: Path, kind: loading.Format, first_minute: int) -> HourTable:
        empty = np.zeros(0, dtype=np.int64)
        parts = [list(part) for part in zip(*self.columns, strict=True)] or [[empty]] * 6
        row, start_s, requests, low, high, still = (np.concatenate(part) for part in parts)
        order = np.lexsort((start_s, row))
        columns = [row, start_s, requests, low, high, still]
        row, start_s, requests, low, high, still = (column[order] for column in columns)
        return HourTable(path, kind, self.names, row, start_s, requests, low, high, still, self.span_s, first_minute)


def stationarity(parts: IntArray) -> FloatArray:
    """[n] from requests per ten minutes ``parts`` [n, up to 6]."""
    share = np.cumsum(parts, axis=1) / np.maximum(parts.sum(axis=1, keepdims=True), 1)
    even = np.arange(1, parts.shape[1] + 1) / parts.shape[1]
    result: FloatArray = 1.0 - np.abs(share - even).max(axis=1)
    return result


def _of_counts(path: Path, fewest: int, most: int) -> tuple[_Gathered, int]:
    """Per-minute counts; also the number of the file's first minute."""
    if azure_functions_2019.SUMMED_MARK in path.name:
        raise TraceError(f"{path}: these counts are summed over 14 days, an hour of them has no CV; pick from day rows")
    gathered = _Gathered()
    first, last = 2**62, 0
    for block in azure_functions_2019.read_blocks_of_days(path):
        size, minutes = block.counts.shape
        first, last = min(first, block.first_minute), max(last, block.first_minute + minutes)
        whole = block.counts[:, : minutes // 60 * 60].reshape(-1, 60)
        requests = whole.sum(axis=1)
        chosen = np.flatnonzero((requests >= fewest) & (requests <= most))
        if not chosen.size:
            continue
        per_row = minutes // 60
        numbers = np.array([gathered.number(name) for name in block.rows], dtype=np.int64)
        low, high = hour_cv(whole[chosen])
        still = stationarity(whole[chosen].reshape(-1, PARTS, 60 // PARTS).sum(axis=2))
        start_minute = block.first_minute + chosen % per_row * 60
        gathered.add(numbers[chosen // per_row], start_minute * 60, requests[chosen], low, high, still)
        assert size * per_row == requests.size
    gathered.columns = [(row, start - first * 60, *rest) for row, start, *rest in gathered.columns]  # type: ignore[misc]
    gathered.span_s = (last - first) * 60.0
    return gathered, first


def _of_windows(path: Path, fewest: int, most: int) -> _Gathered:
    """ServeGen: hours in which all six windows are active."""
    gathered = _Gathered()
    windows = sorted(servegen.read_windows(path), key=lambda window: (window.client, window.window_start_s))
    for (client, hour), group in groupby(windows, key=lambda window: (window.client, window.window_start_s // HOUR_S)):
        members = list(group)
        counts = np.array([window.requests for window in members])
        gathered.span_s = max(gathered.span_s, members[-1].window_start_s + servegen.WINDOW_S)
        if counts.size < PARTS or not counts.all() or not fewest <= counts.sum() <= most:
            continue
        rates = np.array([window.rate_rps for window in members])
        cvs = np.array([window.iat_cv for window in members])
        total = int(counts.sum())
        squares = float((counts * (1 + cvs**2) / rates**2).sum()) / total
        cv = np.array([max(0.0, squares * (total / HOUR_S) ** 2 - 1) ** 0.5])
        still = stationarity(counts[None])
        number = np.array([gathered.number(client)])
        gathered.add(number, np.array([hour * HOUR_S]), np.array([total]), cv, cv, still)
    return gathered


class _Sums:
    """Sums over the hours of one batch and those still open: everything a CV needs."""

    def __init__(self) -> None:
        self.parts: dict[tuple[int, int], IntArray] = {}
        self.moments: dict[tuple[int, int], list[float]] = {}
        """(row, hour) -> [sum of gaps, sum of squared gaps, last arrival]."""

    def take(self, row: int, arrival_s: FloatArray) -> None:
        """Arrivals of one row in order: ``arrival_s`` [requests] float64, rising."""
        hour = (arrival_s // HOUR_S).astype(np.int64)
        edges = np.flatnonzero(np.diff(hour)) + 1
        for part in np.split(arrival_s, edges):
            key = (row, int(part[0] // HOUR_S))
            moments = self.moments.get(key)
            gaps = np.diff(part) if moments is None else np.diff(part, prepend=moments[2])
            total, squares = (0.0, 0.0) if moments is None else (moments[0], moments[1])
            self.moments[key] = [total + float(gaps.sum()), squares + float((gaps**2).sum()), float(part[-1])]
            within = ((part - key[1] * HOUR_S) // PART_S).astype(np.int64)
            counts = np.bincount(np.minimum(within, PARTS - 1), minlength=PARTS)
            self.parts[key] = self.parts.get(key, 0) + counts

    def end_with(self, span_s: float) -> None:
        """The file's very last moment belongs to the hour that ends there, as in a clip."""
        if span_s % HOUR_S or span_s < HOUR_S:
            return
        end = int(span_s // HOUR_S)
        for row, hour in [key for key in self.parts if key[1] == end]:
            count = int(self.parts.pop((row, hour)).sum())
            total, squares, last = self.moments.get((row, end - 1), [0.0, 0.0, span_s])
            gap = span_s - last
            self.moments[row, end - 1] = [total + gap, squares + gap**2, span_s]
            extra = np.zeros(PARTS, dtype=np.int64)
            extra[-1] = count
            self.parts[row, end - 1] = self.parts.get((row, end - 1), 0) + extra


def gather_requests(
    batches: Iterable[Batch], path: Path, fewest: int, most: int, span_s: float | None = None
) -> _Gathered:
    """``span_s``: length of the file in seconds; None: until its last request."""
    gathered, sums = _Gathered(), _Sums()
    names: tuple[str, ...] = (path.name,)
    for batch in batches:
        if not batch.arrival_s.size:
            continue
        gathered.span_s = float(batch.arrival_s[-1])
        if batch.row is None:
            sums.take(0, batch.arrival_s)
            continue
        names = batch.names
        order = np.argsort(batch.row, kind="stable")
        rows, times = batch.row[order], batch.arrival_s[order]
        for part in np.split(np.arange(rows.size), np.flatnonzero(np.diff(rows)) + 1):
            sums.take(int(rows[part[0]]), times[part])
    gathered.span_s = gathered.span_s if span_s is None else span_s
    sums.end_with(gathered.span_s)
    whole = max(1, gathered.span_s // HOUR_S)
    keys = [key for key, parts in sums.parts.items() if fewest <= parts.sum() <= most and key[1] < whole]
    for name in names:
        gathered.number(name)
    if keys:
        parts = np.stack([sums.parts[key] for key in keys])
        full = min(PARTS, max(1, int(gathered.span_s // PART_S)))
        gaps, squares = (np.array([sums.moments[key][i] for key in keys]) for i in (0, 1))
        count = parts.sum(axis=1) - 1
        with np.errstate(divide="ignore", invalid="ignore"):
            cv = np.sqrt(np.maximum(squares * count / gaps**2 - 1, 0.0))
        row, hour = np.array(keys, dtype=np.int64).T
        gathered.add(row, hour * HOUR_S, parts.sum(axis=1), cv, cv, stationarity(parts[:, :full]))
    return gathered
