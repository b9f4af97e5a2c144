"""The greatest rate of ``benchmarks.arrow``: against one known by hand, and the command on the synthetic samples."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.arrow import __main__ as arrow
from functions.scheduling.settings import Targets
from simulation.generation.engine import Request
from simulation.generation.hardware import Hardware


def test_the_greatest_rate_is_where_one_instance_can_no_longer_keep_up() -> None:
    # 1 s a prompt on the one prefill instance, no waiting allowed: at most one request a second.
    hardware = Hardware(0.5, 0.005, 0.0, 1e-9, 100, 10_000, 1, 1e9)
    requests = [Request(10.0 * at, 100, 1) for at in range(20)]
    make = arrow.makers(2, hardware)["minimal load 1+1"]
    factor, outcome = arrow.greatest(requests, make, Targets(1.001, 1.0), hardware)
    assert factor == pytest.approx(10.0, rel=0.03)
    assert outcome is not None and outcome.lost == 0


def test_targets_that_no_rate_keeps_give_zero() -> None:
    hardware = Hardware()
    make = arrow.makers(2, hardware)["colocated"]
    assert arrow.greatest([Request(0.0, 1000, 5)], make, Targets(1e-6, 1.0), hardware) == (0.0, None)


def test_a_trace_that_is_not_there_is_refused_with_those_that_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(arrow.main, ["--traces", "nope"], env={"SMOE_TRACES": ""})
    assert result.exit_code == 2 and "made-llm" in result.output


@pytest.mark.slow
def test_the_last_line_is_one_object_with_every_static_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # no public traces next to it: the samples
    few = ["--instances", "3", "--requests", "20", "--traces", "made-llm"]
    result = CliRunner().invoke(arrow.main, few, env={"SMOE_TRACES": ""})
    assert result.exit_code == 0, result.output
    last = json.loads(result.output.splitlines()[-1])
    assert last["simulated"] is True
    assert {"rate_over_best_static", "rate_over_colocated", "flips", "lost"} <= set(last)
    one = last["traces"][0]
    splits = {name: rate for name, rate in one["rps"].items() if name.startswith("minimal load")}
    assert set(splits) == {"minimal load 1+2", "minimal load 2+1"}
    assert splits[one["best_static"]] == max(splits.values())
