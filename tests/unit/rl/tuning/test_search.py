"""The search for deployments: what it judges, what it returns, and that it finds what there is to find."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import optuna
import pytest
from click.testing import CliRunner

from autoscaler.contract import Configuration, ConfigurationSpace
from autoscaler.plan import load_plan
from autoscaler.policy.hpa import HpaSettings
from rl.bound.bounds import lower_bound
from rl.bound.loads import WindowLoad
from rl.bound.oracle import play, simulate
from rl.tuning.commands import tune
from rl.tuning.search import (
    SearchSettings,
    deploy,
    hpa_outcome,
    popularity_groups,
    search,
    static_outcome,
    write_trials,
)
from rl.workload_paper import paper_workload
from tests.unit.rl.bound.builders import FOUR, window

optuna.logging.set_verbosity(optuna.logging.WARNING)
SPACE = ConfigurationSpace(128, 1024, 64, (1.0, 2.0), (0.2,), 1, 3, 1, 4)


@pytest.fixture(scope="module")
def load() -> WindowLoad:
    return window(0.04, 60.0, 3.0, 2, SPACE)


def test_groups_are_even_and_by_popularity(load: WindowLoad) -> None:
    groups = popularity_groups(load, 2)
    tokens = {f"t-expert-{e // 2}-{e % 2}": int(load.tokens(1 + e).sum()) for e in range(4)}
    assert [len(group) for group in groups] == [2, 2]
    assert max(tokens[f] for f in groups[0]) <= min(tokens[f] for f in groups[1])
    assert len(popularity_groups(load, 9)) == 4


def test_a_deployment_gives_each_group_its_pick_and_enough_memory(load: WindowLoad) -> None:
    groups = popularity_groups(load, 2)
    found = deploy(load, groups, [(2, 1, 4), (0, 3, 2)])
    assert set(found) == {f for group in groups for f in group}
    assert {(c.gpu_share, c.replicas, c.concurrency) for c in map(found.get, groups[0]) if c} == {(0.2, 1, 4)}
    assert {(c.cpu_cores, c.replicas, c.concurrency) for c in map(found.get, groups[1]) if c} == {(1.0, 3, 2)}
    assert all(c in SPACE for c in found.values())


def test_the_best_of_all_trials_is_returned_and_each_is_recorded(load: WindowLoad, tmp_path: Path) -> None:
    found = search(load, static_outcome(load, "provisioned", 0), SearchSettings(trials=30, groups=2))
    met = [trial for trial in found.trials if trial.meets]
    assert len(found.trials) == 30 and met and found.best.cost == min(trial.cost for trial in met)
    assert simulate(load, found.configurations, "provisioned", 0) == (found.best.cost, found.best.p95_s)
    assert lower_bound(load, "provisioned").cost <= found.best.cost
    write_trials(found.trials, tmp_path / "trials.csv")
    with (tmp_path / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["cost"]) for row in rows] == [trial.cost for trial in found.trials]


def test_the_same_seed_finds_the_same_and_another_tries_others(load: WindowLoad) -> None:
    outcome = static_outcome(load, "busy", 0)
    one, two, other = (search(load, outcome, SearchSettings(trials=15, groups=2, seed=seed)) for seed in (1, 1, 2))
    assert one == two and one.trials != other.trials


def test_it_finds_the_cheapest_of_few_deployments() -> None:
    """One group over four configurations: the first even trials and thirty more see all of them."""
    load = window(0.03, 15.0, 2.0, 1, FOUR)
    every = [play(load, (np.array([n, n]), np.array([n, n])), "provisioned", 0) for n in range(len(FOUR))]
    best = min(cost for cost, p95_s in every if p95_s <= 0.03)
    found = search(load, static_outcome(load, "provisioned", 0), SearchSettings(trials=33, groups=1))
    assert found.best.cost == pytest.approx(best)


def test_where_nothing_meets_the_slo_the_least_objective_is_returned_and_says_so() -> None:
    load = window(0.002, 20.0, 1.0, 1, SPACE)
    found = search(load, static_outcome(load, "busy", 0), SearchSettings(trials=12, groups=1))
    assert not found.best.meets
    assert found.best.objective == min(trial.objective for trial in found.trials)
    worse = 1 + 10 * (found.best.p95_s / 0.002 - 1)
    assert found.best.objective == pytest.approx(found.best.cost * worse)


def test_the_hpa_is_judged_by_what_it_pays_after_the_warm_up(load: WindowLoad) -> None:
    """With equal bounds the HPA cannot move, so that two of three windows cost two thirds of the static deployment."""
    groups = popularity_groups(load, 1)
    fixed = deploy(load, groups, [(1, 2, 4)])
    still = hpa_outcome(load, "provisioned", 0, HpaSettings(min_replicas=2, max_replicas=2), 1.0, 1)
    cost, p95_s = still(fixed)
    assert cost == pytest.approx(simulate(load, fixed, "provisioned", 0)[0] * 2 / 3)
    assert 0.0 < p95_s < 0.2
    free = hpa_outcome(load, "provisioned", 0, HpaSettings(down_stabilisation_s=0.0, max_replicas=3), 1.0, 1)
    assert free(fixed)[0] < cost


def test_a_deployment_that_never_answers_is_the_worst(load: WindowLoad) -> None:
    def outcome(deployment: Mapping[str, Configuration]) -> tuple[float, float]:
        lost = next(iter(deployment.values())).replicas > 1
        return (np.inf, np.inf) if lost else (2.0, 0.01)

    found = search(load, outcome, SearchSettings(trials=8, groups=1))
    assert found.best.cost == 2.0 and any(trial.objective == 1e30 for trial in found.trials)


@pytest.mark.parametrize("policy", ["serverlessmoe", "tuned-hpa"])
def test_the_command_stores_a_plan_that_the_policy_can_run(tmp_path: Path, policy: str) -> None:
    arrivals = tmp_path / "trace.csv"
    arrivals.write_text("arrival_s\n" + "".join(f"{i * 0.5}\n" for i in range(120)))
    options = ["--policy", policy, "--workload", "bert-4", "--trace", str(arrivals), "--out", str(tmp_path / "plans")]
    found = CliRunner().invoke(tune, [*options, "--trials", "4", "--groups", "2", "--profile-s", "60"])
    assert found.exit_code == 0, found.output
    plan = load_plan(tmp_path / "plans" / f"{policy}.bert-4.json", paper_workload("bert-4").topology)
    assert len(plan.configurations) == 48 and plan.made_by["policy"] == policy
    assert len((tmp_path / "plans" / f"{policy}.bert-4.csv").read_text().splitlines()) == 5
