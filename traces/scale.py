"""Other rates: what each way does to a trace's CV and index of dispersion (:mod:`traces.dispersion`).

*Compressing* divides every time by a factor. All gaps shrink by the same factor, so the CV of inter-arrival times, and
with it the pattern, stays exactly; the rate grows by the factor. It is the way to replay an hour in minutes and to
reach a wanted rate.

*Thinning* keeps each request with probability p. The duration stays and the rate falls, but gaps merge: for
independent gaps CV'^2 = 1 + p (CV^2 - 1), so a bursty trace becomes calmer and a regular one rougher. Where the
pattern must stay, take an hour with fewer requests rather than thin a busy one; :func:`fit` does what is left.

*Superposing* puts independent traces on top of each other: what several sources send to one place. The sum of many
tends to a Poisson process (CV 1), so no sum of independent sources is slow or bursty for long.

*Many users* of one profile: the requests of each minute are the rate of a Poisson process, and that rate is multiplied
(a doubly stochastic Poisson process). Minutes stay as uneven as they were; inside a minute users act independently. The
excess of the index of dispersion over 1 grows with the factor. Of it, the share 1 / (index of the minutes' counts) is
the counting noise of the minutes, multiplied as well: 1 for a source that is itself Poisson.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from traces.errors import TraceError
from traces.model import MAX_REQUESTS, IntArray, Trace, make_trace

MINUTE_S = 60.0
THINNED = 1
"""Part of the seed of thinning: requests that are placed in their minutes with the same seed were drawn by other
numbers, else those kept would lie early in their minutes."""


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


def thin(trace: Trace, keep: float, seed: int) -> Trace:
    """Each request kept with probability ``keep`` (0 to 1]. Same span; the CV moves towards 1. Raises TraceError."""
    if not 0 < keep <= 1:
        raise TraceError(f"the kept share must be above 0 and at most 1, got {keep:g}")
    if keep == 1:
        return trace
    chosen = np.random.default_rng((seed, THINNED)).random(trace.requests) < keep
    return trace.select(chosen, f"thinned to {keep:g}, seed {seed}")


def superpose(parts: Sequence[Trace], source: str) -> Trace:
    """All requests of ``parts`` on one clock, over the longest span; tokens where every part has them. Raises
    TraceError."""
    if not parts:
        raise TraceError(f"{source}: a sum of no traces has no requests")
    times = np.concatenate([part.arrival_s for part in parts])
    order = np.argsort(times, kind="stable")

    def joined(name: str) -> IntArray | None:
        tokens = [getattr(part, name) for part in parts]
        return None if any(values is None for values in tokens) else np.concatenate(tokens)[order]

    return make_trace(
        times[order],
        duration_s=max(part.duration_s for part in parts),
        source=source,
        context_tokens=joined("context_tokens"),
        generated_tokens=joined("generated_tokens"),
    )


def many_users(trace: Trace, factor: float, seed: int) -> Trace:
    """A Poisson process whose rate in every minute is ``factor`` times the requests that ``trace`` has there.

    A request has the tokens of one of the trace's in the same minute, drawn at random. Raises TraceError.
    """
    if not (math.isfinite(factor) and factor > 0):
        raise TraceError(f"the factor on the rate must be a positive number, got {factor:g}")
    if trace.requests * factor > MAX_REQUESTS:
        raise TraceError(f"{trace.source}: {factor:g} times its requests are above {MAX_REQUESTS}")
    rng = np.random.default_rng(seed)
    minutes = math.ceil(trace.duration_s / MINUTE_S)
    minute = np.minimum((trace.arrival_s / MINUTE_S).astype(np.int64), minutes - 1)
    requests = np.bincount(minute, minlength=minutes)
    drawn = rng.poisson(requests * factor)
    starts = np.repeat(np.arange(minutes) * MINUTE_S, drawn)
    lengths = np.minimum(MINUTE_S, trace.duration_s - starts)
    first = np.cumsum(requests) - requests
    stand_for = np.repeat(first, drawn) + (rng.random(starts.size) * np.repeat(requests, drawn)).astype(np.int64)
    return make_trace(
        np.sort(starts + rng.random(starts.size) * lengths),
        duration_s=trace.duration_s,
        source=f"{trace.source}, a Poisson process at {factor:.3g} times its requests per minute, seed {seed}",
        context_tokens=None if trace.context_tokens is None else trace.context_tokens[stand_for],
        generated_tokens=None if trace.generated_tokens is None else trace.generated_tokens[stand_for],
    )


def at_rate(trace: Trace, mean_rps: float, seed: int) -> Trace:
    """Thinned to ``mean_rps``, or as many users as it takes (:func:`many_users`), so that times of day stay; 0 leaves
    it as it is, and so does a trace without requests. Raises TraceError."""
    if mean_rps == 0:
        return trace
    factor = _factor(trace, mean_rps, ", or 0 for the trace's own")
    return thin(trace, factor, seed) if factor <= 1 else many_users(trace, factor, seed)


def at_most(trace: Trace, mean_rps: float, seed: int) -> Trace:
    """Thinned to ``mean_rps`` where it has more requests/s. Raises TraceError."""
    return thin(trace, min(1.0, _factor(trace, mean_rps)), seed)


def _factor(trace: Trace, mean_rps: float, otherwise: str = "") -> float:
    """On the rate of a trace; 1 where it has no requests. ``otherwise``: what else is allowed. Raises TraceError."""
    if not (math.isfinite(mean_rps) and mean_rps > 0):
        raise TraceError(f"the mean rate must be a positive number{otherwise}, got {mean_rps:g}")
    if not trace.requests:
        return 1.0
    if not trace.duration_s:
        raise TraceError(f"{trace.source}: all its requests come at one moment, so it has no rate that could change")
    return mean_rps / trace.mean_rps


def fit(trace: Trace, duration_s: float, max_mean_rps: float, seed: int) -> Trace:
    """The whole trace compressed to ``duration_s``; thinned only as far as needed to stay at ``max_mean_rps``. Raises
    TraceError.
    """
    if not (math.isfinite(duration_s) and duration_s > 0):
        raise TraceError(f"the duration must be a positive number of seconds, got {duration_s:g}")
    return at_most(compress(trace, trace.duration_s / duration_s), max_mean_rps, seed)
