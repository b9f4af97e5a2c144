"""Sweeps over policies' settings: what is kept, what is written, what an evaluation makes of it."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from autoscaler.errors import SettingsError
from autoscaler.policy.hpa import HpaPolicy
from rl.evaluate.grid import Grid, file_name
from rl.evaluate.policies import hpa_table, policy_of
from rl.tuning import sweep as sweeping
from rl.tuning.plans import make_plans
from rl.tuning.sweep import CANDIDATES, Swept, best, sweep, write_setting
from rl.workload_paper import paper_workload


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


def test_the_cheapest_of_those_that_keep_the_slo_is_best() -> None:
    trials = [Swept("p", {}, cost, violated) for cost, violated in ((1.0, 0.5), (3.0, 0.0), (2.0, 0.05))]
    assert best(trials) is trials[2]
    assert best(trials[:1]) is trials[0]


def test_where_none_keeps_it_the_fewest_violations_win() -> None:
    trials = [Swept("p", {}, cost, violated) for cost, violated in ((1.0, 0.5), (3.0, 0.2), (2.0, 0.2))]
    assert best(trials) is trials[2]


@pytest.mark.parametrize("policy", CANDIDATES)
def test_every_candidate_is_a_file_that_its_policy_takes(grid: Grid, policy: str, tmp_path: Path) -> None:
    workload = paper_workload("bert-4")
    if policy == "tuned-hpa":
        make_plans(replace(grid, policies=(policy,)), tmp_path, trials=3)
    for setting in CANDIDATES[policy]:
        write_setting(tmp_path, policy, setting)
        assert tomllib.loads((tmp_path / f"{file_name(policy)}.toml").read_text()) == setting
        made = policy_of(policy, workload, replace(grid, settings=tmp_path, plans=tmp_path), 0)
        assert made.name in (policy, "last-window")


def test_hpas_settings_come_from_its_file_and_odd_ones_are_refused(grid: Grid, tmp_path: Path) -> None:
    write_setting(tmp_path, "hpa", {"concurrency_target": 0.25})
    made = policy_of("hpa", paper_workload("bert-4"), replace(grid, settings=tmp_path), 0)
    assert isinstance(made, HpaPolicy)
    assert made.settings.targets["concurrency"] == 0.25
    for text, word in (("gateway_url = 1", "gateway_url"), ('cpu_target = "high"', "high"), ("=", "cannot be read")):
        (tmp_path / "odd.toml").write_text(text)
        with pytest.raises(SettingsError, match=word):
            hpa_table(tmp_path / "odd.toml")


def test_a_sweep_records_every_trial_and_leaves_a_folder_of_settings(
    grid: Grid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "CANDIDATES", {"kpa": CANDIDATES["kpa"][:2]})
    found = sweep(grid, tmp_path / "settings")
    assert set(found) == {"kpa"}
    lines = (tmp_path / "settings" / "sweep.csv").read_text().splitlines()
    assert len(lines) == 3
    assert sum(line.endswith(",yes") for line in lines) == 1
    assert tomllib.loads((tmp_path / "settings" / "kpa.toml").read_text()) == found["kpa"].setting
