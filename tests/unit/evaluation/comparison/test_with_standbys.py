"""A policy's name with ``+burst``: the same policy, with standbys from its settings, its plan, or two by default."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autoscaler.contract import Burst, Configuration
from autoscaler.policy.bursting import BurstingPolicy
from autoscaler.policy.static import StaticPolicy
from autoscaler.stored_deployment import Plan, save_plan
from evaluation.comparison.arrivals import Arrivals
from evaluation.comparison.episode import Work, run_policy
from evaluation.comparison.errors import EvaluationError
from evaluation.comparison.grid import Grid, Group
from evaluation.comparison.policies import policy_of
from evaluation.tuning.sweep import CANDIDATES, candidates_of, write_setting
from simulation.engine.requests import draw_requests
from simulation.workloads.paper import paper_workload
from simulation.workloads.workload import Host
from simulation.workloads.worlds import in_world
from tests.parameters import some_fast

CELL = Group("bert-4", "bursty", 0, 0)
START = Configuration(512, 2.0, 0.0, 1, 4)
GRID = Grid(
    ("bert-4",), ("bursty",), (0,), ("static", "static+burst"), (0,), start=START, window_s=30.0, seconds=240.0,
    warm_up_windows=2, world="cores-only",
)  # fmt: skip
"""Two minutes that count; what the trace is does not matter here."""


ONE_MACHINE = Host(64.0, 1e-5, 1e-5, 1e-5, 1e-5)
"""With a core for whatever is computed at once, and an ingress that is no bottleneck."""


def run(name: str, replicas: int, tmp_path: Path, host: Host | None = None) -> dict[str, Any]:
    """Steady requests with three bursts of two seconds, each in a window of its own."""
    steady, bursts = np.arange(0, 240, 0.2), [at + np.arange(0, 2, 0.005) for at in (75, 135, 200)]
    workload = in_world(replace(paper_workload("bert-4"), slo_s=0.4), "cores-only", 250.0)
    if host is not None:
        workload = replace(workload, host=host, hop_s=0.0, capacity=None)
    requests = draw_requests(workload, np.sort(np.concatenate([steady, *bursts])), seed=0)
    arrivals = Arrivals(requests.arrival_s, 240.0, "bursts", None, {}, measured=False)
    work = Work(CELL, workload, requests, arrivals, START.with_replicas(replicas), 60.0, 30.0)
    work.__dict__["_binds"] = {"busy": True, "provisioned": True}
    settings = {"burst": {"standbys": 3, "headroom": 1.5, "spare": 1.0, "hold_s": 5.0, "look_back_s": 0.5}}
    write_setting(tmp_path, "static-burst", settings)
    return run_policy(replace(GRID, settings=tmp_path), work, name)[0]


@pytest.mark.slow
@pytest.mark.parametrize("host", [None, ONE_MACHINE], ids=["cluster", "one machine"])
def test_in_bursts_standbys_lower_the_p95_of_few_replicas_for_less_than_more_of_them(
    tmp_path: Path, host: Host | None
) -> None:
    few, more = run("static", 1, tmp_path, host), run("static", 3, tmp_path, host)
    with_standbys = run("static+burst", 1, tmp_path, host)
    assert with_standbys["policy"] == "static+burst"
    assert with_standbys["p95_over_slo"] < 0.8 * few["p95_over_slo"]
    assert few["provisioned_experts"] < with_standbys["provisioned_experts"] < more["provisioned_experts"]
    assert few["standbys_experts"] == 0 < with_standbys["standbys_experts"]
    difference = with_standbys["provisioned_experts"] - few["provisioned_experts"]
    assert with_standbys["standbys_experts"] == pytest.approx(difference, rel=0.05)


@pytest.mark.parametrize("base", some_fast(["hpa", "static", "kpa", "elasticmoe", "last-window"], 2))
def test_every_candidate_with_standbys_is_a_file_that_the_policy_takes(base: str, tmp_path: Path) -> None:
    name, settings = f"{base}+burst", candidates_of(f"{base}+burst")
    assert len(settings) == (48 if base in CANDIDATES else 24)
    for setting in settings:
        write_setting(tmp_path, f"{base}-burst", setting)
        made = policy_of(name, paper_workload("bert-4"), replace(GRID, settings=tmp_path), CELL)
        assert made.name == base and made.__dict__["_burst"] == Burst(**setting["burst"])


@pytest.mark.parametrize(("base", "axis"), [("hpa", "down_stabilisation_s"), ("last-window", "load_factor")])
def test_with_standbys_every_level_of_a_policy_s_settings_is_tried(base: str, axis: str) -> None:
    levels = {setting[axis] for setting in CANDIDATES[base]}
    assert {setting[axis] for setting in candidates_of(f"{base}+burst")} == levels and len(levels) == 2


@pytest.mark.parametrize("name", ["last-window", "last-window+burst", "rl.staffing.policy:make_rule", "hpa"])
def test_who_plans_by_the_seconds_of_a_hop_plans_with_those_that_are_simulated(name: str) -> None:
    """``hpa`` knows none, and takes no such setting."""
    made = policy_of(name, paper_workload("bert-4", hop_factor=3.0), replace(GRID, hop_factor=3.0), CELL)
    planner: Any = made.__dict__.get("_policy", made)
    planner = planner.__dict__.get("_chosen", planner)
    planner = planner.__dict__.get("_physics", planner)
    workload = getattr(planner, "_workload", None) or getattr(planner, "workload", None)
    assert (workload.hop_s if workload else 0.0) == (0.0 if name == "hpa" else 3 * paper_workload("bert-4").hop_s)


def test_without_settings_of_its_own_a_policy_has_those_without_standbys_and_two_standbys(tmp_path: Path) -> None:
    write_setting(tmp_path, "hpa", {"concurrency_target": 0.25})
    made = policy_of("hpa+burst", paper_workload("bert-4"), replace(GRID, settings=tmp_path), CELL)
    assert made.__dict__["_burst"] == Burst(2)
    assert made.__dict__["_policy"].settings.targets["concurrency"] == 0.25
    assert not hasattr(policy_of("hpa", paper_workload("bert-4"), GRID, CELL), "_burst")


def test_names_that_have_no_standbys_are_refused_in_a_sentence() -> None:
    with pytest.raises(EvaluationError, match="also with \\+burst; got 'hpx\\+burst'"):
        replace(GRID, policies=("hpx+burst",))


def test_a_plan_with_standbys_is_held_as_it_is_and_one_without_gets_two(tmp_path: Path) -> None:
    grid = replace(GRID, plans=tmp_path, policies=("constant+burst",))
    with_standbys = {"bert-4-expert-0-0": replace(START, burst=Burst(3, 1.5))}
    save_plan(Plan("bert-4", {"bert-4-expert-0-0": START}, {}), tmp_path / "constant.bert-4.json")
    default = policy_of("constant+burst", paper_workload("bert-4"), grid, CELL)
    assert isinstance(default, BurstingPolicy) and default.__dict__["_burst"] == Burst(2)
    save_plan(Plan("bert-4", with_standbys, {}), tmp_path / "constant-burst.bert-4.json")
    searched = policy_of("constant+burst", paper_workload("bert-4"), grid, CELL)
    assert isinstance(searched, StaticPolicy) and searched.__dict__["_configurations"] == with_standbys
