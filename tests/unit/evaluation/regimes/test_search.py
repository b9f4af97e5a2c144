"""The cheapest deployment found, against all there are."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from autoscaler.contract import Burst, Capacity, Configuration, ConfigurationSpace
from evaluation.regimes.judged import Deployment, Stretch, Work
from evaluation.regimes.search import Found, cheapest_uniform, descended, neighbours, price_per_hour
from evaluation.uniform import for_all_experts
from simulation.engine.requests import draw_requests
from tests.parameters import some_fast
from tests.unit.evaluation.bound.builders import requests, workload

SPACE = ConfigurationSpace(128, 128, 64, (1.0, 3.0), (), 1, 2, 1, 1)
NEAR = 1.15
"""The descent is greedy: what it finds costs at most so many times the optimum here."""


def stretch(slo_s: float, seed: int = 0) -> Stretch:
    """Ten seconds in windows of two; the first is not judged."""
    work = Work(workload(slo_s, SPACE), requests(workload(slo_s, SPACE), 60.0, 10.0, seed), seed)
    return Stretch(work, 2.0, frozenset(range(1, 5)))


def every(judged: Stretch) -> list[tuple[Deployment, float | None]]:
    """All deployments, each with its cost."""
    functions = [node.function for node in judged.workload.experts]
    axes = product(SPACE.cpu_cores, SPACE.replica_counts)
    one_each = [Configuration(128, cores, 0.0, replicas, 1) for cores, replicas in axes]
    deployments = [dict(zip(functions, chosen, strict=True)) for chosen in product(one_each, repeat=len(functions))]
    return [(deployment, judged.cost(deployment)) for deployment in deployments]


@pytest.mark.parametrize("slo_s", some_fast([0.03, 0.04, 0.055], 1))
def test_uniform_is_the_cheapest_of_all_and_descent_comes_near_the_optimum(slo_s: float) -> None:
    judged = stretch(slo_s)
    deployments = every(judged)
    uniforms = [cost for deployment, cost in deployments if cost is not None and len(set(deployment.values())) == 1]
    optimum = min(cost for _, cost in deployments if cost is not None)
    uniform = cheapest_uniform(judged, concurrencies=(1,))
    assert uniform is not None and uniform.cost == pytest.approx(min(uniforms))
    per_expert = descended(judged, uniform, [[name] for name in uniform.deployment], neighbours(judged.workload))
    assert optimum <= per_expert.cost <= min(uniform.cost, NEAR * optimum)
    assert judged.cost(per_expert.deployment) == pytest.approx(per_expert.cost)


def test_the_levels_of_slo_ask_for_different_deployments() -> None:
    """Else the test above would hold for any search."""
    costs = [one.cost for slo_s in (0.03, 0.04, 0.055) if (one := cheapest_uniform(stretch(slo_s))) is not None]
    assert len(set(costs)) > 1


def test_where_nothing_keeps_the_slo_or_for_less_there_is_nothing() -> None:
    assert cheapest_uniform(stretch(0.001)) is None
    assert cheapest_uniform(stretch(0.1), below=1e-9) is None


@pytest.mark.parametrize("sleep_s", [None, 1.0])
def test_of_standbys_that_the_cluster_has_no_room_for_as_many_are_tried_as_it_has(sleep_s: float | None) -> None:
    judged = stretch(0.1)
    experts = len(judged.workload.experts)
    small = replace(judged.workload, capacity=Capacity(100.0, 1e6, 0))
    assert small.expert_room is not None
    taken = 100.0 - small.expert_room.cores
    small = replace(small, capacity=Capacity(taken + 3 * experts, 1e6, 0))  # three cores an expert
    within = Stretch(Work(small, judged.requests, 0), 2.0, judged.windows)
    most, all_of_them = (
        cheapest_uniform(within, Burst(standbys, 1.0, 0.5, 1.0, sleep_s=sleep_s)) for standbys in (9, 2)
    )
    assert most is not None and all_of_them is not None and most.cost == all_of_them.cost
    assert {one.burst.standbys for one in most.deployment.values() if one.burst} == {2}


def test_a_deployment_beyond_the_cluster_costs_nothing_as_it_cannot_be() -> None:
    judged = stretch(0.1)
    one = for_all_experts(judged.workload, Configuration(128, 3.0, 0.0, 2, 1))
    assert judged.cost(one) is not None
    small = replace(judged.workload, capacity=Capacity(40.0, 1e6, 0))
    assert Stretch(Work(small, judged.requests, 0), 2.0, judged.windows).cost(one) is None


def test_the_price_of_a_deployment_without_standbys_is_its_cost() -> None:
    judged = stretch(0.5)
    one = for_all_experts(judged.workload, Configuration(128, 1.0, 0.0, 2, 1))
    assert judged.cost(one) == pytest.approx(price_per_hour(judged.workload, one))


def test_standbys_keep_in_a_burst_what_their_floor_alone_does_not_and_cost_less_than_replicas() -> None:
    arrivals = np.concatenate([np.arange(0, 20, 0.25), 10 + np.arange(0, 2, 0.0025)])
    one = workload(0.2, replace(SPACE, replicas_max=8))
    work = Work(one, draw_requests(one, np.sort(arrivals), seed=0), 0)
    judged = Stretch(work, 20.0, frozenset((0,)))
    alone = Configuration(128, 1.0, 0.0, 1, 1)
    with_standbys = replace(alone, burst=Burst(3, 1.5, 1.0, 2.0))
    costs = [judged.cost(for_all_experts(one, each)) for each in (alone, with_standbys, alone.with_replicas(3))]
    assert judged.cost(for_all_experts(one, alone.with_replicas(2))) is None
    assert costs[0] is None and costs[1] is not None and costs[2] is not None
    assert costs[1] < 0.6 * costs[2]


def test_descent_never_adds_cost() -> None:
    judged = stretch(0.04, seed=3)
    start = for_all_experts(judged.workload, Configuration(128, 3.0, 0.0, 2, 1))
    cost = judged.cost(start)
    assert cost is not None
    after = descended(judged, Found(start, cost), [[name] for name in start], neighbours(judged.workload))
    assert after.cost <= cost
