"""A pipeline under load: requests, replicas and queues, moved forward window by window."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from autoscaler.contract import Configuration, NodeInfo
from functions.serving.metric_names import BUCKETS_S
from simulation.arrays import Calls, Floats, Ints
from simulation.engine import kernel
from simulation.engine.bursts import DEFAULT_BURSTS, Bursts, BurstSettings
from simulation.engine.errors import SimulationError
from simulation.engine.fleet import Fleet
from simulation.engine.host import SharedMachine
from simulation.engine.machines import Machines, Sited, plan_stage, sited
from simulation.engine.requests import Requests
from simulation.engine.tables import ResourceTables
from simulation.workloads.workload import Workload

BOUNDS: Floats = np.array([*BUCKETS_S, kernel.FAR])
CELLS = kernel.cells_of(BOUNDS)
"""Upper bounds of all histograms, those of the ingress; the last one holds everything."""


@dataclass(eq=False)
class _Stage:
    """One segment, or the experts of one layer, and who is there between windows."""

    nodes: Ints
    layer: int | None
    """Layer of its experts; None for a segment."""
    due: Calls = field(default_factory=lambda: np.zeros(0, dtype=np.uint32))
    """Requests on their way here, in order of arrival."""
    unfinished: Calls = field(default_factory=lambda: np.zeros(0, dtype=np.uint32))
    held: Calls = field(default_factory=lambda: np.zeros(0, dtype=np.uint32))
    held_from: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


@dataclass(frozen=True, eq=False, kw_only=True)
class Answers:
    """What came of the requests of a window."""

    latency_s: Floats
    """[finished] seconds from arrival to answer."""
    in_flight: int
    """Requests not answered at the end."""
    activated_s: Floats
    """[nodes] seconds in which standbys were activated, their activation included."""

    def quantile_s(self, q: float) -> float | None:
        """The exact ``q`` quantile (0 to 1, linear) of the answered requests' seconds; None where none was answered."""
        return float(np.quantile(self.latency_s, q)) if self.latency_s.size else None

    def judged_s(self, q: float) -> float | None:
        """The same as an SLO judges it: infinite where none was answered and requests wait, None without either."""
        return np.inf if self.in_flight and not self.latency_s.size else self.quantile_s(q)


@dataclass(frozen=True, eq=False, kw_only=True)
class Window(Answers):
    """What happened from ``start_s`` to ``end_s``. Nodes are in the order of ``Simulation.nodes``."""

    start_s: float
    end_s: float
    arrived: int
    """Requests that arrived."""
    finished: Calls
    """Requests that were answered, in order of their answers."""
    meter: Floats
    """[nodes, METERS], columns of ``kernel``."""
    histogram: Ints
    """[nodes, bounds] calls by their seconds, waiting included."""
    barrier: Ints
    """[layers, bounds] from scatter to the last gather."""
    request_histogram: Ints
    """[bounds] of ``latency_s``."""
    replicas: Mapping[str, Ints]
    """State → [nodes] replicas at the end."""
    ready_s: Floats
    """[nodes] replica-seconds in which a replica took new calls, activated standbys included."""


class Simulation:
    """State of one episode. ``configurations``: function → what it is deployed with, replicas ready at the start;
    within the workload's capacity, where it has one.

    ``threads`` above 1 share out a layer's experts, which pays for windows of thousands of requests and changes nothing
    else; on a shared machine there is only one. ``machines``: where replicas are, and which rule chooses among them;
    None: nowhere in particular. ``bursts``: how standbys of the configurations are simulated, which follow
    the arrivals by themselves. ``tables``: those of another simulation of the same workload and requests with as many
    slots, which are made once. ``seed`` scatters service and cold starts; requests bring their own draws. Two
    simulations with equal arguments that are advanced over the same windows are equal bit for bit, on any machine.
    Raises SimulationError.
    """

    def __init__(
        self, workload: Workload, requests: Requests, configurations: Mapping[str, Configuration], *, seed: int = 0,
        most_calls: int | None = None, threads: int = 1, machines: Machines | None = None,
        bursts: BurstSettings = DEFAULT_BURSTS, tables: ResourceTables | None = None,
    ) -> None:  # fmt: skip
        self.nodes: tuple[NodeInfo, ...] = (*workload.segments, *workload.experts)
        _check(workload, requests, configurations, self.nodes, on_machines=machines is not None)
        self.workload = workload
        self.requests = requests
        self.now_s = 0.0
        self.index = {node.function: place for place, node in enumerate(self.nodes)}
        self._seed = seed
        self._machines = machines
        slots = most_calls or max(
            [workload.space.concurrency_max, *(configurations[f].concurrency for f in self.index)]
        )
        self.tables = tables or ResourceTables(workload, requests.most_tokens, slots)
        sites = None if machines is None else machines.sites(self.nodes)
        self.fleet = Fleet(workload, self.nodes, self.tables, seed, slots, sites)
        for node, info in enumerate(self.nodes):
            self.fleet.deploy(node, configurations[info.function], 0.0)
        count, size, segments = len(self.nodes), requests.arrival_s.size, len(workload.segments)
        self._keys = np.array([kernel.stream_key(seed, kernel.SERVICE, node) for node in range(count)], dtype=np.uint64)
        # Requests have one row of tokens for all segments, then one for each expert.
        self._source = np.array([max(0, node - segments + 1) for node in range(count)], dtype=np.int64)
        self._stages = self._lay_out()
        self._reached = np.zeros(size)
        self._traffic = kernel.Traffic(self._reached, requests.counts, self._source, self._keys)
        self._gather = np.zeros((threads, size))
        self._sited = None if machines is None else sited(machines, workload, self.nodes, size)
        self._bursts = Bursts(bursts, requests, self.index, configurations)
        self._host = None
        if workload.host is not None:
            nodes = [stage.nodes for stage in self._stages]
            self._host = SharedMachine(workload.host, requests, self._keys, nodes, self._source, seed)
        self._left = self._gather[0] if self._host is None else self._host.left_s
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None
        self._marks = np.zeros(size, dtype=np.uint8)
        self._next_request, self._in_flight = 0, 0
        self._until_s = 0.0
        self._stage = len(self._stages)
        self.meter: Floats = np.zeros((count, kernel.METERS))
        self._reset(0.0)

    @property
    def stages(self) -> int:
        """Segments and layers in turn: stage 2i is segment i, stage 2i + 1 the experts of layer i."""
        return len(self._stages)

    def fork(self) -> Simulation:
        """A simulation in the same state that goes its own way from here on, on one thread, with the same draws: what
        the coming window would be under other orders. Raises SimulationError while a window is open."""
        if self._stage < len(self._stages):
            raise SimulationError("a simulation cannot be forked while its window is open")
        never_change = (
            self.workload, self.requests, self.requests.counts, self.tables, self.nodes, self.index, self._keys,
            self._source,
        )  # fmt: skip
        memo: dict[int, object] = {id(one): one for one in never_change}
        memo[id(self._pool)] = None
        fork = copy.deepcopy(self, memo)
        fork._gather = fork._gather[:1]
        fork._left = fork._gather[0] if fork._host is None else fork._host.left_s
        return fork

    def order(self, function: str, target: Configuration) -> None:
        """Give ``function`` another configuration, beginning at the start of the window that is open, else now.

        Raises KeyError for a function that is not simulated, and SimulationError.
        """
        node = self.index[function]
        if self._stage < len(self._stages) and self._stage_of(node) < self._stage:
            raise SimulationError(f"{function} was simulated up to {self._until_s:g} s already; order before its stage")
        before = self.configuration(function)
        self.fleet.order(node, target, self.now_s)
        if target.gpu_share != before.gpu_share:
            self._bursts.replace(node, self.fleet, self.now_s)
        if (target.burst, target.replicas) != (before.burst, before.replicas):
            self._bursts.change(node, self.fleet, target, self.now_s)

    def configuration(self, function: str) -> Configuration:
        """What ``function`` was last ordered to be."""
        configuration = self.fleet.configurations[self.index[function]]
        assert configuration is not None
        return configuration

    def advance(self, until_s: float) -> Window:
        """Everything up to ``until_s``, which begins the next window. Raises SimulationError."""
        self.open(until_s)
        while self._stage < len(self._stages):
            self.run_stage()
        return self.close()

    def open(self, until_s: float) -> None:
        """Begin a window, to be simulated stage by stage; later stages may still get orders meanwhile."""
        if self._stage < len(self._stages) or not until_s > self.now_s:
            raise SimulationError(f"a window from {self.now_s:g} s to {until_s:g} s cannot be opened now")
        self.fleet.compact(self.now_s)
        self._reset(until_s)
        starts = self.requests.arrival_s + self.workload.request_s
        first, last = self._next_request, int(np.searchsorted(self.requests.arrival_s, until_s, side="left"))
        self._arrived = last - first
        self._in_flight += last - first
        self._reached[first:last] = starts[first:last]
        self._stages[0].due = np.concatenate([self._stages[0].due, np.arange(first, last, dtype=np.uint32)])
        self._next_request = last
        self._bursts.open(first, last)

    def run_stage(self) -> int:
        """Simulate the next stage of the open window; returns its number. On a shared machine no stage can go before
        the others: all are simulated with the last."""
        number, stage = self._stage, self._stages[self._stage]
        if len(self._bursts):
            for node in stage.nodes.tolist():
                self._bursts.activate(node, self.fleet, self._until_s)
        if self._host is not None:
            self._stage += 1
            if self._stage == len(self._stages):
                self._finished = self._run_host(self._host)
            return number
        if self._machines is not None and self._sited is not None:
            self._plan(stage, self._machines, self._sited)
        gone = self._run_alone(stage) if self._pool is None or stage.nodes.size == 1 else self._run_shared(stage)
        if number + 1 < len(self._stages):
            following = self._stages[number + 1]
            following.due = np.concatenate([following.due, gone])
            if self._machines is not None:  # replies of other machines come late, also after the next window's first
                following.due = following.due[np.argsort(self._reached[following.due], kind="stable")]
        else:
            self._finished = gone
        self._stage += 1
        return number

    def _plan(self, stage: _Stage, machines: Machines, tables: Sited) -> None:
        fleet, here = self.fleet, int(np.searchsorted(self._reached[stage.due], self._until_s, side="left"))
        plan_stage(
            tables, machines.count, stage.nodes, stage.due[:here], self.requests.counts, self._source, fleet.clock,
            fleet.slot, fleet.orders, self.now_s, self._seed,
        )  # fmt: skip

    def _run_host(self, host: SharedMachine) -> Calls:
        return host.run(
            self.now_s, self._until_s, self._next_request, self._reached, self.fleet, self.tables, self.meter,
            self._histogram, self._barrier, CELLS, BOUNDS,
        )  # fmt: skip

    def _run_alone(self, stage: _Stage) -> Calls:
        gone, stage.due, stage.unfinished, stage.held, stage.held_from = kernel.run_stage(
            self.now_s, self._until_s, self.workload.hop_s, stage.nodes, stage.due, stage.held, stage.held_from,
            stage.unfinished, self._gather, self._marks, self._traffic, self.fleet.replicas, self.tables.rows,
            self.tables.limits, self._sited, self._tally, self._barrier_of(stage),
        )  # fmt: skip
        return gone

    def _run_shared(self, stage: _Stage) -> Calls:
        """The same with the nodes shared out among threads; each gathers for itself."""
        assert self._pool is not None
        here = kernel.enter(stage.due, self._reached, self._gather, self._until_s)
        entering, stage.due = stage.due[:here], stage.due[here:]
        parts = np.array_split(np.arange(stage.nodes.size), self._gather.shape[0])
        futures = [self._pool.submit(self._run_part, stage, entering, p, t) for t, p in enumerate(parts) if p.size]
        held_parts = [future.result() for future in futures]
        sizes = np.concatenate([np.diff(held_from) for _, held_from in held_parts])
        stage.held = np.concatenate([held for held, _ in held_parts])
        stage.held_from = np.concatenate([[0], np.cumsum(sizes)])
        gone, stage.unfinished = kernel.leave(
            self.workload.hop_s, entering, stage.unfinished, self._reached, self._gather, self._marks, CELLS, BOUNDS,
            self._barrier_of(stage),
        )  # fmt: skip
        return gone

    def _run_part(self, stage: _Stage, entering: Calls, part: Ints, thread: int) -> tuple[Calls, Ints]:
        return kernel.run_nodes(
            self.now_s, self._until_s, stage.nodes[part], entering, stage.held,
            stage.held_from[part[0] : part[-1] + 2], self._gather[thread], self._marks, self._traffic,
            self.fleet.replicas, self.tables.rows, self.tables.limits, self._sited, self._tally,
        )  # fmt: skip

    def _barrier_of(self, stage: _Stage) -> Ints:
        return self._unread if stage.layer is None else self._barrier[stage.layer]

    def close(self) -> Window:
        """End the open window after its last stage."""
        if self._stage < len(self._stages):
            raise SimulationError(f"stage {self._stage} of the open window has not been simulated")
        finished = self._finished
        latency_s = self._left[finished] - self.requests.arrival_s[finished]
        kernel.count_spans(latency_s, CELLS, BOUNDS, self._request_histogram)
        self._in_flight -= finished.size
        longest_s = 0.0 if self._host is None else self._longest_s(latency_s)
        self._bursts.close(self.meter, finished, longest_s, self._until_s - self.now_s)
        start_s, self.now_s = self.now_s, self._until_s
        return Window(
            start_s=start_s,
            end_s=self.now_s,
            arrived=self._arrived,
            finished=finished,
            latency_s=latency_s,
            in_flight=self._in_flight,
            meter=self.meter,
            histogram=self._histogram,
            barrier=self._barrier,
            request_histogram=self._request_histogram,
            replicas=self.fleet.states(self.now_s),
            ready_s=self.fleet.ready_s(start_s, self.now_s),
            activated_s=self.fleet.activated_s(start_s, self.now_s),
        )

    def _longest_s(self, latency_s: Floats) -> float:
        """The longest request of the window; where none was answered and some wait, the window itself."""
        if latency_s.size:
            return float(latency_s.max())
        return self._until_s - self.now_s if self._in_flight else 0.0

    def _lay_out(self) -> list[_Stage]:
        segments, stages = len(self.workload.segments), []
        at = segments
        for segment in range(segments):
            stages.append(_Stage(np.array([segment]), None))
            if segment < self.workload.topology.layers:
                size = len(self.workload.topology.experts(segment))
                stages.append(_Stage(np.arange(at, at + size), segment))
                at += size
        for stage in stages:
            stage.held_from = np.zeros(stage.nodes.size + 1, dtype=np.int64)
        return stages

    def _stage_of(self, node: int) -> int:
        info = self.nodes[node]
        return 2 * (info.layer or 0) + (info.kind == "expert")

    def _reset(self, until_s: float) -> None:
        """New meters for a window; what is in flight stays."""
        flight = self.meter[:, kernel.FLIGHT].copy()
        self.meter = np.zeros((len(self.nodes), kernel.METERS))
        self.meter[:, kernel.FLIGHT] = self.meter[:, kernel.PEAK] = flight
        size = BOUNDS.size
        self._histogram = np.zeros((len(self.nodes), size), dtype=np.int64)
        self._tally = kernel.Tally(self.meter, self._histogram, CELLS, BOUNDS)
        self._barrier = np.zeros((self.workload.topology.layers, size), dtype=np.int64)
        self._request_histogram = np.zeros(size, dtype=np.int64)
        self._unread = np.zeros(size, dtype=np.int64)
        self._finished = np.zeros(0, dtype=np.uint32)
        self._arrived = 0
        self._until_s = until_s
        self._stage = len(self._stages) if until_s <= self.now_s else 0


def _check(
    workload: Workload, requests: Requests, configurations: Mapping[str, Configuration], nodes: Sequence[NodeInfo],
    *, on_machines: bool,
) -> None:  # fmt: skip
    """Raises SimulationError where the parts of a simulation do not belong together."""
    if requests.counts.shape[0] != 1 + len(workload.experts):
        raise SimulationError(
            f"requests are routed over {requests.counts.shape[0] - 1} experts, {workload.name} has "
            f"{len(workload.experts)}"
        )
    short = () if workload.capacity is None else workload.capacity.beyond(configurations.values())
    if short:
        raise SimulationError(f"{workload.name}: what it is deployed with takes more {', '.join(short)} than there are")
    for node in nodes:
        if node.function not in configurations:
            raise SimulationError(f"function {node.function} has no configuration to start with")
    if workload.host is not None and on_machines:
        raise SimulationError(f"{workload.name} runs on one machine; machines need a workload without a host")
