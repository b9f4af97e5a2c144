"""What each configuration would do with one expert's load, in closed form: seconds of a call and busy replicas.

Calls arrive at random (Poisson) and are shared evenly among ``p`` replicas that serve up to ``c`` calls each at once by
processor sharing, ``speedup(m)`` times the work of one call alone; more calls wait. The number of calls is then a
birth-death chain, exact for processor sharing whatever the distribution of work (insensitivity), an approximation for
the calls that wait and for routing to the least loaded. So this is a model to choose by, never a bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from simulation.arrays import Floats, Ints


@dataclass(frozen=True)
class Served:
    """[rows, replicas, concurrencies] each; latency is infinite where the load is more than can be served."""

    latency_s: Floats
    """Mean seconds of a call, waiting included; 0 without calls."""
    busy_replicas: Floats
    """Mean number of replicas with at least one call."""


def serve(calls_per_s: float, alone_s: Floats, speedup: Floats, replicas: Ints, concurrencies: Ints) -> Served:
    """``alone_s [rows]``: mean seconds of a call alone; ``speedup [rows, m]``: of m = 1, 2 … calls at once.

    ``concurrencies`` ascend.
    """
    latency, busy = _serve(calls_per_s, alone_s, speedup, replicas, concurrencies)
    return Served(latency, busy)


@njit(cache=True)
def _serve(
    calls_per_s: float, alone_s: Floats, speedup: Floats, replicas: Ints, concurrencies: Ints
) -> tuple[Floats, Floats]:
    """States up to ``p · c`` calls do not depend on c, so larger concurrencies go on where smaller ones ended."""
    shape = (len(alone_s), len(replicas), len(concurrencies))
    latency, busy = np.zeros(shape), np.zeros(shape)
    if calls_per_s <= 0:
        return latency, busy
    for r in range(shape[0]):
        offered = calls_per_s * alone_s[r]
        for i in range(shape[1]):
            p = replicas[i]
            weight, total, calls, used, n = 1.0, 1.0, 0.0, 0.0, 0
            for k in range(shape[2]):
                c = concurrencies[k]
                while n < p * c:
                    n += 1
                    each, more = n // p, n % p
                    rate = more * speedup[r, each] if more else 0.0
                    if each:
                        rate += (p - more) * speedup[r, each - 1]
                    weight *= offered / rate
                    total += weight
                    calls += n * weight
                    used += min(n, p) * weight
                last = offered / (p * speedup[r, c - 1])
                if last >= 1:
                    latency[r, i, k], busy[r, i, k] = np.inf, p
                    continue
                queue = weight * last / (1 - last)
                whole = total + queue
                latency[r, i, k] = (calls + n * queue + queue / (1 - last)) / whole / calls_per_s
                busy[r, i, k] = (used + p * queue) / whole
    return latency, busy
