"""What a profile says in words, and that its picture is drawn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from simulation.profiles.fit.fitting import fit
from simulation.profiles.fit.report import closing_rows, conclude, memory_sentences
from simulation.profiles.fit.rows import Row
from simulation.profiles.measure.open_loop import check_open_loop, simulate, simulate_row
from simulation.profiles.measure.run import OUT_OF_MEMORY
from tests.unit.simulation.profiles import truth
from tests.unit.simulation.profiles.truth import BLANK, TICK_S, Truth


def memory(limit: int, calls: int, feasible: bool) -> Row:
    note = "" if feasible else OUT_OF_MEMORY
    return replace(
        BLANK, family="memory", tokens=128, memory_mib=limit, concurrency=calls, feasible=feasible, note=note
    )


def surface() -> list[Row]:
    return [
        replace(
            BLANK, family="surface", tokens=32, memory_mib=size, share=0.5, concurrency=m, repeat=repeat, p95_s=0.01 * m
        )
        for size in (128, 256)
        for m in (1, 2, 4)
        for repeat in (0, 1)
        if (size, m) != (256, 4)  # a point that gave no number
    ]


def test_the_least_memory_is_reported_for_each_concurrency() -> None:
    rows = [memory(8, 1, False), memory(16, 1, True), memory(8, 8, False), memory(16, 8, False)]
    assert memory_sentences(rows) == [
        "Memory of expert-0-0 with 128 tokens a call: 16 MiB at 1 at once (killed at 8), "
        "more than 16 MiB at 8 at once (killed at 16)."
    ]


@pytest.mark.slow
def test_a_profile_is_concluded_with_errors_findings_and_a_picture(tmp_path: Path) -> None:
    profile = truth.profile([*truth.rows(Truth(), seed=1, repeats=2), *surface()])
    metadata = conclude(profile, tmp_path / "a.png").metadata
    assert metadata.fit["cross_validated"]["all"]["points"] == 77
    assert any("effective tick" in sentence for sentence in metadata.findings)
    assert any("no ridge or valley" in sentence for sentence in metadata.findings)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_profile_that_cannot_be_fitted_says_so(tmp_path: Path) -> None:
    metadata = conclude(truth.profile(surface()), tmp_path / "a.png").metadata
    assert metadata.fit == {}
    assert metadata.findings[0].startswith("No latency model: the profile has no measured single calls")


def test_the_closing_table_names_nodes_shares_and_changes() -> None:
    rows = [*truth.rows(Truth()), replace(BLANK, family="cold_start", tokens=0, share=0.25, p50_s=0.05)]
    closing = closing_rows(truth.profile(rows))
    assert ("expert-0-0", "32 tokens, idle, 1 cores", "1.16 ms") in closing
    assert ("every node", "cold start at 0.25 cores", "50.0 ms") in closing


def test_simulated_calls_by_hand() -> None:
    """Two calls of 1 s at 0 and 0.5 share a core evenly; a third waits for a slot."""
    rates = np.array([0.0, 1.0, 1.0])
    latencies_s = simulate(np.array([0.0, 0.5, 0.6]), np.ones(3), 2, rates, np.ones(3), burst=0.0, refill=1.0)
    assert latencies_s == pytest.approx([1.5, 2.0, 2.4])


def test_simulated_calls_on_a_bucket_by_hand() -> None:
    """1 s of work, 0.3 s in the bucket, refilled at 0.4: full speed for 0.5 s, then 0.4 of it for 1.25 s."""
    latencies_s = simulate(np.array([0.0]), np.ones(1), 1, np.array([0.0, 1.0]), np.ones(2), burst=0.3, refill=0.4)
    assert latencies_s == pytest.approx([1.75])


def test_a_call_that_uses_less_of_its_core_than_the_bucket_brings_is_not_slowed_down() -> None:
    latencies_s = simulate(
        np.array([0.0]), np.ones(1), 1, np.array([0.0, 1.0]), np.array([1.0, 0.3]), burst=0.0, refill=0.4
    )
    assert latencies_s == pytest.approx([1.0])


def test_an_idle_bucket_fills_again_but_not_above_its_size() -> None:
    latencies_s = simulate(
        np.array([0.0, 100.0]), np.ones(2), 1, np.array([0.0, 1.0]), np.ones(2), burst=0.3, refill=0.4
    )
    assert latencies_s == pytest.approx([1.75, 1.75])


def test_saturated_rows_are_not_compared() -> None:
    fitted = fit(truth.rows(Truth()), TICK_S)
    row = replace(BLANK, family="surface", rate_rps=50.0, p50_s=1.0, p95_s=1.0, mean_s=1.0, note="saturated: 3 calls")
    assert check_open_loop([row], fitted) is None


def test_the_models_own_arrivals_are_reported_without_error() -> None:
    """A row made by the played model itself is met exactly."""
    fitted = fit(truth.rows(Truth()), TICK_S)
    row = replace(BLANK, family="surface", tokens=32, share=0.5, rate_rps=200.0, concurrency=2, seed=5, seconds=2.0)
    seconds = simulate_row(fitted.nodes["expert-0-0"], row, 2.0, fitted.tick_s, row.seed)
    p50, p95 = np.percentile(seconds, (50, 95))
    made = replace(row, n=len(seconds), p50_s=float(p50), p95_s=float(p95), mean_s=float(seconds.mean()))
    errors = check_open_loop([made], fitted)
    assert errors is not None
    assert errors.p95 == pytest.approx(0, abs=1e-9)
