"""Actions of Janus's resource scaling: numbers of replicas, what they cost, and the P95 that is predicted of them.

Three ways to scale, by what may differ from what. ``stages``: every segment and every layer's experts for themselves.
``modules``: one number for all segments and one number of slots for all layers, as in the paper, whose instances hold a
part of every layer. ``model``: one number for everything.
"""

from __future__ import annotations

import bisect
import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, Protocol

Scaling = Literal["stages", "modules", "model"]
FIRST_TAIL = 1.5
"""P95 over the modelled seconds of a pass or an iteration, before any was measured."""
NEARLY = 1.05
"""Where no action meets the SLO, predictions up to this many times the fastest count as fast as it."""


def blend(before: float | None, last: float, weight: float) -> float:
    """``last`` with this weight and what was remembered ``before``, if anything was."""
    return last if before is None else (1 - weight) * before + weight * last


def in_words(seconds: float) -> str:
    """A predicted time, for people."""
    return "more than can be served" if math.isinf(seconds) else f"{1000 * seconds:.0f} ms"


class Model(Protocol):
    """What a pass takes: :class:`autoscaler.policy.performance.PassModel`, and a decoder's
    :class:`autoscaler.policy.iterations.Iteration`."""

    def seconds(self, function: str, replicas: int) -> float: ...

    def attention_s(self, replicas: Mapping[str, int]) -> float: ...

    def experts_s(self, replicas: Mapping[str, int]) -> float: ...


@dataclass(frozen=True)
class Bounds:
    """Bounds of the replicas of a function, and of the slots of a layer that are given at once."""

    min_replicas: int
    max_replicas: int
    slots_step: int


@dataclass(frozen=True)
class Present:
    """What is planned from. All mappings are by function; ``layers``: those that serve experts, each once, by the layer
    of their first; ``others``: those that serve segments only."""

    layers: Sequence[Sequence[str]]
    others: Sequence[str]
    replicas: Mapping[str, int]
    price: Mapping[str, float]
    """Function → cost of one replica a second."""
    tokens: Mapping[str, float]
    """Activations: of a sliding window."""


@dataclass(frozen=True)
class Part:
    """One side of an action: attention or experts."""

    replicas: Mapping[str, int]
    """Function → replicas."""
    cost: float
    """A second."""
    mean_s: float
    """Predicted, of a pass on this side."""
    described: str


@dataclass(frozen=True)
class Action:
    """Numbers of replicas, what they cost a second, and the predicted P95."""

    attention: Part
    experts: Part
    p95_s: float

    @property
    def cost(self) -> float:
        return self.attention.cost + self.experts.cost

    @property
    def replicas(self) -> dict[str, int]:
        return {**self.attention.replicas, **self.experts.replicas}


@dataclass(frozen=True)
class Frontier:
    """What a stage takes with more and more replicas: its slowest function gets the next one each time."""

    raised: Sequence[str]
    """[steps] functions."""
    costs: Sequence[float]
    """[1 + steps] a second, beyond those at the start."""
    seconds: Sequence[float]
    """[1 + steps] of the stage's slowest function in the mean; never rise."""

    def hull(self) -> list[int]:
        """Places on the lower convex hull from the first that can be served, so that every step saves less for its
        cost than the one before it. The last place alone where nothing can be served."""
        kept: list[int] = []
        for at, seconds in enumerate(self.seconds):
            if math.isinf(seconds) or (kept and seconds >= self.seconds[kept[-1]]):
                continue
            while len(kept) > 1 and self.saving(kept[-2], kept[-1]) <= self.saving(kept[-2], at):
                kept.pop()
            kept.append(at)
        return kept or [len(self.raised)]

    def saving(self, begin: int, end: int) -> float:
        """Seconds that are saved from one place to another, for their cost."""
        cost = self.costs[end] - self.costs[begin]
        return (self.seconds[begin] - self.seconds[end]) / cost if cost > 0 else math.inf


class Plan:
    """Actions from the present scale, and the best of them.

    ``fixed``: segments stay as they are. A function that serves segments and experts (where an installation limits
    functions) is of the expert side.
    """

    def __init__(
        self, model: Model, tail: float, present: Present, bounds: Bounds, scaling: Scaling, *, fixed: bool
    ) -> None:
        self._model = model
        self._tail = tail
        self._from = present
        self._bounds = bounds
        self._scaling = scaling
        self._owned = [name for layer in present.layers for name in layer]
        self._scales_attention = not fixed and bool(present.others)
        now = present.replicas
        self._extra = max((sum(now[name] - 1 for name in layer) for layer in present.layers), default=0)
        self._attention = max((now[name] for name in present.others), default=1)
        self.present = self._action(self._attention_part(None), self._expert_part(now, "experts as they are"))

    def least(self, budget_s: float, *, up: bool) -> Action:
        """The cheapest whose predicted P95 is within the budget, of those that take nothing away (``up``) or else of
        those that add nothing (``stages``: of all, so that replicas may move from stage to stage)."""
        if self._scaling == "stages":
            return self._stages(budget_s, up)
        actions = list(self._modules(up) if self._scaling == "modules" else self._models(up))
        meeting = [action for action in actions if action.p95_s <= budget_s]
        if meeting:
            return min(meeting, key=lambda action: (action.cost, action.p95_s))
        fastest_s = min(action.p95_s for action in actions)
        if math.isinf(fastest_s):
            return max(actions, key=lambda action: action.cost)
        return min((action for action in actions if action.p95_s <= NEARLY * fastest_s), key=lambda action: action.cost)

    def shared_out(self) -> Action:
        """The same attention and as many slots, replicas by the present activations."""
        if self._scaling != "modules":
            return self.present
        return self._action(self._attention_part(None), *self._slots([self._extra]))

    def _stages(self, budget_s: float, up: bool) -> Action:
        """Steps along all stages' hulls, those that save most for their cost first, until the budget is met."""
        now = self._from.replicas
        low = {name: now[name] if up else self._bounds.min_replicas for name in now}
        if not self._scales_attention:
            low |= {name: now[name] for name in self._from.others}
        stages = [[name] for name in self._from.others if self._scales_attention] + list(self._from.layers)
        frontiers = [self._frontier(names, low) for names in stages]
        hulls = [one.hull() for one in frontiers]
        steps = [
            (-one.saving(begin, end), number, end)
            for number, (one, hull) in enumerate(zip(frontiers, hulls, strict=True))
            for begin, end in pairwise(hull)
        ]
        steps.sort()

        def after(count: int) -> Action:
            reached = [hull[0] for hull in hulls]
            for _, number, end in steps[:count]:
                reached[number] = end
            chosen = dict(low)
            for one, end in zip(frontiers, reached, strict=True):
                for name in one.raised[:end]:
                    chosen[name] += 1
            return self._of(chosen)

        fastest_s = after(len(steps)).p95_s
        limit_s = budget_s if fastest_s <= budget_s else NEARLY * fastest_s
        return after(bisect.bisect_left(range(len(steps)), True, key=lambda count: after(count).p95_s <= limit_s))

    def _frontier(self, names: Sequence[str], low: Mapping[str, int]) -> Frontier:
        counts = {name: low[name] for name in names}
        raised: list[str] = []
        costs = [0.0]
        slowest = [(-self._model.seconds(name, counts[name]), at, name) for at, name in enumerate(names)]
        heapq.heapify(slowest)
        seconds = [-slowest[0][0]]
        while counts[name := slowest[0][2]] < self._bounds.max_replicas:
            counts[name] += 1
            heapq.heapreplace(slowest, (-self._model.seconds(name, counts[name]), slowest[0][1], name))
            raised.append(name)
            costs.append(costs[-1] + self._from.price[name])
            seconds.append(-slowest[0][0])
        return Frontier(raised, costs, seconds)

    def _of(self, replicas: Mapping[str, int]) -> Action:
        chosen = {name: replicas[name] for name in self._from.others}
        described = f"{sum(chosen.values())} replicas of segments"
        attention = Part(chosen, self._cost(chosen), self._model.attention_s(replicas), described)
        total = sum(replicas[name] for name in self._owned)
        return self._action(attention, self._expert_part(replicas, f"{total} of experts"))

    def _modules(self, up: bool) -> Iterator[Action]:
        bounds = self._bounds
        most = max((len(layer) * (bounds.max_replicas - 1) for layer in self._from.layers), default=0)
        extras = _from(self._extra, range(0, most + 1, bounds.slots_step), up)
        experts = self._slots(extras)
        counts = _from(self._attention, range(bounds.min_replicas, bounds.max_replicas + 1), up)
        for attention in counts if self._scales_attention else [None]:
            part = self._attention_part(attention)
            yield from (self._action(part, slots) for slots in experts)

    def _models(self, up: bool) -> Iterator[Action]:
        bounds = self._bounds
        now = max(
            self._from.replicas[name] for name in (self._from.replicas if self._scales_attention else self._owned)
        )
        for count in _from(now, range(bounds.min_replicas, bounds.max_replicas + 1), up):
            experts = self._expert_part(dict.fromkeys(self._owned, count), f"{count} of every expert")
            yield self._action(self._attention_part(count if self._scales_attention else None), experts)

    def _attention_part(self, count: int | None) -> Part:
        """None: as they are."""
        now = self._from.replicas
        chosen = {name: count or now[name] for name in self._from.others}
        described = "segments as they are" if count is None else f"{count} of every segment"
        return Part(chosen, self._cost(chosen), self._model.attention_s({**now, **chosen}), described)

    def _slots(self, extras: Sequence[int]) -> list[Part]:
        """Section 3.4 for each of ``extras``, which rise: so many slots a layer beyond one an expert, one by one to the
        greatest tokens per replica, of equals to the one with fewer replicas."""
        counts, given, parts = dict.fromkeys(self._owned, 1), 0, []
        tokens = self._from.tokens
        for extra in extras:
            for layer in list(self._from.layers) * (extra - given):
                room = [name for name in layer if counts[name] < self._bounds.max_replicas]
                if room:
                    counts[max(room, key=lambda name: (tokens[name] / counts[name], -counts[name]))] += 1
            given = extra
            chosen = {name: max(self._bounds.min_replicas, count) for name, count in counts.items()}
            parts.append(self._expert_part(chosen, f"{extra} slots a layer beyond one an expert"))
        return parts

    def _expert_part(self, replicas: Mapping[str, int], described: str) -> Part:
        chosen = {name: replicas[name] for name in self._owned}
        return Part(chosen, self._cost(chosen), self._model.experts_s(chosen), described)

    def _cost(self, replicas: Mapping[str, int]) -> float:
        return sum(self._from.price[name] * count for name, count in replicas.items())

    def _action(self, attention: Part, experts: Part) -> Action:
        return Action(attention, experts, self._tail * (attention.mean_s + experts.mean_s))


def _from(now: int, allowed: range, up: bool) -> list[int]:
    """``now`` and what is above (``up``) or below it of ``allowed``."""
    return sorted({now, *(count for count in allowed if (count > now if up else count < now))})
