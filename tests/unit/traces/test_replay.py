"""The open-loop client against servers that answer, refuse, hang and break."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from traces.errors import ReplayError, TraceError
from traces.generate import synthetic
from traces.model import make_trace
from traces.replay import Progress, ReplaySettings, check, judge, replay
from traces.results import CSV_COLUMNS, CsvSink, RequestRecord, percentiles, read_records

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    """A server on a free port; yields the function's address."""
    application = web.Application()
    application.router.add_post("/function/m", handler)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/function/m"
    finally:
        await runner.cleanup()


def burst(count: int, gap_s: float = 0.0) -> object:
    return make_trace([i * gap_s for i in range(count)], duration_s=max(1.0, count * gap_s), source="test")


@pytest.mark.slow
async def test_every_arrival_is_sent_once_with_its_text_and_answered() -> None:
    seen: list[tuple[str, str]] = []

    async def handler(request: web.Request) -> web.Response:
        seen.append((request.headers["X-Request-Id"], (await request.json())["inputs"]))
        return web.json_response({"embeddings": [[0.5]], "tokens": 7})

    texts = [f"text {i}" for i in range(300)]
    async with serving(handler) as url:
        result = await replay(synthetic(300, 0.4, 1.5, 1), texts, ReplaySettings(url=url))
    assert Counter(text for _, text in seen) == Counter(texts)
    assert len({name for name, _ in seen}) == 300
    assert result.summary["ok"] == 300 == result.summary["planned"] and result.summary["failed"] == 0
    assert result.summary["tokens"] == 2100 and result.summary["complete"]
    assert [r.index for r in result.records] == list(range(300))
    assert all(r.sent_s is not None and r.sent_s >= r.scheduled_s for r in result.records)


async def test_the_loop_stays_open_while_no_answer_has_come() -> None:
    """All requests arrive although the first answer is only given after the last one came."""
    arrived = 0
    release = asyncio.Event()

    async def handler(request: web.Request) -> web.Response:
        nonlocal arrived
        arrived += 1
        if arrived == 60:
            release.set()
        await release.wait()
        return web.json_response({})

    async with serving(handler) as url:
        result = await replay(burst(60, 0.002), ["t"], ReplaySettings(url=url, connections=60))  # type: ignore[arg-type]
    assert result.summary["ok"] == 60 and result.summary["peak_in_flight"] == 60


@pytest.mark.slow
async def test_failures_are_distinguished() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        text = (await request.json())["inputs"]
        if text == "hang":
            await asyncio.Event().wait()
        if text == "break":
            assert request.transport is not None
            request.transport.close()
        return web.Response(status=int(text) if text.isdigit() else 200)

    texts = ["200", "429", "400", "404", "500", "503", "302", "hang", "break"]
    async with serving(handler) as url:
        result = await replay(burst(9), texts, ReplaySettings(url=url, timeout_s=0.3))  # type: ignore[arg-type]
    assert [r.outcome for r in result.records] == [
        "ok", "rejected", "client_error", "client_error", "server_error", "server_error",
        "unexpected_status", "timeout", "broken",
    ]  # fmt: skip
    assert result.summary["failed"] == 8
    assert result.summary["statuses"] == {"200": 1, "302": 1, "400": 1, "404": 1, "429": 1, "500": 1, "503": 1}


async def test_nobody_listening_is_a_refused_connection() -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response()

    async with serving(handler) as url:
        pass
    result = await replay(burst(3), ["t"], ReplaySettings(url=url))  # type: ignore[arg-type]
    assert result.summary["outcomes"] == {"connect": 3}
    assert result.summary["latency_s"] is None


async def test_an_answer_that_is_no_http_is_broken() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"SMTP ready\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        result = await replay(burst(2), ["t"], ReplaySettings(url=f"http://127.0.0.1:{port}/function/m"))  # type: ignore[arg-type]
    assert result.summary["outcomes"] == {"broken": 2}


async def test_nothing_is_repeated_unless_asked_for() -> None:
    calls: Counter[str] = Counter()

    async def handler(request: web.Request) -> web.Response:
        name = request.headers["X-Request-Id"]
        calls[name] += 1
        return web.Response(status=200 if calls[name] > 1 else 429, headers={"Retry-After": "0.01"})

    async with serving(handler) as url:
        once = await replay(burst(4), ["t"], ReplaySettings(url=url, seed=1))  # type: ignore[arg-type]
        again = await replay(burst(4), ["t"], ReplaySettings(url=url, seed=2, retries=2))  # type: ignore[arg-type]
    assert once.summary["outcomes"] == {"rejected": 4} and once.summary["tries"] == 4
    assert again.summary["outcomes"] == {"ok": 4} and again.summary["tries"] == 8


async def test_connections_are_bounded_and_waiting_for_one_is_on_record() -> None:
    running = most = 0

    async def handler(request: web.Request) -> web.Response:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(20):
            await asyncio.sleep(0)
        running -= 1
        return web.Response()

    async with serving(handler) as url:
        result = await replay(burst(40), ["t"], ReplaySettings(url=url, connections=3))  # type: ignore[arg-type]
    assert result.summary["ok"] == 40 and most <= 3
    assert result.summary["waited_for_connection"] >= 37
    assert result.summary["from_schedule_s"]["max"] > result.summary["latency_s"]["p50"]


@pytest.mark.slow
async def test_without_a_free_connection_a_request_is_given_up_unsent() -> None:
    async def handler(request: web.Request) -> web.Response:
        await asyncio.Event().wait()
        return web.Response()

    async with serving(handler) as url:
        result = await replay(burst(3), ["t"], ReplaySettings(url=url, connections=1, timeout_s=0.2))  # type: ignore[arg-type]
    outcomes = [record.outcome for record in result.records]
    assert outcomes[0] == "timeout" and "no_connection" in outcomes
    assert all((record.sent_s is None) == (record.outcome == "no_connection") for record in result.records)


@pytest.mark.slow
async def test_a_stop_ends_with_the_records_so_far() -> None:
    stop = asyncio.Event()

    async def handler(request: web.Request) -> web.Response:
        if (await request.json())["inputs"] == "last":
            stop.set()
            await asyncio.Event().wait()
        return web.Response()

    texts = ["a", "b", "last", "never"]
    trace = make_trace([0, 0.05, 0.1, 3600], source="t")
    async with serving(handler) as url:
        result = await replay(trace, texts, ReplaySettings(url=url, grace_s=0.1), stop=stop)
    assert [record.outcome for record in result.records] == ["ok", "ok", "cancelled"]
    assert not result.summary["complete"] and result.summary["planned"] == 4 and result.summary["failed"] == 0


def test_what_is_shown_of_the_last_seconds_is_of_answers_that_came_in_them() -> None:
    progress = Progress(planned=4)
    sent = ((1.0, 0.5, "ok"), (11.0, 0.2, "ok"), (12.0, 0.3, "server_error"), (None, None, "no_connection"))
    for number, (sent_s, latency_s, outcome) in enumerate(sent):
        progress.add(RequestRecord(number, 0.0, sent_s, latency_s, outcome, None, None, 1, 1, str(number), None))
    progress.elapsed_s = 15.0
    shown = progress.recent_latency_s(10.0)
    assert shown is not None and set(shown.values()) == {0.2}


async def test_speed_compresses_the_schedule() -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response()

    async with serving(handler) as url:
        result = await replay(make_trace([0, 50, 100], source="t"), ["t"], ReplaySettings(url=url, speed=1000))
    assert [record.scheduled_s for record in result.records] == [0, 0.05, 0.1]
    assert result.summary["span_s"] < 100


async def test_the_file_holds_every_request_as_it_was(tmp_path: Path) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.json_response({"tokens": 3} if (await request.json())["inputs"] == "good" else {}, status=200)

    path = tmp_path / "deep" / "requests.csv"
    async with serving(handler) as url:
        with CsvSink(path) as sink:
            result = await replay(burst(10), ["good", "mute"], ReplaySettings(url=url), on_record=sink.add)  # type: ignore[arg-type]
    assert path.read_text().splitlines()[0] == ",".join(CSV_COLUMNS)
    again = read_records(path)
    assert [(r.index, r.outcome, r.tokens, r.request_id) for r in again] == [
        (r.index, r.outcome, r.tokens, r.request_id) for r in result.records
    ]
    assert [r.latency_s for r in again] == pytest.approx([r.latency_s for r in result.records], abs=1e-6)
    json.dumps(result.summary, allow_nan=False)


def test_a_damaged_request_file_is_reported_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "r.csv"
    path.write_text(",".join(CSV_COLUMNS) + "\n0,0.0,0.0,0.1,fine,200,,1,1,x,0,,,,\n")
    with pytest.raises(TraceError, match=r"r\.csv:2: outcome 'fine'"):
        read_records(path)
    path.write_text("a,b\n")
    with pytest.raises(ReplayError, match="not a replay's request file"):
        read_records(path)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"url": "127.0.0.1:80/x"}, "url"), ({"speed": 0.0}, "speed"), ({"timeout_s": float("nan")}, "timeout_s"),
        ({"connections": 0}, "connections"), ({"retries": 99}, "retries"), ({"slo_s": -1.0}, "slo_s"),
        ({"fields": {"inputs": "x"}}, "inputs"),
    ],
)  # fmt: skip
def test_senseless_settings_are_refused_with_their_name(changes: dict[str, object], word: str) -> None:
    with pytest.raises(ReplayError, match=word):
        check(ReplaySettings(**{"url": "http://h/f", **changes}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (200, "ok"),
        (204, "ok"),
        (302, "unexpected_status"),
        (429, "rejected"),
        (422, "client_error"),
        (504, "server_error"),
    ],
)
def test_a_status_means_an_outcome(status: int, outcome: str) -> None:
    assert judge(status) == outcome


def test_percentiles_of_known_numbers() -> None:
    quantiles = percentiles(float(i) for i in range(101))
    assert quantiles == {"p50": 50.0, "p95": 95.0, "p99": 99.0, "mean": 50.0, "max": 100.0}
    assert percentiles([]) is None
