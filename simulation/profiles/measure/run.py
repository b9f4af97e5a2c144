"""Measuring: deploy one replica of each kind of node, go through the plan, write down what came back."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from moe.manifest import Manifest
from simulation.profiles.fit.rows import Row, spread
from simulation.profiles.measure.bodies import request_of, texts_of
from simulation.profiles.measure.counters import Counted, ReplicaCounters, listening_pid
from simulation.profiles.measure.load import Recorded, Target, closed_loop, open_loop, paced, poisson_arrivals
from simulation.profiles.measure.machine import busy_s
from simulation.profiles.measure.measurement_plan import NodeClass, Plan, Point, ProfileSettings, axis_tokens, make_plan
from simulation.profiles.measure.products import products_of
from simulation.profiles.measure.requests import blank, close_all
from simulation.profiles.measure.target import Function, Gateway, ReplicaSeen, Setting
from simulation.profiles.model.errors import MeasurementError

log = logging.getLogger(__name__)

OnPoint = Callable[[Point, float], None]
"""Called before each point, with the seconds it is expected to take."""

OUT_OF_MEMORY = "the replica was killed: out of memory under this limit"
_PILOT_CALLS = 12
_START_TIMEOUT_S = 30.0
_SETTLE_S = 3.0
"""How long a new concurrency may take to hold: a stopped replica learns of it late."""


class Bench:
    """Functions under test, one for each node, and how to measure a point on them."""

    def __init__(
        self,
        gateway: Gateway,
        manifest: Manifest,
        deployments: Mapping[str, dict[str, Any]],
        settings: ProfileSettings,
        runner: asyncio.Runner,
    ) -> None:
        """``deployments``: by node id, the OpenFaaS deployment of its function; limits in it are replaced."""
        self._manifest = manifest
        self._settings = settings
        self._runner = runner
        ample = self._setting(1.0, settings.ample_mib, 0)
        self.functions = {node_id: Function(gateway, deployment, ample) for node_id, deployment in deployments.items()}
        self._targets: dict[tuple[str, int, str], Target] = {}
        self._counters: dict[str, tuple[str, ReplicaCounters]] = {}

    def start(self) -> None:
        """Deploy every function and wait for its replica."""
        for function in self.functions.values():
            function.start()

    def close(self) -> None:
        """Remove every function; errors are logged, not raised, so that all are tried."""
        self._runner.run(close_all(self._targets.values()))
        for function in self.functions.values():
            try:
                function.remove()
            except Exception as error:
                log.warning("%s could not be removed: %s", function.name, error)

    def pilot(self, nodes: Sequence[str]) -> dict[tuple[str, int], float]:
        """Median seconds of a few calls at a full core by (node, tokens): enough to plan with."""
        pilots = {}
        for node in nodes:
            for tokens in axis_tokens(self._settings):
                point = Point(node, "busy", "closed", tokens, 1.0, self._settings.ample_mib, 1)
                target, _ = self._prepare(point)
                recorded = self._runner.run(closed_loop(target.call, 1, _PILOT_CALLS, 2.0))
                median_s = spread(recorded.latencies_s[2:]).p50_s
                if median_s is None:
                    raise MeasurementError(f"{node} did not answer calls of {tokens} tokens at a full core")
                pilots[node, tokens] = median_s
        return pilots

    def measure(self, point: Point, *, again: bool = True) -> Row:
        """Set the point's limits, warm up, measure. A replica that fails gives an infeasible row.

        ``again``: measure again where other processes kept the machine busy.
        """
        best: Row | None = None
        for _ in range(1 + (self._settings.retries if again else 0)):
            try:
                row = self._measure(point)
            except MeasurementError as error:
                return self.infeasible(point, _sentence(error, self.functions[point.node]))
            if best is None or _others(row) < _others(best):
                best = row
            if _others(best) <= self._settings.quiet_cores:
                break
        assert best is not None
        return best

    def _measure(self, point: Point) -> Row:
        target, counters = self._prepare(point)
        self._warm_up(point, target)
        seed = _seed(self._settings.seed, point)
        batches = self._batches(point)
        busy = (busy_s(), time.process_time(), time.perf_counter())
        before = counters.read()
        recorded = self._runner.run(self._load(point, target, seed, counters))
        after = counters.read()
        given_up = recorded.errors if point.loop == "open" else 0
        if recorded.errors > given_up or not recorded.latencies_s:
            raise MeasurementError(self._why(point.node))
        row = self._row(point, recorded, before, after, counters, seed)
        row = replace(row, others_cores=_others_cores(busy, _difference(before.cpu_s, after.cpu_s)))
        if given_up:
            row = replace(row, note=f"saturated: {given_up} calls were given up")
        now = self._batches(point)
        if batches is not None and now is not None and now[1] > batches[1]:
            row = replace(row, batch_calls=(now[0] - batches[0]) / (now[1] - batches[1]))
        return row

    def _warm_up(self, point: Point, target: Target) -> None:
        """Two rounds of calls; refused ones are tried again, as a new concurrency takes a moment to hold."""
        ends_s = time.monotonic() + _SETTLE_S
        while self._runner.run(closed_loop(target.call, point.concurrency, 2 * point.concurrency, 1.0)).errors:
            if time.monotonic() > ends_s or self.functions[point.node].killed_for_memory():
                raise MeasurementError(self._why(point.node))
            time.sleep(0.05)

    def restart(self, point: Point) -> str:
        """Start the point's function again under the point's limits; the reason where that is not possible, else ""."""
        function = self.functions[point.node]
        function.restart(self._setting(point.share, point.memory_mib, point.concurrency))
        try:
            function.wait_ready(_START_TIMEOUT_S)
        except MeasurementError as error:
            return _sentence(error, function)
        return ""

    def infeasible(self, point: Point, reason: str) -> Row:
        """A row of a point that could not be measured."""
        return replace(self._blank(point), feasible=False, note=reason)

    def ready(self, node: str) -> ReplicaSeen:
        """The replica of a node. Raises MeasurementError."""
        return self.functions[node].wait_ready(_START_TIMEOUT_S)

    def setting(self, share: float, memory_mib: int, concurrency: int) -> Setting:
        """Real cores as the configured cores that give them."""
        return self._setting(share, memory_mib, concurrency)

    def counters(self, node: str, replica: ReplicaSeen) -> ReplicaCounters:
        """Counters of a node's replica."""
        entry = self._counters.get(node)
        if entry is None or entry[0] != replica.id:
            entry = (replica.id, ReplicaCounters(listening_pid(replica.address)))
            self._counters[node] = entry
        return entry[1]

    def target(self, node: str, tokens: int, replica: ReplicaSeen) -> Target:
        """Where calls of ``tokens`` tokens go."""
        key = (node, tokens, replica.address)
        if key not in self._targets:
            head, body = request_of(self._manifest, self._manifest.node(node), tokens, self._settings.seed)
            self._targets[key] = Target(replica.address, head, body)
        return self._targets[key]

    def _setting(self, share: float, memory_mib: int, concurrency: int) -> Setting:
        return Setting(share / self._settings.cpu_scale, memory_mib, concurrency)

    def _prepare(self, point: Point) -> tuple[Target, ReplicaCounters]:
        function = self.functions[point.node]
        function.resize(self._setting(point.share, point.memory_mib, point.concurrency))
        replica = function.wait_ready(_START_TIMEOUT_S)
        return self.target(point.node, point.tokens, replica), self.counters(point.node, replica)

    async def _load(self, point: Point, target: Target, seed: int, counters: ReplicaCounters) -> Recorded:
        settings = self._settings
        if point.loop == "open":
            arrivals = poisson_arrivals(point.rate_rps, settings.surface_seconds, seed)
            return await open_loop(target.call, arrivals, point.concurrency, 3 * settings.surface_seconds)
        if point.loop == "paced":
            bandwidth = counters.bandwidth()
            period_s = bandwidth.period_s if bandwidth else 0.01
            pauses = np.random.default_rng(seed).uniform(2 * period_s, 3 * period_s, size=256)
            return await paced(target.call, settings.calls_per_point, settings.seconds_per_point, pauses)
        return await closed_loop(target.call, point.concurrency, settings.calls_per_point, settings.seconds_per_point)

    def _batches(self, point: Point) -> tuple[float, float] | None:
        """(calls, products) the replica has computed. Asked only where the question does not cost it its CPU share."""
        if point.concurrency == 1 or point.share < 0.5:
            return None
        address = self.ready(point.node).address
        try:
            return products_of(address)
        except MeasurementError:
            return None

    def _row(
        self,
        point: Point,
        recorded: Recorded,
        before: Counted,
        after: Counted,
        counters: ReplicaCounters,
        seed: int,
    ) -> Row:
        calls = max(1, len(recorded.latencies_s))
        bandwidth = counters.bandwidth()
        periods = _difference(before.periods, after.periods)
        throttled = _difference(before.throttled_periods, after.throttled_periods)
        cpu_s = _difference(before.cpu_s, after.cpu_s)
        waiting_s = _difference(before.waiting_s, after.waiting_s)
        return replace(
            self._blank(point),
            **asdict(spread(recorded.latencies_s)),
            period_s=bandwidth.period_s if bandwidth else None,
            seed=seed,
            errors=recorded.errors,
            seconds=recorded.seconds,
            throughput_rps=len(recorded.latencies_s) / recorded.seconds if recorded.seconds else None,
            cpu_s_per_call=None if cpu_s is None else cpu_s / calls,
            throttled_part=throttled / periods if periods and throttled is not None else None,
            waiting_s_per_call=None if waiting_s is None else waiting_s / calls,
            memory_bytes=after.memory_bytes,
        )

    def _blank(self, point: Point) -> Row:
        node = self._manifest.node(point.node)
        return replace(
            blank(point.tokens, point.repeat, self._settings),
            node=point.node,
            family=point.family,
            loop=point.loop,
            texts=len(texts_of(point.tokens, point.tokens)) if node.kind == "segment" else 0,
            cpu_cores=point.share / self._settings.cpu_scale,
            share=point.share,
            memory_mib=point.memory_mib,
            concurrency=point.concurrency,
            rate_rps=point.rate_rps,
        )

    def _why(self, node: str) -> str:
        function = self.functions[node]
        time.sleep(0.1)  # the end of a killed replica reaches the log a moment after its connections break
        if function.killed_for_memory():
            return OUT_OF_MEMORY
        lines = function.last_lines(1)
        return f"calls to {node} failed" + (f": {lines[-1]}" if lines else "")


def run_live(bench: Bench, plan: Plan, on_point: OnPoint, ends_s: float | None = None) -> list[Row]:
    """Every point that is measured on running replicas, repeat after repeat.

    ``ends_s`` (``time.monotonic``): the first repeat is done whatever it takes, the others as far as the time goes;
    with time running out points are not measured again for noise.
    """
    rows = []
    left_s = sum(plan.seconds(point) for point in plan.live)
    for point in plan.live:
        now_s = time.monotonic()
        if ends_s is not None and point.repeat and now_s >= ends_s:
            break
        on_point(point, plan.seconds(point))
        rows.append(bench.measure(point, again=ends_s is None or now_s + left_s < ends_s))
        left_s -= plan.seconds(point)
    return rows


def run_memory(bench: Bench, plan: Plan, on_point: OnPoint) -> list[Row]:
    """Every point that needs a replica started under its memory limit."""
    rows: list[Row] = []
    started: tuple[str, int] | None = None
    reason = ""
    for point in plan.memory:
        on_point(point, plan.seconds(point))
        if started != (point.node, point.memory_mib) or (rows and not rows[-1].feasible and not reason):
            started = (point.node, point.memory_mib)
            reason = bench.restart(point)
        rows.append(bench.infeasible(point, reason) if reason else bench.measure(point))
    return rows


def plan_of(bench: Bench, classes: Sequence[NodeClass], manifest: Manifest, settings: ProfileSettings) -> Plan:
    """The plan, after a short pilot."""
    nodes = [entry.node for entry in classes]
    experts = frozenset(node for node in nodes if manifest.node(node).kind == "expert")
    return make_plan(classes, experts, settings, bench.pilot(nodes))


def _seed(base: int, point: Point) -> int:
    """Seed of arrivals and idle gaps: the same for all points of one repeat, so that they are compared on the same
    arrivals."""
    return int(np.random.SeedSequence((base, point.repeat)).generate_state(1, np.uint32)[0])


def _others_cores(since: tuple[float, float, float], replica_s: float | None) -> float:
    """Cores that others kept busy. ``since``: busy seconds of the machine and of this process, clock, at the start."""
    spent_s = time.perf_counter() - since[2]
    own_s = time.process_time() - since[1] + (replica_s or 0.0)
    return max(0.0, (busy_s() - since[0] - own_s) / spent_s)


def _others(row: Row) -> float:
    return row.others_cores or 0.0


def _difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after - before


def _sentence(error: MeasurementError, function: Function) -> str:
    if function.killed_for_memory():
        return OUT_OF_MEMORY
    return str(error)[:300]
