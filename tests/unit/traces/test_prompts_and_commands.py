"""Texts, and the two commands as a person calls them."""

from __future__ import annotations

import gzip
import json
import os
import signal
import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from click.testing import CliRunner, Result

from traces import catalog, prompts, replay_command
from traces.commands import replay, traces
from traces.errors import NoMatchError, ReplayError, TraceError
from traces.replay import ReplaySettings
from traces.replay_command import Part, load_part, print_summary


def test_real_texts_are_read_from_each_known_format_and_cut(tmp_path: Path) -> None:
    (tmp_path / "wikitext-2-valid.txt").write_text(" \n = Heading = \n one two three four \n")
    (tmp_path / "gsm8k_test_first_900.jsonl").write_text('{"question": "how  many\\nducks", "answer": "9"}\n')
    (tmp_path / "bbh.jsonl").write_text('{"task": "t", "i": 1, "input": "not True is", "target": "False"}\n')
    (tmp_path / "mt_bench_question.jsonl").write_text('{"turns": ["first turn", "second"]}\n')
    (tmp_path / "HumanEval.jsonl.gz").write_bytes(gzip.compress(b'{"prompt": "def f(): pass"}\n'))
    texts = prompts.load_prompts(tmp_path, max_words=3)
    assert texts.texts == ("one two three", "how many ducks", "not True is", "first turn", "def f(): pass")
    assert "wikitext-2-valid.txt (1)" in texts.source


def test_without_a_folder_made_sentences_are_used_and_said_to_be_made() -> None:
    texts = prompts.load_prompts(None, max_words=10)
    assert "synthetic" in texts.source and len(set(texts.texts)) > 300
    assert all(0 < len(text.split()) <= 10 for text in texts.texts)
    assert texts.choose(50, 3) == texts.choose(50, 3) != texts.choose(50, 4)


@pytest.mark.parametrize("line", ["{", "[]", '{"task": 1}', '{"input": 5}', '"x"'])
def test_a_damaged_prompt_file_is_reported_with_its_line(tmp_path: Path, line: str) -> None:
    (tmp_path / "bbh.jsonl").write_text('{"input": "fine"}\n' + line + "\n")
    with pytest.raises(TraceError, match=r"bbh\.jsonl:2: "):
        prompts.load_prompts(tmp_path)


def test_prompt_folders_without_known_texts_are_reported(tmp_path: Path) -> None:
    with pytest.raises(NoMatchError, match="no known texts"):
        prompts.load_prompts(tmp_path)
    with pytest.raises(NoMatchError, match="gsm8k"):
        prompts.load_prompts(tmp_path, kinds=("gsm8k",))
    with pytest.raises(TraceError, match="does not exist"):
        prompts.load_prompts(tmp_path / "no")
    with pytest.raises(TraceError, match="at least 1 word"):
        prompts.load_prompts(None, max_words=0)


def call(*arguments: str) -> dict[str, object]:
    outcome = CliRunner().invoke(traces, arguments, catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    answer: dict[str, object] = json.loads(outcome.output)
    return answer


def test_list_names_the_made_samples_as_made() -> None:
    result = call("list", "--json")
    assert {"made-bursty-hour"} <= {entry["name"] for entry in result if not entry["measured"]}  # type: ignore[index]


def test_describe_counts_and_plots(tmp_path: Path) -> None:
    picture = tmp_path / "a.png"
    result = call("describe", "made-bursty-hour", "--json", "--plot", str(picture))
    assert result["requests"] == 1500 and result["pattern"] == "bursty"
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_chosen_clips_are_written_pictured_and_described_the_same(tmp_path: Path) -> None:
    picture = tmp_path / "clips.png"
    result = call(
        "clips", "made-servegen", "--pattern", "bursty", "--seed", "3", "--count", "2", "--out", str(tmp_path / "out"),
        "--plot", str(picture), "--json",
    )  # fmt: skip
    assert len(result["clips"]) == 2 and picture.read_bytes().startswith(b"\x89PNG")  # type: ignore[arg-type]
    for clip in result["clips"]:  # type: ignore[attr-defined]
        read = call("describe", clip["file"], "--json")
        assert clip["requests"] == read["requests"] and clip["pattern"] == read["pattern"] == "bursty"
        assert clip["arrivals"]["iat_cv"] == pytest.approx(read["iat_cv"], rel=1e-4)


def test_clips_of_functions_of_one_app_are_files_of_their_own(tmp_path: Path) -> None:
    app, functions = "a" * 64, ("b" * 64, "c" * 64)
    rows = [f"{app},{name},{second + 1},1" for second in range(0, 3600, 9) for name in functions]
    (tmp_path / "f.csv").write_text("\n".join(["app,func,end_timestamp,duration", *rows, ""]))
    call = ["clips", str(tmp_path / "f.csv"), "--pattern", "slow", "--count", "2", "--split-by", "time"]
    outcome = CliRunner().invoke(traces, [*call, "--out", str(tmp_path / "out"), "--json"])
    files = {clip["row"]: clip["file"] for clip in json.loads(outcome.output)["clips"]}
    assert len(set(files.values())) == len(files) == len(list((tmp_path / "out").iterdir())) == 2


def test_a_part_without_requests_is_described() -> None:
    call = ["describe", "made-llm", "--start-s", "0.001", "--duration-s", "0.001", "--json"]
    described = json.loads(CliRunner().invoke(traces, call, catch_exceptions=False).output)
    assert described["requests"] == 0 and described["mean_context_tokens"] is None


def test_clips_are_shown_with_the_sizes_of_the_sets() -> None:
    outcome = CliRunner().invoke(traces, ["clips", "made-functions", "--requests", "60", "20000"])
    assert outcome.exit_code == 0, outcome.output
    assert outcome.output.count("hours") == 3 and "steady" in outcome.output and "…" not in outcome.output
    by_set = call("clips", "made-functions", "--requests", "60", "20000", "--json")["hours"]
    assert list(by_set) == ["train", "validation", "test"]  # type: ignore[call-overload]


def test_list_distinguishes_what_is_here_from_what_can_be_fetched() -> None:
    outcome = CliRunner().invoke(traces, ["list"])
    assert outcome.exit_code == 0 and "to fetch" in outcome.output and "here" in outcome.output
    with pytest.raises(TraceError, match="smoe traces fetch llm-2024-conv"):
        catalog.resolve("llm-2024-conv", None)


def test_an_unknown_trace_lists_what_is_there() -> None:
    outcome = CliRunner().invoke(traces, ["describe", "nonsense"])
    assert isinstance(outcome.exception, TraceError) and "made-bursty-hour" in str(outcome.exception)


class Busy(BaseHTTPRequestHandler):
    """A gateway that has no replica for anything."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(503)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def replay_of_three(tmp_path: Path, port: int) -> Result:
    trace = tmp_path / "t.csv"
    trace.write_text("arrival_s\n0\n0.01\n0.02\n")
    told = ["--gateway", f"http://127.0.0.1:{port}", "--trace", str(trace), "--out", str(tmp_path / "out"), "--json"]
    return CliRunner().invoke(replay, ["m", *told])


def test_a_replay_without_answers_writes_its_files_and_fails(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Busy) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        outcome = replay_of_three(tmp_path, server.server_port)
        server.shutdown()
    assert outcome.exit_code == 1
    summary = json.loads(outcome.output)
    assert sum(summary["outcomes"].values()) == summary["failed"] == 3
    assert json.loads((tmp_path / "out" / "replay.json").read_text()) == summary
    assert len((tmp_path / "out" / "requests.csv").read_text().splitlines()) == 4


class Interrupting(BaseHTTPRequestHandler):
    """Answers, and presses Ctrl-C at the second request: the first one is sent before the replay begins."""

    seen = 0

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        type(self).seen += 1
        if self.seen == 2:
            os.kill(os.getpid(), signal.SIGINT)
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.timeout(100)
def test_a_replay_that_is_stopped_writes_what_it_has_and_its_exit_status_tells(tmp_path: Path) -> None:
    trace = tmp_path / "long.csv"
    trace.write_text("arrival_s\n0\n3000\n")
    with ThreadingHTTPServer(("127.0.0.1", 0), Interrupting) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        outcome = CliRunner().invoke(
            replay, ["m", "--gateway", url, "--trace", str(trace), "--out", str(tmp_path / "out"), "--json"]
        )
        server.shutdown()
    assert outcome.exit_code == 130, outcome.output
    summary = json.loads((tmp_path / "out" / "replay.json").read_text())
    assert (summary["complete"], summary["requests"], summary["planned"]) == (False, 1, 2)


def test_a_replay_against_nobody_is_refused_before_it_begins(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    outcome = replay_of_three(tmp_path, port)
    assert isinstance(outcome.exception, ReplayError)
    assert f"nothing answers at http://127.0.0.1:{port}/function/m: start a gateway with `smoe up`" in str(
        outcome.exception
    )
    assert not (tmp_path / "out").exists()


def test_people_get_a_row_for_each_number_that_is_known(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (17.24, 3.0, 2.0))
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {0, 5})
    monkeypatch.setenv("COLUMNS", "120")
    quantiles = {"p50": 0.01, "p95": 0.02, "p99": 0.03}
    summary = {
        "complete": False, "requests": 9, "planned": 12, "failed": 1, "outcomes": {"ok": 8, "timeout": 1},
        "latency_s": quantiles, "from_schedule_s": None, "lateness_s": quantiles, "slo_attainment": 0.875,
        "slo_s": 0.25, "answered_rps": None, "trace": {"source": "mine", "sha256": "0" * 64},
    }  # fmt: skip
    print_summary(summary, Path("out"))
    rows = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert rows[:6] == [
        "requests 9 of 12 (stopped early), 1 failed",
        "not ok 1 timeout",
        "timeout no answer in --timeout-s: send less (--max-rps), or free this machine (load 17.2 on 2 cores)",
        "latency P50 10 ms, P95 20 ms, P99 30 ms",
        "client late P50 10 ms, P95 20 ms, P99 30 ms",
        "within SLO 87.5% of requests in 250 ms",
    ]


@pytest.mark.parametrize("field", ["max_new_tokens", "=8", "max_new_tokens=eight"])
def test_a_field_that_is_no_json_is_refused(tmp_path: Path, field: str) -> None:
    outcome = CliRunner().invoke(replay, ["m", "--field", field, "--out", str(tmp_path)])
    assert isinstance(outcome.exception, ReplayError) and "KEY=JSON" in str(outcome.exception)


def test_a_field_goes_into_every_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def check(settings: ReplaySettings) -> None:
        asked.append(dict(settings.fields))
        raise ReplayError("not sent")

    monkeypatch.setattr(replay_command.client, "check", check)
    CliRunner().invoke(replay, ["m", "--field", "max_new_tokens=8", "--field", 'x="y=z"', "--out", str(tmp_path)])
    assert asked == [{"max_new_tokens": 8, "x": "y=z"}]


@pytest.mark.skipif(catalog.data_folder() is None, reason="the public traces are not on this machine")
def test_the_real_bursty_hour_is_what_the_readme_of_the_data_says() -> None:
    trace = catalog.bursty_hour(catalog.data_folder())
    even = catalog.bursty_hour(catalog.data_folder(), "even")
    assert trace.requests == 10169 and trace.iat_cv == pytest.approx(5.98, abs=0.2)
    assert even.iat_cv == pytest.approx(5.14, abs=0.01)


@pytest.mark.parametrize(
    ("start_s", "duration_s", "span"),
    [(None, None, (0, 3600)), (None, 600.0, (0, 600)), (1200.0, None, (1200, 3600)), (1200.0, 600.0, (1200, 1800))],
)
def test_a_part_of_the_bursty_hour_is_replayed(
    start_s: float | None, duration_s: float | None, span: tuple[int, int]
) -> None:
    hour = load_part(Part(None, None, None, None, "uniform", 0), None)
    part = load_part(Part(None, None, start_s, duration_s, "uniform", 0), None)
    inside = (hour.arrival_s >= span[0]) & ((hour.arrival_s < span[1]) | (span[1] == hour.duration_s))
    assert part.requests == int(inside.sum()) and part.duration_s == span[1] - span[0]
