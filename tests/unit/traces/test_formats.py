"""The published forms of 2021, BurstGPT, Mooncake and ServeGen: what is read, what is refused."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

from traces import loading
from traces.catalog import SAMPLES
from traces.errors import NoMatchError, TraceError
from traces.formats import servegen

F2021 = "app,func,end_timestamp,duration\n"
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
LLM = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURST_3 = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


def written(tmp_path: Path, text: str, name: str = "trace.csv") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def mooncake(**changed: object) -> str:
    entry = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}
    return json.dumps({**entry, **changed}) + "\n"


def test_invocations_of_2021_arrive_when_they_began(tmp_path: Path) -> None:
    path = written(tmp_path, F2021 + "a,f,10.5,10.0\nb,f,3.0,0.5\na,g,4.25,0.25\na,f,2.0,0.0\n")
    trace = loading.load(path)
    assert trace.arrival_s.tolist() == [0.5, 2.0, 2.5, 4.0] and trace.context_tokens is None
    assert loading.load(path, row="a/f").arrival_s.tolist() == [0.5, 2.0]
    assert loading.load(path, row="b").arrival_s.tolist() == [2.5]
    assert loading.load(path, row="a/f").duration_s == trace.duration_s == 4.0
    equal = written(tmp_path, F2021 + "a,f,1.0,0.0\na,ff,2.0,0.0\n", "alike.csv")
    assert loading.load(equal, row="a/f").arrival_s.tolist() == [1.0]
    with pytest.raises(TraceError, match=r"several rows start with 'a' \(a/f, a/g\)"):
        loading.load(path, row="a")
    with pytest.raises(NoMatchError, match="no row's name starts with 'z'"):
        loading.load(path, row="z")


@pytest.mark.parametrize(("begin", "zero"), [(5, 0), (5_270_414, 5_270_400), (19_440_110, 19_440_000)])
def test_burstgpts_zero_is_the_midnight_before_its_first_request(tmp_path: Path, begin: int, zero: int) -> None:
    rows = f"{begin},ChatGPT,10,2,12,Conversation log\n{begin + 7},GPT-4,11,0,11,API log\n"
    trace = loading.load(written(tmp_path, BURST + rows))
    assert trace.arrival_s.tolist() == [begin - zero, begin - zero + 7] and zero % 86400 == 0
    assert trace.generated_tokens is not None and trace.generated_tokens.tolist() == [2, 0]


def test_burstgpts_third_file_has_sessions_and_rows_by_model_and_log(tmp_path: Path) -> None:
    rows = "86401.0,u1,4,ChatGPT,10,2,12,Conversation log\n86402.5,,9,GPT-4,11,3,14,API log\n"
    path = written(tmp_path, BURST_3 + rows)
    assert loading.identify(path).format == "burstgpt"
    assert loading.load(path, row="GPT-4/API log").arrival_s.tolist() == [2.5]


def test_mooncakes_milliseconds_become_seconds_with_their_tokens(tmp_path: Path) -> None:
    path = written(tmp_path, mooncake() + mooncake(timestamp=1500, output_length=9), "trace.jsonl")
    trace = loading.load(path)
    assert trace.arrival_s.tolist() == [0.0, 1.5] and trace.source == "trace.jsonl"
    assert trace.context_tokens is not None and trace.context_tokens.tolist() == [600, 600]
    without = {"timestamp": 2500, "input_length": 7, "output_length": 1}  # as aiperf reads them
    assert loading.load(written(tmp_path, json.dumps(without) + "\n", "without.jsonl")).arrival_s.tolist() == [2.5]


@pytest.mark.parametrize(
    ("text", "line", "rule"),
    [
        pytest.param(F2021 + "a,f,1.0,2.0\n", 2, "began before the trace", id="2021 before zero"),
        pytest.param(F2021 + "a,f,nan,2.0\n", 2, "not a finite number", id="2021 nan"),
        pytest.param(F2021 + "a,f,1612051200000,2.0\n", 2, "outside 0 to 1e+08", id="2021 milliseconds"),
        pytest.param(F2021 + "a,f,5,-1\n", 2, "outside 0", id="2021 negative duration"),
        pytest.param(F2021 + "a,,5,1\n", 2, "column func is empty", id="2021 gap"),
        pytest.param(F2021, 1, "no requests", id="2021 header only"),
        pytest.param(BURST + "5,M,1,1,2,API log\n4,M,1,1,2,API log\n", 3, "unsorted", id="burstgpt unsorted"),
        pytest.param(BURST + "5,M,1,1,2,Chat\n", 2, "allowed are Conversation log and API log", id="burstgpt log"),
        pytest.param(BURST + "5,M,1.5,1,2,API log\n", 2, "not a whole number", id="burstgpt fraction"),
        pytest.param(BURST + "1612051200000,M,1,1,2,API log\n", 2, "outside 0 to 1e+09", id="burstgpt milliseconds"),
        pytest.param(
            BURST + "5,M,1,1,2,API log\n6,M,7,0,9,API log\n",
            3,
            "column Total tokens: 9 is not 7 + 0",
            id="burstgpt sum",
        ),
        pytest.param(BURST.replace("Total", "All") + "5,M,1,1,2,API log\n", 1, "foreign columns", id="burstgpt header"),
        pytest.param(
            LLM + "2024-05-10 00:00:01,1,1\n2024-05-10 00:00:02+00:00,1,1\n2024-05-10 00:00:03,1,1\n",
            3,
            "column TIMESTAMP: '2024-05-10 00:00:02+00:00' has a zone, those before it have no zone",
            id="llm a zone",
        ),
        pytest.param(
            LLM + "2024-05-10 00:00:01Z,1,1\n2024-05-10 00:00:02.5+00:00,1,1\n2024-05-10 00:00:03,1,1\n",
            4,
            "'2024-05-10 00:00:03' has no zone, those before it have a zone",
            id="llm no zone",
        ),
        pytest.param(mooncake() + mooncake(timestamp=-1), 2, "negative", id="mooncake negative"),
        pytest.param(mooncake(timestamp=5) + mooncake(timestamp=4), 2, "unsorted", id="mooncake unsorted"),
        pytest.param(mooncake() + mooncake(input_length=1.5), 2, "not a whole number", id="mooncake fraction"),
        pytest.param(mooncake() + mooncake(output_length=True), 2, "not a whole number", id="mooncake truth"),
        pytest.param(mooncake() + mooncake(output_length=None), 2, "not a whole number", id="mooncake gap"),
        pytest.param(mooncake() + mooncake(hash_ids=[1, "2"]), 2, "list of numbers of blocks", id="mooncake blocks"),
        pytest.param(mooncake() + mooncake(extra=1), 2, "foreign keys", id="mooncake key"),
        pytest.param(mooncake() + '{"timestamp": 0, "input_length": 1}\n', 2, "foreign keys", id="mooncake no answer"),
        pytest.param(mooncake() + "NaN\n", 2, "not a JSON object", id="mooncake nan"),
        pytest.param(mooncake() + "[1]\n", 2, "foreign keys 'list'", id="mooncake list"),
        pytest.param(mooncake() + "\n" + mooncake(), 2, "empty line", id="mooncake hole"),
        pytest.param(mooncake() + mooncake(timestamp=10**13), 2, "allowed maximum", id="mooncake microseconds"),
    ],
)
def test_damage_is_reported_with_file_line_and_rule(tmp_path: Path, text: str, line: int, rule: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(TraceError) as error:
        loading.load(path)
    assert str(error.value).startswith(f"{path}:{line}: "), error.value
    assert rule in str(error.value)


def day_of_2019(requests: int) -> str:
    return f"HashOwner,HashApp,HashFunction,Trigger,1,2\no,a,f,http,{requests},0\n"


def test_a_day_of_2019_that_is_missing_between_others_is_named(tmp_path: Path) -> None:
    for day in (1, 3):
        written(tmp_path, day_of_2019(day), f"invocations_per_function_md.anon.d0{day}.csv")
    with pytest.raises(TraceError, match=r"invocations_per_function_md\.anon\.d02\.csv is missing, while days 1 and 3"):
        loading.load(tmp_path, row="f")
    with pytest.raises(TraceError, match=r"anon\.d02\.csv is missing"):
        loading.load(tmp_path)
    written(tmp_path, day_of_2019(2).replace("o,a,f", "o,a,other"), "invocations_per_function_md.anon.d02.csv")
    assert loading.load(tmp_path, row="f").requests == 4
    written(tmp_path, day_of_2019(9), "invocations_per_function_md.anon.d09.csv")
    with pytest.raises(TraceError, match=r"anon\.d04\.csv and 4 more are missing"):
        loading.load(tmp_path)


def published_servegen(tmp_path: Path) -> Path:
    """The made table's clients as the published tree has them."""
    folder = tmp_path / "ServeGen-main" / "data" / "language" / "m-made"
    folder.mkdir(parents=True)
    by_client: dict[str, dict[int, str]] = {}
    for line in (SAMPLES / "made_servegen.csv").read_text().splitlines()[1:]:
        client, start, rest = line.split(",", 2)
        by_client.setdefault(client, {})[int(start)] = rest
    for client, windows in by_client.items():
        rows = [f"{start},{windows.get(start, '0,0,,0,0')}" for start in range(0, 14400, 600)]
        (folder / f"chunk-{client}-trace.csv").write_text("\n".join(rows) + "\n")
        (folder / f"chunk-{client}-dataset.json").write_text("{}")
    return tmp_path / "ServeGen-main"


def test_servegens_published_tree_and_its_archive_hold_what_the_table_does(tmp_path: Path) -> None:
    table = [w for w in servegen.read_windows(SAMPLES / "made_servegen.csv") if w.rate_rps]
    tree = published_servegen(tmp_path)
    archive = tmp_path / "ServeGen.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(tree, "ServeGen-main")
    for path in (tree, archive):
        windows = list(servegen.read_windows(path))
        assert loading.identify(path).format == "servegen" and len(windows) == len(table)
        assert {w.client for w in windows} == {f"language/m-made/{i}" for i in range(3)}
        key = {(f"language/m-made/{w.client}", w.window_start_s, w.rate_rps, w.iat_cv) for w in table}
        assert {(w.client, w.window_start_s, w.rate_rps, w.iat_cv) for w in windows} == key
    alone = loading.load(tree / "data" / "language" / "m-made", row="2", start_s=0, duration_s=3600)
    whole = loading.load(SAMPLES / "made_servegen.csv", row="2", start_s=0, duration_s=3600)
    assert alone.arrival_s.tolist() == whole.arrival_s.tolist()


@pytest.mark.parametrize(
    ("text", "line", "rule"),
    [
        ("0,1,1,Gamma,1,1\n0,1,1,Gamma,1,1\n", 2, "unsorted"),
        ("0,1,1,,0,0\n", 1, "pattern is empty (a gap) though the rate is 1"),
        ("0,1,1,Gamma,0,1\n", 1, "param1: 0 is outside"),
        ("7,1,1,Gamma,1,1\n", 1, "multiple of 600"),
        ("0,1,1,Pareto,1,1\n", 1, "'Pareto'"),
        ("0,-1,1,Gamma,1,1\n", 1, "outside 0"),
        ("0,1,1,Gamma,1\n", 1, "5 fields, this format has 6"),
    ],
)
def test_a_damaged_client_file_is_reported(tmp_path: Path, text: str, line: int, rule: str) -> None:
    path = written(tmp_path, text, "chunk-3-trace.csv")
    with pytest.raises(TraceError) as error:
        loading.load(path)
    assert str(error.value).startswith(f"{path}:{line}: ") and rule in str(error.value)


def test_an_idle_client_and_one_that_is_not_there_are_reported(tmp_path: Path) -> None:
    path = written(tmp_path, "0,0,0,,0,0\n600,0,0,,0,0\n", "chunk-3-trace.csv")
    with pytest.raises(NoMatchError, match="no rows"):
        loading.load(path)
    with pytest.raises(NoMatchError, match="there is no client '9'"):
        loading.load(SAMPLES / "made_servegen.csv", row="9")


def test_a_clip_of_a_long_file_reads_no_further_than_it_must(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = "".join(f"{i},M,1,1,2,API log\n" for i in range(0, 40_000, 10))
    path = written(tmp_path, BURST + rows + "broken\n")
    monkeypatch.setattr("traces.columns.BLOCK_BYTES", 4000)
    clip = loading.load(path, start_s=3600, duration_s=3600)
    assert clip.requests == 360 and clip.duration_s == 3600 and clip.arrival_s[0] == 0
    with pytest.raises(TraceError, match=r":4002: 1 fields"):
        loading.load(path)


@pytest.mark.parametrize(("start", "length"), [(1e6, None), (-1.0, 10.0), (0.0, -5.0)])
def test_a_clip_outside_the_trace_is_refused(tmp_path: Path, start: float, length: float | None) -> None:
    path = written(tmp_path, BURST + "5,M,1,1,2,API log\n9,M,1,1,2,API log\n")
    with pytest.raises(TraceError, match=r"a clip (needs|must)"):
        loading.load(path, start_s=start, duration_s=length)


def test_the_last_moment_of_a_trace_belongs_to_a_clip_that_reaches_its_end(tmp_path: Path) -> None:
    path = written(tmp_path, BURST + "5,M,1,1,2,API log\n9,M,1,1,2,API log\n")
    clip = loading.load(path, start_s=4, duration_s=5)
    assert clip.arrival_s.tolist() == [1.0, 5.0] and clip.duration_s == 5.0
    np.testing.assert_allclose(loading.load(path, start_s=4, duration_s=50).arrival_s, [1.0, 5.0])


HEADER = "category,model,client,window_start_s,field,mean,p10,p50,p90,p99,max"
LENGTHS = f"""{HEADER}
language,m-made,1,0,input_tokens,100,10,100,200,300,400
language,m-made,1,0,output_tokens,8,8,8,8,8,8
language,m-made,1,7200,output_tokens,3,0,1,2,3,9
language,m-made,1,7200,input_tokens,5000,5000,5000,5000,5000,5000
language,m-made,2,0,input_tokens,5,5,5,5,5,5
language,other,1,0,input_tokens,7,7,7,7,7,7
"""


def clients_of(tmp_path: Path) -> tuple[Path, Path]:
    """A table of clients under a name that tells their model, and their lengths."""
    clients = tmp_path / "language_m-made_clients_days01.csv"
    clients.write_text((SAMPLES / "made_servegen.csv").read_text())
    return clients, written(tmp_path, LENGTHS, "lengths.csv")


def test_lengths_of_servegen_follow_the_quantiles_of_their_client_and_window(tmp_path: Path) -> None:
    clients, lengths = clients_of(tmp_path)
    trace = loading.load(clients, row="1", start_s=0, duration_s=7200, lengths=lengths)
    again = loading.load(clients, row="1", start_s=0, duration_s=7200, lengths=lengths)
    plain = loading.load(clients, row="1", start_s=0, duration_s=7200)
    assert trace.sha256 == again.sha256 and np.array_equal(trace.arrival_s, plain.arrival_s)
    assert trace.context_tokens is not None and trace.generated_tokens is not None
    assert set(trace.generated_tokens.tolist()) == {8} and trace.requests > 500
    shares = [float((trace.context_tokens <= bound).mean()) for bound in (10, 100, 200, 400)]
    assert shares == pytest.approx([0.1, 0.5, 0.9, 1.0], abs=0.05)
    later = loading.load(clients, row="1", start_s=7200, duration_s=3600, lengths=lengths)
    assert later.context_tokens is not None and set(later.context_tokens.tolist()) == {5000}
    assert later.generated_tokens is not None and later.generated_tokens.min() == 1


def test_a_client_of_a_published_tree_gets_lengths_by_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "language" / "m-made"
    folder.mkdir(parents=True)
    (folder / "chunk-1-trace.csv").write_text("0,1,1,Gamma,1,1\n")
    _, lengths = clients_of(tmp_path)
    trace = loading.load(tmp_path / "data", duration_s=600, lengths=lengths)
    assert trace.requests == 600 and trace.generated_tokens is not None and set(trace.generated_tokens.tolist()) == {8}


def test_what_has_no_lengths_is_refused(tmp_path: Path) -> None:
    clients, lengths = clients_of(tmp_path)
    with pytest.raises(NoMatchError, match="no lengths of client 2 of language m-made"):
        loading.load(clients, row="2", lengths=lengths)
    with pytest.raises(TraceError, match="the client's model is not known"):
        loading.load(SAMPLES / "made_servegen.csv", row="1", lengths=lengths)
    with pytest.raises(TraceError, match="only ServeGen's requests"):
        loading.load(SAMPLES / "made_mooncake.jsonl", lengths=lengths)
    falling = written(tmp_path, f"{HEADER}\nlanguage,m-made,1,0,input_tokens,9,9,8,9,9,9\n", "falling.csv")
    with pytest.raises(TraceError, match=r"falling\.csv:2: quantiles .* fall"):
        loading.load(clients, row="1", lengths=falling)
    with pytest.raises(TraceError, match="foreign columns"):
        loading.load(clients, row="1", lengths=clients)
