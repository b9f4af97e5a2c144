"""The simulator as a metrics source: the same readings that the monitor makes, through the controller's own state code.

Latencies go through the ingress's histogram buckets, as in production, so a policy sees what it will see there; exact
ones are in ``Window``. What only the simulator knows is filled in: replica-seconds in use, and the use of GPU shares.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from autoscaler.contract import MIB, NAMESPACE, SLO_QUANTILE, Configuration, NodeObservation, Observation, Topology
from autoscaler.state.features import observe
from autoscaler.state.readings import Buckets, Job, Key, Readings, Series
from functions.dispatch.activation import token_rates
from functions.serving.metric_names import LOOK_BACKS_S, PEAK_WINDOW_S, RATES
from simulation.arrays import Floats, Ints
from simulation.engine import kernel
from simulation.engine.simulated import Simulated
from simulation.engine.simulation import BOUNDS, Window
from simulation.latency.contract import LimitedLatencyModel

Values = dict[Series, dict[Key, float]]
BOUNDS_OF_HISTOGRAMS = (*BOUNDS[:-1].tolist(), math.inf)
"""Upper bounds in seconds of the ingress' histograms, the last one infinite."""
_SLACK_S = 1e-6
KEEP_S = max(600.0, PEAK_WINDOW_S)
"""Windows that ended longer before the last one are forgotten."""


class SimulatedMetrics:
    """Observations of a simulation whose windows are handed in by :meth:`add`; ``epoch_s`` is Unix time of its zero."""

    def __init__(self, simulation: Simulated, epoch_s: float = 0.0) -> None:
        self._simulation = simulation
        self._epoch_s = epoch_s
        self._windows: deque[Window] = deque()

    def add(self, window: Window) -> None:
        """A window that has been simulated; windows follow each other without gaps."""
        self._windows.append(window)
        while self._windows[0].end_s < window.end_s - KEEP_S:
            self._windows.popleft()

    def observe(self, now_s: float, window_s: float) -> Observation:
        """The windows that lie in the last ``window_s`` before ``now_s``, together; the answer states where there are
        none."""
        topology: Topology = self._simulation.workload.topology
        end_s = now_s - self._epoch_s
        values = [
            window
            for window in self._windows
            if window.start_s >= end_s - window_s - _SLACK_S and window.end_s <= end_s + _SLACK_S
        ]
        if not values or values[-1].end_s < end_s - _SLACK_S:
            why = f"nothing was simulated in the {window_s:g} s before {now_s:g}"
            return observe(topology, Readings(now_s - window_s, now_s, problems=(why,), stale=True))
        observation = observe(topology, self._readings(values))
        return replace(observation, nodes=tuple(self._known(values, node) for node in observation.nodes))

    def _readings(self, windows: Sequence[Window]) -> Readings:
        last, simulation = windows[-1], self._simulation
        pipeline = simulation.workload.topology.pipeline
        values: Values = {series: {} for series in Series}
        for node in simulation.workload.topology.nodes:
            if node.kind == "ingress":
                values[Series.REPLICAS_BY_STATE][f"{node.function}.{NAMESPACE}", "ready"] = 1.0
        latency = simulation.workload.latency
        if isinstance(latency, LimitedLatencyModel):  # its CPU seconds are real ones
            node_cost = next(iter(simulation.workload.costs.values()))
            values[Series.CPU_SCALE][()] = float(latency.throttle(node_cost, 1.0, 0.0).refill)
        finished = np.concatenate([window.finished for window in windows])
        answered = float(finished.size)
        values[Series.REQUESTS][pipeline, "200"] = answered
        values[Series.REQUEST_SECONDS_SUM][pipeline,] = float(sum(window.latency_s.sum() for window in windows))
        values[Series.REQUEST_TOKENS][pipeline,] = float(simulation.requests.tokens[finished].sum(dtype=np.int64))
        values[Series.REQUESTS_IN_FLIGHT][pipeline,] = float(last.in_flight)
        histograms: dict[Series, dict[Key, Buckets]] = {
            Series.REQUEST_SECONDS: {(pipeline,): buckets_of(sum_of([w.request_histogram[None] for w in windows]))[0]},
            Series.ARRIVAL_RATES: {
                (pipeline, f"{look_back_s:g}"): cumulative((*RATES, math.inf), self._rates(windows, look_back_s))
                for look_back_s in LOOK_BACKS_S
            },
            Series.LAYER_BARRIER_SECONDS: {
                (pipeline, str(layer)): buckets
                for layer, buckets in enumerate(buckets_of(sum_of([window.barrier for window in windows])))
            },
        }
        counts: Values = {Series.REPLICA_CPU_SECONDS: {}, Series.REPLICA_MEMORY_BYTES: {}}
        measured: Values = {Series.REPLICA_CPU_SECONDS: {}}
        self._add_nodes(windows, values, counts, measured)
        p95_s = quantiles_of(SLO_QUANTILE, sum_of([window.histogram for window in windows]))
        keys = [(pipeline, node.id) for node in simulation.nodes]
        tails: Values = {
            Series.NODE_CALL_SECONDS: {key: one for key, one in zip(keys, p95_s, strict=True) if one is not None}
        }
        start_s, end_s = (self._epoch_s + moment for moment in (windows[0].start_s, last.end_s))
        ages_s: dict[Job, float] = {"ingress": 0.0, "gateway": 0.0}
        return Readings(start_s, end_s, values, histograms, counts, measured, ages_s, tails=tails)

    def _rates(self, windows: Sequence[Window], look_back_s: float) -> Ints:
        """[bounds] requests that arrived in ``windows``, by the tokens per second of the look-back that ends with each
        arrival."""
        requests = self._simulation.requests
        first, last = np.searchsorted(requests.arrival_s, [windows[0].start_s, windows[-1].end_s]).tolist()
        rates = token_rates(requests.arrival_s[:last], requests.tokens[:last], first, look_back_s)
        return np.bincount(np.searchsorted(RATES, rates), minlength=len(RATES) + 1)

    def _add_nodes(self, windows: Sequence[Window], values: Values, counts: Values, measured: Values) -> None:
        simulation, last = self._simulation, windows[-1]
        pipeline = simulation.workload.topology.pipeline
        meter = np.sum([window.meter for window in windows], axis=0)
        ready_s = np.sum([window.ready_s for window in windows], axis=0)
        recent = [w for w in self._windows if w.end_s > last.end_s - PEAK_WINDOW_S + _SLACK_S and w.end_s <= last.end_s]
        peak = np.max([window.meter[:, kernel.PEAK] for window in recent], axis=0)
        length_s = last.end_s - windows[0].start_s
        for place, node in enumerate(simulation.nodes):
            name = f"{node.function}.{NAMESPACE}"
            key, row = (pipeline, node.id), meter[place]
            configuration = simulation.configuration(node.function)
            ready = int(last.replicas["ready"][place]) + configuration.replicas - configuration.running
            values[Series.NODE_CALLS][pipeline, node.id, "200"] = float(row[kernel.CALLS])
            values[Series.NODE_TOKENS][key] = float(row[kernel.TOKENS])
            values[Series.NODE_BUSY_SECONDS][key] = float(row[kernel.SERVED_S])
            values[Series.NODE_WAIT_SECONDS][key] = float(row[kernel.WAITED_S])
            values[Series.NODE_TOKENS_PEAK][key] = float(peak[place])
            values[Series.REPLICAS_WANTED][name,] = float(configuration.replicas)
            values[Series.REPLICAS_BY_STATE].update(
                {(name, state): float(counts[place]) for state, counts in last.replicas.items()}
            )
            values[Series.REPLICAS_BY_STATE][name, "ready"] = float(ready)
            values[Series.MAX_INFLIGHT][name,] = float(configuration.concurrency)
            values[Series.MEMORY_LIMIT_BYTES][name,] = float(configuration.memory_mb * MIB)
            values[Series.REPLICA_MEMORY_BYTES][name,] = self._memory_bytes(place, ready, last)
            counts[Series.REPLICA_MEMORY_BYTES][name,] = ready
            if not configuration.cpu_cores:
                continue
            cores = simulation.workload.cores(configuration)
            cpu_s = float(row[kernel.BUSY_S]) * cores * simulation.fleet.used(place)
            if simulation.fleet.limited(place) or simulation.workload.host is not None:
                cpu_s = float(row[kernel.CPU_S])
            values[Series.CPU_LIMIT_CORES][name,] = configuration.cpu_cores
            values[Series.REPLICA_CPU_SECONDS][name,] = cpu_s
            counts[Series.REPLICA_CPU_SECONDS][name,] = ready
            if configuration.burst is None:  # what is gone has no counters; standbys keep theirs while they wait
                cpu_s = cpu_s / ready_s[place] * ready * length_s if ready_s[place] > 0 else 0.0
            measured[Series.REPLICA_CPU_SECONDS][name,] = cpu_s

    def _memory_bytes(self, place: int, ready: int, window: Window) -> float:
        """All replicas: their own and their weights, and tokens on the way as Eq. (2) counts them."""
        workload, node = self._simulation.workload, self._simulation.nodes[place]
        fixed_bytes = workload.runtime_mb * MIB + workload.costs[node.id].weights_bytes
        return ready * fixed_bytes + 2 * node.bytes_per_token * float(window.meter[place, kernel.FLIGHT])

    def _known(self, windows: Sequence[Window], node: NodeObservation) -> NodeObservation:
        place = self._simulation.index.get(node.function)
        if place is None:
            return node
        configuration = self._simulation.configuration(node.function)
        busy_s = float(sum(window.meter[place, kernel.BUSY_S] for window in windows))
        gpu = self._gpu_use(windows, place, configuration, node) if configuration.gpu_share else {}
        activated_s = float(sum(window.activated_s[place] for window in windows)) if configuration.burst else None
        return node._replace(configuration=configuration, busy_replica_s=busy_s, activated_s=activated_s, **gpu)

    def _gpu_use(
        self,
        windows: Sequence[Window],
        place: int,
        configuration: Configuration,
        node: NodeObservation,
    ) -> dict[str, Any]:
        """Utilisations of a function with a GPU share; that of the share itself nothing measures live either."""
        ready = node.ready_replicas or 0
        memory = self._memory_bytes(place, ready, windows[-1])
        slots = ready * configuration.concurrency
        return {
            "memory_utilisation": memory / (ready * configuration.memory_mb * MIB) if ready else None,
            "concurrency_utilisation": node.in_flight / slots if slots and node.in_flight is not None else None,
        }


def sum_of(arrays: Sequence[Ints]) -> Ints:
    """Sum of equal arrays. Arrays [...] of one shape."""
    return np.asarray(np.sum(arrays, axis=0), dtype=np.int64)


def buckets_of(counts: Ints) -> list[Buckets]:
    """One histogram a row of ``counts [rows, bounds]``."""
    return [cumulative(BOUNDS_OF_HISTOGRAMS, row) for row in counts]


def quantiles_of(q: float, counts: Ints) -> list[float | None]:
    """:func:`autoscaler.state.quantiles.histogram_quantile` of each row of ``counts [rows, bounds]``, at once, but for
    rounding in the first bucket; ``q`` above 0."""
    below = np.cumsum(counts, axis=1).astype(np.float64)
    rank, rows = q * below[:, -1], np.arange(below.shape[0])
    place = np.minimum((below < rank[:, None]).sum(axis=1), BOUNDS.size - 2)
    lower_s, least = np.where(place > 0, BOUNDS[place - 1], 0.0), np.where(place > 0, below[rows, place - 1], 0.0)
    inside = below[rows, place] - least
    with np.errstate(divide="ignore", invalid="ignore"):
        within_s = lower_s + (BOUNDS[place] - lower_s) * (rank - least) / inside
    quantile_s = np.where(below[rows, place] < rank, BOUNDS[-2], within_s)
    return [one if total > 0 else None for one, total in zip(quantile_s.tolist(), below[:, -1].tolist(), strict=True)]


def histogram_of(seconds: Floats) -> Buckets:
    """``seconds`` [values] in the ingress' buckets."""
    bounds = BOUNDS_OF_HISTOGRAMS
    return cumulative(bounds, np.bincount(np.searchsorted(bounds, seconds), minlength=len(bounds)))


def cumulative(bounds: Sequence[float], counts: Ints) -> Buckets:
    """``counts [bounds]`` as an ingress counts them: each bucket holds those below it, too."""
    return tuple(zip(bounds, np.cumsum(counts).astype(np.float64).tolist(), strict=True))
