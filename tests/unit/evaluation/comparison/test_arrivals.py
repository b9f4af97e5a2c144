"""Arrivals of an evaluation: rate, envelope, provenance."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from evaluation.comparison.arrivals import arrivals, typical
from evaluation.comparison.errors import EvaluationError
from evaluation.comparison.grid import FROM_FILE, Grid
from traces import generate, loading
from traces.catalog import SAMPLES
from traces.errors import TraceError
from traces.model import Trace, make_trace

GRID = Grid(("bert-4",), ("bursty",), (0,), ("static",), (0,), seconds=600.0, mean_rps=8.0)


def test_an_hour_is_played_where_it_is_most_like_itself() -> None:
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
    found = arrivals(replace(GRID, data=tmp_path), group)
    assert not found.measured
    assert found.cv is not None and found.cv > 3
    assert found.arrival_s[-1] < 600


def test_a_given_file_is_played_whatever_its_pattern(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    file.write_text("arrival_s\n" + "\n".join(str(second * 0.25) for second in range(400)) + "\n")
    grid = replace(GRID, patterns=(FROM_FILE,), trace=file, mean_rps=0.0, seconds=100.0, window_s=10.0)
    found = arrivals(grid, next(grid.groups()))
    assert found.measured
    assert found.arrival_s.size == 400
    assert found.seconds == 100


def test_a_trace_shorter_than_the_episode_shortens_it_and_one_too_short_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "short.csv"
    file.write_text("arrival_s\n" + "\n".join(str(second) for second in range(56)) + "\n")
    grid = replace(GRID, patterns=(FROM_FILE,), trace=file, mean_rps=0.0, window_s=10.0)
    found = arrivals(grid, next(grid.groups()))
    assert (found.seconds, found.arrival_s.size) == (50, 50)
    with pytest.raises(EvaluationError, match=r"short\.csv.*5 windows"):
        arrivals(replace(grid, warm_up_windows=5), next(grid.groups()))


def test_a_longer_trace_is_cut_from_the_minute_of_its_first_request(tmp_path: Path) -> None:
    file = tmp_path / "late.csv"
    file.write_text("arrival_s\n" + "\n".join(str(1000 + second) for second in range(1000)) + "\n")
    grid = replace(GRID, patterns=(FROM_FILE,), trace=file, mean_rps=0.0)
    found = arrivals(grid, next(grid.groups()))
    assert found.arrival_s[0] == 40  # the trace's second 960 is the episode's zero
    assert found.seconds == 600


def test_a_file_that_is_no_trace_is_refused_with_its_name(tmp_path: Path) -> None:
    file = tmp_path / "odd.csv"
    file.write_text("a,b\n1,2\n")
    grid = replace(GRID, patterns=(FROM_FILE,), trace=file)
    with pytest.raises(TraceError, match=r"odd\.csv"):
        arrivals(grid, next(grid.groups()))


def test_a_data_sets_name_and_a_part_of_it_are_played_as_they_are() -> None:
    """From the start that was given, not from the minute of the first request there."""
    clip = {"row": "386d16543d59", "start_s": 90.0, "duration_s": 1800.0}
    given = replace(GRID, patterns=(FROM_FILE,), trace=Path("made-functions"), mean_rps=0.0, **clip)  # type: ignore[arg-type]
    found = arrivals(given, next(given.groups()))
    whole = loading.load(SAMPLES / "made_azure_functions.csv", row="386d16543d59")
    expected = whole.arrival_s[(whole.arrival_s >= 90) & (whole.arrival_s < 690)] - 90
    assert expected.size and np.allclose(found.arrival_s, expected) and found.seconds == 600
    with pytest.raises(EvaluationError, match="parts of a trace, and none is given"):
        replace(GRID, row="386d16543d59")
