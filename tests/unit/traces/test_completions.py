"""Token traces: lengths, prompts, streams on a scripted clock, percentiles and goodput by hand, and the command."""

from __future__ import annotations

import asyncio
import csv
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from tests.unit.traces.test_replay import serving
from traces.commands import replay
from traces.completions import Completions, Lengths, StreamError, TokenTargets, lengths_of, read_stream, token_ids
from traces.errors import ReplayError
from traces.model import make_trace
from traces.replay import ReplaySettings
from traces.replay import replay as send
from traces.results import RequestRecord, read_records
from traces.token_results import summarise_tokens, token_percentiles, token_rows

DONE = "[DONE]"
Script = list[tuple[float, dict[str, Any] | str]]


def piece(text: str, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": text, "finish_reason": finish}], "usage": None}


def usage(tokens: int) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": tokens}}


def line(event: dict[str, Any] | str) -> bytes:
    return f"data: {event if isinstance(event, str) else json.dumps(event)}\n".encode()


async def read(script: Script) -> Any:
    """A stream whose events come at the times of ``script``."""
    now = 0.0

    async def lines() -> AsyncIterator[bytes]:
        nonlocal now
        for at_s, event in script:
            now = at_s
            yield line(event)
            yield b"\n"

    return await read_stream(lines(), lambda: now)


async def test_times_of_a_stream_are_those_of_its_first_and_last_token() -> None:
    script: Script = [(0.4, piece("a")), (0.5, piece("b")), (1.2, piece("c", "length")), (1.3, usage(5)), (1.4, DONE)]
    streamed = await read(script)
    assert (streamed.first_s, streamed.last_s, streamed.tokens) == (0.4, 1.2, 5)
    assert streamed.tpot_s == pytest.approx(0.8 / 4)  # five tokens: four gaps in 0.8 s


async def test_an_end_that_comes_after_the_last_token_is_none() -> None:
    streamed = await read(
        [(0.4, piece("a")), (0.6, piece("b")), (1.2, piece("", "length")), (1.3, usage(2)), (1.4, DONE)]
    )
    assert streamed.tpot_s == pytest.approx(0.2)
    alone = await read([(0.4, piece("", "length")), (0.5, usage(1)), (0.6, DONE)])
    assert (alone.first_s, alone.tpot_s) == (0.4, None)  # its only token has no text


async def test_without_usage_events_with_text_are_counted_and_one_token_has_no_tpot() -> None:
    streamed = await read([(0.4, piece("a")), (0.9, piece("", "stop")), (1.0, DONE)])
    assert (streamed.first_s, streamed.tokens, streamed.tpot_s) == (0.4, 1, None)


@pytest.mark.parametrize(
    ("events", "outcome"),
    [
        ([piece("a")], "broken"),
        ([], "broken"),
        (["no json", DONE], "broken"),
        (["[1]", DONE], "broken"),
        ([{"choices": [{}]}, DONE], "broken"),
        ([piece("a"), {"error": {"message": "lost"}}, DONE], "server_error"),
    ],
)
async def test_what_is_no_whole_answer_has_the_outcome_of_its_fault(events: list[Any], outcome: str) -> None:
    with pytest.raises(StreamError) as raised:
        await read([(0.0, event) for event in events])
    assert raised.value.outcome == outcome


@given(st.binary(max_size=80))
def test_any_bytes_are_an_answer_or_a_stream_error(data: bytes) -> None:
    async def lines() -> AsyncIterator[bytes]:
        yield b"data: " + data + b"\n"
        yield line(DONE)

    try:
        assert asyncio.run(read_stream(lines(), lambda: 0.0)).tokens >= 0
    except StreamError as error:
        assert error.outcome in ("broken", "server_error")


def token_trace(context: list[int], generated: list[int]) -> Any:
    times = [0.0] * len(context)
    return make_trace(times, duration_s=1.0, source="test", context_tokens=context, generated_tokens=generated)


def test_lengths_are_divided_and_cut_to_the_context_by_rule() -> None:
    trace = token_trace([100, 1000, 10, 1000, 0], [20, 100, 990, 1000, 0])
    lengths = lengths_of(trace, 10, 60)
    # 10+2 fits; 100+10: the prompt leaves nothing, the answer keeps 10; 1+99: 59 are left; 100+100: half each; 0+0: 1.
    assert lengths.prompt.tolist() == [10, 50, 1, 30, 1] and lengths.answer.tolist() == [2, 10, 59, 30, 1]
    assert lengths.cut == 3


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1, max_size=20),
    st.floats(1, 1000),
    st.integers(2, 10_000),
)
def test_no_request_exceeds_the_context_or_is_empty(
    tokens: list[tuple[int, int]], divisor: float, context: int
) -> None:
    trace = token_trace([one for one, _ in tokens], [other for _, other in tokens])
    free, cut = lengths_of(trace, divisor, None), lengths_of(trace, divisor, context)
    assert (cut.prompt >= 1).all() and (cut.answer >= 1).all() and (cut.prompt + cut.answer <= context).all()
    assert cut.cut == int(((free.prompt != cut.prompt) | (free.answer != cut.answer)).sum())


def test_bad_lengths_are_refused_in_a_sentence() -> None:
    with pytest.raises(ReplayError, match="no token counts"):
        lengths_of(make_trace([0.0], source="bare"), 1, 100)
    with pytest.raises(ReplayError, match="divisor must be a number of at least 1"):
        lengths_of(token_trace([1], [1]), 0.5, 100)
    with pytest.raises(ReplayError, match="context of 1 tokens has no room"):
        lengths_of(token_trace([1], [1]), 1, 1)


def test_prompts_are_runs_of_the_texts_tokens_of_the_wanted_length() -> None:
    lengths = Lengths(np.array([3, 25]), np.array([2, 7]), 0)
    completions = Completions(lengths, np.arange(10), seed=4, fields={"temperature": 0})
    bodies = [json.loads(completions.body(index)) for index in range(2)]
    assert [len(body["prompt"]) for body in bodies] == [3, 25] and [body["max_tokens"] for body in bodies] == [2, 7]
    for body in bodies:
        assert (np.diff(body["prompt"]) % 10 == 1).all() and body["stream"] and body["temperature"] == 0
    assert json.loads(completions.body(1)) == bodies[1]
    with pytest.raises(ReplayError, match="must not hold max_tokens, stream"):
        Completions(lengths, np.arange(10), 0, fields={"stream": False, "max_tokens": 3})


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A folder with a tokenizer whose tokens are words."""
    words = Tokenizer(WordLevel({"[UNK]": 0, "one": 1, "two": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    words.enable_truncation(1)
    folder = tmp_path / "pipeline"
    folder.mkdir()
    words.save(str(folder / "tokenizer.json"))
    return folder


def test_texts_become_token_ids_uncut(tokenizer: Path) -> None:
    assert token_ids(["one two", "two three"], tokenizer).tolist() == [1, 2, 2, 0]
    with pytest.raises(ReplayError, match="is not there"):
        token_ids(["one"], tokenizer / "missing")
    (tokenizer / "tokenizer.json").write_text("{}")
    with pytest.raises(ReplayError, match="not a readable tokenizer"):
        token_ids(["one"], tokenizer)
    with pytest.raises(ReplayError, match="is not there"):
        token_ids(["one"], tokenizer.parent)


def record(ttft_s: float | None, tpot_s: float | None, outcome: Any = "ok", late_s: float = 0.0) -> RequestRecord:
    return RequestRecord(0, 1.0, 1.0 + late_s, 2.0, outcome, 200, 4, 0, 1, "r", None, 9, 5, ttft_s, tpot_s)


def test_goodput_by_hand() -> None:
    records = [
        record(0.2, 0.05), record(0.4, None), record(0.2, 0.07), record(0.5, 0.01), record(0.2, 0.05, late_s=0.3),
        record(None, None, "timeout"), record(None, None, "cancelled"), record(0.1, 0.06),
    ]  # fmt: skip
    numbers = summarise_tokens(records, 10.0, TokenTargets(0.4, 0.06))
    # Kept: the first two and the last, of seven that were not cancelled.
    assert numbers["goodput"] == pytest.approx(3 / 7) and numbers["goodput_rps"] == pytest.approx(0.3)
    assert numbers["output_tokens"] == 24 and numbers["output_tokens_per_s"] == pytest.approx(2.4)
    assert numbers["ended_early"] == 6
    only_tpot = summarise_tokens(records, 10.0, TokenTargets(None, 0.06))
    assert only_tpot["goodput"] == pytest.approx(5 / 7)
    assert summarise_tokens(records, 10.0, TokenTargets())["goodput"] is None


def test_percentiles_by_hand() -> None:
    numbers = token_percentiles([*(float(n) for n in range(101)), None])
    assert numbers == {"p50": 50.0, "p90": 90.0, "p99": 99.0, "mean": 50.0}
    assert token_percentiles([1.0, 2.0]) == pytest.approx({"p50": 1.5, "p90": 1.9, "p99": 1.99, "mean": 1.5})
    assert token_percentiles([None]) is None


def test_people_read_goodput_early_ends_and_cuts() -> None:
    numbers = summarise_tokens([record(0.2, 0.05)], 10.0, TokenTargets(0.4, 0.06))
    rows = dict(token_rows({**numbers, "ignore_eos": False, "cut_to_context": 2, "context": 64}))
    assert rows["goodput"] == "100.0% of requests, 0.10 requests/s with TTFT in 400 ms and per token in 60 ms"
    assert rows["ended early"] == "1 answers (the API has no ignore_eos)" and "context of 64" in rows["cut"]
    assert rows["TTFT"] == "P50 200 ms, P90 200 ms, P99 200 ms"


class Decoder:
    """A fake decoder that streams one token less than asked for (never below one); with 3 asked it fails in between."""

    def __init__(self, model: dict[str, Any], *, has_ignore_eos: bool) -> None:
        self.model, self.has_ignore_eos = model, has_ignore_eos
        self.bodies: list[dict[str, Any]] = []

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [self.model]})

    async def inputs(self, _: web.Request) -> web.Response:
        return web.json_response({"tokens": 3})

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if "ignore_eos" in body and not self.has_ignore_eos:
            return web.json_response({"error": {"message": "ignore_eos is not supported"}}, status=400)
        if "stream" not in body:
            return web.json_response({})
        self.bodies.append(body)
        asked = body["max_tokens"]
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(max(1, asked - 1)):
            await response.write(line(piece("x")) + b"\n")
        if asked == 3:
            await response.write(line({"error": {"message": "lost"}}) + b"\n")
            return response
        await response.write(line(piece("", "stop")) + line(usage(max(1, asked - 1))) + line(DONE))
        return response


@pytest.fixture
def serve() -> Iterator[Any]:
    """Serves a decoder in a thread; gives the gateway's address."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    runners: list[web.AppRunner] = []

    def start(decoder: Decoder) -> str:
        async def begin() -> str:
            application = web.Application()
            application.router.add_get("/function/m/v1/models", decoder.models)
            application.router.add_post("/function/m/v1/completions", decoder.completions)
            application.router.add_post("/function/m", decoder.inputs)
            runners.append(web.AppRunner(application, access_log=None, shutdown_timeout=0.1))
            await runners[-1].setup()
            await web.TCPSite(runners[-1], "127.0.0.1", 0).start()
            return f"http://127.0.0.1:{runners[-1].addresses[0][1]}"

        return asyncio.run_coroutine_threadsafe(begin(), loop).result(30)

    yield start
    for runner in runners:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(30)
    loop.close()


DECODER = {"id": "m", "max_model_len": 50}


def run(url: str, tmp_path: Path, *more: str, tokens: str = "30,4\n0,30,10\n0,80,2\n0,3,3\n") -> Any:
    trace = tmp_path / "trace.csv"
    trace.write_text(f"arrival_s,context_tokens,generated_tokens\n0,{tokens}" if tokens else "arrival_s\n0\n0\n")
    options = ["m", "--gateway", url, "--trace", str(trace), "--state", str(tmp_path / "state")]
    return CliRunner().invoke(replay, [*options, "--out", str(tmp_path / "out"), *more])


@pytest.mark.parametrize("has_ignore_eos", [False, True])
def test_a_token_trace_is_sent_as_streamed_completions(
    serve: Any, tokenizer: Path, tmp_path: Path, has_ignore_eos: bool
) -> None:
    decoder = Decoder(DECODER, has_ignore_eos=has_ignore_eos)
    outcome = run(serve(decoder), tmp_path, "--tokenizer", str(tokenizer), "--tpot-ms", "1e9", "--json")
    assert outcome.exit_code == 1, outcome.output  # one stream broke off
    lengths = sorted((len(body["prompt"]), body["max_tokens"]) for body in decoder.bodies)
    assert lengths == [(3, 3), (30, 4), (30, 10), (48, 2)]
    assert all(body.get("ignore_eos", False) is has_ignore_eos and body["model"] == "m" for body in decoder.bodies)
    summary = json.loads(outcome.stdout)
    numbers = summary["generation"]
    assert summary["outcomes"] == {"ok": 3, "server_error": 1} and numbers["goodput"] == 0.75
    assert numbers["cut_to_context"] == 1 and numbers["ended_early"] == 3 and numbers["output_tokens"] == 13
    assert numbers["ignore_eos"] is has_ignore_eos and numbers["context"] == 50
    records = read_records(tmp_path / "out" / "requests.csv")
    assert [one.prompt_tokens for one in records] == [30, 30, 48, 3] and [one.tokens for one in records[:3]] == [
        3,
        9,
        1,
    ]
    assert records[0].ttft_s is not None and records[0].tpot_s is not None and records[2].tpot_s is None
    with (tmp_path / "out" / "requests.csv").open() as file:
        assert {"ttft_s", "tpot_s", "prompt_tokens", "max_tokens"} <= set(next(csv.reader(file)))


@pytest.mark.slow
async def test_an_answer_that_never_ends_is_over_at_the_deadline_although_tokens_keep_coming() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        with suppress(ConnectionError):
            while True:
                await response.write(line(piece("x")))
        return response

    completions = Completions(Lengths(np.array([1]), np.array([9]), 0), np.arange(3), 0, TokenTargets(60.0))
    async with serving(handler) as url:
        settings = ReplaySettings(url=url, timeout_s=0.3)
        result = await send(token_trace([1], [9]), completions, settings)
    assert result.summary["outcomes"] == {"timeout": 1} and result.summary["generation"]["goodput"] == 0
    with pytest.raises(ReplayError, match="1 completions for 2 arrivals"):
        await send(token_trace([1, 1], [9, 9]), completions, settings)


def test_a_request_file_without_the_columns_of_completions_is_read(tmp_path: Path) -> None:
    header = "index,scheduled_s,sent_s,latency_s,outcome,status,tokens,words,tries,request_id,sent_unix_s"
    (tmp_path / "r.csv").write_text(f"{header}\n0,0.0,0.5,0.1,ok,200,7,1,1,x,9\n")
    assert read_records(tmp_path / "r.csv") == [RequestRecord(0, 0.0, 0.5, 0.1, "ok", 200, 7, 1, 1, "x", 9.0)]


def test_an_encoder_gets_texts_as_before_and_so_does_a_decoder_where_asked_for(serve: Any, tmp_path: Path) -> None:
    encoder = serve(Decoder({"id": "m"}, has_ignore_eos=False))
    outcome = run(encoder, tmp_path, "--json")
    assert outcome.exit_code == 0 and "generation" not in json.loads(outcome.stdout)
    decoder = serve(Decoder(DECODER, has_ignore_eos=False))
    assert run(decoder, tmp_path, "--send", "inputs").exit_code == 0


@pytest.mark.parametrize(
    ("more", "tokens", "sentence"),
    [
        (["--send", "inputs", "--ttft-ms", "5"], "3,3\n", "do not go with --send inputs"),
        (["--ttft-ms", "5"], "", "no token counts"),
        ([], "3,3\n", "need the pipeline's tokenizer"),
        (["--tokenizer", "TOKENIZER", "--field", "stream=false"], "3,3\n", "fields must not hold stream"),
    ],
)
def test_bad_token_options_are_a_sentence(
    serve: Any, tokenizer: Path, tmp_path: Path, more: list[str], tokens: str, sentence: str
) -> None:
    url = serve(Decoder(DECODER, has_ignore_eos=False))
    more = [str(tokenizer) if one == "TOKENIZER" else one for one in more]
    outcome = run(url, tmp_path, *more, tokens=tokens)
    assert isinstance(outcome.exception, ReplayError) and sentence in str(outcome.exception)


def test_completions_of_nobody_and_of_what_has_no_models_are_refused(serve: Any, tmp_path: Path) -> None:
    outcome = run("http://127.0.0.1:9", tmp_path, "--send", "completions")
    assert isinstance(outcome.exception, ReplayError) and "cannot be reached" in str(outcome.exception)
    url = serve(Decoder({"id": "m", "max_model_len": "long"}, has_ignore_eos=False))
    outcome = run(url, tmp_path, "--send", "completions")
    assert isinstance(outcome.exception, ReplayError) and "no whole number" in str(outcome.exception)
