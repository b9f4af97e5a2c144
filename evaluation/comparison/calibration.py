"""Whether an SLO makes a difference on one shared machine: asked of the simulator itself.

The queueing model behind the same check of the modelled cluster
(:func:`evaluation.comparison.episode.check_binding`) does not know such a machine, so the counted windows are simulated
under uniform configurations (:mod:`evaluation.bound.uniform`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autoscaler.contract import Configuration
from autoscaler.prices import METERS, Meter
from evaluation.bound.loads import WindowLoad
from evaluation.bound.oracle import alone
from evaluation.bound.uniform import candidates, uniform_outcomes
from evaluation.comparison.errors import EvaluationError
from evaluation.tuning.outcomes import MOST_VIOLATED, Replay
from evaluation.uniform import cheapest_within, for_all_experts


@dataclass(frozen=True)
class UniformRun:
    """All experts under one configuration, for the whole episode."""

    configuration: Configuration
    cost: dict[Meter, float]
    violated: float
    """Share (0 to 1) of the judged windows whose P95 is above the SLO; 1 where none can be judged."""


def uniform_runs(replay: Replay) -> list[UniformRun]:
    """Each of :func:`evaluation.bound.uniform.candidates`."""
    runs = []
    for configuration in candidates(replay.workload, replay.requests):
        costs, p95_s = replay.unchanged(for_all_experts(replay.workload, configuration))
        violated = float(np.mean([value > replay.workload.slo_s for value in p95_s])) if p95_s else 1.0
        runs.append(UniformRun(configuration, costs, violated))
    return runs


def check_shared(runs: Sequence[UniformRun], slo_s: float, name: str) -> dict[Meter, bool]:
    """On which meter the SLO binds: what is cheapest there breaks it in :data:`MOST_VIOLATED` of the windows more than
    the best does. Raises EvaluationError where it binds on neither, and where everything breaks it in every window."""
    best = min(run.violated for run in runs)
    if best >= 1:
        raise EvaluationError(
            f"{name}: whatever uniform configuration the experts have, P95 is above the SLO of {1000 * slo_s:g} ms in "
            f"every window; lower the load or the input size, or take a larger --slo-ms or --cpu-scale"
        )
    cheapest = {meter: _cheapest(runs, meter) for meter in METERS}
    binds = {meter: run.violated > best + MOST_VIOLATED for meter, run in cheapest.items()}
    if not any(binds.values()):
        run = cheapest["provisioned"]
        raise EvaluationError(
            f"{name}: the SLO of {1000 * slo_s:g} ms does not bind: with every expert at its cheapest "
            f"({run.configuration.cpu_cores:g} configured core) P95 is above it in {run.violated:.1%} of the windows, "
            f"with the best choice in {best:.1%}, so costs would say nothing about keeping it; take a smaller --slo-ms "
            f"or --cpu-scale, or more load"
        )
    return binds


def uniform_start(load: WindowLoad, seed: int) -> dict[str, Configuration]:
    """Function → configuration, the same for all experts: the cheapest that keeps the SLO in ``load`` by itself, and
    where none does the one with the least P95."""
    workload = load.physics.workload
    configurations, costs, p95_s = zip(*uniform_outcomes(alone(load), "provisioned", seed), strict=True)
    return for_all_experts(workload, configurations[cheapest_within(costs, p95_s, workload.slo_s)])


def _cheapest(runs: Sequence[UniformRun], meter: Meter) -> UniformRun:
    return min(runs, key=lambda run: run.cost[meter])
