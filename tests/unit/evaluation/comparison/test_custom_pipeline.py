"""A custom pipeline, on the machine of its profile, in an evaluation."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from autoscaler.contract import Configuration
from evaluation.comparison import run
from evaluation.comparison.arrivals import arrivals
from evaluation.comparison.calibration import UniformRun, check_shared
from evaluation.comparison.errors import EvaluationError
from evaluation.comparison.grid import Grid, Group
from evaluation.comparison.policies import policy_of
from evaluation.comparison.run import evaluate
from simulation.profiles.model.bundled import fitting
from simulation.profiles.model.storage import load, save
from simulation.workloads.custom import CustomPipeline, CustomPipelineError
from smoe.cli import cli
from smoe.errors import SmoeError

NO_TRACES = Path(__file__).parent
"""A folder without public traces: arrivals are made."""
POLICIES = ("static", "hpa", "last-window", "smoe", "faasconf")
GROUP = Group("minilm", "bursty", 0, 0)


@pytest.fixture(scope="module")
def own(minilm_pipeline: Path) -> CustomPipeline:
    return CustomPipeline(str(minilm_pipeline), 300.0, cpu_scale=0.015)


@pytest.fixture(scope="module")
def grid(own: CustomPipeline) -> Grid:
    return Grid(
        ("minilm",), ("bursty",), (0,), POLICIES, (0,),
        window_s=2.0, seconds=40.0, mean_rps=3.0, speed=30.0, data=NO_TRACES, custom=own,
    )  # fmt: skip


def call(pipeline: Path, out: Path, *more: str) -> Result:
    fixed = ["--pipeline", str(pipeline), "--patterns", "bursty", "--seeds", "0", "--seconds", "40", "--mean-rps", "3"]
    return CliRunner().invoke(
        cli, ["evaluate", *fixed, "--data", str(NO_TRACES), "--workers", "1", "--out", str(out), *more]
    )


@pytest.fixture(scope="module")
def simulated(minilm_pipeline: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """The command's folder and its JSON."""
    out = tmp_path_factory.mktemp("own")
    asked = ["--slo-ms", "300", "--cpu-scale", "0.015", "--policies", ",".join(POLICIES), "--json"]
    result = call(minilm_pipeline, out, "--other-machine", *asked)
    assert isinstance(result.exception, SmoeError), result.output
    assert str(result.exception).startswith(
        "faasconf was left out, as minilm: faasconf: there are no weights of minilm"
    )
    return out, json.loads(result.stdout)


@pytest.mark.slow
def test_all_policies_meet_the_same_requests_on_the_measured_machine(
    simulated: tuple[Path, list[dict[str, Any]]],
) -> None:
    _, runs = simulated
    assert [one["policy"] for one in runs] == ["static", "hpa", "last-window", "smoe"]
    assert len({one["requests_sha256"] for one in runs}) == 1
    for one in runs:
        assert one["workload"] == "minilm" and one["slo_s"] == 0.3 and one["windows"] == 16
        assert one["latency"].startswith("measured: ") and one["coupled"] is False and 0 < one["measured_part"] <= 1
    assert len({one["provisioned_experts"] for one in runs}) > 1


@pytest.mark.slow
def test_what_cannot_serve_the_pipeline_is_left_out_with_the_reason(
    simulated: tuple[Path, list[dict[str, Any]]], own: CustomPipeline
) -> None:
    out, _ = simulated
    text = (out / "results.md").read_text()
    assert "Left out: faasconf, as minilm: faasconf: there are no weights of minilm" in text
    assert f"on the machine of the profile {own.profile_file.name}" in text and "modelled cluster" not in text
    assert "replayed 30 times as fast" in text and "Seconds of calls: measured: " in text
    assert "Left out: bound, as in windows of 2 s requests of one are served in the next (SLO 0.3 s)" in text
    assert "minilm.bursty.0.0.faasconf" in json.loads((out / "results.json").read_text())["left_out"]
    assert "Left out: faasconf" in (out / "report.html").read_text()
    rows = pq.read_table(out / "runs" / "minilm.bursty.0.0.hpa.parquet")
    assert np.allclose(np.diff(rows.column("end_s").to_pylist()), 2.0)


@pytest.mark.slow
def test_stored_runs_are_not_simulated_again_unless_pipeline_profile_or_scale_are_others(
    simulated: tuple[Path, list[dict[str, Any]]],
    grid: Grid,
    own: CustomPipeline,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    out, runs = simulated
    monkeypatch.setattr(run, "run_policy", lambda *given: pytest.fail(f"{given[-1]} was played again"))
    again = evaluate(replace(grid, policies=("hpa", "smoe"), bound=False), out, workers=1)
    assert again == [one for one in runs if one["policy"] in ("hpa", "smoe")]
    same, other = tmp_path / "same.parquet", tmp_path / "other.parquet"
    same.write_bytes(own.profile_file.read_bytes())
    pq.write_table(pq.read_table(same), other, compression="none")
    prints = [
        replace(grid, custom=one).fingerprint(GROUP, "hpa", "0")
        for one in (
            own,
            replace(own, profile=str(same)),
            replace(own, profile=str(other)),
            replace(own, cpu_scale=0.02),
        )
    ]
    assert prints[0] == prints[1] and len(set(prints)) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--slo-ms", "300"], "does not bind: with every expert at its cheapest"),
        (["--slo-ms", "1", "--cpu-scale", "0.015"], "P95 is above the SLO of 1 ms in every window"),
        (
            ["--slo-ms", "300", "--cpu-scale", "0.015", "--start", "512", "0", "0.1", "1", "1"],
            "cannot start with a GPU share of 0.1: minilm was profiled on cores",
        ),
        (["--slo-ms", "300", "--input-sizes", "300"], "input sizes are 1 to 256"),
        (
            ["--slo-ms", "300", "--cpu-scale", "0.015", "--policies", "faasconf", "--no-bound"],
            "minilm: faasconf: there are no weights of minilm",
        ),
    ],
)
def test_what_would_measure_nothing_is_refused(
    minilm_pipeline: Path, tmp_path: Path, options: list[str], says: str
) -> None:
    result = call(minilm_pipeline, tmp_path, "--other-machine", *options)
    assert isinstance(result.exception, SmoeError) and says in str(result.exception)


def test_a_profile_of_another_pipeline_is_refused_with_the_difference(minilm_pipeline: Path, tmp_path: Path) -> None:
    profile = load(fitting(minilm_pipeline, None))
    other = tmp_path / "other.parquet"
    save(replace(profile, metadata=replace(profile.metadata, pipeline="other")), other)
    result = call(minilm_pipeline, tmp_path, "--slo-ms", "300", "--profile", str(other))
    assert result.exit_code == 2
    assert "the profile is of pipeline 'other', not of 'minilm'" in " ".join(result.output.split())
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--slo-ms", "100"], "--pipeline, which is missing"),
        (["--other-machine"], "--pipeline, which is missing"),
        (["--pipeline", "."], "--pipeline needs --slo-ms"),
    ],
)
def test_options_that_do_not_belong_together_are_refused(options: list[str], says: str) -> None:
    result = CliRunner().invoke(cli, ["evaluate", *options])
    assert result.exit_code == 2 and says in " ".join(result.output.split())


def test_it_stands_beside_the_papers_workloads_under_one_clock(grid: Grid) -> None:
    both = replace(grid, workloads=("bert-4", "minilm"))
    assert [group.workload for group in both.groups()] == ["bert-4", "minilm"]
    times = [arrivals(both, group).arrival_s for group in both.groups()]
    assert np.array_equal(*times) and both.custom_of("bert-4") is None
    with pytest.raises(EvaluationError, match=r"workloads are .*minilm; got 'gpt2'"):
        replace(grid, workloads=("gpt2",))


def test_a_traces_time_is_divided_by_the_speed(grid: Grid) -> None:
    slow = replace(grid, window_s=60.0, seconds=1200.0, mean_rps=0.1, speed=1.0)
    one, other = arrivals(slow, GROUP), arrivals(grid, GROUP)
    assert np.allclose(one.arrival_s, 30 * other.arrival_s) and other.seconds == pytest.approx(one.seconds / 30)
    assert other.source == f"{one.source}, 30 times as fast" and other.cv == one.cv


@pytest.mark.slow
def test_policies_that_plan_with_seconds_of_calls_plan_with_those_that_are_simulated(
    grid: Grid, own: CustomPipeline, tmp_path: Path
) -> None:
    """A copied profile of the pipeline, elsewhere: what the policy is given is that file, unless told otherwise."""
    copied = tmp_path / "copied.parquet"
    copied.write_bytes(own.profile_file.read_bytes())
    given = replace(grid, custom=replace(own, profile=str(copied)))
    workload = given.workload_of(GROUP, 3.0)
    assert policy_of("last-window", workload, given, GROUP).name == "last-window"
    (tmp_path / "last-window.toml").write_text('profile = "nowhere.parquet"\n')
    with pytest.raises(Exception, match=r"nowhere\.parquet does not exist"):
        policy_of("last-window", workload, replace(given, settings=tmp_path), GROUP)


def test_the_slo_binds_on_a_meter_where_what_is_cheapest_there_breaks_it() -> None:
    one, two = Configuration(128, 1.0, 0.0, 1, 10), Configuration(128, 2.0, 0.0, 1, 10)
    slow = UniformRun(one, {"busy": 3.0, "provisioned": 1.0}, 0.5)
    fast = UniformRun(two, {"busy": 2.0, "provisioned": 2.0}, 0.01)
    assert check_shared([slow, fast], 0.1, "here") == {"busy": False, "provisioned": True}
    with pytest.raises(EvaluationError, match=r"here: the SLO of 100 ms does not bind.* in 5\.0% of the windows"):
        check_shared([replace(slow, violated=0.05), fast], 0.1, "here")
    with pytest.raises(EvaluationError, match="does not bind"):  # no choice does better in a burst that none can serve
        check_shared([replace(slow, violated=0.43), replace(fast, violated=0.4)], 0.1, "here")
    with pytest.raises(EvaluationError, match=r"here: .* in every window"):
        check_shared([replace(slow, violated=1.0), replace(fast, violated=1.0)], 0.1, "here")


def test_a_pipeline_that_is_called_like_one_of_the_papers_is_refused(
    minilm_pipeline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simulation.workloads.custom._pipeline_of", lambda folder: "bert-4")
    with pytest.raises(CustomPipelineError, match="is called bert-4"):
        assert CustomPipeline(str(minilm_pipeline), 300.0).pipeline
