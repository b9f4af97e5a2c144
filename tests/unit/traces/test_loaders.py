"""Loaders: what they read, and what they say of damaged files."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.parameters import examples
from traces import arrival_process as placement
from traces import loading
from traces.catalog import SAMPLES
from traces.errors import NoMatchError, TraceError
from traces.formats import arrivals, azure_functions_2019, servegen
from traces.formats.azure_functions_2019 import MinuteCounts
from traces.model import make_trace

FUNCTIONS_HEAD = "HashOwner,HashApp,HashFunction,Trigger,480,481,482\n"
LLM_HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
SERVEGEN_HEAD = "client,window_start_s,rate_rps,iat_cv,pattern,param1,param2\n"


def written(tmp_path: Path, text: str, name: str = "trace.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def minute_counts(path: Path) -> list[MinuteCounts]:
    """Every row of every day."""
    blocks = azure_functions_2019.read_blocks_of_days(path)
    return [azure_functions_2019.row_of(block, index) for block in blocks for index in range(len(block.rows))]


def test_minute_counts_become_evenly_spaced_arrivals(tmp_path: Path) -> None:
    path = written(tmp_path, FUNCTIONS_HEAD + "o,a,f,http,2,0,3\n")
    trace = placement.to_trace(azure_functions_2019.find_row(path, "f"), "even")
    assert trace.arrival_s.tolist() == [15.0, 45.0, 130.0, 150.0, 170.0]
    assert trace.duration_s == 180.0


@given(st.lists(st.integers(0, 40), min_size=1, max_size=30), st.integers(0, 2**32))
def test_every_placement_keeps_each_minutes_count(counts: list[int], seed: int) -> None:
    for way in placement.Placement.__args__:  # type: ignore[attr-defined]
        times = placement.place(np.array(counts), way, seed)
        assert np.bincount((times // 60).astype(int), minlength=len(counts)).tolist() == counts
        assert (np.diff(times) >= 0).all()


def test_gzip_is_recognised_by_content_and_a_part_of_the_day_is_read(tmp_path: Path) -> None:
    path = written(tmp_path, FUNCTIONS_HEAD + "o,a,f,timer,1,1,1\n", "trace.csv.gz").rename(tmp_path / "plainname")
    (row,) = minute_counts(path)
    assert (row.first_minute, row.trigger, row.counts.tolist()) == (480, "timer", [1, 1, 1])
    assert row.hour(481, 2).counts.tolist() == [1, 1]
    with pytest.raises(TraceError, match="the row holds 480 to 482"):
        row.hour(482, 2)


def test_llm_times_start_at_zero_with_their_tokens(tmp_path: Path) -> None:
    rows = "2023-11-16 23:59:59.9999999,10,1\n2023-11-17 00:00:00.5,20,2\n"
    trace = loading.load(written(tmp_path, LLM_HEAD + rows))
    np.testing.assert_allclose(trace.arrival_s, [0.0, 0.5000001], atol=1e-12)
    assert trace.context_tokens is not None and trace.context_tokens.tolist() == [10, 20]


@pytest.mark.parametrize(
    ("text", "line", "rule"),
    [
        pytest.param(FUNCTIONS_HEAD + "o,a,f,http,1,-2,3\n", 2, "negative", id="negative count"),
        pytest.param(FUNCTIONS_HEAD + "o,a,f,http,1,,3\n", 2, "gap", id="empty cell"),
        pytest.param(FUNCTIONS_HEAD + "o,a,f,http,1,x,3\n", 2, "not a whole number", id="letters"),
        pytest.param(FUNCTIONS_HEAD + "o,a,f,http,1,1.5,3\n", 2, "not a whole number", id="fraction"),
        pytest.param(FUNCTIONS_HEAD + "o,a,f,http,1,999999999999,3\n", 2, "allowed maximum", id="too large"),
        pytest.param(FUNCTIONS_HEAD + "o,a,f,http,1,2\n", 2, "6 fields", id="short row"),
        pytest.param(FUNCTIONS_HEAD.replace("481", "490"), 1, "gap or are unsorted", id="gap of minutes"),
        pytest.param(FUNCTIONS_HEAD.replace("481", "479"), 1, "gap or are unsorted", id="unsorted minutes"),
        pytest.param("HashOwner,HashApp,HashFunction,Average,1,2\n", 1, "foreign columns", id="other Azure file"),
        pytest.param("a,b\n1,2\n", 1, "foreign columns", id="foreign columns"),
        pytest.param("", 1, "empty", id="empty file"),
        pytest.param(LLM_HEAD, 1, "no requests", id="header only"),
        pytest.param(
            LLM_HEAD + "2023-11-16 18:17:03,1,1\n2023-11-16 18:17:02,1,1\n", 3, "unsorted", id="unsorted times"
        ),
        pytest.param(LLM_HEAD + "2023-13-40 18:17:03,1,1\n", 2, "TIMESTAMP", id="no such day"),
        pytest.param(LLM_HEAD + "2023-11-16 18:17:03,-1,1\n", 2, "negative", id="negative tokens"),
        pytest.param(LLM_HEAD + "2023-11-16 18:17:03,1,1\n\n2023-11-16 18:17:03,1,1\n", 3, "empty line", id="hole"),
        pytest.param(SERVEGEN_HEAD + "1,0,-1,1,Gamma,1,1\n", 2, "outside 0", id="negative rate"),
        pytest.param(SERVEGEN_HEAD + "1,0,1,nan,Gamma,1,1\n", 2, "finite", id="nan"),
        pytest.param(SERVEGEN_HEAD + "1,0,1,1,Pareto,1,1\n", 2, "Gamma and Weibull", id="unknown law"),
        pytest.param(SERVEGEN_HEAD + "1,7,1,1,Gamma,1,1\n", 2, "multiple of 600", id="off the grid"),
        pytest.param(SERVEGEN_HEAD + "1,0,1,1,Gamma,1,1\n1,0,1,1,Gamma,1,1\n", 3, "twice", id="window twice"),
        pytest.param("arrival_s\n1\n0.5\n", 3, "unsorted", id="arrivals unsorted"),
        pytest.param("# sha256: 00\narrival_s\n1\n", 1, "sha256", id="changed arrivals"),
    ],
)
def test_damage_is_reported_with_file_line_and_rule(tmp_path: Path, text: str, line: int, rule: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(TraceError) as error:
        loading.load(path)
    assert str(error.value).startswith(f"{path}:{line}: ")
    assert rule in str(error.value)


def test_a_truncated_gzip_is_reported_not_raised_raw(tmp_path: Path) -> None:
    path = written(tmp_path, FUNCTIONS_HEAD + "o,a,f,http,1,2,3\n" * 500, "cut.csv.gz")
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(TraceError, match=r"cut\.csv\.gz:\d+: the compressed data is damaged"):
        minute_counts(path)


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        loading.load(tmp_path / "nothing.csv")


SAMPLE_NAMES = sorted(path.name for path in SAMPLES.glob("made_*.csv"))


@pytest.mark.parametrize("name", SAMPLE_NAMES)
@given(data=st.data())
@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_random_damage_never_crashes_a_loader(tmp_path: Path, name: str, data: st.DataObject) -> None:
    raw = bytearray((SAMPLES / name).read_bytes()[:6000])
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(raw) - 1))
        action = data.draw(st.sampled_from(("byte", "cut", "remove", "insert")))
        if action == "byte":
            raw[at] = data.draw(st.integers(0, 255))
        elif action == "remove":
            del raw[at : at + data.draw(st.integers(1, 20))]
        elif action == "insert":
            raw[at:at] = data.draw(st.binary(min_size=1, max_size=6))
        elif at > 1:
            del raw[at:]
        if not raw:
            break
    path = tmp_path / "damaged.csv"
    path.write_bytes(bytes(raw) or b"x")
    try:
        trace = loading.load(path)
    except NoMatchError:
        return
    except TraceError as error:
        assert re.match(r".*damaged\.csv:\d+: ", str(error)), error
        return
    assert (np.diff(trace.arrival_s) >= 0).all() and np.isfinite(trace.arrival_s).all()


def test_a_rate_of_too_many_requests_is_refused_with_its_line(tmp_path: Path) -> None:
    first, second, *rest = (SAMPLES / "made_servegen.csv").read_text().splitlines()
    client, start, _, *others = second.split(",")
    (tmp_path / "made.csv").write_text("\n".join([first, ",".join([client, start, "100000", *others]), *rest]))
    with pytest.raises(TraceError, match=r"made\.csv:2: more than .* 60000000 of them in this window"):
        loading.load(tmp_path / "made.csv")


@given(st.lists(st.floats(0, 1e6), max_size=30), st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_arrivals_survive_writing_and_reading(tmp_path: Path, times: list[float], tokens: bool) -> None:
    times = sorted(times)
    extra = list(range(len(times))) if tokens else None
    trace = make_trace(times, source="a test\nwith a break", context_tokens=extra)
    path = tmp_path / "a.csv.gz"
    arrivals.write_arrivals(trace, path)
    again = arrivals.read_arrivals(path)
    np.testing.assert_allclose(again.arrival_s, trace.arrival_s, atol=1e-9)
    assert (again.context_tokens is not None) == tokens
    arrivals.write_arrivals(again, path)
    assert arrivals.read_arrivals(path).sha256 == again.sha256


def test_no_two_rows_share_a_file_name() -> None:
    digest = "0123456789abcdef" * 4
    rows = ["a.b", "a-b", "a/b", digest, digest[:24], f"{digest}/{digest}", f"{digest}/{digest[:-1]}", "56"]
    names = [arrivals.as_file_name(row) for row in rows]
    assert len(set(names)) == len(rows) and all(re.fullmatch(r"[\w-]{1,60}", name) for name in names)
    assert names[-1] == "56" and names[-3].startswith(f"{digest[:24]}-{digest[:24]}-")


def test_servegen_draw_is_seeded_and_fills_its_windows() -> None:
    path = SAMPLES / "made_servegen.csv"
    windows = list(servegen.read_windows(path, "1"))
    trace = servegen.draw(path, windows, start_s=3600, duration_s=3600, seed=5)
    assert trace.sha256 == servegen.draw(path, windows, start_s=3600, duration_s=3600, seed=5).sha256
    assert trace.sha256 != servegen.draw(path, windows, start_s=3600, duration_s=3600, seed=6).sha256
    wanted = [w.requests for w in windows if 3600 <= w.window_start_s < 7200]
    bounds = np.searchsorted(trace.arrival_s, np.arange(0, 3601, 600), side="right")
    assert np.diff(bounds).tolist() == wanted


def test_servegen_gamma_has_the_measured_cv() -> None:
    window = servegen.ClientWindow(1, "1", 0, 50.0, 1.7, "Weibull", 0.5, 1.0)
    gaps = np.diff(servegen.draw_window(window, seed=3))
    assert gaps.std() / gaps.mean() == pytest.approx(1.7, rel=0.05)
