"""Janus's resource scaling (section 3.4) as a policy: attention and experts apart, the least-cost action that is
predicted to meet the SLO.

*Attention* is one number: replicas of every segment, as an attention instance of the paper holds all attention layers.
*Experts* are the other: replica slots of every layer beyond one for each expert, given one by one to the expert with
most tokens per replica over a sliding window of activations. When the P95 nears the SLO or calls wait, all pairs of
both numbers that take nothing away are predicted and the cheapest that meets the SLO is wished; after enough calm
windows, the same among those that add nothing. Where none is predicted to meet it, the cheapest of the nearly fastest.

The performance model knows only what observations measured, in production as in simulation: calls per second, mean
seconds and slots of every function make :mod:`autoscaler.policy.performance`, and the window's P95 over the measured
mean seconds of a pass is the tail that predictions are multiplied with.

Departures from the paper, which gives neither numbers nor formulas here: all thresholds are this policy's; it changes
replicas only; where replicas sit is :mod:`autoscaler.placement.janus`. ``scaling = "model"`` scales the whole model in
steps of a full replica of everything, with the same model and rules: what the paper compares itself with.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from autoscaler.contract import Configuration, NodeKind, NodeObservation, Observation, Proposal
from autoscaler.errors import SettingsError
from autoscaler.policies import Making
from autoscaler.policy.performance import Load, PassModel, alone_seconds
from autoscaler.policy.rows import by_function, refuse_broken, total
from autoscaler.prices import PriceSheet, load_prices

Scaling = Literal["modules", "model"]
MODULES: frozenset[NodeKind] = frozenset(("segment", "expert"))
NEARLY = 1.05
"""Where no action meets the SLO, predictions up to this many times the fastest count as fast as it."""
FIRST_TAIL = 1.5
"""P95 over the mean of a pass before any was measured."""


@dataclass(frozen=True)
class JanusSettings:
    """Defaults are ours; headroom, load factor and sharing belong to the tuning sweep."""

    slo_s: float
    """λ on the pipeline's P95."""
    headroom: float = 0.9
    """Part of the SLO that the predicted P95 may take; a P95 above it asks for more."""
    load_factor: float = 1.1
    """How many times the last window's calls are planned for."""
    sharing: float = 1.0
    """How much calls at once at a replica slow each other down: 1 share it evenly, 0 not at all."""
    waiting: float = 0.1
    """Share of the calls under way that wait for a slot, above which queues are said to grow."""
    slots_step: int = 1
    """Slots of every layer that one step of the expert side adds (C of the paper's instances)."""
    down_windows: int = 6
    """Calm windows in a row before less is considered."""
    activation_windows: int = 60
    """Windows over which the experts' tokens are summed."""
    rebalance_s: float = 3600.0
    """After so long without an action replicas are shared out anew among the same slots."""
    smoothing: float = 0.5
    """Weight of the last window in the tail; the rest is history."""
    scaling: Scaling = "modules"
    """``model``: the whole model in full replicas."""
    min_replicas: int = 1
    max_replicas: int = 8
    kinds: frozenset[NodeKind] = MODULES

    def __post_init__(self) -> None:
        refuse_broken(
            "janus",
            (
                ("slo_s", self.slo_s, 0 < self.slo_s < math.inf, "above 0"),
                ("headroom", self.headroom, 0 < self.headroom <= 1, "above 0, at most 1"),
                ("load_factor", self.load_factor, 0 < self.load_factor < 1e3, "above 0, below 1000"),
                ("sharing", self.sharing, 0 <= self.sharing <= 1, "0 to 1"),
                ("waiting", self.waiting, 0 <= self.waiting <= 1, "0 to 1"),
                ("slots_step", self.slots_step, self.slots_step >= 1, "1 or more"),
                ("down_windows", self.down_windows, self.down_windows >= 1, "1 or more"),
                ("activation_windows", self.activation_windows, self.activation_windows >= 1, "1 or more"),
                ("rebalance_s", self.rebalance_s, self.rebalance_s > 0, "above 0"),
                ("smoothing", self.smoothing, 0 < self.smoothing <= 1, "above 0, at most 1"),
                ("scaling", self.scaling, self.scaling in get_args(Scaling), " or ".join(get_args(Scaling))),
            ),
        )


@dataclass(frozen=True)
class JanusMemory:
    """What is remembered from window to window."""

    tail: float | None = None
    """P95 over the mean seconds of a pass."""
    alone_s: Mapping[str, float] = field(default_factory=dict)
    """Function → seconds of a call alone, when it was last called."""
    activations: tuple[Mapping[str, float], ...] = ()
    """Function → tokens, by window, oldest first."""
    calm: int = 0
    shared_out_s: float | None = None
    """When replicas were last shared out anew (Unix time)."""


@dataclass(frozen=True)
class Seen:
    """One function in the window."""

    configuration: Configuration
    calls_per_s: float
    mean_s: float
    """Waiting included; 0 without calls."""
    replicas: int
    """That served."""
    under_way: float
    waiting: float
    tokens: float


@dataclass(frozen=True)
class Part:
    """One side of an action: attention or experts."""

    replicas: Mapping[str, int]
    """Of its functions."""
    cost: float
    """A second."""
    mean_s: float
    """Predicted, of a pass on this side."""
    said: str


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


class JanusPolicy:
    """Plans segments and experts together; holds all where a number of the pass is not known."""

    name = "janus"

    def __init__(self, settings: JanusSettings, prices: PriceSheet | None = None) -> None:
        self.settings = settings
        self._prices = prices or load_prices()

    def propose(self, observation: Observation, now_s: float, memory: object) -> Proposal:
        before = memory if isinstance(memory, JanusMemory) else JanusMemory()
        rows, s = by_function(observation, MODULES), self.settings
        managed = [name for name, nodes in rows.items() if any(node.kind in s.kinds for node in nodes)]
        found = {name: _seen(nodes, observation.window_s) for name, nodes in rows.items()}
        seen = {name: one for name, one in found.items() if one is not None}
        if len(seen) < len(rows):
            missing = next(name for name in rows if name not in seen)
            reason = f"no data: the load of {missing} is not known, and a pass is planned as a whole"
            return Proposal({}, dict.fromkeys(managed, reason), before)
        model, after = self._measured(observation, rows, seen, before)
        after = replace(after, shared_out_s=now_s if before.shared_out_s is None else before.shared_out_s)
        plan = _Plan(self, model, rows, seen, after)
        late = observation.latency_p95_s is not None and observation.latency_p95_s > s.headroom * s.slo_s
        waiting = sum(one.waiting for one in seen.values())
        if late or waiting > s.waiting * sum(one.under_way for one in seen.values()):
            why = "P95 nears the SLO" if late else "calls wait"
            return self._wish(plan.least(up=True), why, seen, managed, replace(after, calm=0, shared_out_s=now_s))
        after = replace(after, calm=before.calm + 1)
        if after.calm >= s.down_windows:
            action = plan.least(up=False)
            if action.p95_s <= s.headroom * s.slo_s and action.cost < plan.present.cost:
                return self._wish(action, "calm", seen, managed, replace(after, calm=0, shared_out_s=now_s))
        if after.shared_out_s is not None and now_s - after.shared_out_s >= s.rebalance_s:
            action = plan.shared_out()
            return self._wish(action, "shared out anew", seen, managed, replace(after, shared_out_s=now_s))
        return self._wish(plan.present, "held", seen, managed, after)

    def price(self, configuration: Configuration) -> float:
        """Of one replica a second."""
        return self._prices.unit_per_s(configuration)

    def _measured(
        self,
        observation: Observation,
        rows: Mapping[str, Sequence[NodeObservation]],
        seen: Mapping[str, Seen],
        before: JanusMemory,
    ) -> tuple[PassModel, JanusMemory]:
        """The performance model of the planned load, and what is remembered of the window.

        Calls that wait are planned to be worked off within a window, and to reach all functions once they are.
        """
        s = self.settings
        alone = dict(before.alone_s) | {
            name: alone_seconds(one.mean_s, one.calls_per_s, one.replicas, one.configuration.concurrency, s.sharing)
            for name, one in seen.items()
            if one.calls_per_s > 0
        }
        backlog = [
            one.waiting / (one.calls_per_s * observation.window_s) for one in seen.values() if one.calls_per_s > 0
        ]
        factor = s.load_factor * (1 + max(backlog, default=0.0))
        loads = {
            name: Load(alone.get(name, 0.0), one.calls_per_s * factor, one.configuration.concurrency)
            for name, one in seen.items()
        }
        segments, layers = _stages(rows)
        model = PassModel(loads, segments, layers, s.sharing)
        mean_s = sum(seen[name].mean_s for name in segments)
        mean_s += sum(max((seen[name].mean_s for name in layer), default=0.0) for layer in layers)
        tail = before.tail
        if observation.latency_p95_s is not None and mean_s > 0:
            measured = observation.latency_p95_s / mean_s
            tail = measured if tail is None else (1 - s.smoothing) * tail + s.smoothing * measured
        tokens = {name: one.tokens for name, one in seen.items()}
        activations = (*before.activations, tokens)[-s.activation_windows :]
        return model, replace(before, tail=tail, alone_s=alone, activations=activations)

    def _wish(
        self, action: Action, why: str, seen: Mapping[str, Seen], managed: Sequence[str], memory: JanusMemory
    ) -> Proposal:
        wishes = {name: seen[name].configuration.with_replicas(action.replicas[name]) for name in managed}
        predicted = "more than can be served" if math.isinf(action.p95_s) else f"{1000 * action.p95_s:.0f} ms"
        said = f"{action.attention.said}, {action.experts.said}"
        reason = f"{why}: {said}, predicted P95 {predicted} of {1000 * self.settings.slo_s:.0f}"
        return Proposal(wishes, dict.fromkeys(managed, reason), memory)


class _Plan:
    """Actions from the present scale, and the best of them.

    A function that serves segments and experts (where an installation limits functions) is of the expert side.
    """

    def __init__(
        self,
        policy: JanusPolicy,
        model: PassModel,
        rows: Mapping[str, Sequence[NodeObservation]],
        seen: Mapping[str, Seen],
        memory: JanusMemory,
    ) -> None:
        self._settings = policy.settings
        self._model = model
        self._tail = memory.tail or FIRST_TAIL
        self._price = {name: policy.price(one.configuration) for name, one in seen.items()}
        self._now = {name: max(1, one.configuration.replicas) for name, one in seen.items()}
        self._tokens = {name: sum(window.get(name, 0.0) for window in memory.activations) for name in seen}
        self._layers = _owned(rows)
        self._owned = [name for layer in self._layers for name in layer]
        self._others = [name for name in rows if name not in self._owned]
        self._scales_attention = "segment" in self._settings.kinds and bool(self._others)
        self._extra = max((sum(self._now[name] - 1 for name in layer) for layer in self._layers), default=0)
        self._attention = max((self._now[name] for name in self._others), default=1)
        self.present = self._action(self._attention_part(None), self._expert_part(self._now, "experts as they are"))

    def least(self, *, up: bool) -> Action:
        """The cheapest that is predicted to meet the SLO, of those that take nothing away (``up``) or add nothing."""
        actions = list(self._modules(up) if self._settings.scaling == "modules" else self._models(up))
        budget_s = self._settings.headroom * self._settings.slo_s
        meeting = [action for action in actions if action.p95_s <= budget_s]
        if meeting:
            return min(meeting, key=lambda action: (action.cost, action.p95_s))
        fastest_s = min(action.p95_s for action in actions)
        if math.isinf(fastest_s):
            return max(actions, key=lambda action: action.cost)
        return min((action for action in actions if action.p95_s <= NEARLY * fastest_s), key=lambda action: action.cost)

    def shared_out(self) -> Action:
        """The same attention and as many slots, replicas by the present activations."""
        if self._settings.scaling == "model":
            return self.present
        return self._action(self._attention_part(None), *self._slots([self._extra]))

    def _modules(self, up: bool) -> Iterator[Action]:
        s = self._settings
        most = max((len(layer) * (s.max_replicas - 1) for layer in self._layers), default=0)
        extras = _from(self._extra, range(0, most + 1, s.slots_step), up)
        experts = self._slots(extras)
        counts = _from(self._attention, range(s.min_replicas, s.max_replicas + 1), up)
        for attention in counts if self._scales_attention else [None]:
            part = self._attention_part(attention)
            yield from (self._action(part, slots) for slots in experts)

    def _models(self, up: bool) -> Iterator[Action]:
        s = self._settings
        now = max(self._now[name] for name in (self._now if self._scales_attention else self._owned))
        for count in _from(now, range(s.min_replicas, s.max_replicas + 1), up):
            experts = self._expert_part(dict.fromkeys(self._owned, count), f"{count} of every expert")
            yield self._action(self._attention_part(count if self._scales_attention else None), experts)

    def _attention_part(self, count: int | None) -> Part:
        """None: as they are."""
        chosen = {name: count or self._now[name] for name in self._others}
        said = "segments as they are" if count is None else f"{count} of every segment"
        return Part(chosen, self._cost(chosen), self._model.attention_s(self._now | chosen), said)

    def _slots(self, extras: Sequence[int]) -> list[Part]:
        """Section 3.4 for each of ``extras``, which rise: so many slots a layer beyond one an expert, one by one to the
        greatest tokens per replica, of equals to the one with fewer replicas."""
        s, counts, given, parts = self._settings, dict.fromkeys(self._owned, 1), 0, []
        for extra in extras:
            for layer in self._layers * (extra - given):
                room = [name for name in layer if counts[name] < s.max_replicas]
                if room:
                    counts[max(room, key=lambda name: (self._tokens[name] / counts[name], -counts[name]))] += 1
            given = extra
            chosen = {name: max(s.min_replicas, count) for name, count in counts.items()}
            parts.append(self._expert_part(chosen, f"{extra} slots a layer beyond one an expert"))
        return parts

    def _expert_part(self, replicas: Mapping[str, int], said: str) -> Part:
        chosen = {name: replicas[name] for name in self._owned}
        return Part(chosen, self._cost(chosen), self._model.experts_s(chosen), said)

    def _cost(self, replicas: Mapping[str, int]) -> float:
        return sum(self._price[name] * count for name, count in replicas.items())

    def _action(self, attention: Part, experts: Part) -> Action:
        return Action(attention, experts, self._tail * (attention.mean_s + experts.mean_s))


def _from(now: int, allowed: range, up: bool) -> list[int]:
    """``now`` and what is above (``up``) or below it of ``allowed``."""
    return sorted({now, *(count for count in allowed if (count > now if up else count < now))})


def _seen(nodes: Sequence[NodeObservation], window_s: float) -> Seen | None:
    """None where a number is not known. A function without calls needs no latency."""
    first = nodes[0]
    calls_per_s = total([node.requests_per_s for node in nodes])
    waiting, in_flight = total([node.waiting for node in nodes]), total([node.in_flight for node in nodes])
    tokens = total([node.tokens_per_s for node in nodes])
    if first.configuration is None or None in (calls_per_s, waiting, in_flight, tokens):
        return None
    assert calls_per_s is not None and waiting is not None and in_flight is not None and tokens is not None
    called = [node for node in nodes if node.requests_per_s]
    spent = total([None if n.latency_mean_s is None else n.latency_mean_s * (n.requests_per_s or 0.0) for n in called])
    if spent is None:
        return None
    served = first.ready_replicas or first.configuration.replicas
    mean_s = spent / calls_per_s if calls_per_s > 0 else 0.0
    return Seen(
        first.configuration, calls_per_s, mean_s, max(1, served), in_flight + waiting, waiting, tokens * window_s
    )


def _stages(rows: Mapping[str, Sequence[NodeObservation]]) -> tuple[list[str], list[list[str]]]:
    """Functions of the segments, and of each layer's experts; a function that serves several nodes comes as often."""
    segments = [name for name, nodes in rows.items() for node in nodes if node.kind == "segment"]
    layers: dict[int, list[str]] = {}
    for name, nodes in rows.items():
        for node in nodes:
            if node.kind == "expert" and node.layer is not None:
                layers.setdefault(node.layer, []).append(name)
    return segments, [layers[layer] for layer in sorted(layers)]


def _owned(rows: Mapping[str, Sequence[NodeObservation]]) -> list[list[str]]:
    """Functions that serve experts, each once, by the layer of their first."""
    layers: dict[int, list[str]] = {}
    for name, nodes in rows.items():
        first = next((node for node in nodes if node.kind == "expert" and node.layer is not None), None)
        if first is not None and first.layer is not None:
            layers.setdefault(first.layer, []).append(name)
    return [layers[layer] for layer in sorted(layers)]


def make(making: Making) -> JanusPolicy:
    """``--policy janus``. Raises SettingsError without an SLO."""
    if making.settings.slo_s is None:
        raise SettingsError("slo_s is None; the policy janus plans for an SLO (--slo-ms)")
    given = {"slo_s": making.settings.slo_s, "kinds": making.kinds & MODULES, **making.bounds}
    return JanusPolicy(making.own(JanusSettings, **given), making.prices)
