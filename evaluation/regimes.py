"""Where scaling pays: constants against what is best in each window by itself, one for all experts or each its own.

Five ways to keep the SLO λ in the same windows, all on the provisioned meter:

- the cheapest constants found: the same for all experts, one for each layer, one for each expert;
- the cheapest choice found for each window by itself, one for all experts, or each its own
  (of that and :func:`evaluation.bound.oracle.cheapest_feasible` the cheaper one).

The last two know the window beforehand, change between windows for nothing and begin each with an empty pipeline: what
no policy can do, so they say how much scaling can save at most as far as the searches found it. Windows in which no
choice was found are judged for nobody; in all others every way keeps λ, so all have equally many windows over it. Burst
activation, which acts within a window, is not part of it (``benchmarks.bursty_cost``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np

from autoscaler.contract import SLO_QUANTILE, Configuration
from evaluation.bound.loads import WindowLoad, expected_tables, windows
from evaluation.bound.oracle import alone, cheapest_feasible, configurations, simulate
from evaluation.bound.physics import Physics
from evaluation.bound.uniform import candidates
from evaluation.bound.walls import Problem
from evaluation.uniform import for_all_experts
from simulation.engine.requests import Requests
from simulation.engine.simulation import Simulation
from simulation.workloads.workload import Workload

CONCURRENCIES = (1, 4, 10)
"""Costs nothing, so each is tried with every uniform configuration."""
TIMES_MEAN = (1.0, 1.25, 1.6, 2.0, 3.0, 4.0, 6.0)
"""Load that a constant for each expert is planned for, over the mean load."""
SHARES = (0.5, 0.7, 0.85, 1.0)
"""Part of λ that the queueing model is given for it."""
WARM_UP = 1
"""Windows at the start that are not judged."""

Deployment = Mapping[str, Configuration]


@dataclass(frozen=True)
class Ways:
    """Cost of the experts an hour under each way; None where none was found that keeps λ in every judged window."""

    constant: float | None
    constant_per_layer: float | None
    constant_per_expert: float | None
    window: float | None
    window_per_expert: float
    judged: int
    """Windows in which some choice keeps λ."""
    unmet: int
    """Windows in which none was found."""
    changes: float
    """Share of an expert's windows, the first apart, in which its own best choice is another than the window before."""


def ways(workload: Workload, requests: Requests, window_s: float, seconds: float, seed: int) -> Ways | None:
    """All ways on ``seconds`` of ``requests``; None where no choice keeps λ in any window."""
    physics = Physics(workload, requests.most_tokens)
    loads = list(windows(physics, requests, window_s, seconds))[WARM_UP:]
    best = {number: each for number, load in enumerate(loads, WARM_UP) if load.count and (each := _best(load, seed))}
    if not best:
        return None
    hours = len(best) * window_s / 3600
    uniform = [each.uniform for each in best.values()]
    optima = [each.deployment for each in best.values()]
    stretch = Stretch(workload, requests, window_s, seconds, frozenset(best), seed)
    constant = stretch.cheapest(for_all_experts(workload, one) for one in _uniform(workload, requests))
    each_largest = _largest(workload, optima)
    starts = [one for one in (constant, each_largest) if one is not None]
    layers = [[node.function for node in workload.topology.experts(layer)] for layer in range(workload.topology.layers)]
    per_layer = None if constant is None else stretch.descended(constant, layers, optima)
    planned = _each_its_own(physics, requests, seconds)
    start = stretch.cheapest([*planned, *starts, *([] if per_layer is None else [per_layer])])
    per_expert = None if start is None else stretch.descended(start, [[name] for name in start], optima)
    return Ways(
        _per_hour(workload, constant),
        _per_hour(workload, per_layer),
        _per_hour(workload, per_expert),
        None if None in uniform else sum(cost for cost in uniform if cost is not None) / hours,
        sum(each.cost for each in best.values()) / hours,
        len(best),
        sum(load.count > 0 for load in loads) - len(best),
        _changes(optima),
    )


class Best(NamedTuple):
    """The least costly choices found for one window by itself."""

    cost: float
    deployment: Deployment
    uniform: float | None
    """Cost of the best uniform one; None where no uniform one keeps λ."""


def _best(load: WindowLoad, seed: int) -> Best | None:
    """None where nothing keeps λ."""
    feasible, uniform = cheapest_feasible(load, "provisioned", seed), _uniform_of_window(load, seed)
    if feasible is not None and (uniform is None or feasible.cost <= uniform.cost):
        numbers = configurations(load.physics, feasible.numbers)
        return Best(feasible.cost, numbers, None if uniform is None else uniform.cost)
    return uniform


def _uniform(workload: Workload, requests: Requests) -> list[Configuration]:
    """Configurations for all experts at once, each with every concurrency."""
    slots = [count for count in CONCURRENCIES if count in workload.space.concurrencies]
    return [replace(one, concurrency=count) for one in candidates(workload, requests) for count in slots]


def _uniform_of_window(load: WindowLoad, seed: int) -> Best | None:
    """The cheapest uniform configuration that keeps λ in the window by itself."""
    load = alone(load)
    workload = load.physics.workload
    for one in sorted(_uniform(workload, load.requests), key=lambda one: _price(workload, one)):
        deployment = for_all_experts(workload, one)
        cost, p95_s = simulate(load, deployment, "provisioned", seed)
        if p95_s <= workload.slo_s:
            return Best(cost, deployment, cost)
    return None


def _each_its_own(physics: Physics, requests: Requests, seconds: float) -> Iterator[Deployment]:
    """Constants with a configuration for each expert: the queueing model's optimum for a multiple of the mean load and
    a part of λ."""
    for times, share in product(TIMES_MEAN, SHARES):
        load = WindowLoad(physics, requests, 0, requests.arrival_s.size, seconds / times)
        tables, outside_s = expected_tables(load, "provisioned")
        problem = Problem(tables, physics.space_arrays, physics.workload.expert_room)
        enclosure = problem.enclose(share * max(0.0, physics.workload.slo_s - outside_s))
        if enclosure.feasible:
            yield configurations(physics, enclosure.numbers)


@dataclass(frozen=True, eq=False)
class Stretch:
    """One continuous simulation, in which what never changes has to keep λ in all ``judged`` windows."""

    workload: Workload
    requests: Requests
    window_s: float
    seconds: float
    judged: frozenset[int]
    seed: int

    def keeps(self, deployment: Deployment) -> bool:
        start = self.workload.initial(next(iter(deployment.values()))) | dict(deployment)
        simulation = Simulation(self.workload, self.requests, start, seed=self.seed)
        for number in range(round(self.seconds / self.window_s)):
            window = simulation.advance((number + 1) * self.window_s)
            if number in self.judged:
                p95_s = window.quantile_s(SLO_QUANTILE)
                if window.in_flight if p95_s is None else p95_s > self.workload.slo_s:
                    return False
        return True

    def cheapest(self, choices: Iterable[Deployment]) -> Deployment | None:
        """The least costly of ``choices`` that keeps λ; None where none does."""
        deployments = sorted(choices, key=lambda one: _per_s(self.workload, one))
        return next((one for one in deployments if self.keeps(one)), None)

    def descended(
        self, start: Deployment, groups: Iterable[Sequence[str]], optima: Sequence[Deployment]
    ) -> dict[str, Configuration]:
        """Group after group of functions takes the cheapest configuration with which λ is kept, of those that one of
        the group has in ``optima`` and that are cheaper than the group's own."""
        deployment = dict(start)
        for functions in groups:
            present = max(_price(self.workload, deployment[function]) for function in functions)
            every = {optimum[function] for optimum in optima for function in functions}
            for cheaper in sorted(every, key=lambda one: _price(self.workload, one)):
                if _price(self.workload, cheaper) >= present:
                    break
                if self.keeps(step := deployment | dict.fromkeys(functions, cheaper)):
                    deployment = step
                    break
        return deployment


def _largest(workload: Workload, optima: Sequence[Deployment]) -> Deployment:
    """Each expert's most expensive choice of any window."""
    return {
        function: max((optimum[function] for optimum in optima), key=lambda one: _price(workload, one))
        for function in optima[0]
    }


def _price(workload: Workload, configuration: Configuration) -> float:
    return configuration.replicas * workload.prices.unit_per_s(configuration)


def _per_s(workload: Workload, deployment: Deployment) -> float:
    return sum(_price(workload, configuration) for configuration in deployment.values())


def _per_hour(workload: Workload, deployment: Deployment | None) -> float | None:
    return None if deployment is None else 3600 * _per_s(workload, deployment)


def _changes(chosen: Sequence[Deployment]) -> float:
    pairs = [before[function] != after[function] for before, after in pairwise(chosen) for function in before]
    return float(np.mean(pairs)) if pairs else 0.0
