"""What a deployment comes to when it is simulated: the measure that searches and sweeps of settings have in common.

Cost over the counted windows, and the tail: the P95 that 95 % of the windows keep. So "the tail is within the SLO" is
the rule by which a sweep chooses settings, at most 5 % of windows over the SLO (:mod:`evaluation.tuning.sweep`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autoscaler.capacity import total_needs
from autoscaler.contract import SLO_QUANTILE, Configuration
from autoscaler.policy.hpa import HpaSettings
from autoscaler.policy.vertical import VerticalHpaPolicy
from autoscaler.prices import METERS, Meter
from evaluation.comparison.policies import limits_of
from simulation.engine.controlled import simulate_policy
from simulation.engine.kernel import BUSY_S
from simulation.engine.requests import Requests
from simulation.engine.simulation import Answers, Simulation
from simulation.workloads.workload import Workload

MOST_VIOLATED = 0.05
"""Share of windows over the SLO that a setting may have and still be chosen for its cost."""


@dataclass(frozen=True, eq=False)
class Replay:
    """A stretch of requests to be replayed, ``until_s`` seconds in windows."""

    workload: Workload
    requests: Requests
    window_s: float
    until_s: float
    warm_up_windows: int
    """Windows at the start that are not counted; there must be more."""
    meter: Meter = "provisioned"
    seed: int = 0

    def fits(self, deployment: Mapping[str, Configuration]) -> bool:
        """Whether the cluster has room for ``deployment`` of the experts."""
        room = self.workload.expert_room
        return room is None or total_needs(deployment.values()).within(room)

    def static(self, deployment: Mapping[str, Configuration]) -> tuple[float, list[float]]:
        """(cost of the experts, P95 of each judged window) where nothing changes."""
        costs, values = self.unchanged(deployment)
        return costs[self.meter], values

    def unchanged(self, deployment: Mapping[str, Configuration]) -> tuple[dict[Meter, float], list[float]]:
        """The same with the cost on each meter."""
        simulation = self._simulation(deployment)
        count = round(self.until_s / self.window_s)
        counted = [simulation.advance((number + 1) * self.window_s) for number in range(count)][self.warm_up_windows :]
        costs: dict[Meter, float] = dict.fromkeys(METERS, 0.0)
        for place, node in enumerate(simulation.nodes):
            if node.kind == "expert":
                configuration = deployment[node.function]
                unit_per_s = self.workload.prices.unit_per_s(configuration)
                costs["busy"] += unit_per_s * sum(float(window.meter[place, BUSY_S]) for window in counted)
                counted_s, activated_s = self.window_s * len(counted), sum(float(w.activated_s[place]) for w in counted)
                costs["provisioned"] += self.workload.prices.provisioned(configuration, counted_s, activated_s)
        return costs, p95s(counted)

    def with_hpa(self, deployment: Mapping[str, Configuration], hpa: HpaSettings) -> tuple[float, list[float]]:
        """The same where the HPA scales replicas, from those of ``deployment`` on. Infinite cost: a window's is not
        known."""
        policy = VerticalHpaPolicy("tuned-hpa", deployment, hpa)
        limits = limits_of(self.workload)
        steps = simulate_policy(
            self._simulation(deployment), policy, limits, window_s=self.window_s, until_s=self.until_s
        )
        counted = steps[self.warm_up_windows :]
        experts = [node.id for node in self.workload.experts]
        costs = [getattr(step.report.cost_by_node[node], self.meter) for step in counted for node in experts]
        cost = np.inf if any(cost is None for cost in costs) else float(sum(costs))
        return cost, p95s([step.window for step in counted])

    def _simulation(self, deployment: Mapping[str, Configuration]) -> Simulation:
        start = self.workload.initial(next(iter(deployment.values())))
        return Simulation(self.workload, self.requests, {**start, **deployment}, seed=self.seed)


def p95s(windows: Iterable[Answers]) -> list[float]:
    """Exact P95 of each judged window: infinite where requests wait and none was answered."""
    return [value for window in windows if (value := window.judged_s(SLO_QUANTILE)) is not None]


def tail_s(values: Sequence[float]) -> float:
    """The least P95 that at most ``MOST_VIOLATED`` of the windows are above; infinite without a window."""
    if not values:
        return np.inf
    return sorted(values)[len(values) - 1 - int(MOST_VIOLATED * len(values))]
