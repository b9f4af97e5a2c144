"""What a pass would take with other numbers of replicas, from what one window measured: a model of every function.

A replica shares its unit among the calls in service: with m of them each goes at ``1 / (1 + sharing · (m - 1))`` of
its speed alone, so ``sharing`` 1 is one unit shared evenly and 0 is calls that never meet. Calls arrive at random and
go to the replica with fewest of them; beyond all slots they wait. The number of calls is then a birth-death chain,
exact in its mean for processor sharing whatever a call's work is distributed like, an approximation for calls that
wait. One number is fitted for each function: the seconds of a call alone with which the chain gives the measured mean.

``evaluation/bound/queueing.py`` has the same chain for the speed-up of a latency model that is known; here nothing is
known but what was measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from numba import njit

MOST_SLOTS = 64
"""Slots counted of a replica that has more, or no limit."""
_HALVINGS = 40


def mean_seconds(alone_s: float, calls_per_s: float, replicas: int, slots: int, sharing: float) -> float:
    """Mean seconds of a call, waiting included; infinite where the load is more than can be served.

    ``alone_s``: of a call that meets nobody; ``slots``: calls that a replica takes at once, 0 for no limit. Worked
    example: one replica, ``sharing`` 1, half of its time in use: twice ``alone_s``.
    """
    return float(_mean(alone_s, calls_per_s, replicas, min(slots or MOST_SLOTS, MOST_SLOTS), sharing))


def alone_seconds(mean_s: float, calls_per_s: float, replicas: int, slots: int, sharing: float) -> float:
    """Seconds of a call alone with which :func:`mean_seconds` gives the measured ``mean_s``, by bisection."""
    return float(_alone(mean_s, calls_per_s, replicas, min(slots or MOST_SLOTS, MOST_SLOTS), sharing))


@njit(cache=True, nogil=True)
def rate_of(calls: int, replicas: int, slots: int, sharing: float) -> float:
    """Calls that end in the time of one alone, where so many are there, spread evenly over the replicas."""
    served = min(calls, replicas * slots)
    each, more = served // replicas, served % replicas
    rate = more * (each + 1) / (1 + sharing * each)
    if each:
        rate += (replicas - more) * each / (1 + sharing * (each - 1))
    return rate


@njit(cache=True, nogil=True)
def _mean(alone_s: float, calls_per_s: float, replicas: int, slots: int, sharing: float) -> float:
    if calls_per_s <= 0 or alone_s <= 0:
        return alone_s
    offered = calls_per_s * alone_s
    last = offered * (1 + sharing * (slots - 1)) / (replicas * slots)
    if last >= 1:
        return math.inf
    weight, total, calls = 1.0, 1.0, 0.0
    for n in range(1, replicas * slots + 1):
        weight *= offered / rate_of(n, replicas, slots, sharing)
        total += weight
        calls += n * weight
    queue = weight * last / (1 - last)
    return (calls + queue * (replicas * slots + 1 / (1 - last))) / (total + queue) / calls_per_s


@njit(cache=True, nogil=True)
def _alone(mean_s: float, calls_per_s: float, replicas: int, slots: int, sharing: float) -> float:
    low, high = 0.0, mean_s
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _mean(middle, calls_per_s, replicas, slots, sharing) > mean_s:
            high = middle
        else:
            low = middle
    return high


@dataclass(frozen=True)
class Load:
    """What is asked of one function."""

    alone_s: float
    calls_per_s: float
    slots: int


@dataclass(frozen=True)
class PassModel:
    """A pass over segments one after the other, and over each layer's experts side by side."""

    loads: Mapping[str, Load]
    """By function."""
    segments: Sequence[str]
    """Functions of the segments in order."""
    layers: Sequence[Sequence[str]]
    """Functions of each layer's experts."""
    sharing: float
    _known: dict[tuple[str, int], float] = field(default_factory=dict)

    def seconds(self, function: str, replicas: int) -> float:
        """Mean seconds of a call of ``function`` with so many replicas."""
        key = function, replicas
        if key not in self._known:
            load = self.loads[function]
            self._known[key] = mean_seconds(load.alone_s, load.calls_per_s, replicas, load.slots, self.sharing)
        return self._known[key]

    def attention_s(self, replicas: Mapping[str, int]) -> float:
        """Mean seconds of a pass in its segments."""
        return sum(self.seconds(function, replicas[function]) for function in self.segments)

    def experts_s(self, replicas: Mapping[str, int]) -> float:
        """Mean seconds of a pass in its layers, each as long as its slowest expert in the mean."""
        slowest = [max((self.seconds(name, replicas[name]) for name in layer), default=0.0) for layer in self.layers]
        return sum(slowest)
