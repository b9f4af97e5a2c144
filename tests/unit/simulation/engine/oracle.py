"""The simulator's rules once more, as an event-driven SimPy model that shares no code with it but its random draws.

Slow and plain on purpose: every replica keeps what is left of each call and moves all of them at every change. It is
what ``benchmarks.simulator`` and the tests compare the simulator with. Rules: ``docs/simulator.md``.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import simpy

from autoscaler.contract import Configuration, NodeInfo
from functions.dispatch.activation import Burst
from simulation.engine import kernel
from simulation.engine.bursts import DEFAULT_BURSTS, BurstSettings
from simulation.engine.requests import Requests
from simulation.engine.tables import atoms_of
from simulation.latency.contract import LimitedLatencyModel, Noise
from simulation.workloads.workload import Workload


class Limit(NamedTuple):
    """A replica's CPU limit: a bucket of CPU seconds."""

    burst_s: float
    refill: float


@dataclass(eq=False)
class Call:
    """One call on its way through one node."""

    request: int
    tokens: int
    done: simpy.Event
    left_s: float = 0.0
    """Seconds it would still take alone."""


@dataclass(eq=False)
class Replica:
    """``until_s``: from then on it takes no new calls."""

    configuration: Configuration
    generation: int
    ready_s: float
    until_s: float = math.inf
    calls: list[Call] = field(default_factory=list)
    seen_s: float = 0.0
    version: int = 0
    standby: bool = False
    level_s: float = math.inf
    """CPU seconds that its limit lets it do at full speed; what is more than its burst counts for nothing."""


class Node:
    """Queue and replicas of one segment or expert."""

    def __init__(self, pipeline: PipelineModel, number: int, info: NodeInfo, configuration: Configuration) -> None:
        self.pipeline = pipeline
        self.number = number
        self.info = info
        self.wanted = configuration
        self.limit = configuration.concurrency
        self.generation = 0
        self.effective = configuration
        """What replicas that are neither starting nor of an older generation have now."""
        self.activated: dict[int, Replica] = {}
        self.wanted_until_s: dict[int, float] = {}
        self.replicas = [Replica(configuration, 0, 0.0) for _ in range(configuration.running)]
        self.queue: deque[Call] = deque()
        self.started = 0
        self.pending = 0
        self.busy_s = 0.0
        """Call-seconds at replicas."""

    def call(self, request: int, tokens: int) -> simpy.Event:
        call = Call(request, tokens, self.pipeline.clock.event())
        self.queue.append(call)
        self.dispatch()
        return call.done

    def dispatch(self) -> None:
        """Put waiting calls into service, first come first served, where the fewest calls are."""
        now_s = self.pipeline.clock.now
        while self.queue:
            open_to = [
                replica
                for replica in self.replicas
                if replica.ready_s <= now_s < replica.until_s and len(replica.calls) < self.limit
            ]
            if not open_to:
                return
            call = self.queue.popleft()
            replica = self.chosen(open_to, call)
            alone_s = self.pipeline.seconds(self.info, replica.configuration, call.tokens)
            noise = self.pipeline.noise(self.info, replica.configuration)
            self.catch_up(replica)
            draw = kernel.draw(self.pipeline.seed, kernel.SERVICE, self.number, call.request)
            factor = self.pipeline.factor(self.number, call.request)
            call.left_s = alone_s * (noise[int(draw * len(noise))] * factor)
            replica.calls.append(call)
            self.schedule(replica)

    def chosen(self, open_to: list[Replica], call: Call) -> Replica:
        """Which of the replicas with a free slot gets the call."""
        return min(open_to, key=lambda candidate: len(candidate.calls))

    def catch_up(self, replica: Replica) -> None:
        """Work off what was done since the replica was last looked at; nothing but time has changed meanwhile."""
        now_s, calls = self.pipeline.clock.now, len(replica.calls)
        spent_s = max(0.0, now_s - replica.seen_s)
        if calls:
            done_s = spent_s * self.speed(replica)
            for call in replica.calls:
                call.left_s -= done_s
        self.busy_s += spent_s * calls
        limit = self.pipeline.limit(self.info, replica.configuration)
        level_s = min(replica.level_s, limit.burst_s) + (limit.refill - self.use(replica)) * spent_s
        replica.level_s = min(limit.burst_s, max(0.0, level_s))
        replica.seen_s = now_s

    def use(self, replica: Replica) -> float:
        """Cores it wants."""
        calls = len(replica.calls)
        return self.pipeline.use(self.info, replica.configuration, calls) if calls else 0.0

    def speed(self, replica: Replica) -> float:
        """Seconds of each call's work that are done in a second."""
        calls = len(replica.calls)
        speed = self.pipeline.speedup(self.info, replica.configuration, calls) / calls
        limit, use = self.pipeline.limit(self.info, replica.configuration), self.use(replica)
        return speed * limit.refill / use if replica.level_s <= 0 and use > limit.refill else speed

    def schedule(self, replica: Replica) -> None:
        """Wake up when the next call ends or the bucket is empty, unless something changes before."""
        replica.version += 1
        if not replica.calls:
            return
        ending = min(replica.calls, key=lambda call: call.left_s)
        end_s = max(0.0, ending.left_s / self.speed(replica))
        drain = self.use(replica) - self.pipeline.limit(self.info, replica.configuration).refill
        if drain > 0 and 0 < replica.level_s < drain * end_s:
            self.pipeline.clock.process(self.run_empty(replica, replica.level_s / drain, replica.version))
        else:
            self.pipeline.clock.process(self.end(replica, ending, end_s, replica.version))

    def run_empty(self, replica: Replica, after_s: float, version: int) -> Generator[simpy.Event, Any, None]:
        yield self.pipeline.clock.timeout(after_s)
        if version == replica.version:
            self.catch_up(replica)
            replica.level_s = 0.0
            self.schedule(replica)

    def end(self, replica: Replica, call: Call, after_s: float, version: int) -> Generator[simpy.Event, Any, None]:
        yield self.pipeline.clock.timeout(after_s)
        if version == replica.version:
            self.catch_up(replica)
            replica.calls.remove(call)
            self.schedule(replica)
            self.answered(replica, call)
            self.dispatch()

    def answered(self, replica: Replica, call: Call) -> None:
        """A call has ended on a replica."""
        call.done.succeed()

    def order(self, target: Configuration) -> None:
        """A new configuration, ordered now."""
        if target == self.wanted:
            return
        now_s, lifecycle = self.pipeline.clock.now, self.pipeline.workload.lifecycle
        self.pending += 1
        replaced = target.gpu_share != self.wanted.gpu_share
        self.wanted = target
        staying = [replica for replica in self.replicas if replica.until_s == math.inf and not replica.standby]
        victims = [r for r in reversed(staying) if r.ready_s > now_s] + [
            r for r in reversed(staying) if r.ready_s <= now_s
        ]
        surplus = max(0, len(staying) - target.running)
        for number in [number for number in self.activated if number >= target.standbys]:
            self.activated.pop(number).until_s = now_s
        for replica in victims[:surplus]:
            replica.until_s = now_s if replica.ready_s > now_s else now_s + lifecycle.drain_s
        if replaced:
            self.generation += 1
            self.effective = target
            for number in list(self.activated):
                self.activated.pop(number).until_s = now_s
            new = [self.new_replica() for _ in range(target.running)]
            for replica, moment_s in zip(victims[surplus:], sorted(r.ready_s for r in new), strict=False):
                replica.until_s = moment_s
        else:
            new = [self.new_replica() for _ in range(target.running - len(staying))]
        self.replicas += new
        for replica in new:
            self.pipeline.clock.process(self.ready(replica))
        self.pipeline.clock.process(self.change(target, self.generation, self.pending))

    def arrived(self, burst: Burst, wanted: int, activation_s: float) -> None:
        """A request has arrived at the pipeline, and ``wanted`` replicas in all are to be there."""
        now_s = self.pipeline.clock.now
        for number in range(min(self.wanted.standbys, max(wanted, self.wanted.replicas) - self.wanted.running)):
            if number not in self.activated:
                replica = Replica(self.effective, self.generation, now_s + activation_s, standby=True)
                self.activated[number] = replica
                self.replicas.append(replica)
                self.pipeline.clock.process(self.ready(replica))
            hold_s = burst.held_s(number + self.wanted.running, self.wanted.replicas)
            self.wanted_until_s[number] = now_s + hold_s
            self.pipeline.clock.process(self.release(number, hold_s))

    def release(self, number: int, hold_s: float) -> Generator[simpy.Event, Any, None]:
        yield self.pipeline.clock.timeout(hold_s)
        if number in self.activated and self.wanted_until_s[number] <= self.pipeline.clock.now:
            self.activated.pop(number).until_s = self.pipeline.clock.now

    def new_replica(self) -> Replica:
        lifecycle, weights = self.pipeline.workload.lifecycle, self.pipeline.workload.costs[self.info.id].weights_bytes
        draw = kernel.draw(self.pipeline.seed, kernel.COLD_START, self.number, self.started)
        self.started += 1
        cold_s = lifecycle.cold_start_gpu_s if self.wanted.gpu_share else lifecycle.cold_start_s
        cold_s = (cold_s + weights / lifecycle.load_bytes_per_s) * self.pipeline.cold_noise[
            int(draw * len(self.pipeline.cold_noise))
        ]
        return Replica(self.wanted, self.generation, self.pipeline.clock.now + cold_s)

    def ready(self, replica: Replica) -> Generator[simpy.Event, Any, None]:
        yield self.pipeline.clock.timeout(replica.ready_s - self.pipeline.clock.now)
        self.dispatch()

    def change(self, target: Configuration, generation: int, order: int) -> Generator[simpy.Event, Any, None]:
        """In place: concurrency of the node, resources of the replicas of this generation."""
        yield self.pipeline.clock.timeout(self.pipeline.workload.lifecycle.resize_s)
        now_s = self.pipeline.clock.now
        if order != self.pending:
            return
        self.limit = target.concurrency
        self.effective = target
        for replica in self.replicas:
            if replica.generation == generation and replica.configuration != target:
                self.catch_up(replica)
                old, replica.configuration = replica.configuration, target
                if replica.ready_s > now_s or self.pipeline.limit(self.info, old).refill >= 1:
                    replica.level_s = math.inf
                replica.level_s = min(replica.level_s, self.pipeline.limit(self.info, target).burst_s)
                for call in replica.calls:
                    before_s = self.pipeline.seconds(self.info, old, call.tokens)
                    call.left_s *= self.pipeline.seconds(self.info, target, call.tokens) / before_s
                self.schedule(replica)
        self.dispatch()


class PipelineModel:
    """All nodes, all requests. ``orders``: (time, function, configuration), times rising."""

    def __init__(
        self,
        workload: Workload,
        requests: Requests,
        configurations: Mapping[str, Configuration],
        orders: Iterable[tuple[float, str, Configuration]] = (),
        seed: int = 0,
        bursts: BurstSettings = DEFAULT_BURSTS,
    ) -> None:
        self.bursts = bursts
        self.clock = simpy.Environment()
        self.workload = workload
        model = workload.latency
        self.most_tokens = requests.most_tokens
        self.limited = model if isinstance(model, LimitedLatencyModel) else None  # asking takes long; events ask often
        self.requests = requests
        self.seed = seed
        self.cold_noise = atoms_of(workload.lifecycle.noise)
        self._seconds: dict[tuple[str, float, float], Any] = {}
        self._speedups: dict[tuple[str, float, float], Any] = {}
        self._uses: dict[tuple[str, float, int], float] = {}
        self._limits: dict[tuple[str, float, float], Limit] = {}
        self._noises: dict[bool, Any] = {}
        infos = (*workload.segments, *workload.experts)
        self.nodes = [Node(self, k, info, configurations[info.function]) for k, info in enumerate(infos)]
        self.answered_s = np.full(requests.arrival_s.size, np.nan)
        self.clock.process(self.give_orders(list(orders)))
        for request in range(requests.arrival_s.size):
            self.clock.process(self.serve(request))

    def run(self, until_s: float | None = None) -> None:
        """To the end of all requests, or to ``until_s``."""
        self.clock.run(until=until_s)

    def serve(self, request: int) -> Generator[simpy.Event, Any, None]:
        """One pass: segment, its layer's experts in parallel, next segment, …"""
        yield self.clock.timeout(self.requests.arrival_s[request])
        self.activate(request)
        yield self.clock.timeout(self.workload.request_s)
        segments, row = len(self.workload.segments), 1
        for layer in range(segments):
            yield self.nodes[layer].call(request, int(self.requests.counts[0, request]))
            if layer < self.workload.topology.layers:
                yield self.clock.timeout(self.workload.hop_s)
                calls = []
                for _ in self.workload.topology.experts(layer):
                    tokens = int(self.requests.counts[row, request])
                    if tokens:
                        calls.append(self.nodes[segments + row - 1].call(request, tokens))
                    row += 1
                yield self.clock.all_of(calls)
                yield self.clock.timeout(self.workload.hop_s)
        self.answered_s[request] = self.clock.now

    def activate(self, request: int) -> None:
        """How many replicas the arrivals ask for, counted again at every request, to each node with standbys."""
        arrival_s, tokens = self.requests.arrival_s, self.requests.tokens
        for node in self.nodes:
            burst = node.wanted.burst
            if burst is None:
                continue
            assert self.bursts.seconds_per_token is not None, "the oracle does not measure"
            lately = [k for k in range(request + 1) if arrival_s[k] > arrival_s[request] - burst.look_back_s]
            rate = sum(int(tokens[k]) for k in lately) / burst.look_back_s
            work = rate * self.bursts.seconds_per_token[node.info.function]
            wanted = math.ceil(burst.headroom * work + burst.spare * math.sqrt(work) - 1e-9)
            node.arrived(burst, wanted, self.bursts.activation_s)

    def give_orders(self, orders: list[tuple[float, str, Configuration]]) -> Generator[simpy.Event, Any, None]:
        by_function = {node.info.function: node for node in self.nodes}
        for moment_s, function, target in orders:
            yield self.clock.timeout(moment_s - self.clock.now)
            by_function[function].order(target)

    def factor(self, node: int, request: int) -> float:
        """How many times its seconds a request's call takes at a node."""
        return 1.0

    def seconds(self, info: NodeInfo, configuration: Configuration, tokens: int) -> float:
        """Seconds of a call alone, as long as no limit stops it."""
        key = (info.id, self.workload.cores(configuration), configuration.gpu_share)
        if key not in self._seconds:
            lengths, cost = np.arange(self.most_tokens + 1), self.workload.costs[info.id]
            if self.limited is not None:
                work_s = self.limited.work_seconds(cost, lengths, configuration.gpu_share)
            else:
                work_s = self.workload.latency.seconds(cost, lengths, *key[1:])
            self._seconds[key] = np.round(work_s, 12).tolist()
        return float(self._seconds[key][tokens])

    def speedup(self, info: NodeInfo, configuration: Configuration, calls: int) -> float:
        key = (info.id, self.workload.cores(configuration), configuration.gpu_share)
        if key not in self._speedups:
            cost, typical = self.workload.costs[info.id], self.workload.typical_tokens(info)
            of = self.workload.latency.speedup if self.limited is None else self.limited.core_speedup
            self._speedups[key] = np.round(of(cost, typical, *key[1:], np.arange(1, 65)), 12).tolist()
        return float(self._speedups[key][calls - 1])

    def use(self, info: NodeInfo, configuration: Configuration, calls: int) -> float:
        if self.limited is None:
            return 1.0
        key = (info.id, configuration.gpu_share, calls)
        if key not in self._uses:
            cost, typical = self.workload.costs[info.id], self.workload.typical_tokens(info)
            self._uses[key] = round(float(self.limited.core_use(cost, typical, calls, configuration.gpu_share)), 12)
        return self._uses[key]

    def limit(self, info: NodeInfo, configuration: Configuration) -> Limit:
        key = (info.id, self.workload.cores(configuration), configuration.gpu_share)
        if key not in self._limits:
            self._limits[key] = Limit(0.0, 1.0)
            if self.limited is not None:
                throttle = self.limited.throttle(self.workload.costs[info.id], *key[1:])
                self._limits[key] = Limit(round(float(throttle.burst_s), 12), round(float(throttle.refill), 12))
        return self._limits[key]

    def noise(self, info: NodeInfo, configuration: Configuration) -> Any:
        on_gpu = configuration.gpu_share > 0
        if on_gpu not in self._noises:
            model: Noise = self.workload.latency.noise(self.workload.costs[info.id], on_gpu)
            self._noises[on_gpu] = atoms_of(model)
        return self._noises[on_gpu]
