"""Hours at a rate: their pattern, parts and sets, and what theory expects of their dispersion."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations, islice
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.parameters import examples, some_fast
from tests.unit.traces.public_layout import public_layout
from traces import catalog
from traces.commands import traces
from traces.dispersion import SCALES_S, counts, dispersion
from traces.errors import NoMatchError, TraceError
from traces.rate_tables import rate_table
from traces.splits import DAY_S, SPLITS, Split, split_of
from traces.traffic import MARGIN, RATES_RPS, REPLAYED_PATTERNS, Hour, choose_hours, has_sources, hours_of
from traces.traffic_command import _write

DATA = catalog.data_folder() or Path("no-data")
real = pytest.mark.skipif(not DATA.is_dir(), reason="the public traces are not on this machine")
MOST_RATIO = 1.5
"""Between replayed and expected index, where enough is counted."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five synthetic days of 30 clients (slow, normal and bursty) and one day of 40 functions, in the public layout."""
    return public_layout(tmp_path_factory.mktemp("traces"))


def keys(hours: list[Hour]) -> list[tuple[str, str, int]]:
    return [part for hour in hours for part in hour.parts]


@pytest.mark.parametrize(
    ("pattern", "rate", "kinds"),
    [("slow", 0.5, {"stream"}), ("slow", 2.0, {"sum"}), ("normal", 1.0, {"stream"}),
     ("normal", 8.0, {"sum", "profile"}), ("bursty", 2.0, {"stream"}), ("bursty", 20.0, {"profile"}),
     ("diurnal", 20.0, {"stream"}), ("diurnal", 200.0, {"sum"})],
)  # fmt: skip
def test_a_replayed_hour_has_its_pattern_and_rate_from_the_sources_that_carry_it(
    data: Path, pattern: str, rate: float, kinds: set[str]
) -> None:
    chosen = list(islice(hours_of(pattern, rate, "train", data=data), examples(4)))
    assert chosen and {hour.kind for hour in chosen} <= kinds
    for hour in chosen:
        replay = hour.replay()
        assert replay.duration_s == 3600 and replay.mean_rps == pytest.approx(rate, rel=0.12)
        low, high = {"slow": (0, 1), "normal": (1, 3), "bursty": (3, 1e9), "diurnal": (0, 1e9)}[pattern]
        cv = replay.iat_cv
        assert cv is not None and low * (1 + MARGIN) < cv < high * (1 - MARGIN)


@pytest.mark.parametrize("pattern", REPLAYED_PATTERNS)
def test_no_hour_is_given_twice_and_none_is_in_two_sets(data: Path, pattern: str) -> None:
    by_set = {split: keys(list(islice(hours_of(pattern, 1.0, split, data=data), examples(15)))) for split in SPLITS}
    for split, parts in by_set.items():
        assert parts and len(set(parts)) == len(parts)
        assert {split_of(name) for _, name, _ in parts} == {split}
    for one, other in combinations(SPLITS, 2):
        assert not {name for _, name, _ in by_set[one]} & {name for _, name, _ in by_set[other]}
        spans = [{(table, start) for table, _, start in by_set[split]} for split in (one, other)]
        assert not spans[0] & spans[1]


def test_every_source_is_there_once_before_any_is_there_twice(data: Path) -> None:
    chosen = choose_hours("bursty", 1.5, "train", 12, data=data)
    names = [hour.parts[0][1] for hour in chosen]
    first = names[: len(set(names))]
    assert len(set(first)) == len(first)


def test_hours_repeat_with_their_seed_and_move_with_another(data: Path) -> None:
    once, again, other = (choose_hours("normal", 1.0, "train", 3, seed, data=data) for seed in (1, 1, 2))
    assert [hour.as_json() for hour in once] == [hour.as_json() for hour in again]
    assert keys(once) != keys(other)


def test_what_cannot_be_had_is_refused_with_its_reason(data: Path, tmp_path: Path) -> None:
    with pytest.raises(
        NoMatchError, match=r"slow at 100 requests/s, test: 0 hours can be had, 1 wanted; a sum of inde"
    ):
        choose_hours("slow", 100.0, "test", 1, data=data)
    with pytest.raises(NoMatchError, match=r"0 hours can be had, 1 wanted; hours are taken from .*; none is there"):
        choose_hours("slow", 100.0, "test", 1, data=tmp_path)
    with pytest.raises(TraceError, match="patterns are slow, normal, bursty, diurnal"):
        choose_hours("spiky", 5.0, "test", 1, data=data)
    with pytest.raises(TraceError, match="a rate is 0 to 1e5"):
        choose_hours("slow", -5.0, "test", 1, data=data)
    assert has_sources(data) and not has_sources(tmp_path)


def test_an_hour_at_its_sources_own_rate_is_its_source(data: Path) -> None:
    (hour,) = choose_hours("normal", 0.0, "train", 1, data=data)
    assert hour.replay().sha256 == hour.source().sha256 and hour.as_json()["factor"] == 1


def test_a_client_keeps_its_windows_requests_and_no_two_clients_end_a_window_together(data: Path) -> None:
    path = data / "servegen" / "language_m-large_clients_days01-12.csv.gz"
    table = rate_table("servegen-large", path)
    drawn = [table.draw(row, 3600, 3600, 0) for row in (1, 4)]
    for row, trace in zip((1, 4), drawn, strict=True):
        assert counts(trace.arrival_s, 3600.0, 600.0).tolist() == table.requests[row, 6:12].tolist()
    assert not set(drawn[0].arrival_s.tolist()) & set(drawn[1].arrival_s.tolist())


def replay_and_expected(hour: Hour, fewest: int) -> list[float]:
    """Ratio of replayed over expected index at every scale with at least ``fewest`` requests."""
    numbers = hour.as_json()
    if numbers["requests"] < fewest:
        return []
    return [numbers["dispersion"][key] / numbers["expected_dispersion"][key] for key in numbers["dispersion"]]


@pytest.mark.parametrize(("pattern", "rate"), [("slow", 1.5), ("normal", 8.0), ("bursty", 20.0), ("diurnal", 20.0)])
def test_replayed_hours_vary_as_their_sources_do_at_the_rate(data: Path, pattern: str, rate: float) -> None:
    for hour in islice(hours_of(pattern, rate, "train", data=data), examples(3)):
        ratios = replay_and_expected(hour, 1000)
        assert len(ratios) == len(SCALES_S) and all(1 / MOST_RATIO < ratio < MOST_RATIO for ratio in ratios)


def test_a_day_is_replayed_in_the_episode(data: Path) -> None:
    (hour,) = choose_hours("diurnal", 20.0, "train", 1, seconds=600.0, data=data)
    replay = hour.replay()
    assert (hour.speed, replay.duration_s, hour.source().duration_s) == (144, 600, DAY_S)
    index = dispersion(replay, 10.0)
    assert index is not None and index > 5


@pytest.mark.slow
def test_the_command_names_parts_and_dispersions_and_writes_the_hours(data: Path, tmp_path: Path) -> None:
    call = ["hours", "--pattern", "bursty", "--rate", "20", "--count", "2", "--data", str(data), "--out", str(tmp_path)]
    outcome = CliRunner().invoke(traces, [*call, "--json"], catch_exceptions=False)
    described = json.loads(outcome.output)
    assert len(described) == 2 == len(list(tmp_path.glob("bursty-20-train-*.csv.gz")))
    assert described[0]["factor"] > 1 and described[0]["parts"][0][0] == "functions-day"
    assert described[0]["source_dispersion"]["60"] < described[0]["dispersion"]["60"]
    shown = CliRunner().invoke(traces, call, catch_exceptions=False).output
    assert "expected" in shown and "profile" in shown and "…" not in shown


@pytest.mark.slow
def test_two_hours_of_a_function_with_a_long_name_are_two_files(data: Path, tmp_path: Path) -> None:
    (hour,) = choose_hours("bursty", 20.0, "train", 1, data=data)
    named = replace(hour, table=replace(hour.table, names=["f" * 64 for _ in hour.table.names]))
    files = {_write(tmp_path, replace(named, start_s=start_s)).name for start_s in (0, 3600)}
    assert len(files) == 2


@real
@pytest.mark.parametrize("split", some_fast(SPLITS, 1))
@pytest.mark.parametrize("pattern", ["normal", "bursty", "diurnal"])
def test_public_hours_at_twenty_are_ten_from_eight_sources(pattern: str, split: Split) -> None:
    chosen = choose_hours(pattern, 20.0, split, 10)
    parts = keys(chosen)
    assert len(set(parts)) == len(parts) and len({part[:2] for part in parts}) >= 8
    assert {split_of(name) for _, name, _ in parts} == {split}
    ratios = [ratio for hour in chosen[:2] for ratio in replay_and_expected(hour, 1000)]
    assert all(1 / MOST_RATIO < ratio < MOST_RATIO for ratio in ratios)


@pytest.mark.slow
@real
def test_public_slow_hours_exist_only_at_low_rates() -> None:
    assert len(choose_hours("slow", 2.0, "test", 10)) == len(choose_hours("slow", 5.0, "validation", 10)) == 10
    for rate in RATES_RPS[1:]:
        with pytest.raises(NoMatchError, match="slow clients that are nearly as busy"):
            choose_hours("slow", rate, "test", 1)
