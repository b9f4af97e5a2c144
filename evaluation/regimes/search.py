"""The cheapest deployment found that keeps λ: one configuration for all experts, and then each its own by descent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

from autoscaler.contract import Burst, Configuration
from autoscaler.prices import Meter
from evaluation.bound.uniform import enough_memory
from evaluation.regimes.judged import Deployment, Judged
from evaluation.uniform import first_keeping, fits, for_all_experts
from simulation.workloads.workload import Workload

CONCURRENCIES = (1, 4, 10)
"""Costs nothing, so each is tried with every resource."""


class Found(NamedTuple):
    """A deployment that keeps λ, and its cost an hour."""

    deployment: Deployment
    cost: float


def cheapest_uniform(
    judged: Judged,
    burst: Burst | None = None,
    below: float = float("inf"),
    concurrencies: Sequence[int] = CONCURRENCIES,
) -> Found | None:
    """The same for all experts: each resource at the fewest replicas that keep λ, of which the cheapest is taken.

    Replicas are bisected, so more of them are taken to be at least as fast. Where the cluster has no room for all of
    ``burst``'s standbys next to the fewest replicas, there are as many as it has room for. None where none keeps λ for
    less than ``below``.
    """
    workload, best = judged.workload, None
    memory_mb = enough_memory(workload, judged.requests)
    slots = [count for count in concurrencies if count in workload.space.concurrencies]
    resources = sorted(workload.space.resources, key=lambda one: workload.prices.unit_per_s(_one(*one)))
    for (cores, share), concurrency in product(resources, slots):
        limit = below if best is None else best.cost
        fewest = workload.space.replica_counts[0]
        smallest = Configuration(memory_mb(fewest, cores), cores, share, fewest, concurrency, burst)
        rule = _with_room(workload, smallest).burst
        choices = [
            one
            for count in workload.space.replica_counts
            if fits(workload, one := Configuration(memory_mb(count, cores), cores, share, count, concurrency, rule))
            and least_per_hour(judged, for_all_experts(workload, one)) < limit
        ]
        costs: dict[int, float | None] = {}

        def keeps(
            number: int, choices: Sequence[Configuration] = choices, costs: dict[int, float | None] = costs
        ) -> bool:
            costs[number] = judged.cost(for_all_experts(workload, choices[number]))
            return costs[number] is not None

        if not choices or not keeps(len(choices) - 1):
            continue
        number = first_keeping(len(choices) - 1, keeps)
        cost = costs[number]
        if cost is not None and cost < limit:
            best = Found(for_all_experts(workload, choices[number]), cost)
    return best


def _with_room(workload: Workload, configuration: Configuration) -> Configuration:
    """With fewer standbys, at least one, where there is no room for all of them at every expert."""
    burst = configuration.burst
    for standbys in range(0 if burst is None else burst.standbys, 0, -1):
        assert burst is not None
        fewer = replace(configuration, burst=replace(burst, standbys=standbys))
        if standbys == 1 or fits(workload, fewer):
            return fewer
    return configuration


def descended(
    judged: Judged,
    start: Found,
    groups: Iterable[Sequence[str]],
    cheaper: Callable[[Sequence[str], Deployment], Iterable[Configuration]],
) -> Found:
    """Group after group of functions takes the first of ``cheaper``, by price, with which λ is kept for less."""
    best, price = start, pricing(judged.workload, judged.meter)
    for functions in groups:
        present = max(price(best.deployment[name]) for name in functions)
        for one in sorted(cheaper(functions, best.deployment), key=price):
            if price(one) >= present:
                break
            step = dict(best.deployment) | dict.fromkeys(functions, one)
            cost = judged.cost(step)
            if cost is not None and cost < best.cost:
                best = Found(step, cost)
                break
    return best


def neighbours(workload: Workload) -> Callable[[Sequence[str], Deployment], Iterator[Configuration]]:
    """Fewer replicas, the next smaller resource in any number, and fewer standbys than any of the group has."""
    resources = sorted(workload.space.resources, key=lambda one: workload.prices.unit_per_s(_one(*one)))

    def cheaper(functions: Sequence[str], deployment: Deployment) -> Iterator[Configuration]:
        for one in dict.fromkeys(deployment[function] for function in functions):
            for count in workload.space.replica_counts:
                if count < one.replicas:
                    yield one.with_replicas(count)
            if place := resources.index((one.cpu_cores, one.gpu_share)):
                cores, share = resources[place - 1]
                for count in workload.space.replica_counts:
                    yield replace(one, cpu_cores=cores, gpu_share=share, replicas=count)
            if one.burst is not None:
                yield replace(one, burst=replace(one.burst, standbys=one.burst.standbys // 2))

    return cheaper


def price_per_hour(workload: Workload, deployment: Deployment) -> float:
    """The cost where no standby is ever activated: what always runs, and what waits."""
    return 3600 * sum(map(pricing(workload), deployment.values()))


def least_per_hour(judged: Judged, deployment: Deployment) -> float:
    """What it costs at least: on the busy meter nothing until it is called."""
    return price_per_hour(judged.workload, deployment) if judged.meter == "provisioned" else 0.0


def pricing(workload: Workload, meter: Meter = "provisioned") -> Callable[[Configuration], float]:
    """What a configuration costs a second where none of its standbys is activated; on the busy meter a busy replica,
    however many there are."""
    if meter == "busy":
        return workload.prices.unit_per_s
    return lambda one: workload.prices.provisioned(one, 1.0)


def _one(cores: float, share: float) -> Configuration:
    return Configuration(1, cores, share, 1, 1)
