"""The rules of a decoder whose instances and experts come and go, once more, as SimPy processes.

Every token goes to every expert of a layer, so that nothing is drawn. Events at one time happen in no stated order, so
times are to be such that none coincide.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import simpy

from autoscaler.contract import Configuration
from simulation.generation.engine import Request
from simulation.generation.hardware import Times
from simulation.workloads.workload import Workload

PAGE, MOST = 16, 128
Process = Generator[simpy.Event, Any, None]


@dataclass(eq=False)
class Text:
    request: Request
    written_s: list[float] = field(default_factory=list)
    kept: int = 0

    @property
    def length(self) -> int:
        return self.request.prompt + len(self.written_s)

    @property
    def pages(self) -> int:
        return (self.length + PAGE - 1) // PAGE


@dataclass(eq=False)
class Instance:
    wake: simpy.Event
    texts: list[Text] = field(default_factory=list)
    alive: bool = True

    @property
    def pages(self) -> int:
        return sum(text.pages for text in self.texts)


@dataclass(eq=False)
class Replica:
    store: simpy.Store
    in_it: int = 0


class DecoderModel:
    def __init__(
        self, workload: Workload, times: Times, requests: Sequence[Request], start: Mapping[str, Configuration]
    ) -> None:
        self.workload, self.times, self.env = workload, times, simpy.Environment()
        self.texts = [Text(request) for request in requests]
        self.queue: list[Text] = []
        self.instances: list[Instance] = []
        self.preempted = 0
        self.has = {node.function: start[node.function] for node in (*workload.segments, *workload.experts)}
        self.first = dict(self.has)
        self.ready = dict.fromkeys(self.has, 0)
        self.coming: dict[str, list[simpy.Process]] = {name: [] for name in self.has}
        self.replicas: dict[str, list[Replica]] = {node.function: [] for node in workload.experts}
        self.held: dict[str, list[tuple[int, simpy.Event]]] = {name: [] for name in self.replicas}
        for name, one in self.has.items():
            for _ in range(one.replicas):
                self.add(name)
        self.env.process(self.arrivals())

    def order(self, name: str, target: Configuration) -> None:
        node = next(one for one in self.workload.topology.nodes if one.function == name)
        cold_s = self.workload.lifecycle.cold_s(self.workload.costs[node.id].weights_bytes, False)
        self.has[name] = target
        while self.ready[name] + len(self.coming[name]) < target.replicas:
            self.coming[name].append(self.env.process(self.start(name, cold_s)))
        while self.ready[name] + len(self.coming[name]) > target.replicas:
            if self.coming[name]:
                self.coming[name].pop().interrupt()
            elif name in self.replicas:
                self.ready[name] -= 1
                self.replicas[name].pop()
            else:
                self.ready[name] -= 1
                self.form()

    def start(self, name: str, cold_s: float) -> Process:
        try:
            yield self.env.timeout(cold_s)
        except simpy.Interrupt:
            return
        self.coming[name].pop(0)
        self.add(name)

    def add(self, name: str) -> None:
        self.ready[name] += 1
        if name not in self.replicas:
            self.form()
            return
        replica = Replica(simpy.Store(self.env))
        self.replicas[name].append(replica)
        self.env.process(self.serve(name, replica))
        self.let_in(name)

    def form(self) -> None:
        whole = min(self.ready[node.function] for node in self.workload.segments)
        while len(self.instances) > whole:
            gone = self.instances.pop()
            gone.alive = False
            for text in gone.texts:
                text.kept = 0
            self.queue[:0] = gone.texts
        while len(self.instances) < whole:
            instance = Instance(self.env.event())
            self.instances.append(instance)
            self.env.process(self.run(instance))
        self.place()

    def arrivals(self) -> Process:
        for text in self.texts:
            yield self.env.timeout(text.request.arrival_s - self.env.now)
            self.queue.append(text)
            self.place()

    def place(self) -> None:
        while self.queue and self.instances:
            instance = min(self.instances, key=lambda one: one.pages)
            room = instance.pages + self.queue[0].pages <= self.times.kv_tokens // PAGE
            if not room or len(instance.texts) == MOST:
                return
            instance.texts.append(self.queue.pop(0))
            if not instance.wake.triggered:
                instance.wake.succeed()

    def run(self, instance: Instance) -> Process:
        while instance.alive:
            self.place()
            while instance.pages > self.times.kv_tokens // PAGE and len(instance.texts) > 1:
                latest = max(instance.texts, key=lambda text: text.request.arrival_s)
                instance.texts.remove(latest)
                latest.kept = 0
                self.queue.insert(0, latest)
                self.preempted += 1
            parts = self.parts(instance)
            if not parts:
                instance.wake = self.env.event()
                yield instance.wake
                continue
            yield from self.iterate(instance, parts)

    def parts(self, instance: Instance) -> list[tuple[Text, int]]:
        one = [(text, 1) for text in instance.texts if text.length - text.kept == 1]
        left = self.times.chunk_tokens - len(one)
        for text in instance.texts:
            rest = text.length - text.kept
            if rest > 1 and left > 0:
                one.append((text, min(rest, left)))
                left -= rest
        return one

    def iterate(self, instance: Instance, parts: list[tuple[Text, int]]) -> Process:
        single = [text for text, _ in parts if text.length - text.kept == 1]
        prompts = [(text.kept, count) for text, count in parts if text not in single]
        whole_s = self.times.iteration(len(single), sum(text.length for text in single), prompts)
        tokens = sum(count for _, count in parts)
        layers = range(self.workload.topology.layers)
        rows = [[node.function for node in self.workload.topology.experts(layer)] for layer in layers]
        alone_s = sum(max(self.seconds(name, self.first[name], tokens) for name in row) for row in rows)
        segment_s = max(0.0, whole_s - alone_s) / (len(rows) + 1)
        for row in rows:
            yield self.env.timeout(segment_s)
            if not instance.alive:
                return
            replies = [self.env.event() for _ in row]
            for name, reply in zip(row, replies, strict=True):
                self.held[name].append((tokens, reply))
                self.let_in(name)
            yield self.env.all_of(replies)
            if not instance.alive:
                return
        yield self.env.timeout(segment_s)
        if instance.alive:
            self.take(instance, parts)

    def take(self, instance: Instance, parts: list[tuple[Text, int]]) -> None:
        for text, count in parts:
            text.kept += count
            if text.kept == text.length:
                text.written_s.append(self.env.now)
                if len(text.written_s) == text.request.output:
                    instance.texts.remove(text)

    def let_in(self, name: str) -> None:
        while self.held[name] and self.replicas[name]:
            replica = min(self.replicas[name], key=lambda one: one.in_it)
            if replica.in_it >= self.has[name].concurrency:
                return
            replica.in_it += 1
            replica.store.put(self.held[name].pop(0))

    def serve(self, name: str, replica: Replica) -> Process:
        while True:
            calls = [(yield replica.store.get())]
            calls += replica.store.items
            replica.store.items.clear()
            yield self.env.timeout(self.seconds(name, self.has[name], sum(tokens for tokens, _ in calls)))
            replica.in_it -= len(calls)
            for _, reply in calls:
                reply.succeed()
            self.let_in(name)

    def seconds(self, name: str, has: Configuration, tokens: int) -> float:
        node = next(one for one in self.workload.experts if one.function == name)
        return float(self.workload.latency.seconds(self.workload.costs[node.id], tokens, has.cpu_cores, 0.0))
