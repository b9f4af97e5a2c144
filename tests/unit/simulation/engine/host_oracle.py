"""The shared machine once more, on the event-driven model of :mod:`benchmarks.simulator.oracle`: slow and plain.

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
from benchmarks.simulator.oracle import Call, Node, PipelineModel, Replica
from simulation.engine.draws import PASS, draw
from simulation.engine.requests import Requests
from simulation.engine.tables import atoms_of
from simulation.workloads.workload import Workload


@dataclass
class Batch:
    """Calls that a replica computes as one."""

    calls: list[Call]
    left_s: float
    """Seconds it would still take with a core of its own."""


class HostNode(Node):
    """A node whose replicas share the machine: it keeps time, and ends batches."""

    pipeline: HostModel

    def __init__(self, pipeline: HostModel, number: int, info: NodeInfo, configuration: Configuration) -> None:
        super().__init__(pipeline, number, info, configuration)
        self.batches: dict[Replica, Batch] = {}

    def catch_up(self, replica: Replica) -> None:
        self.pipeline.catch_up_all()

    def schedule(self, replica: Replica) -> None:
        if replica.calls and replica not in self.batches:
            self.begin(replica, again=False)
        self.pipeline.plan()

    def begin(self, replica: Replica, again: bool) -> None:
        """Compute all that the replica has; each call's own factor counts by its seconds alone."""

        def seconds(tokens: int) -> float:
            configuration, cost = replica.configuration, self.pipeline.workload.costs[self.info.id]
            if not again or self.pipeline.limited is None:
                return self.pipeline.seconds(self.info, configuration, tokens)
            cores = self.pipeline.workload.cores(configuration)
            return float(self.pipeline.limited.again_seconds(cost, tokens, cores, configuration.gpu_share))

        calls = list(replica.calls)
        alone = np.array([seconds(call.tokens) for call in calls])
        factors = [call.left_s / self.pipeline.seconds(self.info, replica.configuration, call.tokens) for call in calls]
        whole_s = seconds(sum(call.tokens for call in calls))
        self.batches[replica] = Batch(calls, whole_s * float(np.average(factors, weights=alone)))

    def end_batch(self, replica: Replica) -> None:
        for call in self.batches.pop(replica).calls:
            replica.calls.remove(call)
            call.done.succeed()
        if replica.calls:
            self.begin(replica, again=True)
        self.dispatch()

    def order(self, target: Configuration) -> None:
        self.pipeline.catch_up_all()
        super().order(target)
        self.pipeline.plan()

    def ready(self, replica: Replica) -> Generator[simpy.Event, Any, None]:
        """Its cold start is work, for which it wants a core."""
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
    ) -> None:
        super().__init__(workload, requests, configurations, orders, seed)
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
        """CPU seconds left of cold starts."""
        self.inside = 0
        """Requests that the ingress has."""
        self.last_answer_s = -math.inf
        self.cold = np.ones(requests.arrival_s.size)
        """By request: times its CPU seconds that it takes for coming after a pause."""
        self.until = 0.0
        self.version = 0

    def factor(self, node: int, request: int) -> float:
        atoms = atoms_of(self.host.noise)
        return self.host.pace * self.cold[request] * float(atoms[int(draw(self.seed, PASS, 0, request) * len(atoms))])

    def serve(self, request: int) -> Generator[simpy.Event, Any, None]:
        host, counts = self.host, self.requests.counts[:, request]
        yield self.clock.timeout(self.requests.arrival_s[request] + self.workload.request_s)
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
            self.starting[replica] -= spent_s * self.given.get(replica, 0.0)
        for node in self.nodes:
            for replica in node.replicas:
                limit = self.limit(node.info, replica.configuration)
                given = self.given.get(replica, 0.0) if replica.calls else 0.0
                if replica.calls and given:
                    node.batches[replica].left_s -= spent_s * self.speed(node, replica, given)
                level_s = min(replica.level_s, limit.burst_s) + (limit.refill - given) * spent_s
                replica.level_s = min(limit.burst_s, max(0.0, level_s))

    def speed(self, node: Node, replica: Replica, given: float) -> float:
        return given / self.use(node.info, replica.configuration, len(replica.calls)) / self.slow

    def plan(self) -> None:
        """Deal out the cores, smallest wishes first, and wake up when the first thing ends."""
        desired: list[tuple[float, int, Replica | str]] = [
            (1.0, number, name) for number, name in enumerate(self.lines) if self.lines[name]
        ]
        for number, (node, replica) in enumerate(self.running(), len(self.lines)):
            cores_wanted = self.use(node.info, replica.configuration, len(replica.calls))
            if replica.level_s <= 0:
                cores_wanted = min(cores_wanted, self.limit(node.info, replica.configuration).refill)
            desired.append((cores_wanted, number, replica))
        self.starting = {replica: left for replica, left in self.starting.items() if replica.until_s > self.clock.now}
        first = len(self.lines) + len(desired)
        desired += [(1.0, first + number, replica) for number, replica in enumerate(self.starting)]
        self.given, cores = {}, self.host.cores
        for place, (cores_wanted, _, who) in enumerate(sorted(desired, key=lambda found: found[:2])):
            self.given[who] = min(cores_wanted, cores / (len(desired) - place))
            cores -= self.given[who]
        coming: list[tuple[float, Any]] = []
        for name, left in self.lines_left.items():
            if left:
                coming.append((left[0] * (self.slow if name == "ingress" else 1.0) / self.given[name], name))
        coming += [(left_s / self.given[replica], replica) for replica, left_s in self.starting.items()]
        for node, replica in self.running():
            given = self.given[replica]
            left_s = node.batches[replica].left_s
            coming.append((left_s / self.speed(node, replica, given), (node, replica, False)))
            drain = given - self.limit(node.info, replica.configuration).refill
            if drain > 1e-12 and replica.level_s > 0:
                coming.append((replica.level_s / drain, (node, replica, True)))
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
        elif what[2]:
            what[1].level_s = 0.0
        else:
            node, replica, _ = what
            node.end_batch(replica)
        self.plan()
