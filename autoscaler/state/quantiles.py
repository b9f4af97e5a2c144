"""Quantiles of bucketed observations, as PromQL's ``histogram_quantile`` computes them."""

from __future__ import annotations

import math
from bisect import bisect_left
from itertools import accumulate
from operator import itemgetter

from autoscaler.state.readings import Buckets


def histogram_quantile(q: float, buckets: Buckets | None) -> float | None:
    """The ``q`` quantile (0 to 1) of cumulative ``buckets``, or None when they hold no observation.

    Linear within a bucket, the lowest one beginning at 0 (its bound, where that is not above 0); in the infinite bucket
    the highest finite bound. Counts are made monotone first, since rates of buckets scraped at different times need not
    be. Source: Prometheus, ``histogram_quantile()`` for classic histograms (promql/quantile.go, ``BucketQuantile``).
    """
    if not buckets or len(buckets) < 2 or not math.isinf(buckets[-1][0]):
        return None
    counts = list(accumulate(map(itemgetter(1), buckets), max, initial=0.0))[1:]
    if not counts[-1] > 0:
        return None
    rank = q * counts[-1]
    place = bisect_left(counts, rank)
    if place == len(buckets) - 1:
        return buckets[-2][0]
    bound = buckets[place][0]
    if place == 0:
        return bound * (rank / counts[0] if counts[0] else 0.0) if bound > 0 else bound
    lower, below = buckets[place - 1][0], counts[place - 1]
    if counts[place] == below:
        return bound
    return lower + (bound - lower) * (rank - below) / (counts[place] - below)
