"""A load that moves: Poisson arrivals whose rate steps up and down again and again."""

from __future__ import annotations

import numpy as np

from traces.model import FloatArray, Trace, make_trace

HIGH_PART = 1 / 3
"""Part of each period, its end, with the high rate."""
TIMES = 8.0
"""The high rate over the low one."""


def stepped(seconds: float, mean_rps: float, period_s: float, seed: int) -> Trace:
    """``mean_rps`` on average: a Poisson process with a low rate, then ``TIMES`` as high, in each period."""
    low_rps = mean_rps / (1 + (TIMES - 1) * HIGH_PART)
    rng = np.random.default_rng(seed)
    arrival_s = np.sort(rng.uniform(0, seconds, rng.poisson(TIMES * low_rps * seconds)))
    kept = is_high(arrival_s, period_s) | (rng.random(arrival_s.size) * TIMES < 1)
    source = f"synthetic: Poisson, {low_rps:.2g}/s and {TIMES:g} times as many, periods of {period_s:g} s, seed {seed}"
    return make_trace(arrival_s[kept], duration_s=seconds, source=source)


def is_high(at_s: FloatArray, period_s: float) -> np.ndarray:
    """[times] bool: whether the rate is the high one then. ``at_s`` [times] float64."""
    return np.asarray(at_s % period_s >= (1 - HIGH_PART) * period_s)


def since_step_s(at_s: FloatArray, period_s: float) -> FloatArray:
    """[times] seconds since the rate changed last; ``at_s`` [times] float64. The beginning is a change."""
    within_s = at_s % period_s
    return np.asarray(np.where(is_high(at_s, period_s), within_s - (1 - HIGH_PART) * period_s, within_s))
