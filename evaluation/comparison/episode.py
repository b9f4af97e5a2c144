"""One group: the same requests under every policy, and the bound next to them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from autoscaler.contract import SLO_QUANTILE, Capacity, Configuration, Cost, NodeInfo, NodeObservation
from autoscaler.prices import Meter
from evaluation.bound.bounds import deterministic, lower_bound
from evaluation.bound.errors import BoundError
from evaluation.bound.loads import WindowLoad, windows
from evaluation.bound.oracle import alone, cheapest_feasible, configurations, simulate_numbers
from evaluation.bound.physics import Physics
from evaluation.bound.window import Enclosure
from evaluation.comparison.arrivals import Arrivals, arrivals
from evaluation.comparison.calibration import check_shared, uniform_runs, uniform_start
from evaluation.comparison.errors import EvaluationError
from evaluation.comparison.grid import Grid, Group
from evaluation.comparison.policies import limits_of, policy_of
from evaluation.tuning.outcomes import Replay
from simulation.engine.controlled import Step, failures_of, simulate_policy
from simulation.engine.regions import measured_part
from simulation.engine.requests import Requests, draw_requests
from simulation.engine.simulation import Answers, Simulation
from simulation.workloads.workload import Workload
from simulation.workloads.worlds import PAPER_CAPACITY

BOUND = "bound"
"""Name under which the bound stands among the policies."""
METERS: tuple[Meter, ...] = ("busy", "provisioned")
Made = TypeVar("Made")
EXPERT_COSTS = ("busy_experts", "provisioned_experts", "standbys_experts")


def _or_refusal(make: Callable[[], Made]) -> Made | EvaluationError:
    """A refusal is kept like a value: a sweep asks again for every setting, and finding it out simulates."""
    try:
        return make()
    except EvaluationError as error:
        return error


def _unless_refused(outcome: Made | EvaluationError) -> Made:
    if isinstance(outcome, EvaluationError):
        raise EvaluationError(str(outcome))
    return outcome


@dataclass(frozen=True, eq=False)
class Work:
    """What all policies of a group meet; tables and start are made when first asked for."""

    group: Group
    workload: Workload
    requests: Requests
    arrivals: Arrivals
    given: Configuration | None
    """What every expert begins with; None: :func:`profiled_start`."""
    profiling_s: float
    """Length of the warm-up."""
    window_s: float

    @cached_property
    def physics(self) -> Physics:
        return Physics(self.workload, self.requests.most_tokens)

    @property
    def start(self) -> Mapping[str, Configuration]:
        """Function → what it begins with. Raises EvaluationError."""
        return _unless_refused(self._start)

    @property
    def binds(self) -> dict[Meter, bool]:
        """:func:`check_binding` of the windows after the warm-up, on a shared machine
        :func:`evaluation.comparison.calibration.check_shared`. Raises EvaluationError."""
        return _unless_refused(self._binds)

    @cached_property
    def _start(self) -> Mapping[str, Configuration] | EvaluationError:
        given = self.given
        return _or_refusal(lambda: profiled_start(self) if given is None else self.workload.initial(given))

    @cached_property
    def _binds(self) -> dict[Meter, bool] | EvaluationError:
        return _or_refusal(self._binding)

    def _binding(self) -> dict[Meter, bool]:
        busy = [load for load in self.loads() if load.count]
        if self.workload.host is None or not busy:
            return check_binding(busy, self)
        warm_up, seed = round(self.profiling_s / self.window_s), self.group.seed
        replay = Replay(self.workload, self.requests, self.window_s, self.arrivals.seconds, warm_up, seed=seed)
        return check_shared(uniform_runs(replay), self.workload.slo_s, self.group.key)

    def loads(self) -> list[WindowLoad]:
        """The windows after the warm-up."""
        loads = list(windows(self.physics, self.requests, self.window_s, self.arrivals.seconds))
        return loads[round(self.profiling_s / self.window_s) :]


def prepare(grid: Grid, group: Group) -> Work:
    """Workload, arrivals, lengths and routing, kept for grids that differ in policies and their settings only.

    Raises EvaluationError, TraceError, SimulationError.
    """
    return prepared_once(replace(grid, policies=("static",), plans=None, settings=None, bound=False), group)


@lru_cache(maxsize=32)
def prepared_once(grid: Grid, group: Group) -> Work:
    trace_arrivals = arrivals(grid, group)
    mean_rps = grid.mean_rps or trace_arrivals.arrival_s.size / trace_arrivals.seconds
    workload = grid.workload_of(group, mean_rps)
    requests = draw_requests(workload, trace_arrivals.arrival_s, seed=group.seed, source=trace_arrivals.source)
    workload = grid.walled(workload, requests, group.seed)
    return Work(
        group, workload, requests, trace_arrivals, grid.start, grid.warm_up_windows * grid.window_s, grid.window_s
    )


def profiled_start(work: Work) -> dict[str, Configuration]:
    """The cheapest configurations found that keep the SLO in the warm-up windows, or where these are empty in the first
    stretch as long that is not; on a shared machine as
    :func:`evaluation.comparison.calibration.uniform_start` finds them.

    Raises EvaluationError.
    """
    physics, requests, workload = work.physics, work.requests, work.workload
    last_s = float(requests.arrival_s[-1]) if requests.arrival_s.size else 0.0
    stretches = windows(physics, requests, work.profiling_s, last_s + work.profiling_s)
    load = next((stretch for stretch in stretches if stretch.count), None)
    if load is None:
        raise EvaluationError(f"{requests.source}: no request to profile with; say what to start with")
    if workload.host is not None:
        chosen = uniform_start(load, work.group.seed)
        return workload.initial(next(iter(chosen.values()))) | chosen
    feasible = cheapest_feasible(load, "provisioned", work.group.seed)
    if feasible is None:
        raise EvaluationError(
            f"{workload.name}: no configuration was found that keeps the SLO of {1000 * workload.slo_s:g} ms in the "
            f"{work.profiling_s:g} s of warm-up; lower the load or the input size, or say what to start with"
        )
    chosen = configurations(physics, feasible.numbers)
    return workload.initial(next(iter(chosen.values()))) | chosen


def run_policy(grid: Grid, work: Work, name: str) -> tuple[dict[str, Any], pa.Table]:
    """(summary, one row a counted window) of one policy. Raises SettingsError, and EvaluationError where nothing can be
    measured with these requests.
    """
    workload, group, binds = work.workload, work.group, work.binds
    policy = policy_of(name, workload, grid, group)
    simulation = Simulation(workload, work.requests, work.start, seed=group.seed)
    begun_s = time.perf_counter()
    steps = simulate_policy(
        simulation, policy, limits_of(workload), window_s=grid.window_s, until_s=work.arrivals.seconds
    )
    spent_s = time.perf_counter() - begun_s
    counted = steps[grid.warm_up_windows :]
    experts = {node.id: node for node in workload.experts}
    table = pa.Table.from_pylist([_row(step, workload, experts) for step in counted])
    summary = {
        **_names(group, name),
        "simulated": True,
        "binds": binds,
        "slo_s": workload.slo_s,
        "windows": len(counted),
        **(totals := _totals(table, counted, workload.slo_s)),
        **failures_of(counted),
        "beyond_cluster": None if workload.host is not None else beyond_cluster(totals, workload.capacity),
        "world": grid.world,
        "latency": workload.latency.name,
        "measured_part": measured_part(workload, work.requests, counted),
        "coupled": workload.memory_mb_per_core is not None,
        "requests_sha256": work.requests.sha256,
        "source": work.arrivals.source,
        "cv": work.arrivals.cv,
        "dispersion": work.arrivals.dispersion,
        "trace_measured": work.arrivals.measured,
        "currency": workload.prices.currency,
        "prices": workload.prices.name,
        "play_s": spent_s,
    }
    return summary, table


def run_bound(work: Work) -> dict[str, Any]:
    """Sum of the counted windows' lower bounds on both meters (an empty window still has one replica of each expert),
    and on which of them the SLO binds.

    Raises EvaluationError where it binds on none, or cannot be met; BoundError where there is none.
    """
    loads = work.loads()
    if work.workload.host is not None:
        raise BoundError(
            f"in windows of {work.window_s:g} s requests of one are served in the next (SLO {work.workload.slo_s:g} s) "
            f"and by replicas of the last (for {work.workload.lifecycle.drain_s:.2g} s), so bounds of single windows "
            f"do not add up to one of a run; `smoe lab bound` takes each by itself"
        )
    summary: dict[str, Any] = {**_names(work.group, BOUND), "simulated": True, "requests_sha256": work.requests.sha256}
    summary["binds"] = work.binds
    unreachable = 0
    for meter in METERS:
        bounds = [lower_bound(load, meter, work.group.seed) for load in loads]
        summary[f"{meter}_experts"] = float(sum(bound.cost for bound in bounds))
        unreachable = sum(not bound.reachable for bound in bounds)
    return summary | {"windows": len(loads), "unreachable_windows": unreachable}


def check_binding(loads: list[WindowLoad], work: Work) -> dict[Meter, bool]:
    """On which meter the SLO binds in the busiest window: the cheapest configurations miss it, by the queueing model
    or, as that one takes some loads for lighter than they are, simulated.

    Costs on a meter where it does not bind say nothing about keeping it. Raises EvaluationError where it binds on
    neither, or where no configuration meets it.
    """
    if not loads:
        raise EvaluationError(f"{work.requests.source}: no window after the warm-up has a request")
    busiest = max(loads, key=lambda load: load.count)
    optima = {meter: deterministic(busiest, meter) for meter in METERS}
    slo_ms, name, one = 1000 * work.workload.slo_s, work.group.key, optima["provisioned"]
    budget_ms = 1000 * one.budget_s
    if one.fastest_s > one.budget_s:
        raise EvaluationError(
            f"{name}: no configuration meets the SLO of {slo_ms:g} ms in the busiest window: the experts of the "
            f"fastest choice take {1000 * one.fastest_s:.1f} ms of {budget_ms:.1f}; lower the load or the input size"
        )
    if not one.feasible:
        raise EvaluationError(
            f"{name}: no choice that the cluster has room for was found that meets the SLO of {slo_ms:g} ms in "
            f"the busiest window; lower the load or the input size, or take a larger SLO"
        )
    binds = {meter: enclosure.binds or _missed(busiest, enclosure, meter, work) for meter, enclosure in optima.items()}
    if not any(binds.values()):
        raise EvaluationError(
            f"{name}: the SLO of {slo_ms:g} ms does not bind: already the cheapest configurations take "
            f"{1000 * one.cheapest_s:.1f} ms of {budget_ms:.1f} in the busiest window, so costs would say nothing "
            f"about keeping it; use longer inputs, more load or other prices"
        )
    return binds


def _missed(busiest: WindowLoad, cheapest: Enclosure, meter: Meter, work: Work) -> bool:
    """Whether the choice that the queueing model takes for enough misses the SLO when the window is simulated."""
    _, p95_s = simulate_numbers(alone(busiest), cheapest.numbers, meter, work.group.seed)
    return p95_s > work.workload.slo_s


def _names(group: Group, policy: str) -> dict[str, Any]:
    return {
        "workload": group.workload,
        "pattern": group.pattern,
        "tokens": group.tokens,
        "seed": group.seed,
        "policy": policy,
    }


def _row(step: Step, workload: Workload, experts: dict[str, NodeInfo]) -> dict[str, Any]:
    window, report = step.window, step.report
    expert_costs = [report.cost_by_node.get(node, Cost(None, None)) for node in experts]
    p95_s = window.quantile_s(SLO_QUANTILE)
    return {
        "start_s": window.start_s,
        "end_s": window.end_s,
        "arrived": window.arrived,
        "answered": int(window.finished.size),
        "in_flight": window.in_flight,
        "p50_s": window.quantile_s(0.5),
        "p95_s": p95_s,
        "violated": _violated(window, workload.slo_s),
        "busy": report.cost.busy,
        "provisioned": report.cost.provisioned,
        "busy_experts": _sum([cost.busy for cost in expert_costs]),
        "provisioned_experts": _sum([cost.provisioned for cost in expert_costs]),
        "standbys_experts": _sum([cost.standbys for cost in expert_costs]),
        "replicas": int(sum(window.replicas["ready"])),
        **_ordered(report.observation.nodes),
        "changes": len(report.applied),
        "decision_s": report.decision_s,
    }


def _violated(window: Answers, slo_s: float) -> bool | None:
    """Whether P95 is above the SLO, infinite where requests wait and none was answered; None without either."""
    p95_s = window.judged_s(SLO_QUANTILE)
    return None if p95_s is None else p95_s > slo_s


def _ordered(nodes: Sequence[NodeObservation]) -> dict[str, float]:
    """Cores, GPUs and MiB of all ready replicas at a window's end, the segments' included."""
    ready = [(one.configuration, one.ready_replicas or 0) for one in nodes if one.configuration is not None]
    return {
        "cores": float(sum(count * one.cpu_cores for one, count in ready)),
        "gpus": float(sum(count * one.gpu_share for one, count in ready)),
        "memory_mb": float(sum(count * one.memory_mb for one, count in ready)),
    }


def beyond_cluster(totals: Mapping[str, Any], capacity: Capacity | None) -> list[str]:
    """The resources of which a run wants more at its peak than ``capacity`` has; None: than the paper's cluster."""
    room = (capacity or PAPER_CAPACITY).total
    most = {"cores": room.cores, "gpus": room.gpu_tenths / 10, "memory_mb": room.memory_mb}
    return [name for name in most if totals[f"peak_{name}"] > most[name] + 1e-9]


def _sum(values: list[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return float(sum(numbers)) if numbers and len(numbers) == len(values) else None


def _totals(table: pa.Table, steps: list[Step], slo_s: float) -> dict[str, Any]:
    """Sums and quantiles over the counted windows; one in which nothing waits and nothing was answered is not judged,
    and one without an answer has no finite excess, so that none counts."""
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    p95 = np.array([value for value in columns["p95_s"] if value is not None])
    judged = [violated for violated in columns["violated"] if violated is not None]
    latency = np.concatenate([step.window.latency_s for step in steps]) if steps else np.zeros(0)
    return {
        **{name: _sum(columns[name]) for name in ("busy", "provisioned", *EXPERT_COSTS)},
        "requests": int(sum(columns["arrived"])),
        "answered": int(latency.size),
        "judged_windows": len(judged),
        "violated_windows": sum(judged),
        "mean_excess": float(np.maximum(p95 / slo_s - 1, 0).mean()) if p95.size else None,
        "p95_over_slo": float(np.quantile(latency, SLO_QUANTILE) / slo_s) if latency.size else None,
        "changes": int(sum(columns["changes"])),
        **{f"peak_{name}": max(columns[name]) for name in ("cores", "gpus", "memory_mb")},
        "decision_ms_p50": 1000 * float(np.median(columns["decision_s"])),
        "decision_ms_p99": 1000 * float(np.quantile(columns["decision_s"], 0.99)),
    }
