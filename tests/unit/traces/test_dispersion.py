"""Index of dispersion: against processes whose index is known, and counted by hand."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from traces.commands import traces
from traces.dispersion import SCALES_S, dispersion, dispersions
from traces.generate import synthetic
from traces.model import make_trace
from traces.published import PUBLISHED


@given(st.lists(st.floats(0, 299.99), max_size=400), st.sampled_from([1.0, 10.0]))
def test_the_index_is_variance_over_mean_of_counts_by_hand(times: list[float], scale_s: float) -> None:
    trace = make_trace(sorted(times), duration_s=300.0, source="t")
    counted = Counter(int(time // scale_s) for time in times)
    values = [counted[index] for index in range(int(300 // scale_s))]
    mean = sum(values) / len(values)
    measured = dispersion(trace, scale_s)
    if not times:
        assert measured is None
    else:
        assert measured == pytest.approx(sum((value - mean) ** 2 for value in values) / len(values) / mean)


def test_a_poisson_process_has_index_one_at_every_scale() -> None:
    times = np.sort(np.random.default_rng(3).uniform(0, 72_000, 400_000))
    indices = dispersions(make_trace(times, duration_s=72_000, source="t"))
    assert set(indices) == {"0.1", "1", "10", "60"}
    assert all(value == pytest.approx(1, abs=0.12) for value in indices.values())


@pytest.mark.parametrize("cv", [0.5, 1.8])
def test_a_renewal_process_tends_to_the_square_of_its_cv(cv: float) -> None:
    trace = synthetic(400_000, 72_000, cv, 1)
    assert dispersion(trace, 60.0) == pytest.approx(cv**2, rel=0.15)


def test_even_arrivals_have_index_zero_and_a_bin_that_is_cut_off_does_not_count() -> None:
    trace = make_trace((np.arange(250) + 0.5) / 10, duration_s=25.05, source="t")
    assert dispersion(trace, 1.0) == 0
    assert dispersion(trace, SCALES_S[2]) is None


def test_commands_report_the_index_of_a_trace_and_of_every_clip() -> None:
    described = CliRunner().invoke(traces, ["describe", "made-bursty-hour", "--json"], catch_exceptions=False)
    assert json.loads(described.output)["dispersion"]["60"] > 3
    shown = CliRunner().invoke(traces, ["describe", "made-bursty-hour"], catch_exceptions=False)
    assert "dispersion at 0.1 s" in shown.output
    chosen = ["clips", "made-functions", "--pattern", "bursty", "--requests", "60", "20000"]
    clips = CliRunner().invoke(traces, [*chosen, "--json"], catch_exceptions=False)
    assert json.loads(clips.output)["clips"][0]["arrivals"]["dispersion"]["10"] > 1


def test_the_list_of_traces_has_a_head_and_a_row_for_each(tmp_path: Path) -> None:
    listed = CliRunner().invoke(traces, ["list", "--data", str(tmp_path)], catch_exceptions=False).output
    assert listed.splitlines()[0].split() == ["name", "where", "what"]
    assert all(entry.name in listed for entry in PUBLISHED)
