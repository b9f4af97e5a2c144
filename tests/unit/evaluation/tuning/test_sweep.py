"""Sweeps over policies' settings: what is kept, what is written, what an evaluation makes of it."""

from __future__ import annotations

import csv
import math
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from autoscaler.errors import SettingsError
from autoscaler.policy.hpa import HpaPolicy
from evaluation.comparison import run
from evaluation.comparison.grid import Grid, Group, file_name
from evaluation.comparison.policies import policy_of
from evaluation.tuning import sweep as sweeping
from evaluation.tuning.search import SearchSettings
from evaluation.tuning.searches import make_plans
from evaluation.tuning.sweep import ALL, CANDIDATES, Swept, best, sweep, write_setting
from simulation.workloads.paper import paper_workload
from tests.parameters import some_fast

CELL = Group("bert-4", "bursty", 0, 0)


def test_some_of_the_standbys_that_are_tried_sleep_and_none_has_a_cost_of_its_own() -> None:
    tried = [
        setting["burst"] for policy in ("hpa+burst", "last-window+burst") for setting in sweeping.candidates_of(policy)
    ]
    assert {rule.get("sleep_s") for rule in tried} == {None, 1.0, 4.0}
    assert not any("token_s" in rule for rule in tried)


@pytest.fixture
def grid(tmp_path: Path) -> Grid:
    return Grid(
        ("bert-4",),
        ("bursty",),
        (0,),
        ("static", "kpa"),
        (0,),
        window_s=10.0,
        seconds=60.0,
        mean_rps=8.0,
        warm_up_windows=2,
        data=tmp_path,
    )


def swept(cost: float, violated: int) -> Swept:
    """Of 20 windows."""
    return Swept("p", "w", {}, cost, violated, 20)


def test_the_cheapest_of_those_that_keep_the_slo_is_best() -> None:
    trials = [swept(1.0, 10), swept(3.0, 0), swept(2.0, 1)]
    assert best(trials) is trials[2]
    assert best(trials[:1]) is trials[0]


def test_where_none_keeps_it_the_cheapest_of_those_with_hardly_more_than_the_fewest_violations_is_best() -> None:
    trials = [swept(1.0, 10), swept(3.0, 4), swept(2.0, 5), swept(1.5, 6)]
    assert best(trials) is trials[2]
    assert best([swept(1.0, 2), Swept("p", "w", {}, 0.0, 0, 0)]).cost == 1.0


@pytest.mark.parametrize("policy", some_fast(CANDIDATES, 1))
def test_every_candidate_is_a_file_that_its_policy_takes(grid: Grid, policy: str, tmp_path: Path) -> None:
    workload = paper_workload("bert-4")
    if policy == "tuned-hpa":
        make_plans(replace(grid, policies=(policy,)), tmp_path, SearchSettings(trials=3))
    for setting in CANDIDATES[policy]:
        write_setting(tmp_path, file_name(policy), setting)
        assert tomllib.loads((tmp_path / f"{file_name(policy)}.toml").read_text()) == setting
        made = policy_of(policy, workload, replace(grid, settings=tmp_path, plans=tmp_path), CELL)
        assert made.name == policy


def test_hpas_settings_come_from_its_file_and_odd_ones_are_refused(grid: Grid, tmp_path: Path) -> None:
    write_setting(tmp_path, "hpa", {"concurrency_target": 0.25})
    made = policy_of("hpa", paper_workload("bert-4"), replace(grid, settings=tmp_path), CELL)
    assert isinstance(made, HpaPolicy)
    assert made.settings.targets["concurrency"] == 0.25
    for text, word in (("gateway_url = 1", "gateway_url"), ('cpu_target = "high"', "high"), ("=", "cannot be read")):
        (tmp_path / "hpa.toml").write_text(text)
        with pytest.raises(SettingsError, match=word):
            policy_of("hpa", paper_workload("bert-4"), replace(grid, settings=tmp_path), CELL)


@pytest.mark.slow
def test_a_sweep_records_every_trial_and_leaves_files_for_each_workload_and_for_all(
    grid: Grid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "CANDIDATES", {"kpa": CANDIDATES["kpa"][:2]})
    trials = sweep(replace(grid, workloads=("bert-4", "bert-6")), tmp_path)
    assert [(one.policy, one.workload) for one in trials] == [("kpa", "bert-4"), ("kpa", "bert-6"), ("kpa", ALL)]
    with (tmp_path / "sweep.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["workload"] for row in rows] == ["bert-4"] * 2 + ["bert-6"] * 2 + [ALL] * 2
    assert sum(row["chosen"] == "yes" for row in rows) == 3
    for setting in range(2):
        costs = [float(rows[place + setting]["provisioned_experts"]) for place in (0, 2, 4)]
        assert costs[0] + costs[1] == pytest.approx(costs[2], rel=1e-4)
    for one in trials:
        name = "kpa.toml" if one.workload == ALL else f"kpa.{one.workload}.toml"
        assert tomllib.loads((tmp_path / name).read_text()) == one.setting


def test_a_refused_setting_does_not_raise_the_bar_for_the_others() -> None:
    refused, complete = (Swept("kpa", "bert-4", {}, cost, over, 100) for cost, over in ((math.inf, 0), (2.0, 7)))
    assert best([refused, complete]) is complete and best([refused]) is refused


def test_a_setting_that_some_hours_refuse_is_not_the_cheapest(
    grid: Grid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sum over fewer hours is smaller whatever they cost."""
    monkeypatch.setattr(sweeping, "CANDIDATES", {"kpa": CANDIDATES["kpa"][:2]})
    hour = {"workload": "bert-4", "pattern": grid.patterns[0], "tokens": 0, "policy": "kpa"}
    counted = {"provisioned_experts": 1.0, "judged_windows": 10, "violated_windows": 0}

    def evaluate(asked: Grid, out: Path, **options: object) -> list[dict[str, object]]:
        hours = 1 if out.name.endswith("1") else 2
        return [{**hour, **counted, "seed": seed} for seed in range(hours)]

    monkeypatch.setattr(sweeping, "evaluate", evaluate)
    assert {one.setting["scale_down_delay_s"] for one in sweep(grid, tmp_path)} == {0.0}


@pytest.mark.slow
def test_a_sweep_that_was_stopped_simulates_nothing_twice(
    grid: Grid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "CANDIDATES", {"kpa": CANDIDATES["kpa"][:2]})
    first = sweep(grid, tmp_path)
    monkeypatch.setattr(run, "run_policy", None)
    assert sweep(grid, tmp_path) == first


@pytest.mark.slow
def test_workloads_swept_in_processes_of_their_own_come_to_the_same(grid: Grid, tmp_path: Path) -> None:
    two = replace(grid, workloads=("bert-4", "bert-6"), policies=("kpa",))
    assert sweep(two, tmp_path / "parallel", workers=2) == sweep(two, tmp_path / "one")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("kpa.toml",), "kpa.toml"),
        (("kpa.toml", "kpa.bert-4.toml"), "kpa.bert-4.toml"),
        (("kpa.bert-4.toml", "kpa.bert-4.bursty.toml", "kpa.bert-4.slow.toml"), "kpa.bert-4.bursty.toml"),
        (("kpa.bert-4.bursty.toml", "kpa.bert-4.bursty.0.toml"), "kpa.bert-4.bursty.0.toml"),
        (("kpa.bert-4.bursty.1.toml", "kpa.bert-6.toml", "hpa.toml"), None),
    ],
)
def test_the_file_made_most_closely_for_a_group_is_taken(
    grid: Grid, tmp_path: Path, names: tuple[str, ...], expected: str | None
) -> None:
    for name in names:
        (tmp_path / name).touch()
    settings = replace(grid, settings=tmp_path).settings_of("kpa", CELL)
    assert (settings.name if settings else None) == expected
