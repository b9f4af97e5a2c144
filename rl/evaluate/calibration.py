"""Whether an SLO can be told from none on one shared machine: asked of the simulator itself.

The queueing model behind the same check of the modelled cluster (:func:`rl.evaluate.episode.check_binding`) gives every
replica its cores to itself; it knows neither what the ingress does nor what a CPU quota lets through. So here the
counted windows are played, with every expert alike: each resource of Φ with one replica and with several.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from autoscaler.contract import Configuration
from rl.bound.loads import WindowLoad
from rl.bound.oracle import alone, simulate
from rl.evaluate.errors import EvaluationError
from rl.reward import METERS, Meter
from rl.tuning.outcomes import MOST_VIOLATED, Played
from rl.workload import Workload

REPLICAS = (1, 2, 4)


@dataclass(frozen=True)
class Alike:
    """All experts under one configuration, for the whole episode."""

    configuration: Configuration
    cost: dict[Meter, float]
    violated: float
    """Share (0 to 1) of the judged windows whose P95 is above the SLO; 1 where none can be judged."""


def all_alike(played: Played) -> list[Alike]:
    """Every one of :func:`choices`."""
    found = []
    for choice in choices(played.workload):
        costs, p95_s = played.unchanged({node.function: choice for node in played.workload.experts})
        over = float(np.mean([value > played.workload.slo_s for value in p95_s])) if p95_s else 1.0
        found.append(Alike(choice, costs, over))
    return found


def choices(workload: Workload) -> Iterator[Configuration]:
    """Least memory (which bears on cost alone, unless it bounds the cores), largest concurrency, which costs nothing,
    and each resource with as many replicas of :data:`REPLICAS` as Φ allows."""
    space = workload.space
    for replicas in sorted({min(max(count, space.replicas_min), space.replicas_max) for count in REPLICAS}):
        for cores, share in space.resources:
            least = cores * (workload.memory_mb_per_core or 0.0)
            memory = next((size for size in space.memory_sizes_mb if size >= least), space.memory_max_mb)
            yield Configuration(memory, cores, share, replicas, space.concurrency_max)


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
    workload, found = load.physics.workload, []
    for choice in choices(workload):
        deployed = {node.function: choice for node in workload.experts}
        cost, p95_s = simulate(alone(load), deployed, "provisioned", seed)
        keeps = p95_s <= workload.slo_s
        found.append((not keeps, cost if keeps else p95_s, deployed))
    return min(found, key=lambda one: one[:2])[2]


def _cheapest(found: Sequence[Alike], meter: Meter) -> Alike:
    return min(found, key=lambda one: one.cost[meter])
