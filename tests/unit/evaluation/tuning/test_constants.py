"""Best constants on several hours, against all that there are."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from autoscaler.contract import Capacity, Configuration, ConfigurationSpace
from evaluation.regimes.judged import Work
from evaluation.tuning.constants import Hour, Hours, search_constants
from evaluation.tuning.outcomes import MOST_VIOLATED
from simulation.engine.requests import draw_requests
from simulation.workloads.routing import zipf_routing
from tests.unit.evaluation.bound.builders import requests, workload

SPACE = ConfigurationSpace(128, 128, 64, (1.0, 3.0), (), 1, 2, 1, 1)
NEAR = 1.15
"""The descent is greedy: what it finds costs at most so many times the optimum here."""
ONE_EACH = [Configuration(128, cores, 0.0, replicas, 1) for cores, replicas in product((1.0, 3.0), (1, 2))]


def hour(slo_s: float, seed: int, space: ConfigurationSpace = SPACE) -> Hour:
    """Ten seconds in windows of half a second, of which the first two are not judged; each hour's own popularity."""
    one = replace(workload(slo_s, space), routing=zipf_routing([2, 2], exponent=1.2, seed=seed))
    return Hour(Work(one, requests(one, 60.0, 10.0, seed), seed), 0.5, range(2, 20))


def cheapest(hours: list[Hour], deployments: list[tuple[Configuration, ...]]) -> float:
    """By brute force, of those that break λ in at most a twentieth of the windows."""
    costs = []
    for one in deployments:
        parts = [each.outcome(one) for each in hours]
        values = [value for _, part in parts for value in part]
        if sum(value > 1 for value in values) <= MOST_VIOLATED * len(values):
            costs.append(np.mean([cost for cost, _ in parts]))
    return float(min(costs))


@pytest.mark.slow
@pytest.mark.parametrize("slo_s", [0.03, 0.04, 0.055])
def test_one_for_all_is_the_cheapest_of_all_and_more_freedom_comes_near_its_optimum(slo_s: float) -> None:
    hours = [hour(slo_s, seed) for seed in (0, 1)]
    every = [search_constants(name, hours, 60) for name in ("constant", "constant-per-layer", "constant-per-expert")]
    assert all(one.best.meets for one in every)
    uniform, per_layer, per_expert = (one.best.cost for one in every)
    assert uniform == pytest.approx(cheapest(hours, [(one,) * 4 for one in ONE_EACH]))
    optimum = cheapest(hours, [(one, one, two, two) for one, two in product(ONE_EACH, repeat=2)])
    assert optimum * (1 - 1e-9) <= per_layer <= NEAR * optimum and per_layer <= uniform
    optimum = cheapest(hours, list(product(ONE_EACH, repeat=4)))
    assert optimum * (1 - 1e-9) <= per_expert <= NEAR * optimum and per_expert <= per_layer


@pytest.mark.slow
def test_a_search_is_by_the_meter_that_its_hours_are_judged_on() -> None:
    provisioned, busy = hour(0.055, 0), replace(hour(0.055, 0), meter="busy")
    few, many = ((one,) * 4 for one in (ONE_EACH[0], ONE_EACH[1]))
    assert provisioned.outcome(many)[0] == 2 * provisioned.outcome(few)[0]
    assert busy.outcome(many)[0] == pytest.approx(busy.outcome(few)[0], rel=0.01)  # replicas that wait are free
    assert busy.outcome(few)[0] < provisioned.outcome(few)[0] and busy.outcome(few)[1] == provisioned.outcome(few)[1]
    found = search_constants("constant", [busy], 60)
    assert found.best.cost == pytest.approx(cheapest([busy], [(one,) * 4 for one in ONE_EACH]), rel=0.01)
    per_expert = search_constants("constant-per-expert", [busy], 100)
    assert per_expert.best.cost <= NEAR * cheapest([busy], list(product(ONE_EACH, repeat=4)))
    assert per_expert.best.meets and per_expert.best.cost <= found.best.cost


def test_every_hour_gives_its_own_most_called_expert_what_the_first_hour_s_has() -> None:
    hours = [hour(0.05, seed) for seed in range(4)]
    assert len({one.ranked for one in hours}) > 1
    for one in hours:
        deployment = one.deployment((ONE_EACH[3], ONE_EACH[0], ONE_EACH[2], ONE_EACH[0]))
        functions = [node.function for node in one.work.workload.experts]
        tokens = dict(zip(functions, one.work.requests.counts[1:].sum(axis=1), strict=True))
        for layer, large in enumerate((ONE_EACH[3], ONE_EACH[2])):
            most = max((f"t-expert-{layer}-{expert}" for expert in range(2)), key=tokens.__getitem__)
            assert deployment[most] == large


def test_no_more_deployments_are_judged_than_allowed() -> None:
    constants = search_constants("constant-per-expert", [hour(0.055, 0)], 3)
    assert len(constants.trials) == 3 and not constants.converged
    assert constants.best.cost == min(trial.cost for trial in constants.trials if trial.meets)


def test_where_none_keeps_the_slo_the_last_windows_are_not_bought_at_any_price() -> None:
    """The fewest windows over λ, and a twentieth more: the rule of a sweep."""
    judged = Hours([hour(0.0262, 0)], 100)
    for one in ONE_EACH:
        judged.cost(judged.hours[0].deployment((one,) * 4))
    fewest = min(judged.shares.values())
    assert MOST_VIOLATED < fewest < 1
    constants = search_constants("constant", judged.hours, 100)
    shares = {key[0]: share for key, share in judged.shares.items()}
    allowed = [one for one, share in shares.items() if share <= fewest + MOST_VIOLATED]
    costs = {one: judged.trials[(one,) * 4].cost for one in allowed}
    assert not constants.best.meets and constants.configurations[0] == min(allowed, key=costs.__getitem__)


def test_the_cluster_has_room_for_what_is_found() -> None:
    small = hour(0.055, 0)
    room = replace(small.work.workload, capacity=Capacity(40.0, 1e6, 0))
    small = replace(small, work=Work(room, small.work.requests, 0), outcomes={})
    assert small.outcome((ONE_EACH[3],) * 4) == (np.inf, [])
    constants = search_constants("constant-per-expert", [small], 60)
    assert (
        constants.best.meets and sum(one.cpu_cores * one.replicas for one in constants.configurations) <= 40 - 3 * 2 * 4
    )


def test_standbys_are_part_of_a_constant_and_of_its_cost() -> None:
    """Two seconds of many requests in twenty: standbys keep λ for less than what they take where they always run."""
    space = replace(SPACE, replicas_max=8)
    one = workload(0.2, space)
    arrivals = np.concatenate([np.arange(0, 20, 0.25), 10 + np.arange(0, 2, 0.0025)])
    burst = Hour(Work(one, draw_requests(one, np.sort(arrivals), seed=0), 0), 20.0, range(1))
    always, standing_by = (search_constants(name, [burst], 200) for name in ("constant", "constant+burst"))
    assert always.best.meets and standing_by.best.meets
    assert standing_by.best.cost < 0.7 * always.best.cost
    rules = {each.burst for each in standing_by.configurations}
    assert len(rules) == 1 and None not in rules
    floor = sum(each.replicas * one.prices.unit_per_s(each) for each in standing_by.configurations)
    assert standing_by.best.cost > 3600 * floor


@pytest.mark.slow
@pytest.mark.parametrize("trials", [4, 60])
@pytest.mark.parametrize("name", ["constant", "constant-per-expert"])
def test_standbys_never_cost_more_than_none_however_few_trials_there_are(name: str, trials: int) -> None:
    """Steady traffic: where standbys do not pay, a policy that may have them holds none."""
    hours = [hour(0.04, seed) for seed in (0, 1)]
    always, may_stand_by = (search_constants(policy, hours, trials) for policy in (name, name + "+burst"))
    assert may_stand_by.best.meets and may_stand_by.best.cost <= always.best.cost
    assert {each.burst for each in may_stand_by.configurations} == {None}
