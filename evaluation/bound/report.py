"""Bounds and feasible choices of every window of a run of requests, as rows."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from autoscaler.contract import Configuration
from autoscaler.prices import Meter
from evaluation.bound.bounds import deterministic, lower_bound
from evaluation.bound.loads import WindowLoad, windows
from evaluation.bound.oracle import alone, cheapest_feasible, configurations
from evaluation.bound.physics import Physics
from evaluation.bound.uniform import uniform_outcomes, uniform_slo_binds
from evaluation.uniform import for_all_experts
from simulation.engine.regions import measured_part_of
from simulation.engine.requests import Requests
from simulation.workloads.workload import Workload


@dataclass(frozen=True)
class BoundRow:
    """One window under one meter, simulated. Costs are those of the experts, in the price sheet's currency."""

    start_s: float
    requests: int
    meter: str
    lower_bound: float
    """No policy that meets the SLO is cheaper; on the provisioned meter, none whose replicas always run: those that
    wait cost their memory alone."""
    reachable: bool
    """False: the SLO cannot be met in this window; the bound is then that of the work alone."""
    binds: bool
    """Whether meeting the SLO costs more than the cheapest choice, by the queueing model; on one shared machine by
    simulation of uniform configurations."""
    feasible: float | None
    """Cost of a choice that met the SLO in simulation, the window by itself; None: not looked for, or none found."""
    feasible_p95_s: float | None
    measured_part: float | None
    """Part (0 to 1) of the window's calls under the feasible choice that lie where the latency model was measured; None
    without one."""

    @property
    def above(self) -> float | None:
        """How far the feasible choice is above the bound, 0.1 for 10 %."""
        return None if self.feasible is None or not self.lower_bound else self.feasible / self.lower_bound - 1


def bound_rows(
    workload: Workload,
    requests: Requests,
    window_s: float,
    meters: Sequence[Meter],
    *,
    seed: int = 0,
    oracle: bool = True,
    on_row: Callable[[BoundRow], object] = lambda row: None,
) -> list[BoundRow]:
    """Every window that has requests, each by itself, so that bound and choice are of the same draws of ``seed``."""
    physics = Physics(workload, requests.most_tokens)
    end_s = float(requests.arrival_s[-1]) + 1e-6 if requests.arrival_s.size else 0.0
    rows = []
    for number, load in enumerate(windows(physics, requests, window_s, end_s)):
        itself = alone(load)
        for meter in meters if load.count else ():
            rows.append(_row(number * window_s, itself, meter, seed, oracle))
            on_row(rows[-1])
    return rows


def _row(start_s: float, itself: WindowLoad, meter: Meter, seed: int, oracle: bool) -> BoundRow:
    """The row of a window by itself; on one shared machine uniform configurations are tried, too."""
    workload, bound = itself.physics.workload, lower_bound(itself, meter, seed)
    uniform = None if workload.host is None else uniform_outcomes(itself, meter, seed)
    binds = deterministic(itself, meter).binds if uniform is None else uniform_slo_binds(uniform, workload.slo_s)
    feasible = cheapest_feasible(itself, meter, seed) if oracle and bound.reachable else None
    kept: list[tuple[float, float, dict[str, Configuration]]] = []
    if feasible is not None:
        kept.append((feasible.cost, feasible.p95_s, configurations(itself.physics, feasible.numbers)))
    if oracle and uniform is not None:
        kept += [
            (cost, p95_s, for_all_experts(workload, configuration))
            for configuration, cost, p95_s in uniform
            if p95_s <= workload.slo_s
        ]
    row = (start_s, itself.count, meter, bound.cost, bound.reachable, binds)
    if not kept:
        return BoundRow(*row, None, None, None)
    cost, p95_s, chosen = min(kept, key=lambda one: one[:2])
    return BoundRow(*row, cost, p95_s, measured_part_of(workload, itself.requests, chosen))


def write_rows(rows: Sequence[BoundRow], path: Path) -> None:
    """As CSV, one line a window and meter."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [entry.name for entry in fields(BoundRow)])
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)
