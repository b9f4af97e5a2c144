"""One-hour clips by pattern, as the paper picks them: CV of inter-arrival times below 1 slow, 1 to 3 normal, from 3
bursty.

:func:`choose` takes hours at random (seeded) out of a :class:`traces.hours.HourTable` and gives each with its
arrivals. The arrivals are checked once drawn: a clip whose own CV has left the pattern (a finite draw of a heavy
law, a border case) is passed over, so what is replayed is what was asked for. A clip names its origin: file
and its sha256, function, minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from traces import arrival_process as placing
from traces import loading, splits
from traces.arrival_process import Placement
from traces.batches import Batch
from traces.errors import NoMatchError
from traces.formats import arrivals, azure_functions_2019, servegen
from traces.hours import HOUR_S, HourTable
from traces.model import PATTERNS, Pattern, Trace, make_trace
from traces.provenance import path_sha256
from traces.splits import SPLITS, Split, SplitBy

MIN_REQUESTS = 300
MAX_REQUESTS = 20_000
BATCH = 4
"""Candidates are read so many times the wanted number at once."""


@dataclass(frozen=True)
class Clip:
    """One hour of one function."""

    path: Path
    file_sha256: str
    """SHA-256 of the file's bytes on disk (a folder's: over its files' names and hashes)."""
    format: loading.Format
    row: str
    """Function, model or client; the file's name where it is one function."""
    start_s: int
    """Seconds from the file's zero."""
    duration_s: float
    """3600, or less where the whole file is shorter."""
    minutes: tuple[int, int]
    """First and last minute in the file's own count."""
    requests: int
    mean_rps: float
    cv_low: float
    cv_high: float
    stationarity: float
    pattern: Pattern | None
    """None: not certain."""
    split: Split | None
    """None: in no set."""

    def load(self, placement: Placement = "uniform", seed: int = 0) -> Trace:
        """Its arrivals. Raises TraceError."""
        return _extract([self], placement, seed)[0]

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "path": str(self.path), "minutes": list(self.minutes)}


def clips(table: HourTable, chosen: Sequence[int] | np.ndarray, by: SplitBy = "both") -> list[Clip]:
    """The table's rows ``chosen`` [clips] int as clips."""
    if not len(chosen):
        return []
    patterns, sets = table.pattern(), _sets(table, by)
    digest = path_sha256(table.path)
    return [_clip(table, int(index), digest, int(patterns[index]), int(sets[index])) for index in chosen]


def candidates(table: HourTable, pattern: Pattern | None = None, split: Split | None = None, by: SplitBy = "both") -> (
    np.ndarray
):  # fmt: skip
    """[m] indices of the table's hours of a pattern (certain ones) and a set, in its order."""
    keep = np.ones(table.size, dtype=bool)
    if pattern is not None:
        keep &= table.is_pattern(pattern)
    if split is not None:
        keep &= _sets(table, by) == SPLITS.index(split)
    rows: np.ndarray = np.flatnonzero(keep)
    return rows


def choose(
    table: HourTable,
    pattern: Pattern,
    *,
    count: int = 1,
    split: Split | None = None,
    by: SplitBy = "both",
    seed: int = 0,
    placement: Placement = "uniform",
) -> list[tuple[Clip, Trace]]:
    """``count`` hours of ``pattern`` in random (seeded) order with their arrivals. Raises NoMatchError, TraceError."""
    rows = candidates(table, pattern, split, by)
    order = rows[np.random.default_rng(seed).permutation(rows.size)]
    chosen: list[tuple[Clip, Trace]] = []
    for at in range(0, order.size, BATCH * count):
        some = clips(table, order[at : at + BATCH * count], by)
        for clip, trace in zip(some, _extract(some, placement, seed), strict=True):
            if trace.pattern == pattern:
                chosen.append((clip, trace))
                if len(chosen) == count:
                    return chosen
    raise NoMatchError(_none_left(table, pattern, count, len(chosen), split, by))


def _none_left(table: HourTable, pattern: Pattern, wanted: int, got: int, split: Split | None, by: SplitBy) -> str:
    where = f" of split {split} (by {by})" if split else ""
    hint = ""
    if split and by != "time" and len(table.names) == 1:
        hint = "; the file holds one function, which is in one set only: split by time"
    span = f"{table.requests.min()} to {table.requests.max()}" if table.size else "no"
    return (
        f"{table.path}: {got} hours{where} are {pattern}, {wanted} wanted; the file has {table.size} hours with a "
        f"number of requests in range ({span} requests){hint}"
    )


def _sets(table: HourTable, by: SplitBy) -> np.ndarray:
    return splits.assign(table.row, table.names, table.start_s, table.span_s, by)


def _clip(table: HourTable, index: int, digest: str, pattern: int, split: int) -> Clip:
    start_s, requests = int(table.start_s[index]), int(table.requests[index])
    first = table.first_minute + start_s // 60
    duration_s = min(float(HOUR_S), table.span_s - start_s)
    return Clip(
        path=table.path,
        file_sha256=digest,
        format=table.format,
        row=table.names[int(table.row[index])],
        start_s=start_s,
        duration_s=duration_s,
        minutes=(first, first + 59),
        requests=requests,
        mean_rps=requests / duration_s,
        cv_low=float(table.cv_low[index]),
        cv_high=float(table.cv_high[index]),
        stationarity=float(table.stationarity[index]),
        pattern=PATTERNS[pattern] if pattern >= 0 else None,
        split=SPLITS[split] if split >= 0 else None,
    )


def _extract(wanted: Sequence[Clip], placement: Placement, seed: int) -> list[Trace]:
    """Arrivals of clips of one file, in their order, with one pass over the file."""
    if wanted[0].format == "azure-functions-2019":
        return _from_counts(wanted, placement, seed)
    if wanted[0].format == "servegen":
        return _from_windows(wanted, seed)
    return _from_requests(wanted)


def _from_counts(wanted: Sequence[Clip], placement: Placement, seed: int) -> list[Trace]:
    traces: dict[int, Trace] = {}
    by_name: dict[str, list[int]] = {}
    for index, clip in enumerate(wanted):
        by_name.setdefault(clip.row, []).append(index)
    for block in azure_functions_2019.read_blocks_of_days(wanted[0].path):
        end = block.first_minute + block.counts.shape[1]
        for at, name in enumerate(block.rows):
            for index in by_name.get(name, ()):
                first, last = wanted[index].minutes
                if not block.first_minute <= first <= last < end:
                    continue
                hour = azure_functions_2019.row_of(block, at).hour(first)
                # a name that a day holds twice is identified by its requests
                if int(hour.counts.sum()) == wanted[index].requests:
                    traces[index] = placing.to_trace(hour, placement, seed)
    return _all_of(wanted, traces)


def _from_windows(wanted: Sequence[Clip], seed: int) -> list[Trace]:
    windows: dict[str, list[servegen.ClientWindow]] = {clip.row: [] for clip in wanted}
    for window in servegen.read_windows(wanted[0].path):
        if window.client in windows:
            windows[window.client].append(window)
    return [
        servegen.draw(clip.path, windows[clip.row], start_s=clip.start_s, duration_s=HOUR_S, seed=seed)
        for clip in wanted
    ]


def _from_requests(wanted: Sequence[Clip]) -> list[Trace]:
    path = wanted[0].path
    identified = loading.identify(path)
    whole = arrivals.read_arrivals(identified.path) if identified.format == "arrivals" else None
    parts: list[list[Batch]] = [[] for _ in wanted]
    last_s = 0.0
    stream = loading.batches(identified) if whole is None else [Batch(whole.arrival_s)]
    last_end = max(clip.start_s for clip in wanted) + HOUR_S
    for batch in stream:
        if not batch.arrival_s.size:
            continue
        last_s = float(batch.arrival_s[-1])
        for clip, mine in zip(wanted, parts, strict=True):
            mine.append(_inside(batch, clip))
        if batch.arrival_s[0] > last_end:
            break
    last_s = last_s if whole is None else whole.duration_s
    return [_one_hour(clip, mine, last_s) for clip, mine in zip(wanted, parts, strict=True)]


def _inside(batch: Batch, clip: Clip) -> Batch:
    low = np.searchsorted(batch.arrival_s, clip.start_s, side="left")
    high = np.searchsorted(batch.arrival_s, clip.start_s + HOUR_S, side="right")
    kept = slice(int(low), int(high))
    mask: Any = slice(None)
    if batch.row is not None:  # names grow with the file: a row may come in a later batch only
        mask = batch.row[kept] == batch.names.index(clip.row) if clip.row in batch.names else slice(0, 0)
    take: Callable[[Any], Any] = lambda array: None if array is None else array[kept][mask]  # noqa: E731
    return Batch(take(batch.arrival_s), take(batch.context_tokens), take(batch.generated_tokens))


def _one_hour(clip: Clip, parts: Sequence[Batch], last_s: float) -> Trace:
    times = np.concatenate([part.arrival_s for part in parts])
    # the end belongs to the next hour, unless the file ends there
    end = clip.start_s + HOUR_S
    size = int(np.searchsorted(times, end, side="left" if last_s > end else "right"))

    def joined(arrays: list[Any]) -> Any:
        return None if any(array is None for array in arrays) else np.concatenate(arrays)[:size]

    return make_trace(
        times[:size] - clip.start_s,
        duration_s=clip.duration_s,
        source=f"{clip.path.name} row {clip.row[:16]}, {clip.start_s} s to {clip.start_s + HOUR_S} s",
        context_tokens=joined([part.context_tokens for part in parts]),
        generated_tokens=joined([part.generated_tokens for part in parts]),
    )


def _all_of(wanted: Sequence[Clip], traces: dict[int, Trace]) -> list[Trace]:
    missing = [clip for index, clip in enumerate(wanted) if index not in traces]
    if missing:
        raise NoMatchError(f"{missing[0].path}: row {missing[0].row} minutes {missing[0].minutes} are no longer there")
    return [traces[index] for index in range(len(wanted))]
