"""The world of ``benchmarks.janus``: two days of a ServeGen trace, the modelled pipeline that meets them, one run.

ServeGen publishes rates and burstiness of every client in windows of ten minutes. All clients are drawn at their true
rates, and of each window the first seconds are simulated, so that days become minutes with the same calls per second.
Cold starts, resizes and drains are shortened by the same factor, so that they take the same part of the time between
two decisions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from autoscaler.configuration import Configuration, ConfigurationSpace
from autoscaler.contract import SLO_QUANTILE, Policy
from autoscaler.decision.limits import LimitSettings
from autoscaler.prices import PriceSheet
from placement.janus import Nodes, place
from platform_words.memory import RuntimeMemory
from simulation.arrays import Floats
from simulation.engine.controlled import Step, simulate_policy
from simulation.engine.machines import Dispatch, Machines
from simulation.engine.requests import Requests, draw_requests
from simulation.engine.simulation import Simulation
from simulation.workloads.paper import paper_workload
from simulation.workloads.workload import Workload
from traces.errors import NoMatchError
from traces.formats.servegen import WINDOW_S, ClientWindow, draw_window, read_windows
from traces.model import Trace, make_trace

REPLICA = Configuration(memory_mb=1024, cpu_cores=1.0, gpu_share=0.0, replicas=1, concurrency=8)
"""Every segment and every expert: one core, so that resources are counted in cores alone."""
CORES = PriceSheet("cores", "a core costs 1 a second, memory nothing", "core-seconds", 1.0, 0.0, 0.0)
DAY_S = 86400
Maker = Callable[[Workload, Requests, int], Simulation]
"""Workload, requests and seed to a simulation at its start."""


@dataclass(frozen=True)
class Clock:
    """How days become simulated seconds."""

    slice_s: float
    """Simulated seconds of each window of ten minutes."""
    decision_windows: int
    """Windows of ten minutes from one decision to the next."""

    @property
    def compression(self) -> float:
        """Seconds of the trace for one that is simulated."""
        return WINDOW_S / self.slice_s

    @property
    def decision_s(self) -> float:
        return self.slice_s * self.decision_windows

    def hours(self, simulated_s: Floats | float) -> Floats:
        """Hours of the trace, [...] as ``simulated_s``."""
        return np.asarray(simulated_s) * self.compression / 3600


def sliced(path: Path, first_day: int, days: int, clock: Clock, seed: int) -> Trace:
    """The first ``slice_s`` seconds of every window of so many days, all clients together. Raises TraceError."""
    begin_s, end_s = first_day * DAY_S, (first_day + days) * DAY_S
    windows: dict[int, list[ClientWindow]] = defaultdict(list)
    for window in read_windows(path):
        if begin_s <= window.window_start_s < end_s:
            windows[window.window_start_s].append(window)
    if not windows:
        raise NoMatchError(f"{path}: nothing arrives on days {first_day} to {first_day + days - 1}")
    parts = []
    for number, start_s in enumerate(range(begin_s, end_s, WINDOW_S)):
        drawn = [draw_window(window, seed) for window in windows[start_s]]
        arrivals = np.sort(np.concatenate([np.zeros(0), *drawn]))
        parts.append(arrivals[arrivals < clock.slice_s] + number * clock.slice_s)
    return make_trace(
        np.concatenate(parts),
        duration_s=len(parts) * clock.slice_s,
        source=f"{path.name}, all clients, days {first_day} to {first_day + days - 1}, the first {clock.slice_s:g} s "
        f"of every {WINDOW_S} s, drawn (measured-cv, seed {seed})",
    )


def world(name: str, most_replicas: int, clock: Clock) -> Workload:
    """One of the paper's workloads on the modelled cluster, every replica on one core, changes as short as the days."""
    space = ConfigurationSpace(cpu_cores=(REPLICA.cpu_cores,), gpu_shares=(), replicas_max=most_replicas)
    workload, short = paper_workload(name, space=space, prices=CORES), clock.compression
    lasting = ("cold_start_s", "cold_start_gpu_s", "resize_s", "drain_s")
    shorter = {name: getattr(workload.lifecycle, name) / short for name in lasting}
    lifecycle = replace(workload.lifecycle, load_bytes_per_s=workload.lifecycle.load_bytes_per_s * short, **shorter)
    return replace(workload, segment_configuration=REPLICA, lifecycle=lifecycle)


def unloaded_s(workload: Workload, seed: int, make: Maker) -> float:
    """P95 of a pass that meets no other, of 400 simulated one after the other."""
    requests = draw_requests(workload, np.arange(400) * 10.0, seed=seed)
    window = make(workload, requests, seed).advance(4010.0)
    return float(np.quantile(window.latency_s, SLO_QUANTILE))


@dataclass(frozen=True, eq=False)
class Run:
    """One policy over the trace, by decision window; the first ones, which only settle the start, left out."""

    start_s: Floats
    """[windows]"""
    cores: Floats
    """[windows] cores that were paid for, mean."""
    p95_s: Floats
    """[windows], NaN where nothing was answered."""
    attainment: float
    """Share of requests answered within the SLO; those never answered count as missed."""
    violated: float
    """Share of judged windows whose P95 is above the SLO."""
    changes: int
    slo_s: float
    replicas: dict[str, Floats] = field(default_factory=dict)
    """Kind → [windows] replicas, mean over its functions."""

    @property
    def mean_cores(self) -> float:
        return float(self.cores.mean())


def simulate(workload: Workload, requests: Requests, seed: int) -> Simulation:
    """Everything with half of the replicas at the start, dispatch to the least loaded, nobody's neighbour matters."""
    return Simulation(workload, requests, _start(workload), seed=seed)


def on_machines(count: int, dispatch: Dispatch) -> Maker:
    """The same on machines that serve a pass's experts one after the other, with Janus's placement and this rule."""

    def make(workload: Workload, requests: Requests, seed: int) -> Simulation:
        machines = Machines(count, dispatch, meeting=1.0, placement=placement(workload, count))
        return Simulation(workload, requests, _start(workload), seed=seed, machines=machines)

    return make


def _start(workload: Workload) -> dict[str, Configuration]:
    start = REPLICA.with_replicas(max(1, workload.space.replicas_max // 2))
    return dict.fromkeys(workload.initial(start), start)


def placement(workload: Workload, count: int) -> dict[str, list[int]]:
    """Function of an expert → machines: first those that section 3.4 gives it where there are just enough slots, then
    the others in turn.

    Co-activations are those of experts that are chosen independently, by their popularity.
    """
    tokens = workload.routing.popularity.mean(axis=0)
    together = (tokens[:, :, None] * tokens[:, None, :]).astype(np.float32)
    together[:, range(tokens.shape[1]), range(tokens.shape[1])] = 0.0
    held = place(tokens, together, Nodes(count, -(-tokens.shape[1] // count))).held
    machines_of = {}
    for node in workload.experts:
        holders = [machine for machine in range(count) if (held[node.layer or 0, machine] == node.expert).any()]
        turned = [(holders[-1] + step) % count for step in range(1, count)]
        machines_of[node.function] = holders + [machine for machine in turned if machine not in holders]
    return machines_of


def simulated(
    workload: Workload,
    requests: Requests,
    policy: Policy,
    clock: Clock,
    until_s: float,
    *,
    seed: int,
    warm_up: int,
    make: Maker = simulate,
) -> Run:
    """The controller's own loop over the simulation, a decision every ``clock.decision_s``."""
    limits = LimitSettings(space=workload.space, alpha=workload.alpha, runtime=RuntimeMemory.same(workload.runtime_mb))
    steps = simulate_policy(make(workload, requests, seed), policy, limits, window_s=clock.decision_s, until_s=until_s)
    return _summary(steps[warm_up:], workload, clock)


def _summary(steps: list[Step], workload: Workload, clock: Clock) -> Run:
    slo_s, ingress = workload.slo_s, "ingress"
    cores, p95_s, late, changes = [], [], list[bool](), 0
    replicas: dict[str, list[float]] = {"segment": [], "expert": []}
    within = answered = 0
    for step in steps:
        nodes = [node for node in step.report.observation.nodes if node.kind != ingress]
        paid = [step.report.cost_by_node[node.node].provisioned or 0.0 for node in nodes]
        cores.append(sum(paid) / (step.window.end_s - step.window.start_s))
        tail = step.window.quantile_s(SLO_QUANTILE)
        p95_s.append(np.nan if tail is None else tail)
        judged_s = step.window.judged_s(SLO_QUANTILE)
        late += [] if judged_s is None else [judged_s > slo_s]
        within += int((step.window.latency_s <= slo_s).sum())
        answered += step.window.latency_s.size
        changes += len(step.report.applied)
        for kind, rows in replicas.items():
            rows.append(float(np.mean([n.configuration.replicas for n in nodes if n.kind == kind and n.configuration])))
    return Run(
        np.array([step.window.start_s for step in steps]),
        np.array(cores),
        np.array(p95_s),
        within / max(1, answered + steps[-1].window.in_flight),
        float(np.mean(late)) if late else 1.0,
        changes,
        slo_s,
        {kind: np.array(rows) for kind, rows in replicas.items()},
    )
