"""The search for deployments: what it walks through, what it judges, and that it finds what there is to find."""

from __future__ import annotations

import csv
import itertools
from pathlib import Path

import numpy as np
import optuna
import pytest
from click.testing import CliRunner

from autoscaler.contract import ConfigurationSpace
from autoscaler.policy.hpa import HpaSettings
from autoscaler.stored_deployment import load_plan
from evaluation.bound.bounds import lower_bound
from evaluation.bound.loads import WindowLoad
from evaluation.bound.oracle import simulate_numbers
from evaluation.comparison.episode import Work
from evaluation.comparison.errors import EvaluationError
from evaluation.comparison.grid import Grid, Group
from evaluation.tuning import searches
from evaluation.tuning.commands import tune
from evaluation.tuning.curves import best_so_far, picture
from evaluation.tuning.deployments import AXES, SHARES, Deployments, Parameters
from evaluation.tuning.outcomes import Replay, tail_s
from evaluation.tuning.search import Outcome, SearchSettings, search, write_trials
from evaluation.tuning.searches import make_plans
from simulation.workloads.paper import paper_workload
from tests.unit.evaluation.bound.builders import FOUR, window

optuna.logging.set_verbosity(optuna.logging.WARNING)
SPACE = ConfigurationSpace(128, 1024, 64, (1.0, 2.0), (0.2,), 1, 3, 1, 4)


@pytest.fixture(scope="module")
def load() -> WindowLoad:
    return window(0.04, 60.0, 3.0, 2, SPACE)


@pytest.fixture(scope="module")
def around(load: WindowLoad) -> Deployments:
    return Deployments((load,), groups=2)


def judged(load: WindowLoad, around: Deployments) -> Outcome:
    """The whole window, played."""
    simulated = Replay(load.physics.workload, load.requests, load.window_s, load.window_s, 0)

    def outcome(parameters: Parameters) -> tuple[float, float]:
        cost, values = simulated.static(around.build(parameters))
        return cost, tail_s(values)

    return outcome


def test_groups_are_even_and_by_popularity(load: WindowLoad, around: Deployments) -> None:
    tokens = {f"t-expert-{e // 2}-{e % 2}": int(load.tokens(1 + e).sum()) for e in range(4)}
    low, high = around.by_popularity
    assert len(low) == len(high) == 2
    assert max(tokens[f] for f in low) <= min(tokens[f] for f in high)
    assert len(Deployments((load,), groups=9).by_popularity) == 4


def test_anchors_are_optima_of_the_profile_and_cost_more_for_less_time(around: Deployments, load: WindowLoad) -> None:
    prices = load.physics.workload.prices
    costs = [sum(c.replicas * prices.unit_per_s(c) for c in anchor.values()) for anchor in around.anchors]
    assert len(costs) == len(SHARES) and costs == sorted(costs)


def test_steps_move_a_group_along_an_axis_and_stop_at_its_ends(around: Deployments) -> None:
    still = {"anchor": 0}
    before, low = around.build(still), around.by_popularity[0]
    after = around.build({**still, "replicas-0": 1, "concurrency-0": -9, "compute-0": 9})
    for function, found in after.items():
        if function in low:
            assert found.replicas == min(before[function].replicas + 1, 3)
            assert (found.concurrency, found.gpu_share) == (1, 0.2)
        else:
            assert found == before[function]
    assert all(found in SPACE for found in after.values())


def test_what_was_found_for_one_profile_can_be_built_for_another(around: Deployments) -> None:
    other = Deployments((window(0.04, 20.0, 3.0, 5, SPACE),), groups=2)
    assert other.spans == around.spans
    assert other.build({"anchor": 1}).keys() == around.build({"anchor": 1}).keys()


def test_a_profile_that_nothing_serves_is_given_the_most() -> None:
    nothing = Deployments((window(0.03, 30_000.0, 1.0, 2, SPACE),), groups=1)
    assert {(c.gpu_share, c.replicas, c.concurrency) for c in nothing.build({"anchor": 0}).values()} == {(0.2, 3, 4)}
    assert {c.memory_mb for c in nothing.anchors[0].values()} == {1024}


def test_the_best_of_all_trials_is_returned_and_each_is_recorded(
    load: WindowLoad, around: Deployments, tmp_path: Path
) -> None:
    settings = SearchSettings(trials=30, least_trials=30)
    outcome = search(around.spans, judged(load, around), load.physics.workload.slo_s, settings, around.words)
    met = [trial for trial in outcome.trials if trial.meets]
    assert len(outcome.trials) == 30 and met and outcome.best.cost == min(trial.cost for trial in met)
    assert judged(load, around)(outcome.parameters) == (outcome.best.cost, outcome.best.tail_s)
    assert lower_bound(load, "provisioned").cost <= outcome.best.cost
    write_trials(outcome.trials, tmp_path / "serverlessmoe.w.csv")
    with (tmp_path / "serverlessmoe.w.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["cost"]) for row in rows] == [trial.cost for trial in outcome.trials]
    curve = best_so_far(tmp_path / "serverlessmoe.w.csv")
    assert curve[-1] == outcome.best.cost and [c for c in curve if c] == sorted((c for c in curve if c), reverse=True)
    picture(tmp_path / "curves.png", {"serverlessmoe.w": curve})
    assert (tmp_path / "curves.png").stat().st_size > 5000


def test_the_same_seed_finds_the_same_and_another_tries_others(load: WindowLoad, around: Deployments) -> None:
    one, two, other = (
        search(around.spans, judged(load, around), 0.04, SearchSettings(trials=20, least_trials=20, seed=seed))
        for seed in (1, 1, 2)
    )
    assert one == two and one.trials != other.trials


def test_it_finds_the_cheapest_of_few_deployments() -> None:
    """One group over four configurations."""
    load = window(0.03, 15.0, 2.0, 1, FOUR)
    every = [simulate_numbers(load, (np.array([n, n]), np.array([n, n])), "provisioned", 0) for n in range(len(FOUR))]
    best = min(cost for cost, p95_s in every if p95_s <= 0.03)
    around = Deployments((load,), groups=1)
    outcome = search(around.spans, judged(load, around), 0.03, SearchSettings(trials=120))
    assert outcome.best.cost <= best * (1 + 1e-9) and outcome.converged


def test_a_search_ends_at_the_bottom_of_a_bowl_with_every_step_away_tried() -> None:
    spans = {"anchor": (0, 3), "compute-0": (-9, 9), "replicas-0": (-9, 9)}
    centre = {"anchor": 2, "compute-0": 4, "replicas-0": -3}

    def outcome(parameters: Parameters) -> tuple[float, float]:
        return 1.0 + sum((parameters[name] - centre[name]) ** 2 for name in spans), 0.5

    searched = search(spans, outcome, 1.0, SearchSettings(trials=200, least_trials=10))
    assert searched.converged and searched.parameters == centre and len(searched.trials) < 200
    keys = [trial.words for trial in searched.trials]
    assert len(set(keys)) == len(keys)
    short = search(spans, outcome, 1.0, SearchSettings(trials=6))
    assert not short.converged and len(short.trials) == 6


def test_a_cheap_miss_is_never_better_than_a_dear_hit() -> None:
    def outcome(parameters: Parameters) -> tuple[float, float]:
        return (1.0, 1.01) if parameters["anchor"] else (90.0, 1.0)

    assert search({"anchor": (0, 1)}, outcome, 1.0).parameters == {"anchor": 0}


def test_where_nothing_meets_the_slo_the_least_objective_is_returned_and_says_so(load: WindowLoad) -> None:
    def outcome(parameters: Parameters) -> tuple[float, float]:
        anchor = parameters["anchor"]
        return (np.inf, np.inf) if anchor == 3 else (1.0 + anchor, 1.2 - 0.1 * anchor)

    searched = search({"anchor": (0, 3)}, outcome, 0.5, SearchSettings(penalty=10.0))
    assert not searched.best.meets
    assert [trial.objective for trial in searched.trials] == pytest.approx([15.0, 26.0, 33.0, 1e30])
    assert searched.parameters == {"anchor": 0}


def test_the_tail_is_what_all_but_a_twentieth_of_the_windows_keep() -> None:
    values = [float(value) for value in range(1, 41)]
    assert tail_s(values) == 38.0
    assert tail_s([1.0, np.inf]) == np.inf and tail_s([]) == np.inf


def test_the_hpa_is_judged_by_what_it_pays_after_the_warm_up(load: WindowLoad, around: Deployments) -> None:
    """With equal bounds the HPA cannot move, so two of three windows cost the same as the static deployment's."""
    simulated = Replay(load.physics.workload, load.requests, 1.0, 3.0, 1)
    fixed = {function: found.with_replicas(2) for function, found in around.build({"anchor": 0}).items()}
    cost, values = simulated.with_hpa(fixed, HpaSettings(min_replicas=2, max_replicas=2))
    alone, same = simulated.static(fixed)
    assert cost == pytest.approx(alone) and values == same and len(values) == 2
    free = HpaSettings(down_stabilisation_s=0.0, max_replicas=3)
    assert simulated.with_hpa(fixed, free)[0] < cost


def test_both_meters_are_those_of_the_controller(load: WindowLoad, around: Deployments) -> None:
    fixed = {function: found.with_replicas(2) for function, found in around.build({"anchor": 0}).items()}
    still = HpaSettings(min_replicas=2, max_replicas=2)
    for meter in ("busy", "provisioned"):
        simulated = Replay(load.physics.workload, load.requests, 1.0, 3.0, 0, meter)
        assert simulated.static(fixed)[0] == pytest.approx(simulated.with_hpa(fixed, still)[0])


@pytest.mark.slow
def test_plans_are_built_for_every_seed_from_one_search_and_not_searched_again(tmp_path: Path) -> None:
    grid = Grid(
        ("bert-4",), ("bursty",), (0,), ("serverlessmoe",), (0, 1),
        window_s=10.0, seconds=60.0, mean_rps=8.0, warm_up_windows=2, data=tmp_path,
    )  # fmt: skip
    planned = make_plans(grid, tmp_path / "plans", SearchSettings(trials=4))
    assert list(planned) == ["serverlessmoe.bert-4.bursty"]
    plans = [load_plan(tmp_path / "plans" / f"serverlessmoe.bert-4.bursty.{seed}.json") for seed in (0, 1)]
    assert plans[0].configurations != plans[1].configurations
    assert all(plan.made_by["words"] == planned["serverlessmoe.bert-4.bursty"].best.words for plan in plans)
    assert all("validation" not in str(plan.made_by) or plan.made_by["profile"] for plan in plans)
    assert make_plans(grid, tmp_path / "plans", SearchSettings(trials=4)) == {}


@pytest.mark.slow
def test_a_seed_whose_own_hour_is_refused_has_no_plan_and_costs_the_others_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = Grid(
        ("bert-4",), ("bursty",), (0,), ("constant",), (0, 1, 2),
        window_s=10.0, seconds=60.0, mean_rps=8.0, warm_up_windows=2, data=tmp_path,
    )  # fmt: skip
    prepared = searches.prepare

    def prepare(grid: Grid, group: Group) -> Work:
        if group.seed == 0:
            raise EvaluationError("too few machines")
        return prepared(grid, group)

    monkeypatch.setattr(searches, "prepare", prepare)
    searches.refusal_of.cache_clear()
    searches.prepared_hour.cache_clear()
    plans, refused = tmp_path / "plans", dict[str, str]()
    found = make_plans(grid, plans, SearchSettings(trials=30), refused=refused)
    assert sorted(path.name for path in plans.glob("*.json")) == [
        f"constant.bert-4.bursty.{seed}.json" for seed in (1, 2)
    ]
    assert refused == {"constant.bert-4.bursty.0": "too few machines"} and list(found) == ["constant.bert-4.bursty"]
    assert make_plans(grid, plans, SearchSettings(trials=30), refused=refused) == {}


@pytest.mark.parametrize("policy", ["serverlessmoe", "tuned-hpa"])
def test_the_command_stores_a_plan_that_the_policy_can_run(tmp_path: Path, policy: str) -> None:
    arrivals = tmp_path / "trace.csv"
    arrivals.write_text("arrival_s\n" + "".join(f"{i * 0.5}\n" for i in range(120)))
    options = ["--policy", policy, "--workload", "bert-4", "--trace", str(arrivals), "--out", str(tmp_path / "plans")]
    result = CliRunner().invoke(tune, [*options, "--trials", "4", "--groups", "2", "--profile-s", "60"])
    assert result.exit_code == 0, result.output
    plan = load_plan(tmp_path / "plans" / f"{policy}.bert-4.json", paper_workload("bert-4").topology)
    assert len(plan.configurations) == 48 and plan.made_by["policy"] == policy
    assert len((tmp_path / "plans" / f"{policy}.bert-4.csv").read_text().splitlines()) == 5


def test_a_profile_without_a_request_where_deployments_are_judged_is_refused(tmp_path: Path) -> None:
    arrivals = tmp_path / "trace.csv"
    arrivals.write_text("arrival_s\n" + "".join(f"{i * 0.5}\n" for i in range(60)) + "500\n")
    options = [
        "--policy",
        "tuned-hpa",
        "--workload",
        "bert-4",
        "--trace",
        str(arrivals),
        "--out",
        str(tmp_path / "out"),
    ]
    result = CliRunner().invoke(tune, options)
    assert result.exit_code == 2 and "no request between 30 and 120 s" in " ".join(result.output.split())
    assert not (tmp_path / "out").exists()


def test_every_axis_of_a_group_has_its_span(load: WindowLoad) -> None:
    spans = Deployments((load, load), groups=2, axes=AXES).spans
    assert spans["anchor"] == (0, 2 * len(SHARES) - 1)
    expected = {f"{axis}-{group}": (-size, size) for (axis, size), group in itertools.product(
        (("compute", 2), ("replicas", 2), ("concurrency", 3)), range(2)
    )}  # fmt: skip
    assert {name: span for name, span in spans.items() if name != "anchor"} == expected
