"""One-hour clips by the CV of their inter-arrival times, as the paper picks them: slow < 1, normal 1 to 3, bursty
>= 3.

Per-minute counts leave the times inside a minute open; an hour counts as a pattern only if *even* and *uniform*
placement both say so. ServeGen's hours are drawn first and measured then: what counts is the CV of the arrivals
that will be replayed.

Split-safe: a row (function or client) belongs to exactly one of train, validation and test (60/20/20 by a hash of
its id), so no function's hours are in two of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Literal

import numpy as np

from traces import azure_functions, loading, servegen
from traces.azure_functions import Placement
from traces.errors import NoMatchError, TraceError
from traces.trace import Pattern, Trace, classify, iat_cv

Split = Literal["train", "validation", "test"]

HOUR_S = 3600
SUMMED_MARK = "14day_sum"
"""Rows summed over days (see the traces' README): their CV is not that of any arrivals."""


@dataclass(frozen=True)
class HourClip:
    """One hour of one row; ``load`` gives its arrivals."""

    path: Path
    format: loading.Format
    row: str
    start_s: int
    """Seconds from the file's first minute (or of ServeGen's clock)."""
    requests: int

    def load(self, placement: Placement = "uniform", seed: int = 0) -> Trace:
        """Raises TraceError."""
        row = self.row if self.format in ("azure-functions", "servegen") else None
        return loading.load(self.path, row=row, start_s=self.start_s, duration_s=HOUR_S, placement=placement, seed=seed)


def split_of(row: str) -> Split:
    """The one split a row belongs to: a hash of its id, so it needs no list and never changes."""
    bucket = int.from_bytes(hashlib.sha256(row.encode()).digest()[:8], "big") % 10
    if bucket < 6:
        return "train"
    return "validation" if bucket < 8 else "test"


def hours(path: Path, min_requests: int, max_requests: int, split: Split | None = None) -> Iterator[HourClip]:
    """Every aligned hour with a request count in range, in file order. Raises TraceError."""
    if not 3 <= min_requests <= max_requests:
        raise TraceError(f"request counts must satisfy 3 <= min <= max, got {min_requests} and {max_requests}")
    kind = loading.detect(path)
    if kind == "azure-functions":
        found = _function_hours(path)
    elif kind == "servegen":
        found = _client_hours(path)
    else:
        found = _trace_hours(path, kind)
    for clip in found:
        if min_requests <= clip.requests <= max_requests and (split is None or split_of(clip.row) == split):
            yield clip


def pick(
    path: Path,
    pattern: Pattern,
    *,
    count: int = 1,
    min_requests: int = 300,
    max_requests: int = 20_000,
    seed: int = 0,
    split: Split | None = None,
    placement: Placement = "uniform",
) -> list[tuple[HourClip, Trace]]:
    """``count`` hours of ``pattern`` in random (seeded) order with their arrivals. Raises NoMatchError, TraceError."""
    clips = list(hours(path, min_requests, max_requests, split))
    chosen: list[tuple[HourClip, Trace]] = []
    rows = _RowCache(path)
    for index in np.random.default_rng(seed).permutation(len(clips)):
        clip = clips[int(index)]
        trace = rows.trace(clip, pattern, placement, seed)
        if trace is not None:
            chosen.append((clip, trace))
            if len(chosen) == count:
                return chosen
    where = f" of split {split}" if split else ""
    raise NoMatchError(
        f"{path}: {len(chosen)} hours{where} are {pattern} with {min_requests} to {max_requests} requests, "
        f"{count} wanted"
    )


class _RowCache:
    """A file's rows, read once: picking looks at many hours of one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kind = loading.detect(path)
        self._counts: dict[str, azure_functions.MinuteCounts] = {}
        self._windows: dict[str, list[servegen.ClientWindow]] = {}
        self._whole: Trace | None = None
        if self._kind == "azure-functions":
            self._counts = {counts.row: counts for counts in azure_functions.read_minute_counts(path)}
        elif self._kind == "servegen":
            for window in servegen.read_windows(path):
                self._windows.setdefault(str(window.client), []).append(window)
        else:
            self._whole = loading.load(path)

    def trace(self, clip: HourClip, pattern: Pattern, placement: Placement, seed: int) -> Trace | None:
        """The clip's arrivals if its pattern is the wanted one (and, for counts, certain)."""
        if self._kind == "azure-functions":
            row = self._counts[clip.row]
            hour = row.hour(row.first_minute + clip.start_s // 60)
            ways: tuple[Placement, ...] = ("even", "uniform")
            if any(classify(iat_cv(azure_functions.place(hour.counts, way, seed))) != pattern for way in ways):
                return None
            return azure_functions.to_trace(hour, placement, seed)
        if self._kind == "servegen":
            windows = self._windows[clip.row]
            drawn = servegen.draw(self._path, windows, start_s=clip.start_s, duration_s=HOUR_S, seed=seed)
            return drawn if drawn.pattern == pattern else None
        assert self._whole is not None
        part = self._whole.clip(clip.start_s, clip.start_s + HOUR_S)
        return part if part.pattern == pattern else None


def _function_hours(path: Path) -> Iterator[HourClip]:
    if SUMMED_MARK in path.name:
        raise TraceError(f"{path}: these counts are summed over 14 days, an hour of them has no CV; pick from day rows")
    for counts in azure_functions.read_minute_counts(path):
        whole = counts.counts[: counts.counts.size // 60 * 60].reshape(-1, 60).sum(axis=1)
        for hour, requests in enumerate(whole.tolist()):
            yield HourClip(path, "azure-functions", counts.row, hour * HOUR_S, requests)


def _client_hours(path: Path) -> Iterator[HourClip]:
    """Hours in which all six windows are active."""
    windows = sorted(servegen.read_windows(path), key=lambda window: (window.client, window.window_start_s))
    for (client, hour), group in groupby(windows, key=lambda window: (window.client, window.window_start_s // HOUR_S)):
        members = list(group)
        if len(members) == HOUR_S // servegen.WINDOW_S and all(window.requests for window in members):
            yield HourClip(path, "servegen", str(client), hour * HOUR_S, sum(window.requests for window in members))


def _trace_hours(path: Path, kind: loading.Format) -> Iterator[HourClip]:
    """Whole hours of a request-level trace; a shorter trace counts as one hour from its start."""
    trace = loading.load(path)
    for hour in range(max(1, int(trace.duration_s // HOUR_S))):
        start = hour * HOUR_S
        yield HourClip(path, kind, path.name, start, trace.clip(start, start + HOUR_S).requests)
