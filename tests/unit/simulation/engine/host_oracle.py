"""The shared machine once more, on the event-driven model of :mod:`tests.unit.simulation.engine.oracle`: slow, plain.

Whenever something changes, everything on the machine is brought up to date and the cores are dealt out anew.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import simpy

from autoscaler.contract import Configuration, NodeInfo
from simulation.engine.bursts import DEFAULT_BURSTS, BurstSettings
from simulation.engine.draws import PASS, SERVICE, draw, draw_bits, stream_key
from simulation.engine.fleet import MOST_CORES
from simulation.engine.requests import Requests
from simulation.engine.tables import atoms_of
from simulation.latency.contract import ALONE, Sharing, Throttle
from simulation.workloads.workload import Workload
from tests.unit.simulation.engine.oracle import Call, Node, PipelineModel, Replica


@dataclass
class Batch:
    """Calls that a replica computes as one."""

    calls: list[Call]
    left_s: float
    """Seconds it would still take with a core of its own."""


KEPT_S = 0.001
"""CPU seconds that a core keeps for a replica that sleeps."""


@dataclass
class Limiting:
    """What a CPU limit has done to one replica."""

    cores: float
    pool_s: float
    """CPU seconds of the period's quota that no core has taken."""
    held_s: list[float]
    """By core of the machine: CPU seconds that it holds for the replica; below 0 what it overran there."""
    granted_at_s: float
    tick_at_s: float
    """One of the kernel's ticks."""
    core: int = 0
    """On which it runs, or ran last."""
    stopped: bool = False
    was_stopped: bool = False
    """Since the batch before ended."""

    @property
    def budget_s(self) -> float:
        return self.held_s[self.core]

    def take(self) -> None:
        """A core that holds nothing takes what there is."""
        if self.budget_s <= 0:
            self.held_s[self.core] += self.pool_s
            self.pool_s = 0.0

    def fall_asleep(self, quota_s: float) -> None:
        more_s = max(0.0, self.budget_s - KEPT_S)
        self.held_s[self.core] -= more_s
        self.pool_s = min(quota_s, self.pool_s + more_s) if more_s else self.pool_s

    def grant(self, quota_s: float, period_s: float, now_s: float) -> None:
        """Period by period, what has ended by now."""
        while self.granted_at_s <= now_s:
            self.granted_at_s += period_s
            if self.stopped:
                self.held_s[self.core] += quota_s
            else:
                self.pool_s = quota_s


class HostNode(Node):
    """A node whose replicas share the machine: it keeps time, and begins and ends batches."""

    pipeline: HostModel

    def __init__(self, pipeline: HostModel, number: int, info: NodeInfo, configuration: Configuration) -> None:
        super().__init__(pipeline, number, info, configuration)
        self.batches: dict[Replica, Batch] = {}
        self.limits: dict[Replica, Limiting] = {}
        """By replica, once it has had a call while its cores were limited."""
        self.turns: dict[Replica, int] = {}
        """Which of the node's calls was a replica's latest."""
        self._periods: dict[float, tuple[float, float, float, float, float]] = {}

    def chosen(self, open_to: list[Replica], call: Call) -> Replica:
        """Fewest calls, and of equals the one that has rested longest, as the dispatcher does."""
        replica = min(open_to, key=lambda one: (len(one.calls), self.turns.get(one, 0)))
        self.turns[replica] = max(self.turns.values(), default=0) + 1
        return replica

    def catch_up(self, replica: Replica) -> None:
        self.pipeline.catch_up_all()

    def period(self, replica: Replica) -> tuple[float, float, float, float, float]:
        """Quota, period, tick and what a stop costs the call and the one after it; the quota is 0 where nothing is
        limited."""
        cores = self.pipeline.workload.cores(replica.configuration)
        if cores not in self._periods:
            limit = self.limit_of(replica)
            quota_s, refill = float(np.round(limit.quota_s, 12)), float(np.round(limit.refill, 12))
            quotas = (quota_s if refill < 1 else 0.0), quota_s / refill
            self._periods[cores] = (*quotas, limit.tick_s, limit.stop_s, float(limit.after_stop_s))
        return self._periods[cores]

    def limit_of(self, replica: Replica) -> Throttle:
        assert self.pipeline.limited is not None
        cost, cores = self.pipeline.workload.costs[self.info.id], self.pipeline.workload.cores(replica.configuration)
        return self.pipeline.limited.throttle(cost, cores, 0.0)

    def is_limited(self, replica: Replica) -> bool:
        return self.pipeline.limited is not None and self.period(replica)[0] > 0

    def schedule(self, replica: Replica) -> None:
        """Look at a replica that has got a call or other resources."""
        limit, cores = self.limits.get(replica), self.pipeline.workload.cores(replica.configuration)
        if limit is not None and limit.cores != cores:
            limit.cores, limit.pool_s, limit.held_s = cores, self.period(replica)[0], [0.0] * len(limit.held_s)
            if replica.calls and self.is_limited(replica):
                limit.grant(*self.period(replica)[:2], self.pipeline.clock.now + 1e-12)
                limit.take()
            if limit.stopped:
                self.go_on(replica)
        if replica.calls and self.is_limited(replica):
            self.limited(replica)
        if replica.calls and replica not in self.batches and not self.waits(replica):
            self.begin(replica, again=False)
        self.pipeline.plan()

    @property
    def sharing(self) -> Sharing:
        limited = self.pipeline.limited
        return ALONE if limited is None else limited.sharing(self.pipeline.workload.costs[self.info.id])

    def waits(self, replica: Replica) -> bool:
        """Whether its limit keeps an idle replica from beginning with a call."""
        if not self.is_limited(replica):
            if replica in self.limits:  # what stopped it last has no part in a call that wakes it now
                self.limits[replica].was_stopped = False
            return False
        limit = self.limited(replica)
        if not limit.stopped:  # a call wakes it, on any core
            key = stream_key(self.pipeline.seed, SERVICE, self.number)
            limit.core = (int(draw_bits(np.uint64(key), replica.calls[0].request)) >> 32) % len(limit.held_s)
            limit.take()
            limit.stopped = limit.was_stopped = limit.budget_s <= 0
        return limit.stopped

    def limited(self, replica: Replica) -> Limiting:
        """What its limit has done to a replica that has calls; its clocks begin with the first."""
        if replica not in self.limits:
            quota_s, period_s, tick_s, _, _ = self.period(replica)
            key = stream_key(self.pipeline.seed, SERVICE, self.number)
            bits = int(draw_bits(np.uint64(key), replica.calls[0].request))
            granted_at_s = self.pipeline.clock.now + period_s * (1 + bits % 65536) / 65536
            tick_at_s = max(tick_s, 1e-12) * (1 + bits // 65536 % 65536) / 65536
            cores = self.pipeline.workload.cores(replica.configuration)
            held_s = [0.0] * int(min(max(1, self.pipeline.host.cores), MOST_CORES))
            self.limits[replica] = Limiting(cores, quota_s, held_s, granted_at_s, tick_at_s)
        return self.limits[replica]

    def go_on(self, replica: Replica) -> None:
        """A stopped replica computes again."""
        self.limits[replica].stopped = False
        if replica not in self.batches:
            self.begin(replica, again=False)
        else:
            self.limits[replica].was_stopped = True
            factor = self.pipeline.factor(self.number, replica.calls[0].request, cold=False)
            self.batches[replica].left_s += self.period(replica)[3] * factor

    def is_stopped(self, replica: Replica) -> bool:
        return replica in self.limits and self.limits[replica].stopped

    def begin(self, replica: Replica, again: bool) -> None:
        """Compute all that the replica has; each call's own factor counts by its seconds alone."""

        cold = replica in self.limits and self.limits[replica].was_stopped and self.limit_of(replica).cold

        def seconds(tokens: int) -> float:
            configuration, cost = replica.configuration, self.pipeline.workload.costs[self.info.id]
            if not again or cold or self.pipeline.limited is None:
                return self.pipeline.seconds(self.info, configuration, tokens)
            return float(self.pipeline.limited.again_seconds(cost, tokens, configuration.gpu_share))

        calls = list(replica.calls)
        alone = np.array([seconds(call.tokens) for call in calls])
        factors = [call.left_s / self.pipeline.seconds(self.info, replica.configuration, call.tokens) for call in calls]
        whole_s = seconds(sum(call.tokens for call in calls)) + (len(calls) - 1) * self.sharing.further_s
        if replica in self.limits and self.limits[replica].was_stopped:
            self.limits[replica].was_stopped, whole_s = False, whole_s + self.period(replica)[4]
        self.batches[replica] = Batch(calls, whole_s * float(np.average(factors, weights=alone)))

    def end_batch(self, replica: Replica) -> None:
        for call in self.batches.pop(replica).calls:
            replica.calls.remove(call)
            call.done.succeed()
        if replica.calls:
            self.begin(replica, again=True)
        elif replica in self.limits and self.is_limited(replica):
            self.limits[replica].fall_asleep(self.period(replica)[0])
        self.dispatch()

    def next_grants_s(self, replica: Replica) -> float:
        """When a stopped replica goes on."""
        quota_s, period_s, _, _, _ = self.period(replica)
        at_s, budget_s = self.limits[replica].granted_at_s, self.limits[replica].budget_s + quota_s
        while budget_s <= 0:
            at_s, budget_s = at_s + period_s, budget_s + quota_s
        return at_s

    def stops_s(self, replica: Replica, given: float) -> float:
        """When a running replica is noticed to have used more than it may."""
        limit, (_, _, tick_s, _, _) = self.limits[replica], self.period(replica)
        at_s = self.pipeline.clock.now + max(0.0, limit.budget_s + limit.pool_s) / given
        return at_s if tick_s <= 0 else limit.tick_at_s + tick_s * (math.floor((at_s - limit.tick_at_s) / tick_s) + 1)

    def order(self, target: Configuration) -> None:
        self.pipeline.catch_up_all()
        super().order(target)
        self.pipeline.plan()

    def ready(self, replica: Replica) -> Generator[simpy.Event, Any, None]:
        """Its cold start is work, for which it wants a core; a standby has been started."""
        if replica.standby:
            yield from super().ready(replica)
            return
        self.pipeline.catch_up_all()
        self.pipeline.starting[replica] = replica.ready_s - self.pipeline.clock.now
        replica.ready_s = math.inf
        self.pipeline.plan()
        yield self.pipeline.clock.timeout(0.0)


class HostModel(PipelineModel):
    """All nodes, all requests, one machine."""

    def __init__(
        self,
        workload: Workload,
        requests: Requests,
        configurations: Mapping[str, Configuration],
        orders: Iterable[tuple[float, str, Configuration]] = (),
        seed: int = 0,
        bursts: BurstSettings = DEFAULT_BURSTS,
    ) -> None:
        super().__init__(workload, requests, configurations, orders, seed, bursts)
        assert workload.host is not None
        self.host = workload.host
        self.most_tokens *= max(one.concurrency for one in [*configurations.values(), *(order[2] for order in orders)])
        infos = (*workload.segments, *workload.experts)
        self.nodes = [HostNode(self, k, info, configurations[info.function]) for k, info in enumerate(infos)]
        self.lines = {name: deque[simpy.Event]() for name in ("ingress", "front")}
        self.lines_left = {name: deque[float]() for name in self.lines}
        """CPU seconds of each of a line."""
        self.given: dict[Replica | str, float] = {}
        self.starting: dict[Replica, float] = {}
        """Seconds left of cold starts, where there is room for them."""
        self.inside = 0
        """Requests that the ingress has."""
        self.last_answer_s = -math.inf
        self.cold = np.ones(requests.arrival_s.size)
        """By request: times its CPU seconds that it takes for coming after a pause."""
        self.until = 0.0
        self.version = 0

    def factor(self, node: int, request: int, cold: bool = True) -> float:
        atoms = atoms_of(self.host.noise)
        return (
            self.host.pace
            * (self.cold[request] if cold else 1.0)
            * float(atoms[int(draw(self.seed, PASS, 0, request) * len(atoms))])
        )

    def serve(self, request: int) -> Generator[simpy.Event, Any, None]:
        host, counts = self.host, self.requests.counts[:, request]
        yield self.clock.timeout(self.requests.arrival_s[request])
        self.activate(request)
        yield self.clock.timeout(self.workload.request_s)
        yield from self.front()
        self.catch_up_all()
        self.inside += 1
        if host.idle:
            self.cold[request] = np.interp(self.clock.now - self.last_answer_s, *zip(*host.idle, strict=True))
        yield self.ingress(request, host.start_s)
        segments, row = len(self.workload.segments), 1
        for layer in range(segments):
            yield self.clock.process(self.call(self.nodes[layer], request, int(counts[0])))
            if layer < self.workload.topology.layers:
                calls = []
                for _ in self.workload.topology.experts(layer):
                    if counts[row]:
                        node = self.nodes[segments + row - 1]
                        calls.append(self.clock.process(self.call(node, request, int(counts[row]))))
                    row += 1
                yield self.clock.all_of(calls)
        yield self.ingress(request, host.answer_s)
        self.catch_up_all()
        self.inside -= 1
        self.last_answer_s = self.clock.now
        self.plan()
        yield from self.front()
        self.answered_s[request] = self.clock.now

    def call(self, node: Node, request: int, tokens: int) -> Generator[simpy.Event, Any, None]:
        yield self.ingress(request, self.host.send_s + tokens * self.host.token_s)
        yield node.call(request, tokens)
        yield self.ingress(request, self.host.receive_s + tokens * self.host.token_s)

    def ingress(self, request: int, cpu_s: float) -> simpy.Event:
        """Something for the ingress to do; the event is its end."""
        return self.in_line("ingress", self.host.pace * self.cold[request] * cpu_s)

    def front(self) -> Generator[simpy.Event, Any, None]:
        """A request on its way there or back, where that is work."""
        if self.host.front_s:
            yield self.in_line("front", self.host.front_s / 2)

    def in_line(self, name: str, cpu_s: float) -> simpy.Event:
        self.catch_up_all()
        self.lines[name].append(self.clock.event())
        self.lines_left[name].append(cpu_s)
        self.plan()
        return self.lines[name][-1]

    @property
    def slow(self) -> float:
        """Times its CPU seconds that everything takes but the front and cold starts."""
        times = (1.0, *self.host.overlap)
        return times[self.inside - 1] if 1 <= self.inside <= len(times) else times[-1 if self.inside else 0]

    def running(self) -> list[tuple[HostNode, Replica]]:
        return [(node, replica) for node in self.nodes for replica in node.replicas if replica.calls]

    def catch_up_all(self) -> None:
        """Everything that was done since the last time."""
        spent_s, self.until = self.clock.now - self.until, self.clock.now
        for name, left in self.lines_left.items():
            if left:
                left[0] -= spent_s * self.given.get(name, 0.0) / (self.slow if name == "ingress" else 1.0)
        for replica in self.starting:
            self.starting[replica] -= spent_s * self.given.get(replica, 0.0) / self.host.start_cores
        for node in self.nodes:
            for replica in node.replicas:
                given = self.given.get(replica, 0.0) if replica.calls else 0.0
                if replica.calls and given:
                    node.batches[replica].left_s -= spent_s * self.speed(node, replica, given)
                if replica in node.limits and node.is_limited(replica):
                    limit, (quota_s, period_s, *_) = node.limits[replica], node.period(replica)
                    limit.held_s[limit.core] -= spent_s * given
                    runs = replica.calls and not limit.stopped
                    if runs:
                        limit.take()
                    limit.grant(quota_s, period_s, self.clock.now + 1e-12)
                    if runs:
                        limit.take()

    def speed(self, node: HostNode, replica: Replica, given: float) -> float:
        slow = self.slow * node.sharing.times(max(1, self.inside))
        return given / self.use(node.info, replica.configuration, len(replica.calls)) / slow

    def plan(self) -> None:
        """Deal out the cores, smallest wishes first, and wake up when the first thing ends."""
        desired: list[tuple[float, int, Replica | str]] = [
            (1.0, number, name) for number, name in enumerate(self.lines) if self.lines[name]
        ]
        for number, (node, replica) in enumerate(self.running(), len(self.lines)):
            if replica in node.batches and not node.is_stopped(replica):
                desired.append((self.use(node.info, replica.configuration, len(replica.calls)), number, replica))
        self.starting = {replica: left for replica, left in self.starting.items() if replica.until_s > self.clock.now}
        first = len(self.lines) + len(desired)
        desired += [(self.host.start_cores, first + number, replica) for number, replica in enumerate(self.starting)]
        self.given, cores = {}, self.host.cores
        for place, (cores_wanted, _, who) in enumerate(sorted(desired, key=lambda found: found[:2])):
            self.given[who] = min(cores_wanted, cores / (len(desired) - place))
            cores -= self.given[who]
        coming: list[tuple[float, Any]] = []
        for name, left in self.lines_left.items():
            if left:
                coming.append((left[0] * (self.slow if name == "ingress" else 1.0) / self.given[name], name))
        coming += [
            (left_s * self.host.start_cores / self.given[replica], replica) for replica, left_s in self.starting.items()
        ]
        for node, replica in self.running():
            if node.is_stopped(replica):
                coming.append((node.next_grants_s(replica) - self.clock.now, (node, replica, "goes on")))
                continue
            given = self.given[replica]
            left_s = node.batches[replica].left_s
            coming.append((left_s / self.speed(node, replica, given), (node, replica, "ends")))
            if node.is_limited(replica) and replica in node.limits:
                coming.append((node.limits[replica].granted_at_s - self.clock.now, (node, replica, "is granted")))
                coming.append((node.stops_s(replica, given) - self.clock.now, (node, replica, "stops")))
        self.version += 1
        if coming:
            after_s, what = min(coming, key=lambda found: found[0])
            self.clock.process(self.wake(max(0.0, after_s), what, self.version))

    def wake(self, after_s: float, what: Any, version: int) -> Generator[simpy.Event, Any, None]:
        yield self.clock.timeout(after_s)
        if version != self.version:
            return
        self.catch_up_all()
        if isinstance(what, str):
            self.lines_left[what].popleft()
            self.lines[what].popleft().succeed()
        elif isinstance(what, Replica):
            del self.starting[what]
            what.ready_s = self.clock.now
            next(node for node in self.nodes if what in node.replicas).dispatch()
        else:
            node, replica, event = what
            if event == "ends":
                node.end_batch(replica)
            elif event == "goes on":
                node.go_on(replica)
            elif event == "stops":
                node.limits[replica].stopped = True
        self.plan()
