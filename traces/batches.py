"""Requests in the order of their file, some thousands at a time: what request-level readers give.

A file of tens of millions of requests passes through as batches; :func:`gather` keeps the wanted part as one
:class:`traces.model.Trace`, so memory follows what is kept and not what the file holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from traces.columns import Block
from traces.errors import NoMatchError, TraceError
from traces.model import MAX_REQUESTS, FloatArray, IntArray, Trace, make_trace


@dataclass(frozen=True, eq=False)
class Batch:
    """Neighbouring requests of a file."""

    arrival_s: FloatArray
    """[n] float64 seconds from the trace's zero, never falling, also from batch to batch."""
    context_tokens: IntArray | None = None
    """[n] int64, where the format has them."""
    generated_tokens: IntArray | None = None
    """[n] int64, where the format has them."""
    row: IntArray | None = None
    """[n] int64 index into ``names``: the function of each request; None: the file is one function."""
    names: tuple[str, ...] = ()


class Names:
    """Numbers for names, in the order of their first use over all batches of a file."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def numbers(self, local: IntArray, names: list[str]) -> IntArray:
        """[n] int64 numbers for ``local`` [n] indices into ``names``."""
        table = np.array([self._numbers.setdefault(name, len(self._numbers)) for name in names], dtype=np.int64)
        return table[local]

    def all(self) -> tuple[str, ...]:
        return tuple(self._numbers)


def in_order(block: Block, times: FloatArray | IntArray, before: float, what: str) -> float:
    """The last of ``times`` [n]; refuses the first that comes before its predecessor or before ``before``."""
    previous = np.concatenate(([before], times[:-1]))
    fallen = np.flatnonzero(times < previous)
    if fallen.size:
        raise block.refuse(int(fallen[0]), f"times are unsorted: {what} comes before the row above")
    return float(times[-1])


def pairs(block: Block, first: str, second: str) -> tuple[IntArray, list[str]]:
    """Two text columns as one name ``first/second``: (index [n] int64, names)."""
    left, left_names = block.text(first)
    right, right_names = block.text(second)
    codes, local = np.unique(left * len(right_names) + right, return_inverse=True)
    names = [f"{left_names[code // len(right_names)]}/{right_names[code % len(right_names)]}" for code in codes]
    return local.astype(np.int64), names


def gather(
    batches: Iterable[Batch],
    path: Path,
    *,
    row: str | None = None,
    start_s: float | None = None,
    duration_s: float | None = None,
) -> Trace:
    """The requests of ``row`` (a leading part of its name is enough; None: of all) in the span, as one trace.

    The trace's own span is the file's: from zero to the last request of any row. Reading stops behind the wanted
    span. Raises TraceError, NoMatchError.
    """
    begin = start_s or 0.0
    end = np.inf if duration_s is None else begin + duration_s
    if not 0 <= begin < end:
        raise TraceError(f"{path}: a clip needs 0 <= start < end, got {begin:g} s and {end:g} s")
    kept: list[Batch] = []
    last_s, held, names = 0.0, 0, _Wanted(path, row)
    for batch in batches:
        if not batch.arrival_s.size:
            continue
        last_s = float(batch.arrival_s[-1])
        part = _part(batch, names.mask(batch), begin, end)
        held += part.arrival_s.size
        if held > MAX_REQUESTS:
            raise TraceError(f"{path}: more than {MAX_REQUESTS} requests in the span; choose a shorter one")
        kept.append(part)
        if last_s > end:
            break
    names.must_have_matched()
    if start_s is not None and begin >= last_s > 0:
        raise TraceError(f"{path}: a clip must begin before the trace ends at {last_s:g} s, got start {begin:g} s")
    until = min(end, last_s)
    whole = start_s is None and duration_s is None
    times = np.concatenate([part.arrival_s for part in kept] or [np.zeros(0)])
    # the end belongs to the next clip, unless the trace ends there
    size = times.size if last_s <= end else int(np.searchsorted(times, end, side="left"))
    return make_trace(
        times[:size] - begin,
        duration_s=max(0.0, until - begin),
        source=f"{path.name}{names.label()}{'' if whole else f', {begin:g} s to {until:g} s'}",
        context_tokens=_joined([part.context_tokens for part in kept], size),
        generated_tokens=_joined([part.generated_tokens for part in kept], size),
    )


class _Wanted:
    """Which requests belong to the row asked for; more than one name that fits is an error."""

    def __init__(self, path: Path, row: str | None) -> None:
        self._path, self._row = path, row
        self._found: set[str] = set()

    def mask(self, batch: Batch) -> np.ndarray | None:
        """[n] bool, or None for all."""
        if self._row is None:
            return None
        if batch.row is None:
            raise NoMatchError(f"{self._path}: the file holds one trace, it has no row {self._row!r}")
        fits = np.array([name.startswith(self._row) for name in batch.names], dtype=bool)
        exact = np.array([name == self._row for name in batch.names], dtype=bool)
        fits = exact if exact.any() else fits
        self._found |= {name for name, fit in zip(batch.names, fits, strict=True) if fit}
        if len(self._found) > 1:
            some = ", ".join(sorted(self._found)[:5])
            raise TraceError(f"{self._path}: several rows start with {self._row!r} ({some}); give more of the name")
        chosen: np.ndarray = fits[batch.row]
        return chosen

    def must_have_matched(self) -> None:
        if self._row is not None and not self._found:
            raise NoMatchError(f"{self._path}: no row's name starts with {self._row!r}")

    def label(self) -> str:
        return f" row {min(self._found)}" if self._found else ""


def _part(batch: Batch, mask: np.ndarray | None, begin: float, end: float) -> Batch:
    inside = (batch.arrival_s >= begin) & (batch.arrival_s <= end)
    if mask is not None:
        inside &= mask
    if inside.all():
        return batch
    return Batch(
        batch.arrival_s[inside],
        None if batch.context_tokens is None else batch.context_tokens[inside],
        None if batch.generated_tokens is None else batch.generated_tokens[inside],
    )


def _joined(parts: list[IntArray | None], size: int) -> IntArray | None:
    there = [part for part in parts if part is not None]
    return np.concatenate(there)[:size] if there and len(there) == len(parts) else None
