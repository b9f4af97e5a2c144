"""The one type every loader gives and everything else takes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from traces.errors import TraceError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Pattern = Literal["slow", "normal", "bursty"]

PATTERNS: tuple[Pattern, ...] = ("slow", "normal", "bursty")
MAX_REQUESTS = 50_000_000
"""A trace with more requests is refused before it is laid out in memory (8 bytes each, tokens 16 more)."""


@dataclass(frozen=True, eq=False)
class Trace:
    """Arrivals of requests. Build it with :func:`make_trace`, which checks and freezes the arrays."""

    arrival_s: FloatArray
    """[N] float64, seconds from the trace's start (which may lie before the first arrival), never falling."""
    duration_s: float
    """Length of the observed span in seconds; at least the last arrival."""
    source: str
    """Where it comes from and what was done to it, in words; that of a synthetic trace begins so."""
    sha256: str
    """SHA-256 of arrivals, duration and tokens: two traces with the same hash hold the same numbers."""
    context_tokens: IntArray | None = None
    """[N] int64, tokens of the request, where the source gives them."""
    generated_tokens: IntArray | None = None
    """[N] int64, tokens of the answer, where the source gives them."""

    @property
    def requests(self) -> int:
        return int(self.arrival_s.size)

    @property
    def mean_rps(self) -> float:
        """Requests per second over the span."""
        return self.requests / self.duration_s if self.duration_s > 0 else 0.0

    @property
    def iat_cv(self) -> float | None:
        """Coefficient of variation of the inter-arrival times; None with fewer than three arrivals."""
        return iat_cv(self.arrival_s)

    @property
    def pattern(self) -> Pattern | None:
        return classify(self.iat_cv)

    def clip(self, start_s: float, end_s: float) -> Trace:
        """Arrivals with ``start_s <= t < end_s``, time moved so that the clip starts at zero.

        A clip that reaches the trace's end holds its very last moment too and is no longer than the trace. Raises
        TraceError.
        """
        if not 0 <= start_s < end_s or start_s >= self.duration_s > 0:
            raise TraceError(
                f"a clip needs 0 <= start < end and must begin before the trace ends at {self.duration_s:g} s, "
                f"got start {start_s:g} s and end {end_s:g} s"
            )
        end_s = min(end_s, self.duration_s)
        first = int(np.searchsorted(self.arrival_s, start_s, side="left"))
        last = int(np.searchsorted(self.arrival_s, end_s, side="right" if end_s == self.duration_s else "left"))
        return make_trace(
            self.arrival_s[first:last] - start_s,
            duration_s=end_s - start_s,
            source=f"{self.source}, {start_s:g} s to {end_s:g} s",
            context_tokens=None if self.context_tokens is None else self.context_tokens[first:last],
            generated_tokens=None if self.generated_tokens is None else self.generated_tokens[first:last],
        )

    def select(self, keep: NDArray[np.bool_], why: str) -> Trace:
        """The requests where ``keep`` [N] bool is true, over the same span."""
        return make_trace(
            self.arrival_s[keep],
            duration_s=self.duration_s,
            source=f"{self.source}, {why}",
            context_tokens=None if self.context_tokens is None else self.context_tokens[keep],
            generated_tokens=None if self.generated_tokens is None else self.generated_tokens[keep],
        )


def make_trace(
    arrival_s: FloatArray | Sequence[float],
    *,
    duration_s: float | None = None,
    source: str,
    context_tokens: IntArray | Sequence[int] | None = None,
    generated_tokens: IntArray | Sequence[int] | None = None,
) -> Trace:
    """Check, freeze and hash ``arrival_s`` and tokens, [requests] each; ``duration_s`` defaults to the last arrival.
    Raises TraceError."""
    arrivals = np.array(arrival_s, dtype=np.float64)
    if arrivals.ndim != 1:
        raise TraceError(f"{source}: arrival times are a list of numbers, got {arrivals.ndim} axes")
    if arrivals.size > MAX_REQUESTS:
        raise TraceError(f"{source}: {arrivals.size} requests, at most {MAX_REQUESTS} are allowed")
    if not np.isfinite(arrivals).all():
        raise TraceError(f"{source}: an arrival time is not a finite number")
    if arrivals.size and (arrivals[0] < 0 or (np.diff(arrivals) < 0).any()):
        raise TraceError(f"{source}: arrival times must start at 0 or later and never fall")
    last = float(arrivals[-1]) if arrivals.size else 0.0
    span = last if duration_s is None else float(duration_s)
    if not np.isfinite(span) or span < last:
        raise TraceError(f"{source}: the duration {span:g} s ends before the last arrival at {last:g} s")
    context = _tokens(context_tokens, arrivals.size, source, "context")
    generated = _tokens(generated_tokens, arrivals.size, source, "generated")
    arrivals.setflags(write=False)
    digest = _digest(arrivals, span, context, generated)
    return Trace(arrivals, span, source, digest, context, generated)


def _tokens(values: IntArray | Sequence[int] | None, size: int, source: str, name: str) -> IntArray | None:
    if values is None:
        return None
    tokens = np.array(values, dtype=np.int64)
    if tokens.shape != (size,):
        raise TraceError(f"{source}: {name} tokens have shape {tokens.shape}, one per request ({size}) is needed")
    if tokens.size and tokens.min() < 0:
        raise TraceError(f"{source}: {name} tokens may not be negative")
    tokens.setflags(write=False)
    return tokens


def _digest(arrivals: FloatArray, span: float, context: IntArray | None, generated: IntArray | None) -> str:
    digest = hashlib.sha256(np.float64(span).astype("<f8").tobytes())
    digest.update(np.ascontiguousarray(arrivals, dtype="<f8").data)
    for name, tokens in (("context", context), ("generated", generated)):
        if tokens is not None:
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(tokens, dtype="<i8").data)
    return digest.hexdigest()


def iat_cv(arrival_s: FloatArray) -> float | None:
    """Standard deviation over mean of the gaps of ``arrival_s`` [N]; None below two gaps or when all are zero."""
    if arrival_s.size < 3:
        return None
    gaps = np.diff(arrival_s)
    mean = float(gaps.mean())
    return float(gaps.std()) / mean if mean > 0 else None


def classify(cv: float | None) -> Pattern | None:
    """Slow below 1, normal from 1 to below 3, bursty from 3 (the paper's section 5.1)."""
    if cv is None:
        return None
    if cv < 1:
        return "slow"
    return "normal" if cv < 3 else "bursty"
