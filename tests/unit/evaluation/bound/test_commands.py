"""``smoe lab bound`` over a small trace: table, JSON, file, and refusals."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from autoscaler.prices import load_prices
from evaluation.bound.commands import bound
from evaluation.bound.inputs import trace_requests
from evaluation.bound.report import bound_rows
from simulation.workloads.paper import PAPER_PRICES
from tests.unit.evaluation.bound.builders import requests, workload
from traces.errors import TraceError


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s\n" + "".join(f"{i * 0.5}\n" for i in range(12)))
    return path


def call(trace: Path, *more: str) -> Result:
    return CliRunner().invoke(bound, ["--workload", "bert-4", "--trace", str(trace), "--window", "3", *more])


@pytest.mark.slow
def test_json_has_every_window_and_meter_with_bound_below_choice(trace: Path) -> None:
    found: dict[str, Any] = json.loads(call(trace, "--json").stdout)
    assert found["simulated"] and found["latency"].startswith("modelled (roofline)")
    assert found["slo_ms"] == 80 and len(found["windows"]) == 4
    assert [row["requests"] for row in found["windows"]] == [6, 6, 6, 6]
    for row in found["windows"]:
        assert row["feasible"] is not None and 0 < row["lower_bound"] <= row["feasible"]
        assert row["feasible_p95_s"] <= 0.08
    for meter, total in found["totals"].items():
        own = [row for row in found["windows"] if row["meter"] == meter]
        assert total["lower_bound"] == pytest.approx(sum(row["lower_bound"] for row in own))
        assert total["windows"] == 2 and total["feasible_above_bound"] >= 0


def test_people_get_a_line_for_each_meter_and_the_file_has_all_rows(trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "rows.csv"
    result = call(trace, "--no-oracle", "--out", str(path))
    assert result.exit_code == 0 and "provisioned: at least" in result.stdout and "busy: at least" in result.stdout
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4 and all(row["feasible"] == "" for row in rows)


@pytest.mark.slow
@pytest.mark.timeout(2700)
def test_the_measured_part_is_that_of_the_feasible_choices(trace: Path, minilm_pipeline: Path) -> None:
    modelled = json.loads(call(trace, "--json").stdout)
    assert modelled["measured_part"] == 0 and {row["measured_part"] for row in modelled["windows"]} == {0}
    assert json.loads(call(trace, "--json", "--no-oracle").stdout)["measured_part"] is None
    own = ["--pipeline", str(minilm_pipeline), "--slo-ms", "1000", "--cpu-scale", "0.015", "--other-machine"]
    asked = [*own, "--trace", str(trace), "--speed", "1", "--mean-rps", "0", "--window", "3", "--meter", "busy"]
    measured = json.loads(CliRunner().invoke(bound, [*asked, "--json"]).stdout)
    parts = [row["measured_part"] for row in measured["windows"]]
    assert measured["measured_part"] == min(parts) and 0 < min(parts) <= 1
    words = " ".join(CliRunner().invoke(bound, asked).output.split())
    assert f"at least {min(parts):.0%} of a window's calls lie where it was measured" in words


def test_other_prices_are_other_bounds_in_proportion(trace: Path, tmp_path: Path) -> None:
    sheet = tmp_path / "prices.toml"
    prices = load_prices(PAPER_PRICES)
    numbers = {key: 3 * getattr(prices, key) for key in ("cpu_core_s", "memory_gib_s", "gpu_s")}
    words = {"name": "mine", "source": "here", "currency": "EUR"}
    sheet.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in (words | numbers).items()))
    usual, mine = (
        json.loads(call(trace, "--json", "--no-oracle", *more).stdout) for more in ((), ("--prices", str(sheet)))
    )
    assert (usual["prices"], mine["prices"]) == (prices.name, "mine")
    for meter, total in usual["totals"].items():
        assert mine["totals"][meter]["lower_bound"] == pytest.approx(3 * total["lower_bound"])


def test_an_slo_that_cannot_be_met_is_reported(trace: Path) -> None:
    result = call(trace, "--slo-ms", "1", "--json", "--meter", "busy")
    assert json.loads(result.stdout)["totals"]["busy"]["unreachable"] == 2


def test_a_rate_thins_or_adds_requests_and_windows_can_be_cut_off(trace: Path) -> None:
    half = json.loads(call(trace, "--mean-rps", "1", "--json", "--no-oracle", "--meter", "busy").stdout)
    assert "thinned" in half["trace"]
    more = json.loads(call(trace, "--mean-rps", "8", "--json", "--no-oracle", "--meter", "busy").stdout)
    assert 25 <= sum(row["requests"] for row in more["windows"]) <= 65
    assert "a Poisson process at 3.67 times" in more["trace"]
    assert len(json.loads(call(trace, "--windows", "1", "--json", "--no-oracle").stdout)["windows"]) == 2


def test_a_trace_that_is_not_there_or_empty_is_refused(trace: Path) -> None:
    assert isinstance(call(trace.with_name("nothing")).exception, TraceError)
    result = call(trace, "--start-s", "0.1", "--duration-s", "0.2")
    assert result.exit_code == 2 and "has no request" in result.output


def test_windows_without_requests_are_left_out() -> None:
    one = workload(0.05)
    drawn = requests(one, 2.0, 3.0, 0)
    rows = bound_rows(one, drawn, 0.05, ("busy",), oracle=False)
    assert 0 < len(rows) == len({int(t / 0.05) for t in drawn.arrival_s}) < 60


def test_minutes_of_a_trace_stay_as_uneven_at_a_rate_however_fast_it_is_replayed(tmp_path: Path) -> None:
    """Every second minute has requests; 30 times as fast these are two seconds of requests and two without."""
    path = tmp_path / "uneven.csv"
    path.write_text("arrival_s\n" + "".join(f"{60 * minute + 30}\n" for minute in range(0, 120, 2)))
    arrivals = trace_requests(
        workload(0.1), str(path), None, row=None, start_s=None, duration_s=None, mean_rps=10.0, seed=0, speed=30.0
    ).arrival_s
    assert arrivals.size > 1000 and float((arrivals % 4 < 2).mean()) == 1.0
