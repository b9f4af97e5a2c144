"""Making a trace shorter or thinner, and what that does to its CV.

*Compressing* divides every time by a factor. All gaps shrink by the same factor, so the CV of inter-arrival times, and
with it the pattern, stays exactly; the rate grows by the factor. It is the way to replay an hour in minutes and to
reach a wanted rate.

*Thinning* keeps each request with probability p. The duration stays and the rate falls, but gaps merge: for
independent gaps CV'^2 = 1 + p (CV^2 - 1), so a bursty trace becomes calmer and a regular one rougher. Where the
pattern must stay, pick an hour with fewer requests (`patterns.pick`) rather than thin a busy one; :func:`fit` does
what is left.

*Multiplying* adds requests between those there are, evenly along the cumulative count: duration and CV stay, the rate
grows.
"""

from __future__ import annotations

import math

import numpy as np

from traces.errors import TraceError
from traces.model import Trace, make_trace


def compress(trace: Trace, speed: float) -> Trace:
    """All times divided by ``speed`` (> 1 is faster, < 1 slower). CV unchanged. Raises TraceError."""
    if not (math.isfinite(speed) and speed > 0):
        raise TraceError(f"the speed must be a positive number, got {speed:g}")
    if speed == 1:
        return trace
    return make_trace(
        trace.arrival_s / speed,
        duration_s=trace.duration_s / speed,
        source=f"{trace.source}, time divided by {speed:g}",
        context_tokens=trace.context_tokens,
        generated_tokens=trace.generated_tokens,
    )


def to_rate(trace: Trace, mean_rps: float) -> Trace:
    """Compressed or stretched until the mean rate is ``mean_rps``. CV unchanged, duration not. Raises TraceError."""
    if trace.mean_rps <= 0:
        raise TraceError(f"{trace.source}: a trace without requests has no rate to change")
    if not (math.isfinite(mean_rps) and mean_rps > 0):
        raise TraceError(f"the mean rate must be a positive number, got {mean_rps:g}")
    return compress(trace, mean_rps / trace.mean_rps)


def thin(trace: Trace, keep: float, seed: int) -> Trace:
    """Each request kept with probability ``keep`` (0 to 1]. Same span; the CV moves towards 1. Raises TraceError."""
    if not 0 < keep <= 1:
        raise TraceError(f"the kept share must be above 0 and at most 1, got {keep:g}")
    if keep == 1:
        return trace
    chosen = np.random.default_rng(seed).random(trace.requests) < keep
    return trace.select(chosen, f"thinned to {keep:g}, seed {seed}")


def at_rate(trace: Trace, mean_rps: float, seed: int) -> Trace:
    """Thinned to ``mean_rps``, or with more requests (:func:`multiply`), so that times of day stay; 0 leaves it as it
    is, and so does a trace without requests. Raises TraceError."""
    if mean_rps == 0 or not trace.requests:
        return trace
    if not (math.isfinite(mean_rps) and mean_rps > 0):
        raise TraceError(f"the mean rate must be a positive number, or 0 for the trace's own, got {mean_rps:g}")
    factor = mean_rps / trace.mean_rps
    return thin(trace, factor, seed) if factor <= 1 else multiply(trace, factor, seed)


def multiply(trace: Trace, factor: float, seed: int) -> Trace:
    """``factor`` (1 or more) times as many requests in the same span, evenly along the trace's cumulative count.

    Where one request followed another after a second, ten follow each other after a tenth of it. That keeps the CV;
    drawn at random along the count, CV'^2 would be 1 + 2 CV^2, and no trace would be slow. A request that is added has
    the tokens of the one whose unit of the count it lies in. Raises TraceError.
    """
    if not (math.isfinite(factor) and factor >= 1):
        raise TraceError(f"a trace is multiplied by 1 or more, got {factor:g}")
    if not trace.requests:
        return trace
    count = round(trace.requests * factor)
    corners = np.concatenate(([0.0], trace.arrival_s))  # the k-th request ends the k-th unit of the count
    places = (np.arange(count) + np.random.default_rng(seed).uniform()) * trace.requests / count
    unit = np.minimum(places.astype(np.int64), trace.requests - 1)
    return make_trace(
        np.interp(places, np.arange(trace.requests + 1), corners),
        duration_s=trace.duration_s,
        source=f"{trace.source}, {factor:.3g} times as many requests along its cumulative count, seed {seed}",
        context_tokens=None if trace.context_tokens is None else trace.context_tokens[unit],
        generated_tokens=None if trace.generated_tokens is None else trace.generated_tokens[unit],
    )


def fit(trace: Trace, duration_s: float, max_mean_rps: float, seed: int) -> Trace:
    """The whole trace compressed to ``duration_s``; thinned only as far as needed to stay at ``max_mean_rps``. Raises
    TraceError.
    """
    if not (math.isfinite(duration_s) and duration_s > 0):
        raise TraceError(f"the duration must be a positive number of seconds, got {duration_s:g}")
    if not (math.isfinite(max_mean_rps) and max_mean_rps > 0):
        raise TraceError(f"the mean rate must be a positive number, got {max_mean_rps:g}")
    compressed = compress(trace, trace.duration_s / duration_s)
    return thin(compressed, min(1.0, max_mean_rps / compressed.mean_rps), seed) if compressed.requests else compressed
