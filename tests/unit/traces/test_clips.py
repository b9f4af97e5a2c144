"""Hours, sets and clips: measured by other means than the code does, and never mixed."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.parameters import examples
from traces import arrival_process as placement
from traces import catalog, loading
from traces.catalog import SAMPLES
from traces.clips import candidates, choose, clips
from traces.errors import NoMatchError, TraceError
from traces.formats.arrivals import write_arrivals
from traces.generate import synthetic
from traces.hours import hours, stationarity
from traces.model import PATTERNS, classify, make_trace
from traces.splits import DAY_S, HOUR_S, SPLITS, SPLITS_BY, assign, cuts, split_of

FUNCTIONS = SAMPLES / "made_azure_functions.csv"


def cv_by_hand(times: list[float]) -> float:
    gaps = [b - a for a, b in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    return float((sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5 / mean)


@given(st.lists(st.integers(0, 12), min_size=2, max_size=60))
def test_the_cv_of_evenly_placed_counts_is_exact(counts: list[int]) -> None:
    low, _ = placement.hour_cv(np.array([counts]))
    times = placement.place(np.array(counts), "even").tolist()
    if len(times) < 3:
        assert np.isnan(low[0])
    else:
        assert low[0] == pytest.approx(cv_by_hand(times), abs=1e-6)


@pytest.mark.parametrize("counts", [[5] * 60, [0] * 20 + [40] + [0] * 38 + [9], [3, 0, 0, 7] * 15, [1] * 60])
def test_the_cv_of_uniformly_placed_counts_is_that_of_many_draws(counts: list[int]) -> None:
    _, expected = placement.hour_cv(np.array([counts]))
    draws = [placement.place(np.array(counts), "uniform", seed) for seed in range(400)]
    gaps = np.concatenate([np.diff(times) for times in draws])
    assert expected[0] == pytest.approx(gaps.std() / gaps.mean(), rel=0.03)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=20), st.integers(0, 2**32), st.floats(0.05, 20))
def test_gamma_placement_keeps_each_minutes_count(counts: list[int], seed: int, cv: float) -> None:
    times = placement.place(np.array(counts), "gamma", seed, cv)
    assert np.bincount((times // 60).astype(int), minlength=len(counts)).tolist() == counts
    assert (np.diff(times) >= 0).all()


def test_gamma_placement_orders_burstiness_by_its_cv() -> None:
    counts = np.full(60, 200)
    cvs = [cv_by_hand(placement.place(counts, "gamma", 1, cv).tolist()) for cv in (0.3, 1.0, 3.0)]
    assert cvs[0] == pytest.approx(0.3, rel=0.1) and cvs[1] == pytest.approx(1.0, rel=0.05) and 2.2 < cvs[2] < 3.3
    with pytest.raises(TraceError, match=r"0\.05 to 20"):
        placement.place(counts, "gamma", 1, 50.0)


@pytest.mark.parametrize(
    ("parts", "value"),
    [([7] * 6, 1.0), ([6, 0, 0, 0, 0, 0], 1 / 6), ([0, 0, 0, 0, 0, 9], 1 / 6), ([2, 2, 2, 0, 0, 0], 0.5)],
)
def test_stationarity_is_one_for_a_constant_rate(parts: list[int], value: float) -> None:
    assert stationarity(np.array([parts]))[0] == pytest.approx(value)


@pytest.mark.parametrize(
    "name", ["made_azure_functions_2021.csv", "made_burstgpt.csv", "made_azure_llm.csv", "made_mooncake.jsonl"]
)
def test_hours_of_requests_are_what_loading_each_gives(name: str) -> None:
    table = hours(SAMPLES / name)
    assert table.size
    for index in range(table.size):
        row = table.names[table.row[index]] if len(table.names) > 1 else None
        start = float(table.start_s[index])
        trace = loading.load(SAMPLES / name, row=row, start_s=start, duration_s=HOUR_S)
        assert trace.requests == table.requests[index]
        assert table.cv_low[index] == pytest.approx(cv_by_hand(trace.arrival_s.tolist()), rel=1e-6)
        assert table.cv_low[index] == table.cv_high[index]


def test_hours_of_counts_hold_every_request_of_their_minutes() -> None:
    table = hours(FUNCTIONS)
    lines = [line.split(",") for line in FUNCTIONS.read_text().splitlines()[1:]]
    wanted = {
        (cells[2], hour * HOUR_S): sum(map(int, cells[4 + 60 * hour : 64 + 60 * hour]))
        for cells in lines
        for hour in (0, 1)
    }
    found = {(table.names[r], int(s)): int(n) for r, s, n in zip(table.row, table.start_s, table.requests, strict=True)}
    assert found == {key: number for key, number in wanted.items() if number >= 3}
    assert table.first_minute == 480 and table.span_s == 7200


def test_large_batches_and_small_ones_give_the_same_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    path = SAMPLES / "made_burstgpt_3.csv"
    whole = hours(path)
    monkeypatch.setattr("traces.columns.BLOCK_BYTES", 700)
    cut = hours(path)
    assert cut.names == whole.names
    for name in ("row", "start_s", "requests", "cv_low", "stationarity"):
        np.testing.assert_allclose(getattr(cut, name), getattr(whole, name))


@given(
    st.lists(st.tuples(st.text(min_size=1, max_size=8), st.integers(0, 400)), min_size=1, max_size=80),
    st.integers(1, 400),
)
def test_no_function_and_no_hour_is_in_two_sets(hours_of: list[tuple[str, int]], span_hours: int) -> None:
    names = sorted({name for name, _ in hours_of})
    rows = np.array([names.index(name) for name, _ in hours_of])
    starts = np.array([hour % span_hours for _, hour in hours_of]) * HOUR_S
    for by in SPLITS_BY:
        sets = assign(rows, names, starts, span_hours * HOUR_S, by)
        functions: dict[int, set[int]] = defaultdict(set)
        moments: dict[int, set[int]] = defaultdict(set)
        for row, start, number in zip(rows.tolist(), starts.tolist(), sets.tolist(), strict=True):
            if number >= 0:
                functions[number].add(row)
                moments[number].add(start)
        for one, other in combinations(range(3), 2):
            assert by == "time" or not functions[one] & functions[other]
            assert by == "function" or not moments[one] & moments[other]
            assert by == "function" or max(moments[one], default=-1) < min(moments[other], default=2**40)


@given(st.integers(1, 24 * 30))
def test_time_is_cut_at_whole_hours_or_days_with_every_hour_in_a_set(span_hours: int) -> None:
    edges = cuts(span_hours * HOUR_S)
    unit = DAY_S if span_hours >= 120 else HOUR_S
    assert edges.validation_s % unit == 0 and edges.test_s % unit == 0
    sets = edges.of(np.arange(span_hours) * HOUR_S)
    assert (np.diff(sets) >= 0).all() and set(sets.tolist()) <= {0, 1, 2}
    if span_hours >= 3:
        assert [int((sets == i).sum()) > 0 for i in range(3)] == [True] * 3


def test_fourteen_days_are_cut_after_the_eighth_and_eleventh() -> None:
    assert cuts(14 * DAY_S).validation_s == 8 * DAY_S and cuts(14 * DAY_S).test_s == 11 * DAY_S


@given(st.text(max_size=40))
def test_a_row_is_in_exactly_one_set_wherever_it_appears(row: str) -> None:
    assert split_of(row) == split_of(row) and split_of(row) in SPLITS


@pytest.mark.parametrize("name", ["made_azure_functions.csv", "made_servegen.csv"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_chosen_hour_has_its_pattern_and_request_range(name: str, pattern: str) -> None:
    table = hours(SAMPLES / name, 60, 20_000)
    ((clip, trace),) = choose(table, catalog.allowed(pattern), seed=4)
    assert classify(cv_by_hand(trace.arrival_s.tolist())) == pattern == clip.pattern
    assert 60 <= trace.requests == clip.requests and trace.duration_s == HOUR_S == clip.duration_s
    assert clip.load(seed=4).sha256 == trace.sha256
    assert clip.mean_rps == pytest.approx(clip.requests / HOUR_S)


def test_a_clip_whose_draw_left_its_pattern_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "windows.csv"
    rows = [f"1,{start},0.1,3.2,Gamma,0.1,100" for start in range(0, 200 * HOUR_S, 600)]
    path.write_text("client,window_start_s,rate_rps,iat_cv,pattern,param1,param2\n" + "\n".join(rows) + "\n")
    table = hours(path, 300)
    everywhere = [clip.load(seed=1) for clip in clips(table, range(0, 200, 10))]
    assert table.is_pattern("bursty").all() and any(trace.pattern != "bursty" for trace in everywhere)
    chosen = choose(table, "bursty", count=20, seed=1)
    assert all(classify(cv_by_hand(trace.arrival_s.tolist())) == "bursty" for _, trace in chosen)


def test_a_clip_knows_its_file_function_and_minutes() -> None:
    table = hours(FUNCTIONS, 60)
    clip, trace = choose(table, "bursty", seed=2)[0]
    assert clip.file_sha256 == hashlib.sha256(FUNCTIONS.read_bytes()).hexdigest()
    first, last = clip.minutes
    assert (first - 480) * 60 == clip.start_s and last == first + 59
    counts = next(line.split(",") for line in FUNCTIONS.read_text().splitlines() if clip.row in line)
    assert sum(map(int, counts[4 + first - 480 : 5 + last - 480])) == trace.requests
    assert clip.as_json()["minutes"] == [first, last]


def test_choosing_repeats_with_its_seed_and_says_when_nothing_fits() -> None:
    table = hours(SAMPLES / "made_servegen.csv", 300, 20_000)
    first = choose(table, "bursty", count=3, seed=1)
    again = choose(table, "bursty", count=3, seed=1)
    assert [(c, t.sha256) for c, t in first] == [(c, t.sha256) for c, t in again]
    orders = {tuple(c.start_s for c, _ in choose(table, "bursty", count=3, seed=seed)) for seed in range(6)}
    assert len(orders) > 1
    with pytest.raises(NoMatchError, match=r"0 hours are slow, 1 wanted; the file has 0 hours .*no requests"):
        choose(hours(SAMPLES / "made_servegen.csv", 5, 6), "slow")


def test_sets_of_a_file_share_no_hour_and_no_function() -> None:
    table = hours(SAMPLES / "made_azure_rows.csv", 10)
    parts = [clips(table, candidates(table, split=split)) for split in SPLITS]
    for one, other in combinations(parts, 2):
        assert not {c.row for c in one} & {c.row for c in other}
        assert not {c.start_s for c in one} & {c.start_s for c in other}
    assert all(clip.split == split for split, part in zip(SPLITS, parts, strict=True) for clip in part)


def test_for_a_file_of_one_function_a_split_by_time_is_advised() -> None:
    table = hours(SAMPLES / "made_azure_llm.csv")
    other = "test" if split_of(table.names[0]) != "test" else "train"
    with pytest.raises(NoMatchError, match="split by time"):
        choose(table, "bursty", split=other)  # type: ignore[arg-type]
    assert choose(table, "bursty", split="train", by="time")[0][0].split == "train"


def test_clips_of_requests_carry_their_tokens() -> None:
    path = SAMPLES / "made_burstgpt.csv"
    table = hours(path)
    index = int(table.requests.argmax())
    (clip,) = clips(table, [index])
    trace = clip.load()
    direct = loading.load(path, row=clip.row, start_s=clip.start_s, duration_s=HOUR_S)
    assert trace.context_tokens is not None and direct.context_tokens is not None
    assert trace.arrival_s.tolist() == direct.arrival_s.tolist()
    assert trace.context_tokens.tolist() == direct.context_tokens.tolist()


def test_a_clip_of_a_function_that_comes_late_in_its_file_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [f"{second},{'ChatGPT' if second < 3600 else 'GPT-4'},1,1,2,API log" for second in range(0, 7210, 10)]
    path = tmp_path / "b.csv"
    path.write_text("\n".join(["Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type", *rows, ""]))
    monkeypatch.setattr("traces.columns.BLOCK_BYTES", 700)
    table = hours(path)
    (clip,) = clips(table, [int(np.flatnonzero(table.row == table.names.index("GPT-4/API log"))[0])])
    assert clip.start_s == 3600 and clip.load().requests == clip.requests == 361


def test_the_last_hour_of_an_arrivals_file_ends_where_the_file_does(tmp_path: Path) -> None:
    """Two hours, with a request where the first ends and none at the end of the second."""
    path, trace = tmp_path / "a.csv", make_trace(np.arange(0.0, 7100.0, 10.0), duration_s=7200.0, source="t")
    write_arrivals(trace, path)
    table = hours(path)
    assert table.start_s.tolist() == [0, 3600] and table.requests.tolist() == [360, 350]
    assert [clip.load().requests for clip in clips(table, [0, 1])] == [360, 350]


def test_days_of_one_function_lie_one_behind_the_other(tmp_path: Path) -> None:
    head = "HashOwner,HashApp,HashFunction,Trigger," + ",".join(map(str, range(1, 1441))) + "\n"
    for day, functions in ((1, "ab"), (2, "b"), (3, "a")):
        rows = "".join(f"o,p,{name},http,{','.join(['2'] * 1440)}\n" for name in functions)
        (tmp_path / f"invocations_per_function_md.anon.d{day:02}.csv").write_text(head + rows)
    table = hours(tmp_path)
    assert table.span_s == 3 * DAY_S and table.size == 96
    a = loading.load(tmp_path, row="a", placement="even")
    assert a.duration_s == 3 * DAY_S and a.requests == 2 * 2880
    assert not ((a.arrival_s >= DAY_S) & (a.arrival_s < 2 * DAY_S)).any()
    late = clips(table, [int(np.flatnonzero(table.start_s == 2 * DAY_S)[0])])[0]
    assert late.minutes == (2881, 2940) and late.load("even").arrival_s.tolist() == a.clip(
        2 * DAY_S, 2 * DAY_S + HOUR_S
    ).arrival_s.tolist()  # fmt: skip


def test_summed_days_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "invocations_14day_sum_rows.csv"
    path.write_bytes((SAMPLES / "made_azure_rows.csv").read_bytes())
    with pytest.raises(TraceError, match="summed over 14 days"):
        hours(path)


@pytest.mark.parametrize(("fewest", "most"), [(2, 10), (10, 9)])
def test_senseless_request_ranges_are_refused(fewest: int, most: int) -> None:
    with pytest.raises(TraceError, match="3 <= min <= max"):
        hours(FUNCTIONS, fewest, most)


@settings(max_examples=examples(20), deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.5, 2.0, 5.0]))
def test_streaming_an_arrivals_hour_gives_the_trace_cv(seed: int, cv: float) -> None:
    from traces.batches import Batch
    from traces.hours import gather_requests

    trace = synthetic(300, 7200, cv, seed)
    pieces = [Batch(part) for part in np.array_split(trace.arrival_s, 7)]
    table = gather_requests(pieces, Path("x"), 3, 10**6).table(Path("x"), "arrivals", 0)
    for index in range(table.size):
        start = int(table.start_s[index])
        ends_here = start + HOUR_S == trace.duration_s
        before_end = trace.arrival_s <= start + HOUR_S if ends_here else trace.arrival_s < start + HOUR_S
        inside = trace.arrival_s[(trace.arrival_s >= start) & before_end]
        assert table.requests[index] == inside.size
        assert table.cv_low[index] == pytest.approx(cv_by_hand(inside.tolist()), rel=1e-6, abs=1e-9)
