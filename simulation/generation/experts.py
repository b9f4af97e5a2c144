"""Experts that all instances share: replicas that compute what has come meanwhile as one batch.

A worker's loop takes all calls that wait for it as its next product (``functions.serving.node_host``), so a replica
serves batch after batch, each in the seconds that the profile has for all its tokens. The ingress sends a call to the
replica with the fewest, and holds it back while every replica has as many as its concurrency. A CPU limit is a token
bucket (:class:`simulation.latency.contract.LimitedLatencyModel`): a replica that is never idle goes at its pace.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from autoscaler.contract import Configuration
from simulation.arrays import Floats, Ints
from simulation.latency.contract import LatencyModel, LimitedLatencyModel, NodeCost
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


class _Seconds(dict[int, float]):
    """Seconds of batches by their tokens, each worked out once."""

    def __init__(self, of: Callable[[int], Floats]) -> None:
        super().__init__()
        self._of = of

    def __missing__(self, tokens: int) -> float:
        self[tokens] = seconds = float(self._of(tokens))
        return seconds


@dataclass(frozen=True, eq=False)
class Size:
    """What replicas of some cores do."""

    idle_s: Mapping[int, float]
    """Tokens → mean seconds at a replica that was idle."""
    work_s: Mapping[int, float]
    """Tokens → seconds while the bucket holds."""
    use: float
    """Cores in use meanwhile."""
    burst_s: float
    """CPU seconds of a full bucket."""
    refill: float
    """CPU seconds it gets back in a second."""


def size_of(latency: LatencyModel, cost: NodeCost, cores: float) -> Size:
    """What a replica with ``cores`` can do."""
    idle_s = _Seconds(lambda tokens: latency.seconds(cost, tokens, cores, 0.0))
    if not isinstance(latency, LimitedLatencyModel):
        use = cores * float(latency.utilisation(cost, 1, cores, 0.0))
        return Size(idle_s, idle_s, use, 0.0, max(1.0, use))
    limit = latency.throttle(cost, cores, 0.0)
    work_s = _Seconds(lambda tokens: latency.work_seconds(cost, tokens))
    return Size(idle_s, work_s, float(latency.core_use(cost, 1, 1)), float(limit.burst_s), float(limit.refill))


@dataclass(eq=False)
class _Replica:
    waiting: list[Call] = field(default_factory=list)
    running: list[Call] = field(default_factory=list)
    level_s: float = math.inf
    """CPU seconds in its bucket after its latest batch; at first it is full."""
    ended_s: float = 0.0
    """When that ends."""

    @property
    def calls(self) -> int:
        return len(self.waiting) + len(self.running)

    def compute(self, size: Size, work_s: float, now_s: float) -> float:
        """Seconds of a batch of ``work_s`` that begins now."""
        level_s = min(size.burst_s, self.level_s + size.refill * (now_s - self.ended_s))
        drain = size.use - size.refill
        full_s = work_s if drain * work_s <= level_s else level_s / drain
        seconds = full_s + (work_s - full_s) * size.use / size.refill
        self.level_s, self.ended_s = min(size.burst_s, level_s - drain * full_s), now_s + seconds
        return seconds


class Expert:
    """The replicas of one expert."""

    def __init__(
        self,
        size: Callable[[float], Size],
        has: Configuration,
        computed: Callable[[float, float], None],
    ) -> None:
        """``size``: of so many cores; ``has``: replicas, all ready, and what each has; ``computed`` hears the seconds
        and the CPU seconds of every batch."""
        self._size_of, self._computed = size, computed
        self._replicas = [_Replica() for _ in range(has.replicas)]
        self._held: deque[Call] = deque()
        self.size(has)

    def size(self, has: Configuration) -> None:
        """Give every replica the cores and the concurrency of ``has``, from its next batch on."""
        self._concurrency, self._size = has.concurrency, self._size_of(has.cpu_cores)

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
        work_s = self._size.work_s[sum(call.tokens for call in replica.running)]
        seconds = replica.compute(self._size, work_s, now_s)
        self._computed(seconds, work_s * self._size.use)
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
