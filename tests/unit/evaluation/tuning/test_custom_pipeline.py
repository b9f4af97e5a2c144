"""Plans for a custom pipeline, on the machine of its profile."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from autoscaler.policy.hpa import HpaSettings, hpa_of_windows
from autoscaler.stored_deployment import load_plan
from evaluation.comparison.grid import Grid, Group
from evaluation.comparison.policies import policy_of
from evaluation.tuning.commands import tune
from simulation.workloads.custom import CustomPipeline


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An hour with a request every 5 s, in bunches of four."""
    path = tmp_path_factory.mktemp("trace") / "trace.csv"
    path.write_text("arrival_s\n" + "".join(f"{20 * (i // 4) + i % 4}\n" for i in range(720)))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["serverlessmoe", "tuned-hpa"])
def test_the_command_stores_a_plan_that_an_evaluation_of_the_pipeline_can_run(
    minilm_pipeline: Path, trace: Path, tmp_path: Path, policy: str
) -> None:
    machine = ["--pipeline", str(minilm_pipeline), "--slo-ms", "300", "--cpu-scale", "0.015", "--other-machine"]
    search = ["--trials", "8", "--groups", "2", "--profile-s", "60", "--mean-rps", "3", "--out", str(tmp_path)]
    result = CliRunner().invoke(tune, ["--policy", policy, *machine, "--trace", str(trace), *search])
    assert result.exit_code == 0, result.output
    assert "of 300;" in result.output
    own = CustomPipeline(str(minilm_pipeline), 300.0, cpu_scale=0.015)
    grid = Grid(("minilm",), ("bursty",), (0,), (policy,), (0,), speed=30.0, plans=tmp_path, custom=own)
    group = Group("minilm", "bursty", 0, 0)
    workload = grid.workload_of(group, 3.0)
    plan = load_plan(tmp_path / f"{policy}.minilm.json", workload.topology)
    assert set(plan.configurations) == {node.function for node in workload.experts}
    assert all(one.gpu_share == 0 for one in plan.configurations.values())
    assert plan.made_by["sha256"] == own.sha256 and "time divided by 30" in str(plan.made_by["trace"])
    assert str(plan.made_by["latency"]).startswith("measured: ")
    measured = plan.made_by["measured_part"]
    assert isinstance(measured, float) and 0 < measured <= 1
    assert f"{measured:.0%} of the calls lie where it was measured" in " ".join(result.output.split())
    assert policy_of(policy, workload, grid, group).name == policy
    with (tmp_path / f"{policy}.minilm.csv").open() as file:
        trials = list(csv.DictReader(file))
    assert len(trials) == 8 and len({row["cost"] for row in trials}) > 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "name a workload of the paper's (--workload), or a custom pipeline (--pipeline)"),
        (["--workload", "bert-4", "--pipeline", "."], "name a workload of the paper's (--workload), or"),
        (["--workload", "bert-4", "--cpu-scale", "1"], "are of one's own --pipeline, which is missing"),
        (["--pipeline", "."], "--pipeline needs --slo-ms"),
    ],
)
def test_options_that_do_not_belong_together_are_refused(trace: Path, options: list[str], says: str) -> None:
    result = CliRunner().invoke(tune, ["--policy", "tuned-hpa", "--trace", str(trace), *options])
    assert result.exit_code == 2 and says in " ".join(result.output.split())


def test_where_an_hour_goes_by_in_minutes_the_hpa_scales_down_within_windows() -> None:
    found = replace(HpaSettings(), **hpa_of_windows(2.0))
    assert (found.down_stabilisation_s, found.period_s) == (40.0, 6.0)
    assert found.targets == {"cpu": 0.5, "concurrency": 0.7}
