"""Arrivals of an evaluation: rate, envelope, provenance."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from evaluation.comparison.arrivals import arrivals, typical
from evaluation.comparison.errors import EvaluationError
from evaluation.comparison.grid import FROM_FILE, Grid
from tests.unit.traces.public_layout import public_layout
from traces import generate, loading
from traces.catalog import SAMPLES
from traces.errors import TraceError
from traces.model import Trace, make_trace

GRID = Grid(("bert-4",), ("bursty",), (0,), ("static",), (0,), seconds=600.0, mean_rps=8.0)


def test_an_hour_is_replayed_where_it_is_most_like_itself() -> None:
    hour = generate.synthetic(400, 3600.0, 3.5, 2)
    part = typical(hour, 600.0)
    parts = [hour.clip(start, start + 600.0) for start in np.arange(0.0, 3001.0, 60.0)]
    share = hour.requests * 600.0 / 3600.0
    assert part.duration_s == 600 and part.requests >= share / 2
    assert distance(part, hour) == min(distance(one, hour) for one in parts if one.requests >= share / 2)


def distance(one: Trace, other: Trace) -> float:
    assert one.iat_cv and other.iat_cv
    return max(one.iat_cv / other.iat_cv, other.iat_cv / one.iat_cv)


def test_an_hour_with_few_requests_has_a_part_all_the_same() -> None:
    hour = make_trace(np.array([10.0, 3500.0]), duration_s=3600.0, source="x")
    assert typical(hour, 600.0).requests == 1


def test_without_public_traces_made_hours_stand_in_and_say_so(tmp_path: Path) -> None:
    group = next(GRID.groups())
    drawn = arrivals(replace(GRID, data=tmp_path), group)
    assert not drawn.measured
    assert drawn.cv is not None and drawn.cv > 3
    assert drawn.arrival_s[-1] < 600


@pytest.mark.parametrize("pattern", ["slow", "normal", "diurnal"])
def test_every_pattern_has_synthetic_arrivals_of_the_rate(tmp_path: Path, pattern: str) -> None:
    grid = replace(GRID, data=tmp_path, patterns=(pattern,))
    group = next(grid.groups())
    drawn = arrivals(grid, group)
    assert "synthetic" in drawn.source and drawn.arrival_s.size == pytest.approx(8 * 600, rel=0.1)
    assert drawn.dispersion["1"] is not None and drawn.dispersion["60"] is None  # ten minutes are too few


def test_seeds_are_distinct_hours_of_the_set_with_their_rate_and_pattern(tmp_path: Path) -> None:
    grid = replace(GRID, data=public_layout(tmp_path), split="train", seeds=(0, 1, 2), seconds=3600.0, mean_rps=1.5)
    drawn = [arrivals(grid, group) for group in grid.groups()]
    assert len({one.source for one in drawn}) == 3
    for one in drawn:
        assert one.measured and one.cv is not None and one.cv > 3
        assert one.arrival_s.size == pytest.approx(1.5 * 3600, rel=0.1)
    short = arrivals(replace(grid, seconds=600.0), next(grid.groups()))
    assert short.seconds == 600 and short.arrival_s[-1] < 600


def test_a_cell_without_hours_or_with_too_few_is_a_sentence(tmp_path: Path) -> None:
    grid = replace(GRID, data=public_layout(tmp_path), patterns=("slow",), mean_rps=300.0)
    with pytest.raises(EvaluationError, match="slow at 300 requests/s, test: 0 hours"):
        arrivals(grid, next(grid.groups()))
    many = replace(grid, patterns=("diurnal",), mean_rps=1.0, seeds=tuple(range(16)))
    with pytest.raises(EvaluationError, match=r"would replay the same hour: .*name fewer seeds"):
        arrivals(many, next(many.groups()))


def test_a_given_file_is_replayed_whatever_its_pattern(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    file.write_text("arrival_s\n" + "\n".join(str(second * 0.25) for second in range(400)) + "\n")
    grid = replace(GRID, patterns=(FROM_FILE,), trace=file, mean_rps=0.0, seconds=100.0, window_s=10.0)
    drawn = arrivals(grid, next(grid.groups()))
    assert drawn.measured
    assert drawn.arrival_s.size == 400
    assert drawn.seconds == 100


def test_a_trace_shorter_than_the_episode_shortens_it_and_one_too_short_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "short.csv"
    file.write_text("arrival_s\n" + "\n".join(str(second) for second in range(56)) + "\n")
    grid = replace(GRID, patterns=(FROM_FILE,), trace=file, mean_rps=0.0, window_s=10.0)
    drawn = arrivals(grid, next(grid.groups()))
    assert (drawn.seconds, drawn.arrival_s.size) == (50, 50)
    with pytest.raises(EvaluationError, match=r"short\.csv.*5 windows"):
        arrivals(replace(grid, warm_up_windows=5), next(grid.groups()))


def test_a_longer_trace_is_cut_from_the_minute_of_its_first_request(tmp_path: Path) -> None:
    file = tmp_path / "late.csv"
    file.write_text("arrival_s\n" + "\n".join(str(1000 + second) for second in range(1000)) + "\n")
    grid = replace(GRID, patterns=(FROM_FILE,), trace=file, mean_rps=0.0)
    drawn = arrivals(grid, next(grid.groups()))
    assert drawn.arrival_s[0] == 40  # the trace's second 960 is the episode's zero
    assert drawn.seconds == 600


def test_a_file_that_is_no_trace_is_refused_with_its_name(tmp_path: Path) -> None:
    file = tmp_path / "odd.csv"
    file.write_text("a,b\n1,2\n")
    grid = replace(GRID, patterns=(FROM_FILE,), trace=file)
    with pytest.raises(TraceError, match=r"odd\.csv"):
        arrivals(grid, next(grid.groups()))


def test_a_data_sets_name_and_a_part_of_it_are_replayed_as_they_are() -> None:
    """From the start that was given, not from the minute of the first request there."""
    clip = {"row": "386d16543d59", "start_s": 90.0, "duration_s": 1800.0}
    given = replace(GRID, patterns=(FROM_FILE,), trace=Path("made-functions"), mean_rps=0.0, **clip)  # type: ignore[arg-type]
    drawn = arrivals(given, next(given.groups()))
    whole = loading.load(SAMPLES / "made_azure_functions.csv", row="386d16543d59")
    expected = whole.arrival_s[(whole.arrival_s >= 90) & (whole.arrival_s < 690)] - 90
    assert expected.size and np.allclose(drawn.arrival_s, expected) and drawn.seconds == 600
    with pytest.raises(EvaluationError, match="parts of a trace, and none is given"):
        replace(GRID, row="386d16543d59")
