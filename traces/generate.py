"""Seeded synthetic arrivals with a wanted CV, for tests and for machines without the real traces. Never a
measurement.

Slow and normal patterns are renewal processes with Gamma gaps (CV = 1/sqrt(shape)). A Gamma with a CV of 5 has its
mass in a few enormous gaps and a finite draw misses its CV, so bursty arrivals are made as bursts are: a two-phase
hyper-exponential (mostly short gaps inside bursts, sometimes a long silence), whose CV is exact in the limit.
"""

from __future__ import annotations

import math

import numpy as np

from traces.errors import TraceError
from traces.model import FloatArray, Trace, make_trace

BURST_SHARE = 0.9
"""Share of the whole time that the long gaps of the hyper-exponential take."""


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
