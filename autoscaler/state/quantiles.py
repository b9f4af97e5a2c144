"""Quantiles of bucketed observations, as PromQL's ``histogram_quantile`` computes them."""

from __future__ import annotations

import math

from autoscaler.state.readings import Buckets


def histogram_quantile(q: float, buckets: Buckets | None) -> float | None:
    """The ``q`` quantile (0 to 1) of cumulative ``buckets``, or None when they hold no observation.

    Linear within a bucket, the lowest one beginning at 0; in the infinite bucket the highest finite bound. Source:
    Prometheus documentation, ``histogram_quantile()`` for classic histograms.
    """
    if not buckets or len(buckets) < 2:
        return None
    total = buckets[-1][1]
    if not total > 0:
        return None
    rank = q * total
    below, lower = 0.0, 0.0
    for bound, count in buckets:
        count = max(count, below)  # rounding of rates may break monotonicity
        if count >= rank and count > below:
            if math.isinf(bound):
                return lower
            return lower + (bound - lower) * max(0.0, rank - below) / (count - below)
        below, lower = count, bound if not math.isinf(bound) else lower
    return lower
