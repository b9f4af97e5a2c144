"""Whether an SLO can be told from none on one shared machine: asked of the simulator itself.

The queueing model behind the same check of the modelled cluster (:func:`evaluation.comparison.episode.check_binding`) does not
know such a machine, so the counted windows are played with every expert alike (:mod:`evaluation.bound.uniform`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autoscaler.contract import Configuration
from autoscaler.prices import METERS, Meter
from evaluation.bound.loads import WindowLoad
from evaluation.bound.oracle import alone
from evaluation.bound.uniform import choices, deployed, outcomes
from evaluation.comparison.errors import EvaluationError
from evaluation.tuning.outcomes import MOST_VIOLATED, Played


@dataclass(frozen=True)
class Alike:
    """All experts under one configuration, for the whole episode."""

    configuration: Configuration
    cost: dict[Meter, float]
    violated: float
    """Share (0 to 1) of the judged windows whose P95 is above the SLO; 1 where none can be judged."""


def all_alike(played: Played) -> list[Alike]:
    """Every one of :func:`evaluation.bound.uniform.choices`."""
    found = []
    for choice in choices(played.workload, played.requests):
        costs, p95_s = played.unchanged(deployed(played.workload, choice))
        over = float(np.mean([value > played.workload.slo_s for value in p95_s])) if p95_s else 1.0
        found.append(Alike(choice, costs, over))
    return found


def check_shared(found: Sequence[Alike], slo_s: float, name: str) -> dict[Meter, bool]:
    """On which meter the SLO binds: what is cheapest there breaks it in :data:`MOST_VIOLATED` of the windows more than
    the best does. Raises EvaluationError where it binds on neither, and where everything breaks it in every window."""
    best = min(one.violated for one in found)
    if best >= 1:
        raise EvaluationError(
            f"{name}: whatever configuration all experts have alike, P95 is above the SLO of {1000 * slo_s:g} ms in "
            f"every window; lower the load or the input size, or take a larger --slo-ms or --cpu-scale"
        )
    cheapest = {meter: _cheapest(found, meter) for meter in METERS}
    binds = {meter: one.violated > best + MOST_VIOLATED for meter, one in cheapest.items()}
    if not any(binds.values()):
        one = cheapest["provisioned"]
        raise EvaluationError(
            f"{name}: the SLO of {1000 * slo_s:g} ms does not bind: with every expert at its cheapest "
            f"({one.configuration.cpu_cores:g} configured core) P95 is above it in {one.violated:.1%} of the windows, "
            f"with the best choice in {best:.1%}, so costs would say nothing about keeping it; take a smaller --slo-ms "
            f"or --cpu-scale, or more load"
        )
    return binds


def start_alike(load: WindowLoad, seed: int) -> dict[str, Configuration]:
    """Function → configuration, the same for all experts: the cheapest that keeps the SLO in ``load`` by itself, and
    where none does the one with the least P95."""
    slo_s = load.physics.workload.slo_s
    found = outcomes(alone(load), "provisioned", seed)
    keeping = [(cost, choice) for choice, cost, p95_s in found if p95_s <= slo_s]
    _, chosen = min(keeping or [(p95_s, choice) for choice, _, p95_s in found], key=lambda one: one[0])
    return deployed(load.physics.workload, chosen)


def _cheapest(found: Sequence[Alike], meter: Meter) -> Alike:
    return min(found, key=lambda one: one.cost[meter])
