"""The HTTP server of local workers, spoken to over raw sockets."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from functions.serving import connection, server
from functions.serving.connection import Connection
from functions.serving.server import FunctionServer, ServerSettings
from functions.wire.messages import Reply, Request, error_reply
from tests.parameters import examples
from tests.unit.functions.conftest import Held, Scripted, echo, get, post, read_reply, turns


async def test_a_body_comes_back_on_a_kept_connection(start: Any) -> None:
    running = await start(echo())
    replies = await running.send(post(body=b"one") + post(body=b"two"), 2)
    assert [(status, body) for status, _, body in replies] == [(200, b"one"), (200, b"two")]
    assert "connection" not in replies[0][1]


async def test_pipelined_requests_are_answered_in_order_one_at_a_time(start: Any) -> None:
    held = Held()
    running = await start(held)
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    writer.write(b"".join(post(body=str(i).encode()) for i in range(30)))
    for i in range(30):
        await held.wait(i + 1)
        assert len(held.calls) == i + 1
        request, answer = held.calls[i]
        answer(Reply(200, (bytes(request.body),), "text/plain"))
        assert (await read_reply(reader))[2] == str(i).encode()
    writer.close()


async def test_thousands_of_pipelined_requests_do_not_exhaust_the_stack(start: Any) -> None:
    running = await start(echo())
    replies = await running.send(get("/_/health") * 3000, 3000)
    assert {status for status, _, _ in replies} == {200}


async def test_chunked_bodies_are_read_whole(start: Any) -> None:
    running = await start(echo())
    data = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n"
    assert (await running.send(data))[0][2] == b"abcdefg"


@pytest.mark.parametrize(
    "data",
    [
        b"hello\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: x\r\n\r\n",
        b"POST / HTTP/1.1\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
async def test_what_is_not_http_gets_400_and_a_closed_connection(
    start: Any, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    monkeypatch.setattr(connection, "LINGER_S", 0.01)
    running = await start(echo())
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    writer.write(data)
    status, headers, body = await read_reply(reader)
    assert (status, headers["connection"]) == (400, "close")
    assert "error" in json.loads(body)
    assert await reader.read() == b""
    writer.close()


async def test_a_body_above_the_limit_gets_413_before_it_is_read(start: Any) -> None:
    running = await start(echo(), max_body_bytes=10)
    head = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 11\r\n\r\n"
    assert (await running.send(head))[0][0] == 413
    chunk = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nb\r\n" + bytes(11)
    assert (await running.send(chunk))[0][0] == 413
    assert (await running.send(post(body=bytes(10))))[0][0] == 200


async def test_a_client_that_waits_to_send_a_body_is_told_to_go_on_but_not_within_another_reply(start: Any) -> None:
    held = Held()
    running = await start(held)
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    asked = post(body=b"b", headers="expect: 100-continue\r\n")
    writer.write(post(body=b"a") + asked)
    await held.wait(1)
    await turns()
    held.answer_all(b"first")
    assert (await read_reply(reader))[2] == b"first"
    await held.wait(2)
    held.answer_all(b"second")
    assert (await read_reply(reader))[2] == b"second"
    writer.write(asked[:-1])
    async with asyncio.timeout(100):
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.close()


async def test_huge_headers_get_431(start: Any) -> None:
    running = await start(echo())
    assert (await running.send(post(headers=f"a: {'b' * 70_000}\r\n")))[0][0] == 431


class CountingHeld(Held):
    """One that counts what it never gets."""

    def __init__(self) -> None:
        super().__init__()
        self.statuses: list[int] = []

    def refused(self, status: int) -> None:
        self.statuses.append(status)


async def test_an_application_that_counts_requests_learns_of_those_that_were_turned_away(start: Any) -> None:
    held = CountingHeld()
    running = await start(held, max_inflight=1)
    first = asyncio.ensure_future(running.send(post()))
    await held.wait(1)
    assert [(await running.send(post()))[0][0] for _ in range(2)] == held.statuses == [429, 429]
    held.answer_all()
    assert (await first)[0][0] == 200 and len(held.calls) == 1


async def test_calls_above_max_inflight_get_429_and_are_not_begun(start: Any) -> None:
    held = Held()
    running = await start(held, max_inflight=1)
    first = asyncio.ensure_future(running.send(post()))
    await held.wait(1)
    status, headers, body = (await running.send(post()))[0]
    assert (status, headers["retry-after"], headers["x-openfaas-internal"]) == (429, "1", "smoe")
    assert b"Max concurrent requests: 1" in body
    assert (await running.send(get("/_/ready")))[0][0] == 429
    assert (await running.send(get("/_/health")))[0][0] == 200
    running.server.settings.max_inflight = 2
    second = asyncio.ensure_future(running.send(post()))
    await held.wait(2)
    held.answer_all()
    assert [(await one)[0][0] for one in (first, second)] == [200, 200]
    assert running.server.in_flight == 0


async def test_of_slow_calls_one_is_logged_in_a_while_with_how_many_others_there_were(
    start: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    running = await start(echo())
    with caplog.at_level("INFO", "functions.serving.server"):
        await running.send(post())
        assert not caplog.messages, "it was quick"
        monkeypatch.setattr(server, "SLOW_S", -1.0)
        monkeypatch.setattr(server, "SLOW_EVERY_S", 1e9)
        running.server._slow_logged_s = -1e9  # long ago
        await running.send(post() * 3, 3)
        (line,) = caplog.messages
        assert ": / answered 200 after 0.0 s, 0 more in flight" in line and "others" not in line
        monkeypatch.setattr(server, "SLOW_EVERY_S", 0.0)
        await running.send(post())
    assert len(caplog.messages) == 2 and "; since the last such line 2 others took more than" in caplog.messages[1]


async def test_health_ready_and_metrics_answer(start: Any) -> None:
    running = await start(Held())
    assert [(await running.send(get(path)))[0][0] for path in ("/_/health", "/_/ready", "/metrics", "/_/x")] == [
        200,
        200,
        200,
        404,
    ]
    assert (await running.send(get("/metrics")))[0][2] == b"held 1\n"


async def test_head_has_the_length_but_no_body(start: Any) -> None:
    running = await start(echo())
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    writer.write(b"HEAD /_/health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    answer = await reader.read()
    assert b"content-length: 2" in answer
    assert answer.endswith(b"\r\n\r\n")
    writer.close()


async def test_the_request_id_is_passed_on_or_made(start: Any) -> None:
    application = echo()
    running = await start(application)
    sent = [post(headers="X-Request-Id: abc\r\n"), post(headers="X-Call-Id: def\r\n"), post()]
    ids = [(await running.send(data))[0][1]["x-request-id"] for data in sent]
    assert ids[:2] == ["abc", "def"]
    assert len(ids[2]) == 32
    assert [request.request_id for request in application.seen] == ids


async def test_a_header_cannot_be_smuggled_through_an_error_message(start: Any) -> None:
    running = await start(Scripted(lambda _: Reply(200, (), headers={"a": "b\r\nset-cookie: c"})))
    assert "set-cookie" not in (await running.send(post()))[0][1]


@pytest.mark.parametrize(
    ("value", "status"),
    [("0", 504), ("-5", 504), ("abc", 400), ("nan", 400), ("inf", 400), ("1e12", 400), ("50", 200)],
)
async def test_a_spent_deadline_gets_504_and_a_malformed_one_400(start: Any, value: str, status: int) -> None:
    application = echo()
    running = await start(application)
    assert (await running.send(post(headers=f"X-Timeout-Ms: {value}\r\n")))[0][0] == status
    assert len(application.seen) == (status == 200)


async def test_the_deadline_reaches_the_application(start: Any) -> None:
    application = echo()
    running = await start(application)
    await running.send(post(headers="X-Timeout-Ms: 1500\r\n"))
    request = application.seen[0]
    assert request.deadline_s is not None
    assert request.deadline_s - request.arrived_s == pytest.approx(1.5)


async def test_an_application_that_raises_gets_500_marked_as_the_platforms(start: Any) -> None:
    def fail(_: Request) -> Reply:
        raise RuntimeError("secret detail")

    running = await start(Scripted(fail))
    status, headers, body = (await running.send(post()))[0]
    assert (status, headers["x-openfaas-internal"]) == (500, "smoe")
    assert b"secret detail" not in body
    assert running.server.in_flight == 0


async def test_a_client_that_goes_away_marks_its_requests_abandoned(start: Any) -> None:
    held = Held()
    running = await start(held)
    _, writer = await asyncio.open_connection("127.0.0.1", running.port)
    writer.write(post() + post())
    await held.wait(1)
    writer.transport.abort()
    async with asyncio.timeout(100):
        while running.server.connections:
            await asyncio.sleep(0)
    assert held.calls[0][0].abandoned
    held.answer_all()
    assert running.server.in_flight == 0


async def test_drain_answers_what_is_in_flight_and_then_closes(start: Any) -> None:
    held = Held()
    running = await start(held, settle_s=0.05)
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    idle_reader, idle_writer = await asyncio.open_connection("127.0.0.1", running.port)
    writer.write(post() + post())
    await held.wait(1)
    drain = asyncio.ensure_future(running.server.drain())
    await asyncio.sleep(0)
    assert (await running.send(get("/_/ready")))[0][0] == 503
    assert await idle_reader.read() == b""
    assert not drain.done()
    held.answer_all(b"first")
    assert "connection" not in (await read_reply(reader))[1]
    await held.wait(2)
    held.calls[1][1](Reply(200, (b"second",), "text/plain"))
    status, headers, body = await read_reply(reader)
    assert (status, headers["connection"], body) == (200, "close", b"second")
    async with asyncio.timeout(100):
        await drain
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", running.port)
    writer.close()
    idle_writer.close()


async def test_drain_stays_until_no_call_has_come_for_a_while(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a watchdog, which goes on sending after it has passed on the signal."""
    passed_s, loop = 0.0, asyncio.get_running_loop()
    real_s = loop.time
    monkeypatch.setattr(loop, "time", lambda: real_s() + passed_s)
    running = await start(echo(), idle_s=1000.0, drain_s=1e6)
    drain = asyncio.ensure_future(running.server.drain())
    for _ in range(3):
        passed_s += 600.0
        await turns()
        assert not drain.done()
        ((status, _, _),) = await running.send(post("/", b"late"))
        assert status == 200
    passed_s += 1000.0
    await asyncio.wait_for(drain, 100)


@pytest.mark.slow
async def test_drain_stays_without_a_call_while_who_passes_them_on_is_there(start: Any) -> None:
    there = True
    running = await start(echo(), settle_s=0.0, drain_s=1000.0, watched=lambda: there)
    drain = asyncio.ensure_future(running.server.drain())
    for _ in range(3):
        await asyncio.sleep(0.1)
        assert (await running.send(post("/", b"late")))[0][0] == 200
    there = False
    await asyncio.wait_for(drain, 100)


@pytest.mark.parametrize("watched", [False, True])
async def test_drain_does_not_stay_longer_than_its_time_however_many_calls_come(start: Any, watched: bool) -> None:
    running = await start(echo(), idle_s=0.1, drain_s=0.2, watched=lambda: watched)
    drain = asyncio.ensure_future(running.server.drain())
    async with asyncio.timeout(100):
        while not drain.done():
            with suppress(OSError, asyncio.IncompleteReadError):
                await running.send(post("/", b"again"))
    assert drain.exception() is None


async def test_drain_serves_callers_as_before_while_they_go_on_from_what_is_kept(start: Any) -> None:
    kept = True
    running = await start(echo(), settle_s=0.0, drain_s=1000.0, holds=lambda: kept)
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    drain = asyncio.ensure_future(running.server.drain())
    await turns()
    for body in (b"one", b"two"):
        writer.write(post(body=body))
        status, headers, echoed = await read_reply(reader)
        assert (status, echoed) == (200, body) and "connection" not in headers
    assert (await running.send(get("/_/ready")))[0][0] == 503
    assert (await running.send(post(body=b"on a new connection")))[0][0] == 200
    kept = False
    assert await reader.read() == b""
    async with asyncio.timeout(100):
        await drain
    writer.close()


async def test_drain_does_not_stay_longer_than_its_time_whatever_is_kept(start: Any) -> None:
    running = await start(echo(), settle_s=0.0, drain_s=0.1, holds=lambda: True)
    async with asyncio.timeout(100):
        await running.server.drain()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", running.port)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_drain_answers_what_came_while_the_loop_stood_still(run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    async def story() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        server = FunctionServer(echo(), ServerSettings(settle_s=0.01))
        await server.start(listener)
        kept = await asyncio.to_thread(socket.create_connection, listener.getsockname())
        drain = asyncio.ensure_future(server.drain())
        await turns(1)
        clients = [kept, *(socket.create_connection(listener.getsockname()) for _ in range(20))]
        for client in clients:
            client.sendall(post(body=b"abc"))
        time.sleep(0.05)  # the loop stands still for longer than it settles
        await asyncio.wait_for(drain, 100)
        for client in clients:
            client.settimeout(100)
            answer = b"".join(iter(lambda client=client: client.recv(65536), b""))  # type: ignore[misc]
            assert answer.startswith(b"HTTP/1.1 200 ") and answer.endswith(b"abc")
            client.close()

    run(story())


async def test_drain_waits_for_a_request_that_is_still_arriving(start: Any) -> None:
    running = await start(echo())
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    whole = post(body=b"abcdef")
    writer.write(whole[:-3])
    async with asyncio.timeout(100):
        while not running.server.connections:
            await asyncio.sleep(0)
    await turns()
    drain = asyncio.ensure_future(running.server.drain())
    await turns()
    writer.write(whole[-3:])
    assert (await read_reply(reader))[2] == b"abcdef"
    async with asyncio.timeout(100):
        await drain
    writer.close()


async def test_drain_ends_in_time_even_when_a_call_does_not(start: Any) -> None:
    held = Held()
    running = await start(held, drain_s=0.05)
    call = asyncio.ensure_future(running.send(post()))
    await held.wait(1)
    async with asyncio.timeout(100):
        await running.server.drain()
    with pytest.raises(asyncio.IncompleteReadError):
        await call


class _Wire:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = False

    def writelines(self, chunks: list[bytes]) -> None:
        self.written += b"".join(chunks)

    def write(self, data: bytes) -> None:
        self.written += data

    def set_write_buffer_limits(self, high: int) -> None:
        """Nothing is buffered."""

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        """Nothing to pause."""

    def resume_reading(self) -> None:
        """Nothing to resume."""


REQUESTS = post("/a", b"12345") + post("/b") + get("/_/health") + post("/c", b"x" * 50)


def _feed(pieces: list[bytes]) -> _Wire:
    loop = asyncio.new_event_loop()
    try:
        application = Scripted(lambda r: Reply(200, (r.path.encode(), bytes(r.body)), "text/plain"))
        server = FunctionServer(application, ServerSettings(max_body_bytes=1000))
        connection, wire = Connection(server, loop), _Wire()
        connection.connection_made(wire)  # type: ignore[arg-type]
        for piece in pieces:
            connection.data_received(piece)
        connection.connection_lost(None)
        assert server.in_flight == 0
        return wire
    finally:
        loop.close()


@given(st.lists(st.integers(0, len(REQUESTS)), max_size=8))
def test_replies_do_not_depend_on_how_the_bytes_arrive(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(REQUESTS)]
    pieces = [REQUESTS[a:b] for a, b in pairwise(edges)]
    bodies = [part.split(b"\r\n\r\n")[1] for part in _feed(pieces).written.split(b"HTTP/1.1 ")[1:]]
    assert bodies == [b"/a12345", b"/b", b"OK", b"/c" + b"x" * 50]


@settings(max_examples=examples(200))
@given(st.lists(st.binary(max_size=80), max_size=4), st.integers(0, len(REQUESTS)))
def test_garbage_is_answered_with_a_client_error_or_not_at_all(garbage: list[bytes], cut: int) -> None:
    written = _feed([REQUESTS[:cut], *garbage]).written
    assert not {part[:3] for part in written.split(b"HTTP/1.1 ")[1:]} & {b"500", b"502", b"503"}


def test_error_replies_are_json_with_a_code_and_a_sentence() -> None:
    reply = error_reply(503, "x", 'with "quotes"', platform=True, retry_after_s=2)
    assert json.loads(bytes(reply.chunks[0])) == {"error": {"code": "x", "message": 'with "quotes"'}}
    assert reply.headers == {"x-openfaas-internal": "smoe", "retry-after": "2"}


async def test_a_worker_with_a_key_takes_no_call_without_it(start: Any) -> None:
    held = Held()
    running = await start(held, caller_key="right")
    for headers in ("", "x-smoe-caller-key: wrong\r\n", "x-smoe-caller-key:\r\n", "x-smoe-caller-key: Right\r\n"):
        ((status, _, body),) = await running.send(f"POST / HTTP/1.1\r\n{headers}content-length: 0\r\n\r\n".encode())
        assert (status, b"of its gateway only" in body) == (403, True)
    for path in ("/_/health", "/_/ready", "/metrics"):
        ((status, _, _),) = await running.send(f"GET {path} HTTP/1.1\r\n\r\n".encode())
        assert status == 200
    assert held.calls == []


async def test_health_and_metrics_of_a_worker_with_a_key_ask_for_none_and_all_else_does(start: Any) -> None:
    running = await start(echo(), caller_key="right")
    statuses = {}
    for path in ("/_/health", "/_/ready", "/metrics", "/statistics", "/", "/relay", "/kv", "/stage/expert-0-0", "/x"):
        ((statuses[path], _, _),) = await running.send(f"GET {path} HTTP/1.1\r\n\r\n".encode())
    assert [path for path, status in statuses.items() if status == 200] == list(statuses)[:3]
    assert set(list(statuses.values())[3:]) == {403}
