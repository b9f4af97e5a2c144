"""Traces as such: synthetic arrivals, speed and thinning, patterns, clips in time, the catalogue."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces import catalog, make_samples, scale
from traces.arrival_process import place
from traces.catalog import SAMPLES
from traces.errors import TraceError
from traces.generate import synthetic
from traces.model import Trace, classify, make_trace
from traces.rows import read_lines


def own_cv(trace: Trace) -> float:
    """CV by hand, apart from the code under test."""
    gaps = [b - a for a, b in zip(trace.arrival_s, trace.arrival_s[1:], strict=False)]
    mean = sum(gaps) / len(gaps)
    return float((sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5 / mean)


@pytest.mark.parametrize("cv", [0.2, 0.7, 1.0, 1.8, 2.5, 4.0, 6.0])
def test_made_arrivals_have_the_cv_asked_for(cv: float) -> None:
    found = [own_cv(synthetic(4000, 3600, cv, seed)) for seed in range(5)]
    assert float(np.mean(found)) == pytest.approx(cv, rel=0.12)


def test_made_arrivals_say_that_they_are_made_and_repeat_with_their_seed() -> None:
    assert "synthetic" in synthetic(50, 10, 1, 1).source
    assert synthetic(50, 10, 4, 1).sha256 == synthetic(50, 10, 4, 1).sha256 != synthetic(50, 10, 4, 2).sha256


@given(st.floats(0.01, 1000), st.integers(0, 1000))
def test_compressing_keeps_the_cv_and_every_request(speed: float, seed: int) -> None:
    trace = synthetic(200, 3600, 3.5, seed)
    simulated = scale.compress(trace, speed)
    assert simulated.requests == trace.requests
    assert simulated.duration_s == pytest.approx(3600 / speed)
    assert own_cv(simulated) == pytest.approx(own_cv(trace), rel=1e-6)


def test_thinning_moves_the_cv_towards_one_as_documented() -> None:
    trace = synthetic(200_000, 3600, 2.5, 1)
    thinned = scale.thin(trace, 0.25, seed=2)
    assert thinned.requests == pytest.approx(50_000, rel=0.02)
    assert own_cv(thinned) == pytest.approx((1 + 0.25 * (2.5**2 - 1)) ** 0.5, rel=0.05)


def test_what_is_kept_does_not_depend_on_where_requests_were_placed_with_the_same_seed() -> None:
    """One request a minute, halved: those kept lie anywhere in their minutes."""
    placed = make_trace(place(np.ones(2000, np.int64), "uniform", 3), duration_s=120_000.0, source="t")
    within_s = scale.thin(placed, 0.5, 3).arrival_s % 60
    assert within_s.size == pytest.approx(1000, rel=0.1) and float(within_s.mean()) == pytest.approx(30, abs=2)


def test_requests_of_one_moment_have_no_rate_to_change() -> None:
    lone = make_trace([0.0], source="lone")
    for change in (scale.at_rate, scale.at_most):
        with pytest.raises(TraceError, match="lone: all its requests come at one moment"):
            change(lone, 5.0, 0)


def test_a_rate_is_checked_where_there_are_no_requests_too() -> None:
    none = make_trace([], duration_s=5.0, source="none")
    for change in (scale.at_rate, scale.at_most):
        assert change(none, 5.0, 0).requests == 0
    for refused in (lambda: scale.at_most(none, 0.0, 0), lambda: scale.fit(none, 10.0, 0.0, 0)):
        with pytest.raises(TraceError, match="must be a positive number, got 0"):
            refused()


def test_fit_thins_only_when_the_rate_is_too_high() -> None:
    trace = synthetic(1000, 3600, 4.0, 1)
    assert scale.fit(trace, 100, 20.0, seed=1).requests == 1000
    fitted = scale.fit(trace, 100, 5.0, seed=1)
    assert fitted.duration_s == pytest.approx(100) and fitted.mean_rps == pytest.approx(5.0, rel=0.15)


@pytest.mark.parametrize("speed", [0, -1, float("nan"), float("inf")])
def test_a_senseless_speed_is_refused(speed: float) -> None:
    with pytest.raises(TraceError, match="positive number"):
        scale.compress(synthetic(10, 10, 1, 1), speed)


@pytest.mark.parametrize(
    ("cv", "pattern"), [(0.99, "slow"), (1.0, "normal"), (2.99, "normal"), (3.0, "bursty"), (None, None)]
)
def test_pattern_borders(cv: float | None, pattern: str | None) -> None:
    assert classify(cv) == pattern


def test_the_made_hour_stands_in_for_the_real_one_and_is_bursty(tmp_path: Path) -> None:
    trace = catalog.bursty_hour(None)
    assert own_cv(trace) > 3 and trace.duration_s == 3600 and "synthetic" in trace.source
    assert catalog.bursty_hour(tmp_path).sha256 == trace.sha256


def test_a_named_data_folder_that_is_missing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TraceError, match="does not exist"):
        catalog.data_folder(tmp_path / "nowhere")
    monkeypatch.setenv(catalog.DATA_VARIABLE, str(tmp_path))
    assert catalog.data_folder() == tmp_path
    with pytest.raises(TraceError, match="made-bursty-hour"):
        catalog.resolve("no-such-set", None)


def test_a_clip_holds_what_lies_inside_and_starts_at_zero() -> None:
    trace = make_trace([0, 1, 2, 3, 4], duration_s=4, source="t", generated_tokens=[5, 6, 7, 8, 9])
    part = trace.clip(1, 3)
    assert part.arrival_s.tolist() == [0, 1] and part.duration_s == 2
    assert part.generated_tokens is not None and part.generated_tokens.tolist() == [6, 7]
    assert trace.clip(2, 100).arrival_s.tolist() == [0, 1, 2] and trace.clip(2, 100).duration_s == 2
    with pytest.raises(TraceError, match="must begin before"):
        trace.clip(4, 5)


@pytest.mark.parametrize(
    ("times", "rule"), [([2, 1], "never fall"), ([-1, 1], "start at 0"), ([float("nan")], "finite")]
)
def test_a_trace_cannot_be_made_of_nonsense(times: list[float], rule: str) -> None:
    with pytest.raises(TraceError, match=rule):
        make_trace(times, source="t")


def test_a_trace_cannot_be_changed_after_it_was_hashed() -> None:
    trace = make_trace([0, 1], source="t")
    with pytest.raises(ValueError, match="read-only"):
        trace.arrival_s[0] = 5


def test_the_committed_samples_are_what_their_recipe_makes(tmp_path: Path) -> None:
    make_samples.make_all(tmp_path)
    made = sorted(path.name for path in tmp_path.iterdir())
    assert made == sorted(path.name for path in SAMPLES.iterdir() if path.name != "README.md")
    for name in made:
        assert list(read_lines(tmp_path / name)) == list(read_lines(SAMPLES / name)), name


@pytest.mark.parametrize("rate", [-1.0, float("nan"), float("inf")])
def test_a_rate_that_cannot_be_is_a_sentence(rate: float) -> None:
    with pytest.raises(TraceError, match="must be a positive number"):
        scale.at_rate(synthetic(10, 10.0, 1.0, 0), rate, 0)
