"""A custom pipeline on the modelled cluster: GPU shares beside the profile's cores, in the cluster's own time."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from autoscaler.contract import ConfigurationSpace
from evaluation.comparison.grid import Grid, Group
from evaluation.comparison.policies import policy_of
from simulation.workloads.custom import CustomPipeline, on_cluster
from simulation.workloads.paper import segments_at
from smoe.cli import cli

NO_TRACES = Path(__file__).parent
"""A folder without public traces: arrivals are made."""
GROUP = Group("minilm", "bursty", 0, 0)
POLICIES = ("static", "last-window", "smoe")


@pytest.fixture(scope="module")
def own(minilm_pipeline: Path) -> CustomPipeline:
    return on_cluster(CustomPipeline(str(minilm_pipeline), 62.0))


@pytest.fixture(scope="module")
def grid(own: CustomPipeline) -> Grid:
    return Grid(("minilm",), ("bursty",), (0,), POLICIES, (0,), seconds=240.0, data=NO_TRACES, custom=own)


@pytest.fixture(scope="module")
def simulated(minilm_pipeline: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """The command's folder and its JSON."""
    out = tmp_path_factory.mktemp("cluster")
    given = (
        "evaluate", "--pipeline", minilm_pipeline, "--cluster", "--slo-ms", 62, "--cpu-scale", 0.03,
        "--input-sizes", 128, "--start", 512, 0, 0.1, 1, 8, "--patterns", "bursty", "--seeds", 0, "--seconds", 240,
        "--policies", ",".join(POLICIES), "--data", NO_TRACES, "--workers", 1, "--out", out, "--json",
    )  # fmt: skip
    result = CliRunner().invoke(cli, [str(one) for one in given])
    assert result.exit_code == 0, result.output
    return out, json.loads(result.stdout)


@pytest.mark.slow
def test_every_result_distinguishes_measured_and_modelled(simulated: tuple[Path, list[dict[str, Any]]]) -> None:
    out, runs = simulated
    assert {"static", "last-window", "smoe"} <= {one["policy"] for one in runs}
    shared = [one for one in runs if one["policy"] != "bound"]
    assert all("measured: " in one["latency"] and "GPU shares modelled (roofline)" in one["latency"] for one in shared)
    assert all(0 <= one["measured_part"] < 1 and one["beyond_cluster"] is not None for one in shared)
    text = (out / "results.md").read_text()
    assert "on the modelled cluster with cores of the profile" in text and "GPU shares modelled" in text


@pytest.mark.slow
def test_it_has_the_clusters_space_prices_and_segments(own: CustomPipeline, grid: Grid) -> None:
    workload = grid.workload_of(GROUP, 100.0)
    assert workload.space == ConfigurationSpace() and workload.host is None
    assert workload.segment_configuration == segments_at(100.0) != segments_at(0.0)
    assert workload.prices.name == own.prices.name != replace(own, cluster=False).prices.name
    assert own.window_s == 30.0 and own.speed == 1.0 and own.name.endswith("-cluster")


@pytest.mark.slow
def test_the_learnt_policy_knows_the_shares(grid: Grid) -> None:
    workload = grid.workload_of(GROUP, 20.0)
    learnt = policy_of("smoe", workload, grid, GROUP)
    assert learnt.encoder.limits.space.gpu_shares == workload.space.gpu_shares  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_run_on_the_cluster_is_another_than_one_on_the_machine(grid: Grid, own: CustomPipeline) -> None:
    machine = replace(own, cluster=False)
    assert grid.fingerprint(GROUP, "hpa", "0") != replace(grid, custom=machine).fingerprint(GROUP, "hpa", "0")


def test_the_cluster_needs_a_pipeline() -> None:
    result = CliRunner().invoke(cli, ["evaluate", "--cluster"])
    assert result.exit_code == 2 and "--pipeline" in result.output
