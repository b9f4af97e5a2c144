"""A valid bound for the P95: lower-trimmed means instead of percentiles.

The 95th percentile of the requests' latencies is at most λ only if at least 95 % of them are; then so is the mean of
the fastest 95 % (LTM). LTM is superadditive and monotone, so ``LTM(Σ_i max_j τ_ij) ≥ Σ_i max_j LTM(τ_ij)``: a choice
of configurations whose trimmed means already exceed λ can not meet the SLO. That is the deterministic problem with LTM
in the place of latencies. Queueing depends on other experts' choices, so τ is the call's own work alone, which no
configuration undercuts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rl.bound.frontier import Floats

PERCENTILE = 0.95


def kept(requests: int, percentile: float = PERCENTILE) -> int:
    """How many of the fastest are at most the percentile, by every common definition of it (the fewest is taken)."""
    return int(np.floor(percentile * (requests - 1))) + 1 if requests else 0


def trimmed_mean(values: NDArray[np.float64], percentile: float = PERCENTILE) -> Floats:
    """Mean of the lowest part along the first axis: [requests, …] → […]; 0 without requests."""
    count = kept(len(values), percentile)
    if count == 0:
        return np.zeros(values.shape[1:])
    lowest = np.partition(values, count - 1, axis=0)[:count]
    return np.asarray(lowest.mean(axis=0))
