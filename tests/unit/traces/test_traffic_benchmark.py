"""The table of hours: its ratios, what it misses, and the removed method that its picture shows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks import traffic
from tests.unit.traces.public_layout import public_layout
from traces.generate import synthetic
from traces.splits import SPLITS


@pytest.mark.slow
def test_the_last_line_is_the_result_over_all_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "RATES_RPS", (1.5,))
    arguments = ["--data", str(public_layout(tmp_path)), "--count", "2"]
    outcome = CliRunner().invoke(traffic.main, arguments, catch_exceptions=False)
    result = json.loads(outcome.stdout.splitlines()[-1])
    assert result["cells"] == 4 * len(SPLITS) and result["full_cells"] == 0  # two hours are asked for, ten are enough
    assert 1 <= result["worst_dispersion_ratio"] < 1.5
    assert result["distinct_hours"] == min(result["distinct_hours_by_pattern"].values())
    assert any(sentence.startswith("bursty at 1.5/s, test: 2 hours of") for sentence in result["missing"])


def test_without_public_traces_it_is_refused(tmp_path: Path) -> None:
    outcome = CliRunner().invoke(traffic.main, ["--data", str(tmp_path)])
    assert outcome.exit_code == 2 and "the public traces are not here" in outcome.output


def test_hours_with_few_requests_do_not_count_and_the_worst_looks_both_ways() -> None:
    hour = {"requests": 999, "dispersion": {"1": 2.0}, "expected_dispersion": {"1": 1.0}}
    assert traffic.ratios(hour) == [] and traffic.ratios({**hour, "requests": 1000}) == [2.0]
    assert traffic.worst([1.2, 0.5]) == 2.0 and traffic.worst([]) == 1.0


def test_the_removed_method_keeps_the_cv_and_crowds_one_second() -> None:
    source = synthetic(300, 600.0, 1.8, 5)
    crowded = traffic.evenly_added(source, 40.0)
    assert crowded.requests == 12_000 and crowded.iat_cv == pytest.approx(source.iat_cv, rel=0.1)
    assert np.bincount(crowded.arrival_s.astype(int)).max() > 5 * crowded.mean_rps
