"""Text generation on instances that come and go, with experts that all of them share, event by event.

An instance is one replica of every segment, and has a machine to itself; without one of its replicas it ends, and its
texts are computed again by others. An iteration takes what :class:`simulation.generation.measured.Measured` has for it
on an idle pipeline. Of that the experts' part is taken out (in every layer the slowest of those that get tokens, by the
profile of single nodes, as deployed at the begin) and simulated call by call, so that instances wait for each other
there, and more replicas help. The rest is shared out evenly over the segments.

A CPU limit of experts throttles them, as it does in the pass simulation; the iterations' own seconds are to come from
experts with a whole core. Left out: prefixes in common, readers that are slow, standbys, other sizes of segments.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial

import numpy as np

from autoscaler.contract import Configuration, NodeInfo
from simulation.arrays import Floats, Tokens
from simulation.engine.errors import SimulationError
from simulation.generation.batching import PAGE_TOKENS, Batch, Iteration, Text
from simulation.generation.engine import Outcome, Request
from simulation.generation.experts import Call, Expert, drawn_tokens, size_of
from simulation.generation.hardware import Times
from simulation.generation.meters import Meters, Texts, TextsWindow
from simulation.workloads.workload import Workload


@dataclass(frozen=True, eq=False)
class TextRequests:
    """``arrival_s [N]`` seconds, never falling; ``tokens [N]``: prompt and answer together."""

    arrival_s: Floats
    tokens: Tokens


class _Metered:
    """Every node's CPU seconds are counted."""

    def used(self, node: int) -> float:
        return 1.0

    def limited(self, node: int) -> bool:
        return True


@dataclass(eq=False)
class _Function:
    """Who is there of one function."""

    configuration: Configuration
    cold_s: float
    cores_used: float
    """While it computes."""
    ready: int
    starting: list[int] = field(default_factory=list)
    """Numbers of those that are not ready yet, in order."""


@dataclass(eq=False)
class _Pass:
    """One iteration on its way through the segments and layers."""

    simulation: DecoderSimulation
    batch: Batch
    iteration: Iteration
    tokens: int
    segment_s: float
    counts: list[list[int]]
    """[layers][experts] tokens."""
    layer: int = 0
    open: int = 0
    """Calls of this layer without a reply."""
    scattered_s: float = 0.0
    over: bool = False
    """Whether its instance has ended."""

    def replied(self, call: Call, now_s: float) -> None:
        self.simulation.replied(self, call, now_s)


class DecoderSimulation:
    """One run; ``configurations``: function → what it is deployed with, ready at the begin; ``requests`` in order of
    arrival. ``seed`` draws which experts tokens choose. Raises SimulationError."""

    def __init__(
        self,
        workload: Workload,
        times: Times,
        requests: Sequence[Request],
        configurations: Mapping[str, Configuration],
        *,
        seed: int = 0,
    ) -> None:
        self.workload, self.now_s, self.fleet = workload, 0.0, _Metered()
        self.nodes: tuple[NodeInfo, ...] = (*workload.segments, *workload.experts)
        self.index = {node.function: place for place, node in enumerate(self.nodes)}
        arrival_s = np.array([one.arrival_s for one in requests], dtype=np.float64)
        lengths = np.array([one.prompt + one.output for one in requests], dtype=np.int64)
        self.requests = TextRequests(arrival_s, np.minimum(lengths, np.iinfo(np.uint16).max).astype(np.uint16))
        self.texts = [Text(n, one.arrival_s, one.prompt, one.output) for n, one in enumerate(requests)]
        self.lost: list[int] = []
        """Requests that no instance has room for."""
        self.waiting: deque[Text] = deque()
        self._times, self._random = times, np.random.default_rng(seed)
        self._segments = len(workload.segments)
        self._size_of = cache(partial(size_of, workload.latency))
        self._functions = [self._function(node, configurations[node.function]) for node in self.nodes]
        self._meters = Meters(len(self.nodes), workload.topology.layers)
        self._experts = {place: self._expert(place) for place in range(self._segments, len(self.nodes))}
        self._alone = {
            place: self._size_of(workload.costs[node.id], configurations[node.function].cpu_cores).idle_s
            for place, node in enumerate(workload.experts, self._segments)
        }
        """What calls take that no other disturbs, as the profile was measured."""
        self._layers = self._laid_out()
        shared = workload.shared
        self._certain = [range(len(places) - shared, len(places)) for places in self._layers] if shared else []
        self._passes: dict[Batch, _Pass | None] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._until_s = 0.0
        self._reform()
        for text in self.texts:
            self._at(text.arrival_s, lambda text=text: self._arrived(text))  # type: ignore[misc]

    def configuration(self, function: str) -> Configuration:
        """What ``function`` was last ordered to be."""
        return self._functions[self.index[function]].configuration

    def order(self, function: str, target: Configuration) -> None:
        """Give ``function`` another configuration, from now on. Raises SimulationError for standbys and GPU shares."""
        place = self.index[function]
        one = self._functions[place]
        if target.burst is not None or target.gpu_share:
            raise SimulationError(f"{function}: neither standbys nor GPU shares of a decoder are simulated")
        one.configuration = target
        if place in self._experts:
            self._experts[place].size(target)
        for _ in range(target.replicas - one.ready - len(one.starting)):
            self._number += 1
            one.starting.append(self._number)
            self._at(self.now_s + one.cold_s, lambda number=self._number: self._started(place, number))  # type: ignore[misc]
        while one.ready + len(one.starting) > target.replicas:
            if one.starting:
                one.starting.pop()
                continue
            self._change_ready(place, -1)
            if place in self._experts:
                self._experts[place].less()
        self._reform()

    def advance(self, until_s: float) -> TextsWindow:
        """Everything before ``until_s``."""
        start_s, self._until_s, meters = self.now_s, until_s, self._meters
        for place, one in enumerate(self._functions):
            meters.ready_s[place] += one.ready * (until_s - start_s)
        while self._events and self._events[0][0] < until_s:
            self.now_s, _, happens = heapq.heappop(self._events)
            happens()
        self.now_s = until_s
        ready = [one.ready for one in self._functions]
        window = meters.window(start_s, until_s, ready, [len(one.starting) for one in self._functions], self._here())
        meters.reset()
        return window

    def outcome(self) -> Outcome:
        """TTFT and TPOT of every request, as its client sees them."""
        front_s = self._times.front_s
        ttft = [None if one.first_s is None else one.first_s - one.arrival_s + front_s for one in self.texts]
        return Outcome(ttft, [_tpot_s(one) for one in self.texts])

    def _here(self) -> Texts:
        used, room = sum(one.used_pages for one in self._passes), sum(one.pages for one in self._passes)
        running = sum(len(one.texts) for one in self._passes)
        return Texts(running, len(self.waiting), used / room if room else 0.0, len(self._passes))

    def _function(self, node: NodeInfo, configuration: Configuration) -> _Function:
        cost = self.workload.costs[node.id]
        used = self._size_of(cost, configuration.cpu_cores).use
        cold_s = self.workload.lifecycle.cold_s(cost.weights_bytes, gpu=False)
        return _Function(configuration, cold_s, used, configuration.replicas)

    def _expert(self, place: int) -> Expert:
        size = partial(self._size_of, self.workload.costs[self.nodes[place].id])
        return Expert(size, self._functions[place].configuration, partial(self._meters.busy, place))

    def _laid_out(self) -> list[list[int]]:
        """[layers][experts] places of nodes."""
        layers = range(self.workload.topology.layers)
        return [[self.index[node.function] for node in self.workload.topology.experts(layer)] for layer in layers]

    def _at(self, time_s: float, happens: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (time_s, self._number, happens))

    def _started(self, place: int, number: int) -> None:
        one = self._functions[place]
        if number not in one.starting:
            return  # no longer wanted
        one.starting.remove(number)
        self._change_ready(place, 1)
        if place in self._experts:
            self._experts[place].more(self.now_s, self._at)
        else:
            self._reform()

    def _change_ready(self, place: int, by: int) -> None:
        one = self._functions[place]
        self._meters.ready_s[place] += by * (self._until_s - self.now_s)
        one.ready += by

    def _reform(self) -> None:
        """As many instances as every segment has replicas for; of those beyond it the newest end."""
        whole = min(one.ready for one in self._functions[: self._segments])
        while len(self._passes) > whole:
            batch, running = self._passes.popitem()
            if running is not None:
                running.over = True
            self.waiting.extendleft(text.again() for text in reversed(batch.texts))
        while len(self._passes) < whole:
            self._passes[Batch(self._times.kv_tokens, self._times.chunk_tokens)] = None
        self._place()

    def _arrived(self, text: Text) -> None:
        self._meters.arrived += 1
        if text.prompt + text.output > self._times.kv_tokens // PAGE_TOKENS * PAGE_TOKENS:
            self.lost.append(text.name)
            return
        self.waiting.append(text)
        self._place()

    def _place(self) -> None:
        """Texts that wait, in order, to the instance with the fewest pages taken, while the first one fits there."""
        while self.waiting and self._passes:
            batch = min(self._passes, key=lambda one: one.used_pages)
            if not batch.fits(self.waiting[0]):
                break
            batch.texts.append(self.waiting.popleft())
        for batch, running in self._passes.items():
            if running is None and batch.texts:
                self._begin(batch)

    def _begin(self, batch: Batch) -> None:
        """The next iteration."""
        gone = batch.preempted()
        self._meters.preemptions += len(gone)
        self.waiting.extendleft(gone)
        iteration = batch.iteration()
        if not iteration:
            self._passes[batch] = None
            return
        decodes = [text for text, _ in iteration if text.tokens - text.kept == 1]
        parts = [(text.kept, count) for text, count in iteration if text.tokens - text.kept > 1]
        whole_s = self._times.iteration(len(decodes), sum(text.tokens for text in decodes), parts)
        tokens = sum(count for _, count in iteration)
        routing, top_k = self.workload.routing, self.workload.top_k
        counts = drawn_tokens(routing, top_k, tokens, self.now_s, self._random, self._certain).tolist()
        segment_s = max(0.0, whole_s - self._alone_s(counts)) / self._segments
        running = _Pass(self, batch, iteration, tokens, segment_s, counts)
        self._passes[batch] = running
        self._segment(running)

    def _alone_s(self, counts: list[list[int]]) -> float:
        """The layers of one pass on an idle pipeline."""
        alone = self._alone
        return sum(
            max((alone[place][count] for place, count in zip(places, row, strict=False) if count), default=0.0)
            for places, row in zip(self._layers, counts, strict=True)
        )

    def _segment(self, running: _Pass) -> None:
        """Segment ``layer`` computes; then its layer's experts, after the last one the pass is through."""
        place, seconds = running.layer, running.segment_s
        self._meters.asked(place, running.tokens)
        self._at(self.now_s + seconds, lambda: self._segment_done(running, place))

    def _segment_done(self, running: _Pass, place: int) -> None:
        seconds = running.segment_s
        self._meters.replied(place, running.tokens, seconds, 0.0)
        self._meters.busy(place, seconds, seconds * self._functions[place].cores_used)
        if running.over:
            return
        if place == self._segments - 1:
            self._through(running)
            return
        running.scattered_s = self.now_s
        calls = [
            Call(running, expert, count, self.now_s)
            for expert, count in zip(self._layers[place], running.counts[place], strict=False)
            if count
        ]
        running.open = len(calls)
        for call in calls:
            self._meters.asked(call.place, call.tokens)
            self._experts[call.place].call(call, self.now_s, self._at)

    def replied(self, running: _Pass, call: Call, now_s: float) -> None:
        """An expert's reply; the last one of the layer lets the pass go on."""
        self._meters.replied(call.place, call.tokens, now_s - call.sent_s, call.sent_s - call.asked_s)
        running.open -= 1
        if running.open or running.over:
            return
        self._meters.gathered(running.layer, now_s - running.scattered_s)
        running.layer += 1
        self._segment(running)

    def _through(self, running: _Pass) -> None:
        batch, meters = running.batch, self._meters
        for text, count in running.iteration:
            text.kept += count
            if text.kept < text.tokens:
                continue
            if text.last_s is None:
                text.first_s = self.now_s
                meters.ttft_s.append(self.now_s - text.arrival_s)
                meters.prompt_tokens += text.prompt
            else:
                meters.tpot_s.append(self.now_s - text.last_s)
            text.last_s = self.now_s
            text.written += 1
            if text.written == text.output:
                batch.texts.remove(text)
                meters.finished.append(text.name)
                meters.latency_s.append(self.now_s - text.arrival_s)
        self._passes[batch] = None
        self._place()  # which begins this instance's next iteration, too


def _tpot_s(text: Text) -> float | None:
    """Mean, once it has ended; 0 for an answer of one token."""
    if text.written < text.output or text.first_s is None or text.last_s is None:
        return None
    return (text.last_s - text.first_s) / (text.output - 1) if text.output > 1 else 0.0
