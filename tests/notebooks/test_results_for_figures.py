"""The benchmarks that make the notebooks' stored results, on settings that take seconds."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from autoscaler.contract import Topology
from benchmarks import motivation, one_decision
from benchmarks import variants as arms
from simulation.workloads.paper import paper_workload


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def last(output: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(output.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_motivation_stores_shares_tails_and_the_surface(tmp_path: Path) -> None:
    options = ["--workload", "bert-4", "--pattern", "slow", "--mean-rps", "8", "--minutes", "2", "--surface-seeds", "2"]
    result = CliRunner().invoke(
        motivation.main, [*options, "--traces", str(tmp_path), "--out", str(tmp_path)], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    about, experts, layers = last(result.output), rows_of(tmp_path / "experts.csv"), rows_of(tmp_path / "layers.csv")
    assert about["arrivals_measured"] is False and about["routing_sha256"] is None
    windows = {row["window"] for row in experts}
    assert len(experts) == len(windows) * 48 and len(layers) == len(windows) * 12
    first, eighth = (sum(int(row["tokens"]) for row in experts if row["layer"] == layer) for layer in ("0", "7"))
    assert first > 0 and eighth == pytest.approx(first, rel=0.02), (
        "a layer sees all tokens but those still on their way"
    )
    surface = rows_of(tmp_path / "surface.csv")
    assert len(surface) == len(motivation.MEMORY_MIB) * len(motivation.CONCURRENCIES) * 2
    least, most = (
        np.mean([float(row["p95_ms"]) for row in surface if row["memory_mib"] == str(size)])
        for size in (motivation.MEMORY_MIB[0], motivation.MEMORY_MIB[-1])
    )
    assert least > 2 * most


def test_shares_sum_to_one_in_each_layer_and_window() -> None:
    rows = [
        {"window": window, "layer": layer, "expert": expert, "tokens": 1 + window + layer * expert}
        for window in (3, 5)
        for layer in (0, 1)
        for expert in (0, 1, 2)
    ]
    shares = motivation.shares(rows, "tokens")
    assert shares.shape == (2, 2, 3) and np.allclose(shares.sum(2), 1)
    assert shares[0, 1].tolist() == [4 / 15, 5 / 15, 6 / 15]


def test_generations_alternate_segments_and_whole_layers() -> None:
    topology: Topology = paper_workload("bert-4").topology
    batches = one_decision.generations(topology)
    assert [len(batch) for batch in batches] == [1, *[4, 1] * 12]
    assert batches[0] == ["segment-0"] and batches[-1] == ["segment-12"]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_one_decision_is_taken_apart_as_it_was_decided(tmp_path: Path) -> None:
    options = ["--seconds", "240", "--pattern", "normal", "--out", str(tmp_path)]
    result = CliRunner().invoke(one_decision.main, options, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    stored = json.loads((tmp_path / "decision.json").read_text())
    experts, features = stored["experts"], stored["features"]["node"]
    assert len(experts) == last(result.output)["decisions"] == 48
    assert np.shape(stored["state"]["experts"]) == (12, 4, len(features))
    assert np.shape(stored["embeddings"]["segments"]) == (13, stored["actor"]["width"])
    for layer in range(12):
        assert sum(row["pointer"] for row in experts if row["layer"] == layer) == pytest.approx(1, abs=1e-4)
    scored, row = stored["scored"], experts[stored["scored"]["row"]]
    assert np.max(scored["by_resource"]) == pytest.approx(row["best"][0]["score"], abs=1e-3)
    assert np.max(scored["by_concurrency"]) == pytest.approx(row["best"][0]["score"], abs=1e-3)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_arms_are_trained_tested_and_published_and_a_second_call_trains_nothing(tmp_path: Path) -> None:
    changes = (
        *("windows=4", "warm_start=0", "episode_windows=3", "lanes=2", "variants=[]", "curriculum=false"),
        *("updates=0", "validation.seconds=240", "width=8", "hidden=8", "rank=4"),
    )
    options = {
        "--arms": "no-pointer", "--minutes": "5", "--seeds": "0", "--workloads": "bert-4", "--patterns": "normal",
        "--test-seeds": "1", "--seconds": "180", "--mean-rps": "6",
        "--out": str(tmp_path / "out"), "--publish": str(tmp_path / "published"),
    }  # fmt: skip
    given = [part for option in options.items() for part in option] + [f"--set={change}" for change in changes]
    result = CliRunner().invoke(arms.main, given, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    first = last(result.output)
    rows = rows_of(tmp_path / "published" / "results.csv")
    assert [(row["arm"], row["policy"], row["training_seed"]) for row in rows] == [("no-pointer", "no-pointer", "0")]
    assert float(rows[0]["provisioned_over_bound"]) > -1 and rows[0]["simulated"] == "True"
    curves = json.loads((tmp_path / "published" / "curves.json").read_text())
    assert curves[0]["arm"] == "no-pointer" and curves[0]["curve"]
    again = last(CliRunner().invoke(arms.main, given, catch_exceptions=False).output)
    assert again["windows"] == first["windows"] and again["cells"] == first["cells"]


def test_an_unknown_arm_is_refused_with_the_arms_there_are() -> None:
    result = CliRunner().invoke(arms.main, ["--arms", "full,no-luck"])
    assert result.exit_code == 2 and "no-luck" in result.output and "no-dagnn" in result.output
