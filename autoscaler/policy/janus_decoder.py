"""Janus's resource scaling (section 3.4) on a decoder: attention and experts apart, by the time per output token.

*Attention* instances are a decoder's instances, one replica of every segment each; *experts* are functions of their
own, so every layer's are planned by themselves. λ is the P95 of TPOT, which is the time of an iteration. When it nears
λ, texts wait, or the present scale is predicted to bear the planned load no more, the least-cost numbers of instances
and of experts' replicas that take nothing away and are predicted to meet λ are chosen; after enough calm windows the
least-cost ones that meet it with something to spare under the most that was asked for in those windows. Where nothing
is predicted to meet it: the cheapest of the nearly fastest.

The performance model is :mod:`autoscaler.policy.iterations`. The window's P95 over the seconds that the model gives for
its iterations is the tail that predictions are multiplied with, the median of some windows. Numbers (A, E) are judged
at the longest iteration that λ allows: more tokens come in a longer one, and if those of that one can be computed in
it, iterations settle below. So layers are independent of each other, and :mod:`autoscaler.policy.janus_search` shares
out replicas among them for every A.

What the paper leaves open, and is chosen here: docs/decisions/0028-janus-on-a-decoder.md.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, NamedTuple

from pydantic import Field

from autoscaler.checked import Checked, FromOne, Positive, PositiveShare, Share
from autoscaler.contract import Configuration, Memory, NodeKind, NodeObservation, Observation, Proposal
from autoscaler.errors import SettingsError
from autoscaler.policies import Making
from autoscaler.policy.iterations import Called, IterationModel, Line, alone_seconds
from autoscaler.policy.janus_search import FIRST_TAIL, NEARLY, Action, Bounds, Plan, Present, blend, in_words
from autoscaler.policy.rows import MODULES, by_function
from autoscaler.prices import PriceSheet, load_prices

LONGEST = 100.0
"""Iterations of so many times what λ allows count as ones that never end."""


@dataclass(frozen=True)
class JanusDecoderSettings(Checked):
    """Defaults are ours."""

    title = "janus, on a decoder"
    tpot_s: Positive
    """λ on the P95 from one token of a text to its next."""
    headroom: PositiveShare = 0.9
    """Part of λ that the predicted P95 may take; a P95 above it asks for more."""
    spare: PositiveShare = 0.9
    """Part of that which fewer replicas may take."""
    load_factor: Annotated[float, Field(gt=0, lt=1e3)] = 1.1
    """How many times the tokens per second, and the texts at hand, are planned for."""
    sharing: Share = 1.0
    """How much calls at once at an expert's replica slow each other down: 1 share it evenly, 0 not at all."""
    fixed: Share = 0.5
    """Part of a call's seconds that does not grow with its tokens, while calls of one size alone were seen."""
    waiting: Share = 0.1
    """Share of the texts at hand that wait, above which queues count as growing."""
    down_windows: FromOne = 6
    """Calm windows in a row before less is considered."""
    tail_windows: FromOne = 9
    """Windows whose tails are remembered; their median is planned with."""
    line_windows: FromOne = 60
    """Windows over which calls' seconds by their tokens are remembered, older ones with less weight."""
    load_smoothing: PositiveShare = 0.5
    """Weight of the last window in the load, the rest is history; more is planned for the last window's or this load,
    whichever is more, less for the most of the calm windows."""
    min_replicas: int = 1
    max_replicas: int = 8
    kinds: frozenset[NodeKind] = MODULES


class Load(NamedTuple):
    """What is asked of all instances together."""

    tokens_per_s: float
    batch: float
    """Tokens of an iteration with all texts at hand."""


@dataclass(frozen=True)
class JanusDecoderMemory:
    """What is remembered from window to window."""

    lines: Mapping[str, Line] = field(default_factory=dict)
    """Node → seconds of a call alone by its tokens."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Expert's node → part of the tokens that it gets, as last seen."""
    tails: tuple[float, ...] = ()
    """Oldest first."""
    load: Load | None = None
    """Smoothed."""
    loads: tuple[Load, ...] = ()
    """In the last windows, oldest first."""
    calm: int = 0


class Window(NamedTuple):
    """A window's numbers, all known."""

    rows: Mapping[str, Sequence[NodeObservation]]
    configurations: Mapping[str, Configuration]
    instances: int
    """That served."""
    iterations_per_s: float
    """Iterations of all instances together."""
    tokens_per_s: float
    texts: float
    waiting: float
    written_per_s: float
    tpot_p95_s: float | None


class JanusDecoderPolicy:
    """Plans iterations as a whole; holds all where a number of them is not known."""

    name = "janus"

    def __init__(self, settings: JanusDecoderSettings, prices: PriceSheet | None = None) -> None:
        self.settings = settings
        self._prices = prices or load_prices()

    def propose(self, observation: Observation, now_s: float, memory: Memory) -> Proposal:
        before = memory if isinstance(memory, JanusDecoderMemory) else JanusDecoderMemory()
        s = self.settings
        window = window_of(observation)
        if isinstance(window, str):
            rows = by_function(observation, s.kinds)
            return Proposal({}, dict.fromkeys(rows, f"no data: {window}"), before)
        after = self._remembered(window, before)
        budget_s, p95_s = s.headroom * s.tpot_s, window.tpot_p95_s
        search = self._search(window, after, [after.load or after.loads[-1], after.loads[-1]])
        late = p95_s is not None and p95_s > budget_s
        queued = window.waiting > s.waiting * window.texts
        if late or queued or search.settled_s(search.present) > budget_s:
            action = search.least(budget_s, up=True)
            if late or queued or action.cost > search.present.cost:
                why = "TPOT nears its target" if late else "texts wait" if queued else "TPOT would near its target"
                return self._proposal(action, why, search, replace(after, calm=0))
        after = replace(after, calm=before.calm + 1)
        if after.calm >= s.down_windows:
            search = self._search(window, after, after.loads)
            action = search.least(s.spare * budget_s, up=False)
            if action.cost < search.present.cost and search.bears(action, s.spare * budget_s):
                return self._proposal(action, "calm", search, replace(after, calm=0))
        return self._proposal(search.present, "held", search, after)

    def _remembered(self, window: Window, before: JanusDecoderMemory) -> JanusDecoderMemory:
        s = self.settings
        lines, parts = dict(before.lines), dict(before.parts)
        for nodes in window.rows.values():
            alone = self._alone(window, nodes)
            for node in nodes:
                if node.requests_per_s and node.latency_mean_s is not None and node.tokens_per_s:
                    tokens, line = node.tokens_per_s / node.requests_per_s, lines.get(node.node, Line())
                    lines[node.node] = line.with_window(tokens, alone * node.latency_mean_s, 1 - 1 / s.line_windows)
                if node.kind == "expert" and window.tokens_per_s > 0:
                    parts[node.node] = min(1.0, (node.tokens_per_s or 0.0) / window.tokens_per_s)
        each = window.tokens_per_s / window.written_per_s if window.written_per_s > 0 else 1.0
        load = Load(window.tokens_per_s, window.texts * max(1.0, each))
        after = replace(
            before,
            lines=lines,
            parts=parts,
            load=Load(*(blend(*pair, s.load_smoothing) for pair in zip(before.load or load, load, strict=True))),
            loads=(*before.loads, load)[-s.down_windows :],
        )
        tail = self._tail(window, after)
        return after if tail is None else replace(after, tails=(*after.tails, tail)[-s.tail_windows :])

    def _alone(self, window: Window, nodes: Sequence[NodeObservation]) -> float:
        """What the seconds of a function's calls would be without others at its replicas, over what they were."""
        calls_per_s = sum(node.requests_per_s or 0.0 for node in nodes)
        if nodes[0].kind == "segment" or calls_per_s <= 0:
            return 1.0
        mean_s = sum((node.latency_mean_s or 0.0) * (node.requests_per_s or 0.0) for node in nodes) / calls_per_s
        if mean_s <= 0:
            return 1.0
        present, callers = window.configurations[nodes[0].function], window.instances
        replicas = max(1, nodes[0].ready_replicas or present.replicas)
        cycle_s, sharing = callers / calls_per_s, self.settings.sharing
        return alone_seconds(mean_s, cycle_s, callers, replicas, present.concurrency, sharing) / mean_s

    def _tail(self, window: Window, memory: JanusDecoderMemory) -> float | None:
        """The window's P95 of TPOT over the model's seconds of its iterations; None where there were none."""
        if window.tpot_p95_s is None or not window.iterations_per_s:
            return None
        served = {name: max(1, nodes[0].ready_replicas or 1) for name, nodes in window.rows.items()}
        model = self._model(window, memory, Load(window.tokens_per_s, 0.0))
        last = model.iteration(window.instances, window.instances / window.iterations_per_s)
        modelled_s = last.attention_s(served) + last.experts_s(served)
        return window.tpot_p95_s / modelled_s if modelled_s > 0 else None

    def _model(self, window: Window, memory: JanusDecoderMemory, load: Load) -> IterationModel:
        segments: list[Called] = []
        layers: dict[int, list[Called]] = {}
        for function, nodes in window.rows.items():
            for node in nodes:
                line = memory.lines.get(node.node, Line())
                if node.kind == "segment":
                    segments.append(Called(function, line, 1.0))
                elif node.layer is not None:
                    layers.setdefault(node.layer, []).append(Called(function, line, memory.parts.get(node.node, 0.0)))
        slots = {name: one.concurrency for name, one in window.configurations.items()}
        ordered = [layers[layer] for layer in sorted(layers)]
        return IterationModel(segments, ordered, slots, *load, self.settings.sharing, self.settings.fixed)

    def _search(self, window: Window, memory: JanusDecoderMemory, loads: Sequence[Load]) -> _Search:
        """Actions under the most of these loads."""
        planned = Load(*(self.settings.load_factor * max(numbers) for numbers in zip(*loads, strict=True)))
        return _Search(self.settings, self._prices, window, self._model(window, memory, planned), memory.tails)

    def _proposal(self, action: Action, why: str, search: _Search, memory: JanusDecoderMemory) -> Proposal:
        s, replicas = self.settings, action.replicas
        managed = [name for name, nodes in search.window.rows.items() if nodes[0].kind in s.kinds]
        desired = {name: search.window.configurations[name].with_replicas(replicas[name]) for name in managed}
        predicted_s = search.settled_s(action)
        predicted = in_words(predicted_s)
        described = f"{search.instances_of(action)} instances, {action.experts.described}"
        reason = f"{why}: {described}, predicted TPOT P95 {predicted} of {1000 * s.tpot_s:.0f}"
        return Proposal(desired, dict.fromkeys(managed, reason), memory)


class _Search:
    """Actions under the planned load, by numbers of instances."""

    def __init__(
        self,
        settings: JanusDecoderSettings,
        prices: PriceSheet,
        window: Window,
        model: IterationModel,
        tails: Sequence[float],
    ) -> None:
        self.window = window
        self._settings, self._model = settings, model
        self._tail = statistics.median(tails) if tails else FIRST_TAIL
        rows = window.rows
        layers: dict[int, list[str]] = {}
        for name, nodes in rows.items():
            if nodes[0].kind == "expert":
                layers.setdefault(nodes[0].layer or 0, []).append(name)
        self._layers = [layers[layer] for layer in sorted(layers)]
        self._attention = [name for name, nodes in rows.items() if nodes[0].kind == "segment"]
        self._now = {name: max(1, one.replicas) for name, one in window.configurations.items()}
        self._price = {name: prices.unit_per_s(one) for name, one in window.configurations.items()}
        self._ordered = max((self._now[name] for name in self._attention), default=1)
        self.present = self._plan(self._ordered, settings.headroom * settings.tpot_s).present

    def instances_of(self, action: Action) -> int:
        return max((action.attention.replicas[name] for name in self._attention), default=1)

    def settled_s(self, action: Action) -> float:
        """Predicted P95 of TPOT: of iterations with as many tokens as come while they last."""
        most_s = LONGEST * self._settings.tpot_s
        return self._tail * self._model.seconds(self.instances_of(action), action.replicas, most_s)

    def bears(self, action: Action, budget_s: float) -> bool:
        """Whether an action meets the budget, or is nearly as fast as the present, which does not."""
        return action.p95_s <= budget_s or self.settled_s(action) <= NEARLY * self.settled_s(self.present)

    def least(self, budget_s: float, *, up: bool) -> Action:
        """The cheapest that meets the budget, of those that take nothing away (``up``) or else of all."""
        s = self._settings
        counts: Sequence[int] = [self._ordered]
        if "segment" in s.kinds:
            lowest = self._ordered if up else s.min_replicas
            counts = sorted({*range(lowest, s.max_replicas + 1), self._ordered})
        actions = [self._plan(count, budget_s).least(budget_s, up=up) for count in counts]
        meeting = [action for action in actions if action.p95_s <= budget_s]
        if meeting:
            return min(meeting, key=lambda action: (action.cost, action.p95_s))
        settled = [(self.settled_s(action), action) for action in actions]
        fastest_s = min(seconds for seconds, _ in settled)
        if math.isinf(fastest_s):
            return max(actions, key=lambda action: action.cost)
        return min((one for seconds, one in settled if seconds <= NEARLY * fastest_s), key=lambda one: one.cost)

    def _plan(self, instances: int, budget_s: float) -> Plan:
        """Experts' replicas for so many instances, judged at the longest iteration that the budget allows."""
        s = self._settings
        now = {**self._now, **dict.fromkeys(self._attention, instances)}
        present = Present(self._layers, self._attention, now, self._price, {})
        iteration = self._model.iteration(instances, budget_s / self._tail)
        return Plan(iteration, self._tail, present, Bounds(s.min_replicas, s.max_replicas, 1), "stages", fixed=True)


def window_of(observation: Observation) -> Window | str:
    """The window's numbers, or in words what of them is not known."""
    texts = observation.generation
    if texts is None or texts.running is None or texts.waiting is None or texts.written_tokens_per_s is None:
        return "the texts under way are not known"
    rows = by_function(observation, MODULES)
    configurations = {}
    for name, nodes in rows.items():
        present = nodes[0].configuration
        unknown = any(
            node.requests_per_s is None
            or node.tokens_per_s is None
            or (node.requests_per_s > 0 and node.latency_mean_s is None)
            for node in nodes
        )
        if present is None or unknown:
            return f"the load of {name} is not known, and an iteration is planned as a whole"
        configurations[name] = present
    segments = [node for nodes in rows.values() for node in nodes if node.kind == "segment"]
    ready = [node.ready_replicas for node in segments if node.ready_replicas is not None]
    if len(ready) < len(segments):
        return "the instances that serve are not known"
    return Window(
        rows,
        configurations,
        max(1, min(ready, default=1)),
        max((node.requests_per_s or 0.0 for node in segments), default=0.0),
        max((node.tokens_per_s or 0.0 for node in segments), default=0.0),
        texts.running + texts.waiting,
        texts.waiting,
        texts.written_tokens_per_s,
        texts.tpot_p95_s,
    )


def make(making: Making) -> JanusDecoderPolicy:
    """``--policy janus`` for a pipeline that generates text. Raises SettingsError without a target of TPOT."""
    if making.settings.tpot_s is None:
        raise SettingsError("tpot_s is None; on a decoder the policy janus plans for a target of TPOT (--tpot-ms)")
    given = {"tpot_s": making.settings.tpot_s, "kinds": making.kinds & MODULES, **making.bounds}
    return JanusDecoderPolicy(making.settings_as(JanusDecoderSettings, **given), making.prices)
