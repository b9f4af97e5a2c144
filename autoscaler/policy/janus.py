"""Janus's resource scaling (section 3.4) as a policy: attention and experts apart, the least-cost action that is
predicted to meet the SLO.

*Attention* are the replicas of segments, *experts* those of experts. Here every segment and every layer's experts are
functions of their own, so each is planned by itself (``scaling = "stages"``). ``modules`` is the paper's form, whose
instances hold a part of every layer: one number of replicas for all segments, and as many replica slots beyond one an
expert in all layers, given one by one to the expert with most tokens per replica over a sliding window of activations.
``model`` scales the whole model in steps of a full replica of everything, with the same performance model and rules:
what the paper compares itself with. Actions are in :mod:`autoscaler.policy.janus_search`.

When the P95 nears the SLO, calls wait, or the present scale is predicted to bear the planned load no more, the cheapest
of the actions that take nothing away and are predicted to meet the SLO is chosen; after enough calm windows, the
cheapest that costs less than the present. Where none is predicted to meet it, the cheapest of the nearly fastest.

The performance model knows only what observations measured, in production as in simulation: calls per second, mean
seconds and slots of every function make :mod:`autoscaler.policy.performance`, and the window's P95 over the mean
seconds that it gives for that window's load is the tail that predictions are multiplied with: the median of some
windows, as windows of overload have tails that say nothing of others. Seconds and load are smoothed: single windows are
noisy, and near the SLO a few percent are many replicas.

Departures from the paper, which gives neither numbers nor formulas here: all thresholds are this policy's; it changes
replicas only; where replicas sit is :mod:`placement.janus`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

from pydantic import Field

from autoscaler.checked import Checked, FromOne, Positive, PositiveShare, Share
from autoscaler.contract import Configuration, Memory, NodeKind, NodeObservation, Observation, Policy, Proposal
from autoscaler.errors import SettingsError
from autoscaler.policies import Making
from autoscaler.policy.janus_decoder import make as make_for_decoder
from autoscaler.policy.janus_search import FIRST_TAIL, Action, Bounds, Plan, Present, Scaling, blend, in_words
from autoscaler.policy.performance import Load, PassModel, alone_seconds
from autoscaler.policy.rows import MODULES, by_function, total
from autoscaler.prices import PriceSheet, load_prices


@dataclass(frozen=True)
class JanusSettings(Checked):
    """Defaults are ours; headroom, load factor and sharing belong to the tuning sweep."""

    title = "janus"
    slo_s: Positive
    """λ on the pipeline's P95."""
    headroom: PositiveShare = 0.9
    """Part of the SLO that the predicted P95 may take; a P95 above it asks for more."""
    load_factor: Annotated[float, Field(gt=0, lt=1e3)] = 1.1
    """How many times the calls per second are planned for."""
    sharing: Share = 1.0
    """How much calls at once at a replica slow each other down: 1 share it evenly, 0 not at all."""
    waiting: Share = 0.1
    """Share of the calls under way that wait for a slot, above which queues count as growing."""
    slots_step: FromOne = 1
    """Slots of every layer that one step of the expert side adds (C of the paper's instances)."""
    down_windows: FromOne = 6
    """Calm windows in a row before less is considered."""
    activation_windows: FromOne = 60
    """Windows over which the experts' tokens are summed."""
    rebalance_s: Positive = 3600.0
    """After so long without an action replicas are shared out again among the same slots."""
    tail_windows: FromOne = 9
    """Windows whose tails are remembered; their median is planned with."""
    smoothing: PositiveShare = 0.2
    """Weight of the last window in what is remembered of calls' seconds; the rest is history."""
    load_smoothing: PositiveShare = 0.3
    """The same of calls per second."""
    scaling: Scaling = "stages"
    """``stages``: every segment and every layer's experts by themselves; ``modules``: all segments with the same
    number, and as many slots in all layers, as in the paper; ``model``: the whole model in full replicas."""
    min_replicas: int = 1
    max_replicas: int = 8
    kinds: frozenset[NodeKind] = MODULES


@dataclass(frozen=True)
class JanusMemory:
    """What is remembered from window to window."""

    tails: tuple[float, ...] = ()
    """P95 over the mean seconds of a pass, by window, oldest first."""
    alone_s: Mapping[str, float] = field(default_factory=dict)
    """Function → seconds of a call alone, in the windows in which it was called."""
    calls_per_s: Mapping[str, float] = field(default_factory=dict)
    activations: tuple[Mapping[str, float], ...] = ()
    """Function → tokens, by window, oldest first."""
    calm: int = 0
    shared_out_s: float | None = None
    """When replicas were last shared out again (Unix time)."""


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


class JanusPolicy:
    """Plans a pass as a whole; holds all where a number of it is not known."""

    name = "janus"

    def __init__(self, settings: JanusSettings, prices: PriceSheet | None = None) -> None:
        self.settings = settings
        self._prices = prices or load_prices()

    def propose(self, observation: Observation, now_s: float, memory: Memory) -> Proposal:
        before = memory if isinstance(memory, JanusMemory) else JanusMemory()
        rows, s = by_function(observation, MODULES), self.settings
        managed = [name for name, nodes in rows.items() if any(node.kind in s.kinds for node in nodes)]
        loads_or_none = {name: _seen(nodes, observation.window_s) for name, nodes in rows.items()}
        loads = {name: load for name, load in loads_or_none.items() if load is not None}
        if len(loads) < len(rows):
            missing = next(name for name in rows if name not in loads)
            reason = f"no data: the load of {missing} is not known, and a pass is planned as a whole"
            return Proposal({}, dict.fromkeys(managed, reason), before)
        model, after = self._measured(observation, rows, loads, before)
        after = replace(after, shared_out_s=now_s if before.shared_out_s is None else before.shared_out_s)
        plan = self._plan(model, rows, loads, after)
        budget_s, p95_s = s.headroom * s.slo_s, observation.latency_p95_s
        late = p95_s is not None and p95_s > budget_s
        queued = sum(load.waiting for load in loads.values()) > s.waiting * sum(
            load.under_way for load in loads.values()
        )
        if late or queued or plan.present.p95_s > budget_s:
            why = "P95 nears the SLO" if late else "calls wait" if queued else "P95 would near the SLO"
            action = plan.least(budget_s, up=True)
            return self._proposal(action, why, loads, managed, replace(after, calm=0, shared_out_s=now_s))
        after = replace(after, calm=before.calm + 1)
        if after.calm >= s.down_windows:
            action = plan.least(budget_s, up=False)
            if action.p95_s <= budget_s and action.cost < plan.present.cost:
                return self._proposal(action, "calm", loads, managed, replace(after, calm=0, shared_out_s=now_s))
        if after.shared_out_s is not None and now_s - after.shared_out_s >= s.rebalance_s:
            action = plan.shared_out()
            return self._proposal(action, "shared out again", loads, managed, replace(after, shared_out_s=now_s))
        return self._proposal(plan.present, "held", loads, managed, after)

    def _plan(
        self,
        model: PassModel,
        rows: Mapping[str, Sequence[NodeObservation]],
        loads: Mapping[str, Seen],
        memory: JanusMemory,
    ) -> Plan:
        layers, s = _owned(rows), self.settings
        owned = {name for layer in layers for name in layer}
        present = Present(
            layers,
            [name for name in rows if name not in owned],
            {name: max(1, load.configuration.replicas) for name, load in loads.items()},
            {name: self._prices.unit_per_s(load.configuration) for name, load in loads.items()},
            {name: sum(window.get(name, 0.0) for window in memory.activations) for name in loads},
        )
        bounds = Bounds(s.min_replicas, s.max_replicas, s.slots_step)
        tail = statistics.median(memory.tails) if memory.tails else FIRST_TAIL
        return Plan(model, tail, present, bounds, s.scaling, fixed="segment" not in s.kinds)

    def _measured(
        self,
        observation: Observation,
        rows: Mapping[str, Sequence[NodeObservation]],
        functions: Mapping[str, Seen],
        before: JanusMemory,
    ) -> tuple[PassModel, JanusMemory]:
        """The performance model of the planned load, and what is remembered of the window.

        Calls that wait are planned to be worked off within a window, and to reach all functions once they are.
        """
        s = self.settings
        alone, rates = dict(before.alone_s), dict[str, float]()
        for name, load in functions.items():
            rates[name] = blend(before.calls_per_s.get(name), load.calls_per_s, s.load_smoothing)
            if load.calls_per_s > 0:
                slots = load.configuration.concurrency
                fitted_s = alone_seconds(load.mean_s, load.calls_per_s, load.replicas, slots, s.sharing)
                alone[name] = blend(alone.get(name), fitted_s, s.smoothing)
        segments, layers = _stages(rows)

        def model(calls_per_s: Mapping[str, float]) -> PassModel:
            loads = {
                name: Load(alone.get(name, 0.0), calls_per_s[name], load.configuration.concurrency)
                for name, load in functions.items()
            }
            return PassModel(loads, segments, layers, s.sharing)

        last = model({name: load.calls_per_s for name, load in functions.items()})
        served = {name: load.replicas for name, load in functions.items()}
        mean_s, tails = last.attention_s(served) + last.experts_s(served), before.tails
        if observation.latency_p95_s is not None and 0 < mean_s < math.inf:
            tails = (*tails, observation.latency_p95_s / mean_s)[-s.tail_windows :]
        backlog = [
            load.waiting / (load.calls_per_s * observation.window_s)
            for load in functions.values()
            if load.calls_per_s > 0
        ]
        factor = s.load_factor * (1 + max(backlog, default=0.0))
        tokens = {name: load.tokens for name, load in functions.items()}
        activations = (*before.activations, tokens)[-s.activation_windows :]
        after = replace(before, tails=tails, alone_s=alone, calls_per_s=rates, activations=activations)
        return model({name: rate * factor for name, rate in rates.items()}), after

    def _proposal(
        self, action: Action, why: str, loads: Mapping[str, Seen], managed: Sequence[str], memory: JanusMemory
    ) -> Proposal:
        desired = {name: loads[name].configuration.with_replicas(action.replicas[name]) for name in managed}
        predicted = in_words(action.p95_s)
        described = f"{action.attention.described}, {action.experts.described}"
        reason = f"{why}: {described}, predicted P95 {predicted} of {1000 * self.settings.slo_s:.0f}"
        return Proposal(desired, dict.fromkeys(managed, reason), memory)


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


def make(making: Making) -> Policy:
    """``--policy janus``. Raises SettingsError without the target that it plans for."""
    if making.topology.generates:
        return make_for_decoder(making)
    if making.settings.slo_s is None:
        raise SettingsError("slo_s is None; the policy janus plans for an SLO (--slo-ms)")
    given = {"slo_s": making.settings.slo_s, "kinds": making.kinds & MODULES, **making.bounds}
    return JanusPolicy(making.settings_as(JanusSettings, **given), making.prices)
