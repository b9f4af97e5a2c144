"""What an iteration of a decoder would take with other numbers of instances and of experts' replicas.

An *instance* is one replica of every segment and runs one iteration at a time: a pass over all segments and layers. So
nobody else calls its segments, and with ``A`` instances at most ``A`` calls meet at an expert, each of which comes back
after an iteration: a closed queue, not a stream of calls that does not care how long they take. With a batch of ``n``
tokens a call takes ``base + slope · n`` seconds, fitted to the windows that were seen; an expert that gets the part
``p`` of a layer's tokens is activated by ``1 - (1 - p)^n`` of the iterations (Janus, section 2.2: an expert's time goes
by whether it is activated), and a layer is as long as the slowest that is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from numba import njit

from autoscaler.policy.performance import MOST_SLOTS, rate_of

PRIOR = 0.05
"""Weight of the assumed slope against the windows' own: as much as that of windows whose tokens a call have a
coefficient of variation of its root, 22 %."""
_HALVINGS = 40
_LARGE = 1e200


class Line(NamedTuple):
    """Seconds of a call by its tokens: sums over windows, older ones with less weight."""

    weight: float = 0.0
    tokens: float = 0.0
    seconds: float = 0.0
    squares: float = 0.0
    products: float = 0.0

    def with_window(self, tokens: float, seconds: float, keep: float) -> Line:
        """One more window's means of a call; ``keep``: what is left of the weight of those before."""
        added = (1.0, tokens, seconds, tokens * tokens, tokens * seconds)
        return Line(*(keep * before + more for before, more in zip(self, added, strict=True)))

    def at(self, tokens: float, fixed: float) -> float:
        """Seconds with so many tokens, from the least squares' line; 0 where no window was seen. While all calls were
        equally large the part ``fixed`` of their seconds does not grow with the tokens."""
        if self.weight <= 0 or self.tokens <= 0:
            return 0.0
        mean_tokens, mean_s = self.tokens / self.weight, self.seconds / self.weight
        spread = max(0.0, self.squares / self.weight - mean_tokens**2)
        together = self.products / self.weight - mean_tokens * mean_s
        ridge, steepest = PRIOR * mean_tokens**2, mean_s / mean_tokens
        slope = (together + ridge * (1 - fixed) * steepest) / (spread + ridge)
        return mean_s + min(max(slope, 0.0), steepest) * (tokens - mean_tokens)


def met_seconds(alone_s: float, cycle_s: float, callers: int, replicas: int, slots: int, sharing: float) -> float:
    """Mean seconds of a call, waiting included, where each of ``callers`` calls once in ``cycle_s``, the call itself
    included; where they cannot come round so fast, as if each called again at once.

    ``alone_s``: of a call that meets nobody; ``slots`` and ``sharing`` as in :mod:`autoscaler.policy.performance`.
    Worked example: two callers that call again at once share a replica: each call takes twice ``alone_s``.
    """
    return float(_met(alone_s, cycle_s, callers, replicas, min(slots or MOST_SLOTS, MOST_SLOTS), sharing))


def alone_seconds(mean_s: float, cycle_s: float, callers: int, replicas: int, slots: int, sharing: float) -> float:
    """Seconds of a call alone with which it takes the measured ``mean_s`` in such a cycle, by bisection."""
    slots, elsewhere_s, low, high = min(slots or MOST_SLOTS, MOST_SLOTS), max(0.0, cycle_s - mean_s), 0.0, mean_s
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _closed(middle, elsewhere_s, callers, replicas, slots, sharing) > mean_s:
            high = middle
        else:
            low = middle
    return high


@njit(cache=True, nogil=True)
def _met(alone_s: float, cycle_s: float, callers: int, replicas: int, slots: int, sharing: float) -> float:
    if alone_s <= 0 or callers <= 1:
        return alone_s
    if _closed(alone_s, 0.0, callers, replicas, slots, sharing) >= cycle_s:
        return _closed(alone_s, 0.0, callers, replicas, slots, sharing)
    low, high = 0.0, cycle_s
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if middle + _closed(alone_s, middle, callers, replicas, slots, sharing) > cycle_s:
            high = middle
        else:
            low = middle
    return _closed(alone_s, high, callers, replicas, slots, sharing)


@njit(cache=True, nogil=True)
def _closed(alone_s: float, elsewhere_s: float, callers: int, replicas: int, slots: int, sharing: float) -> float:
    """Mean seconds of a call where ``callers`` spend ``elsewhere_s`` between their calls: a birth-death chain over the
    calls at the function, whose mean is exact for processor sharing whatever the times are distributed like."""
    if alone_s <= 0:
        return 0.0
    if elsewhere_s <= 0:
        return callers * alone_s / rate_of(callers, replicas, slots, sharing)
    weight, calls, ended = 1.0, 0.0, 0.0
    for n in range(1, callers + 1):
        rate = rate_of(n, replicas, slots, sharing)
        weight *= (callers - n + 1) * alone_s / (elsewhere_s * rate)
        calls += n * weight
        ended += rate * weight
        if weight > _LARGE:
            weight, calls, ended = 1.0, calls / weight, ended / weight
    return calls / ended * alone_s


class Called(NamedTuple):
    """A node as an iteration calls it."""

    function: str
    line: Line
    part: float
    """Part of the iteration's tokens: 1 for a segment."""


@dataclass(frozen=True)
class Iteration:
    """Iterations of ``tokens`` each, that begin ``cycle_s`` apart at each of ``instances``."""

    model: IterationModel
    instances: int
    tokens: float
    cycle_s: float
    _known: dict[tuple[str, int], float] = field(default_factory=dict)

    def seconds(self, function: str, replicas: int) -> float:
        """Mean seconds of a call of a function of experts."""
        key = function, replicas
        if key not in self._known:
            visits, alone_s = self._visited.get(function, (0.0, 0.0))
            cycle_s = self.cycle_s / visits if visits else math.inf
            self._known[key] = met_seconds(
                alone_s, min(cycle_s, 1e9), self.instances, replicas, self.model.slots[function], self.model.sharing
            )
        return self._known[key]

    def attention_s(self, replicas: Mapping[str, int]) -> float:
        """Seconds of an iteration in its segments, which meet no other."""
        return sum(one.line.at(self.tokens, self.model.fixed) for one in self.model.segments)

    def experts_s(self, replicas: Mapping[str, int]) -> float:
        """Seconds of an iteration in its layers: of each its slowest activated expert, where experts are activated
        independently of each other."""
        total = 0.0
        for layer in self.model.layers:
            slower = 1.0
            for seconds, activated in sorted((self._expert(one, replicas) for one in layer), reverse=True):
                total += slower * activated * seconds
                slower *= 1 - activated
        return total

    def _expert(self, one: Called, replicas: Mapping[str, int]) -> tuple[float, float]:
        """Seconds of its calls, those at the same replica included, and the part of the iterations that call it."""
        alone_s = self._visited[one.function][1]
        longer = self.seconds(one.function, replicas[one.function]) / alone_s if alone_s else 1.0
        return longer * self._alone_s(one), self._activated(one)

    def _activated(self, one: Called) -> float:
        return float(1 - (1 - min(one.part, 1.0)) ** self.tokens)

    def _alone_s(self, one: Called) -> float:
        activated = self._activated(one)
        return one.line.at(one.part * self.tokens / activated, self.model.fixed) if activated else 0.0

    @cached_property
    def _visited(self) -> Mapping[str, tuple[float, float]]:
        """Function of experts → its calls in an iteration, and the mean seconds of one alone."""
        visits: dict[str, list[tuple[float, float]]] = {}
        for one in (one for layer in self.model.layers for one in layer):
            visits.setdefault(one.function, []).append((self._activated(one), self._alone_s(one)))
        sums = {name: sum(count for count, _ in rows) for name, rows in visits.items()}
        return {
            name: (sums[name], sum(count * seconds for count, seconds in rows) / sums[name] if sums[name] else 0.0)
            for name, rows in visits.items()
        }


@dataclass(frozen=True)
class IterationModel:
    """Iterations of a decoder under one load."""

    segments: Sequence[Called]
    layers: Sequence[Sequence[Called]]
    slots: Mapping[str, int]
    """Function → calls that a replica takes at once; 0 for no limit."""
    tokens_per_s: float
    """That all instances together compute: of prompts, and written."""
    batch: float
    """Tokens of an iteration of all instances together, if all texts at hand were in it."""
    sharing: float
    fixed: float
    """See :meth:`Line.at`."""

    def iteration(self, instances: int, assumed_s: float) -> Iteration:
        """One that takes ``assumed_s``. In that time come as many tokens as it will have; texts that have piled up are
        in it, too. With less than a token an instance, instances rest between iterations."""
        tokens = max(self.tokens_per_s * assumed_s, self.batch) / instances
        cycle_s = assumed_s / min(1.0, max(tokens, 1e-9))
        return Iteration(self, instances, max(1.0, tokens), cycle_s)

    def seconds(self, instances: int, replicas: Mapping[str, int], most_s: float) -> float:
        """An iteration's, in which as many tokens come as it takes on: the least fixed point, by bisection, as what an
        iteration takes grows less than the time that is assumed for it; infinite above ``most_s``."""

        def takes(assumed_s: float) -> float:
            one = self.iteration(instances, assumed_s)
            return one.attention_s(replicas) + one.experts_s(replicas)

        if takes(most_s) > most_s:
            return math.inf
        low, high = 0.0, most_s
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            if takes(middle) > middle:
                low = middle
            else:
                high = middle
        return high
