"""Seeded synthetic arrivals with a wanted CV, for tests and for machines without the real traces. Never a
measurement.

Slow and normal patterns are renewal processes with Gamma gaps (CV = 1/sqrt(shape)). A Gamma with a CV of 5 has its
mass in a few enormous gaps and a finite draw misses its CV, so bursty arrivals are an interrupted Poisson process (a
doubly stochastic one that is on or off): gaps are hyper-exponential, mostly short ones inside bursts and sometimes a
long silence, and their CV is exact in the limit. A day is a Poisson process whose rate follows a sine.
"""

from __future__ import annotations

import math

import numpy as np

from traces.errors import TraceError
from traces.model import MAX_REQUESTS, FloatArray, Trace, make_trace

BURST_SHARE = 0.9
"""Share of the whole time that the long gaps of the hyper-exponential take."""
DAY_SWING = 0.8
"""Largest relative distance of a synthetic day's rate from its mean."""


def synthetic(requests: int, duration_s: float, cv: float, seed: int) -> Trace:
    """``requests`` arrivals over ``duration_s`` with inter-arrival CV near ``cv`` (0.05 to 20). Raises TraceError."""
    if requests < 3 or duration_s <= 0 or not 0.05 <= cv <= 20:
        raise TraceError(
            f"a synthetic trace needs at least 3 requests, a positive duration and a CV of 0.05 to 20, got "
            f"{requests} requests, {duration_s:g} s, CV {cv:g}"
        )
    rng = np.random.default_rng(seed)
    gaps = rng.gamma(1.0 / cv**2, size=requests) if cv < 2 else _hyper_exponential(requests, cv, rng)
    arrivals = np.cumsum(gaps)
    arrivals *= duration_s / arrivals[-1]
    return make_trace(
        np.minimum(arrivals, duration_s),
        duration_s=duration_s,
        source=f"synthetic: {requests} requests in {duration_s:g} s, CV asked {cv:g}, seed {seed}",
    )


def synthetic_day(mean_rps: float, duration_s: float, seed: int) -> Trace:
    """A day in ``duration_s``: a Poisson process whose rate swings by DAY_SWING around ``mean_rps``. Raises
    TraceError."""
    if not 0 < mean_rps * duration_s * (1 + DAY_SWING) <= MAX_REQUESTS:
        raise TraceError(
            f"a synthetic day needs a rate and a duration, got {mean_rps:g} requests/s for {duration_s:g} s"
        )
    rng = np.random.default_rng(seed)
    peak_rps = mean_rps * (1 + DAY_SWING)
    arrivals = np.sort(rng.uniform(0, duration_s, rng.poisson(peak_rps * duration_s)))
    rate_rps = mean_rps * (1 - DAY_SWING * np.cos(2 * np.pi * arrivals / duration_s))
    return make_trace(
        arrivals[rng.random(arrivals.size) * peak_rps < rate_rps],
        duration_s=duration_s,
        source=f"synthetic: a day of {mean_rps:g} requests/s in {duration_s:g} s, seed {seed}",
    )


def _hyper_exponential(size: int, cv: float, rng: np.random.Generator) -> FloatArray:
    """[size] gaps of mean 1: with probability p exponential of mean a (long), else of mean b (short).

    The share w = p*a of the time is in long gaps. E[x^2] = 2(p a^2 + (1-p) b^2) = 1 + cv^2 with b = (1-w)/(1-p),
    solved for p.
    """
    w = BURST_SHARE
    target = (1 + cv**2) / 2
    # w^2/p + (1-w)^2/(1-p) = target: a quadratic in p, whose small root is the bursty one
    a, b, c = target, (1 - w) ** 2 - w**2 - target, w**2
    p = (-b - math.sqrt(b * b - 4 * a * c)) / (2 * a)
    # exact number of long gaps instead of a binomial draw: less scatter between seeds
    longs = min(max(1, round(p * size)), size - 1)
    is_long = np.zeros(size, dtype=bool)
    is_long[rng.choice(size, size=longs, replace=False)] = True
    gaps: FloatArray = rng.exponential(size=size)
    return np.where(is_long, gaps * (w / p), gaps * ((1 - w) / (1 - p)))
