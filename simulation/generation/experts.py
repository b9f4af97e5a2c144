"""Experts that all instances share: replicas that compute what has come meanwhile as one batch.

A worker's loop takes all calls that wait for it as its next product (``functions.serving.node_host``), so a replica
serves batch after batch, each in the seconds that the profile has for all its tokens. The ingress sends a call to the
replica with the fewest, and holds it back while every replica has as many as its concurrency.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from autoscaler.contract import Configuration
from simulation.arrays import Floats, Ints
from simulation.latency.contract import LatencyModel, NodeCost
from simulation.workloads.routing import RoutingStatistics

At = Callable[[float, Callable[[], None]], None]
"""Has something done at a time."""


class Caller(Protocol):
    """Who waits for a call's reply."""

    def replied(self, call: Call, now_s: float) -> None: ...


@dataclass(eq=False)
class Call:
    """Tokens of one iteration for one expert. Seconds of the simulation's clock."""

    caller: Caller
    place: int
    """Its node."""
    tokens: int
    asked_s: float
    sent_s: float = 0.0
    """When a replica had a slot for it."""


@dataclass(eq=False)
class _Replica:
    waiting: list[Call] = field(default_factory=list)
    running: list[Call] = field(default_factory=list)

    @property
    def calls(self) -> int:
        return len(self.waiting) + len(self.running)


class Expert:
    """The replicas of one expert."""

    def __init__(
        self,
        latency: LatencyModel,
        cost: NodeCost,
        has: Configuration,
        known: dict[tuple[NodeCost, float, int], float],
        computed: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        """``has``: replicas, all ready, and what each has; ``known``: seconds by cost, cores and tokens, which experts
        of one size share; ``computed`` hears the seconds of every batch."""
        self._latency, self._cost, self._known, self._computed = latency, cost, known, computed
        self._replicas = [_Replica() for _ in range(has.replicas)]
        self._held: deque[Call] = deque()
        self._cores, self._seconds = 0.0, dict[int, float]()
        self.size(has)

    def size(self, has: Configuration) -> None:
        """Give every replica the cores and the concurrency of ``has``, from its next batch on."""
        self._concurrency = has.concurrency
        if has.cpu_cores != self._cores:
            self._cores, self._seconds = has.cpu_cores, {}

    def seconds(self, tokens: int) -> float:
        """A batch of so many tokens."""
        if tokens not in self._seconds:
            key = (self._cost, self._cores, tokens)
            if key not in self._known:
                self._known[key] = float(self._latency.seconds(self._cost, tokens, self._cores, 0.0))
            self._seconds[tokens] = self._known[key]
        return self._seconds[tokens]

    def more(self, now_s: float, at: At) -> None:
        """One more replica is ready."""
        self._replicas.append(_Replica())
        self._send(now_s, at)

    def less(self) -> None:
        """The newest replica takes no more calls, and ends what it has."""
        self._replicas.pop()

    def call(self, call: Call, now_s: float, at: At) -> None:
        self._held.append(call)
        self._send(now_s, at)

    def _send(self, now_s: float, at: At) -> None:
        while self._held and self._replicas:
            replica = min(self._replicas, key=lambda one: one.calls)
            if replica.calls >= self._concurrency:
                return
            call = self._held.popleft()
            call.sent_s = now_s
            replica.waiting.append(call)
            if not replica.running:
                self._begin(replica, now_s, at)

    def _begin(self, replica: _Replica, now_s: float, at: At) -> None:
        replica.running, replica.waiting = replica.waiting, []
        seconds = self.seconds(sum(call.tokens for call in replica.running))
        self._computed(seconds)
        at(now_s + seconds, lambda: self._end(replica, now_s + seconds, at))

    def _end(self, replica: _Replica, now_s: float, at: At) -> None:
        ended, replica.running = replica.running, []
        if replica.waiting:
            self._begin(replica, now_s, at)
        self._send(now_s, at)
        for call in ended:
            call.caller.replied(call, now_s)


def drawn_tokens(
    routing: RoutingStatistics,
    top_k: int,
    tokens: int,
    now_s: float,
    random: np.random.Generator,
    certain: Sequence[Sequence[int]] = (),
) -> Ints:
    """[layers, experts] how many of ``tokens`` each expert gets: every token chooses ``top_k`` distinct experts of each
    layer by the popularity at ``now_s`` (the largest of log weight + Gumbel noise); those of a layer that are
    ``certain`` get all."""
    weights = _popularity(routing, now_s)
    for layer, experts in enumerate(certain):
        weights[layer, experts] = 0.0
    counts = np.where(weights > 0, tokens, 0)
    if top_k < weights.shape[1]:
        counts = _chosen_tokens(weights, top_k, tokens, random)
    for layer, experts in enumerate(certain):
        counts[layer, experts] = tokens
    return counts


def _chosen_tokens(weights: Floats, top_k: int, tokens: int, random: np.random.Generator) -> Ints:
    """[layers, experts] of ``weights [layers, experts]``."""
    with np.errstate(divide="ignore"):
        scores = np.log(weights)[:, None, :] + random.gumbel(size=(weights.shape[0], tokens, weights.shape[1]))
    chosen = np.argpartition(-scores, top_k - 1, axis=2)[:, :, :top_k]
    counts = np.zeros(weights.shape, dtype=np.int64)
    layers = np.broadcast_to(np.arange(weights.shape[0])[:, None, None], chosen.shape)
    np.add.at(counts, (layers, chosen), 1)
    return counts


def _popularity(routing: RoutingStatistics, now_s: float) -> Floats:
    """[layers, experts] at ``now_s``, on the line between two phases."""
    phases = routing.popularity.shape[0]
    phase = now_s / routing.phase_s
    low, part = int(phase) % phases, phase % 1
    return np.asarray((1 - part) * routing.popularity[low] + part * routing.popularity[(low + 1) % phases])
