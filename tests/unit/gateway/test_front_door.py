"""Calls to functions: what a replica sees of them and what the client sees of the reply."""

from __future__ import annotations

import asyncio
import re
import time

import pytest

from tests.doubles.fake_replica import FakeConnection, FakeRequest, reply
from tests.unit.gateway.client import connect, parse, request, send_raw
from tests.unit.gateway.gateways import Running, Starter

UUID4 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"])
async def test_every_method_of_openfaas_reaches_the_function(running: Running, method: str) -> None:
    await running.deploy()
    answer = await running.call(method, "/function/f")
    assert answer.status == 200
    assert [seen.method for seen in running.replicas()[0].requests] == [method]
    assert (answer.body == b"") == (method == "HEAD")


@pytest.mark.parametrize("method", ["TRACE", "PROPFIND"])
async def test_other_methods_are_405(running: Running, method: str) -> None:
    await running.deploy()
    assert (await running.call(method, "/function/f")).status == 405


@pytest.mark.parametrize(
    ("target", "seen"),
    [
        ("/function/f", "/"),
        ("/function/f/", "/"),
        ("/function/f/a/b%20c//d?x=1&y=%2F", "/a/b%20c//d?x=1&y=%2F"),
        ("/function/f?q", "/?q"),
        ("/function/f.openfaas-fn/p", "/p"),
        ("/function/f/../system/functions", "/../system/functions"),
    ],
)
async def test_the_function_sees_the_rest_of_path_and_query_untouched(running: Running, target: str, seen: str) -> None:
    await running.deploy()
    assert (await running.call("GET", target)).json()["target"] == seen


@pytest.mark.parametrize("target", ["/function/", "/function/a%2Fb", "/function/%66", "/function/a$b", "/function//x"])
async def test_names_outside_the_pattern_are_404(running: Running, target: str) -> None:
    await running.deploy()
    assert (await running.call("GET", target)).status == 404


@pytest.mark.parametrize("name", ["g", "f.other", ".openfaas-fn"])
async def test_unknown_functions_are_404_and_not_counted(running: Running, name: str) -> None:
    await running.deploy()
    answer = await running.call("GET", f"/function/{name}")
    assert answer.status == 404
    assert answer.text.startswith("error finding function ")
    assert answer.headers["x-openfaas-internal"] == "proxy"
    assert "gateway_function_invocation_total{" not in await running.metrics()


async def test_a_call_id_is_made_given_to_the_function_and_to_the_client(running: Running) -> None:
    await running.deploy()
    before_ns = time.time_ns()
    answer = await running.call("POST", "/function/f", b"x")
    seen = answer.json()["headers"]
    assert UUID4.fullmatch(answer.headers["x-call-id"])
    assert seen["x-call-id"] == answer.headers["x-call-id"]
    assert before_ns <= int(answer.headers["x-start-time"]) <= time.time_ns()
    assert seen["x-start-time"] == answer.headers["x-start-time"]
    assert answer.headers["x-served-by"].startswith("smoe-gateway/")


async def test_a_callers_own_call_id_is_passed_on_and_not_echoed(running: Running) -> None:
    await running.deploy()
    answer = await running.call("POST", "/function/f", X_Call_Id="mine", X_Start_Time="7")
    assert answer.json()["headers"]["x-call-id"] == "mine"
    assert answer.json()["headers"]["x-start-time"] != "7"
    assert "x-call-id" not in answer.headers


async def test_where_a_call_came_from_is_forwarded_unless_named_already(running: Running) -> None:
    await running.deploy()
    seen = (await running.call("GET", "/function/f")).json()["headers"]
    assert seen["x-forwarded-host"] == "gateway.test"
    assert re.fullmatch(r"127\.0\.0\.1:\d+", seen["x-forwarded-for"])
    seen = (await running.call("GET", "/function/f", X_Forwarded_For="1.2.3.4", X_Forwarded_Host="h")).json()["headers"]
    assert (seen["x-forwarded-for"], seen["x-forwarded-host"]) == ("1.2.3.4", "h")


async def test_hop_by_hop_headers_go_no_further_in_either_direction(running: Running) -> None:
    async def program(seen: FakeRequest, connection: FakeConnection) -> None:
        connection.write(
            reply(200, b"ok", Connection="X-Hop, keep-alive", X_Hop="1", Keep_Alive="timeout=5", X_End="2")
        )

    await running.deploy(program=program)
    raw = request("GET", "/function/f", close=False, Connection="close, X-Mine", X_Mine="1", TE="trailers", X_Kept="2")
    answer = parse(await send_raw(running.address, raw))
    seen = running.replicas()[0].requests[0].headers
    assert not {"connection", "x-mine", "te"} & set(seen)
    assert seen["x-kept"] == "2"
    assert not {"x-hop", "keep-alive"} & set(answer.headers)
    assert answer.headers["x-end"] == "2"


async def test_redirects_are_passed_through(running: Running) -> None:
    async def program(seen: FakeRequest, connection: FakeConnection) -> None:
        connection.write(reply(302, Location="http://elsewhere.test/"))

    await running.deploy(program=program)
    answer = await running.call("GET", "/function/f")
    assert (answer.status, answer.headers["location"]) == (302, "http://elsewhere.test/")


async def test_a_reply_without_content_type_takes_the_requests(running: Running) -> None:
    async def program(seen: FakeRequest, connection: FakeConnection) -> None:
        connection.write(reply(200, b"ok"))

    await running.deploy(program=program)
    assert (await running.call("POST", "/function/f", b"", Content_Type="a/b")).headers["content-type"] == "a/b"
    assert (await running.call("GET", "/function/f")).headers["content-type"] == "text/plain"


async def test_chunked_bodies_arrive_whole(running: Running) -> None:
    await running.deploy()
    raw = request(
        "POST", "/function/f", b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nTrailer: t\r\n\r\n", transfer_encoding="chunked"
    )
    seen = parse(await send_raw(running.address, raw)).json()
    assert seen["body"] == "abcde"
    assert "trailer" not in seen["headers"]


async def test_expect_continue_is_answered_by_the_gateway(running: Running) -> None:
    await running.deploy()
    reader, writer = await connect(running.address)
    writer.write(b"POST /function/f HTTP/1.1\r\nhost: t\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n")
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b"ok")
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    writer.close()
    assert "expect" not in running.replicas()[0].requests[0].headers


@pytest.mark.parametrize("chunked", [False, True])
async def test_bodies_beyond_the_buffer_are_streamed_whole(start: Starter, chunked: bool) -> None:
    body = bytes(range(256)) * 4096
    async with start(buffer_bytes=1000) as running:
        await running.deploy()
        if chunked:
            framed = b"".join(b"%x\r\n%b\r\n" % (65536, body[i : i + 65536]) for i in range(0, len(body), 65536))
            raw = request("POST", "/function/f", framed + b"0\r\n\r\n", transfer_encoding="chunked")
        else:
            raw = request("POST", "/function/f", body)
        assert parse(await send_raw(running.address, raw)).status == 200
        seen = running.replicas()[0].requests[0]
        assert seen.body == body
        framing = {"transfer-encoding": "chunked"} if chunked else {"content-length": str(len(body))}
        assert framing.items() <= seen.headers.items()


@pytest.mark.slow
@pytest.mark.parametrize("buffer_bytes", [10, 10_000])
async def test_bodies_over_the_limit_are_413(start: Starter, buffer_bytes: int) -> None:
    async with start(max_body_bytes=1000, buffer_bytes=buffer_bytes) as running:
        await running.deploy()
        assert (await running.call("POST", "/function/f", b"x" * 1000)).status == 200
        declared = await running.call("POST", "/function/f", b"x" * 1001)
        assert (declared.status, declared.text) == (413, "the body is larger than 1000 bytes")
        framed = b"1f4\r\n" + b"x" * 500 + b"\r\n1f5\r\n" + b"x" * 501 + b"\r\n0\r\n\r\n"
        raw = request("POST", "/function/f", framed, transfer_encoding="chunked")
        assert parse(await send_raw(running.address, raw)).status == 413
        assert running.backend.failures_reported == []


async def test_replies_are_streamed_as_they_come(running: Running) -> None:
    more = asyncio.Event()

    async def program(seen: FakeRequest, connection: FakeConnection) -> None:
        connection.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            b"9\r\ndata: 1\n\n\r\n"
        )
        await more.wait()
        connection.write(b"9\r\ndata: 2\n\n\r\n0\r\n\r\n")

    await running.deploy(program=program)
    reader, writer = await connect(running.address)
    writer.write(request("GET", "/function/f"))
    first = await reader.readuntil(b"data: 1\n\n\r\n")
    assert b"text/event-stream" in first
    more.set()
    assert parse(first + await reader.read()).body == b"data: 1\n\ndata: 2\n\n"
    writer.close()


async def test_a_reply_that_ends_with_its_connection_is_whole(running: Running) -> None:
    async def program(seen: FakeRequest, connection: FakeConnection) -> None:
        connection.write(b"HTTP/1.1 200 OK\r\n\r\nuntil the end")
        connection.close()

    await running.deploy(program=program)
    assert (await running.call("GET", "/function/f")).body == b"until the end"


async def test_a_function_may_answer_before_it_has_read_the_body(start: Starter) -> None:
    def refuse(connection: FakeConnection) -> None:
        connection.write(reply(429, b"full"))
        connection.close()

    async with start(buffer_bytes=1000) as running:
        await running.deploy()
        running.replicas()[0].on_head = refuse
        reader, writer = await connect(running.address)
        writer.write(b"POST /function/f HTTP/1.1\r\nhost: t\r\ncontent-length: 100000\r\n\r\n" + b"x" * 2000)
        head = await reader.readuntil(b"full")
        assert head.startswith(b"HTTP/1.1 429 ")
        writer.close()


async def test_one_connection_serves_many_calls_on_both_sides(running: Running) -> None:
    await running.deploy()
    reader, writer = await connect(running.address)
    for _ in range(5):
        writer.write(request("POST", "/function/f", b"x", close=False))
        head = await reader.readuntil(b"\r\n\r\n")
        match = re.search(rb"content-length: (\d+)", head)
        assert match
        await reader.readexactly(int(match[1]))
    assert len(running.replicas()[0].connections) == 1
    writer.close()


async def test_pipelined_calls_are_answered_in_order(running: Running) -> None:
    await running.deploy()
    raw = request("GET", "/function/f/1", close=False) + request("GET", "/function/f/2")
    data = await send_raw(running.address, raw)
    assert data.index(b'"/1"') < data.index(b'"/2"')


async def test_the_client_going_away_ends_the_call_at_the_replica(running: Running) -> None:
    gone = asyncio.Event()

    async def program(seen: FakeRequest, connection: FakeConnection) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            gone.set()

    await running.deploy(program=program)
    _, writer = await connect(running.address)
    writer.write(request("POST", "/function/f", b"x"))
    await running.until(lambda: running.replicas()[0].in_flight == 1)
    writer.transport.abort()
    await asyncio.wait_for(gone.wait(), 100)
    await running.until(lambda: running.gateway.metrics.invocations["f.openfaas-fn"] == 1)
    assert 'gateway_function_invocation_total{code="499",function_name="f.openfaas-fn"} 1.0' in await running.metrics()


async def test_the_client_going_away_within_a_large_body_ends_the_call_and_blames_no_replica(start: Starter) -> None:
    async with start(buffer_bytes=1000) as running:
        await running.deploy()
        _, writer = await connect(running.address)
        writer.write(b"POST /function/f HTTP/1.1\r\nhost: t\r\ncontent-length: 100000\r\n\r\n" + b"x" * 2000)
        await running.until(lambda: running.replicas()[0].heads == 1)
        writer.transport.abort()
        await running.until(lambda: running.gateway.metrics.invocations["f.openfaas-fn"] == 1)
        await running.until(lambda: not running.replicas()[0].connections)
        assert running.backend.failures_reported == []


async def test_a_slow_reader_holds_back_the_function_not_the_gateways_memory(running: Running) -> None:
    sent = 0
    stopped = asyncio.Event()

    async def program(seen: FakeRequest, connection: FakeConnection) -> None:
        nonlocal sent
        assert connection.transport is not None
        connection.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(2000):
            connection.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
            sent += 65536
            idle = 0
            while connection.transport.get_write_buffer_size() > 65536:
                idle += 1
                if idle > 2000:  # the gateway has stopped reading
                    stopped.set()
                    await asyncio.Event().wait()
                await asyncio.sleep(0)

    await running.deploy(program=program)
    reader, writer = await connect(running.address)
    reader._limit = 1  # type: ignore[attr-defined]
    writer.write(request("GET", "/function/f"))
    await asyncio.wait_for(stopped.wait(), 100)
    assert sent < 60_000_000  # sockets' own buffers and ours, far from the 131 MB of the whole reply
    writer.transport.abort()


async def test_the_client_going_away_after_a_streamed_body_ends_the_call_at_the_replica(start: Starter) -> None:
    async def program(seen: FakeRequest, connection: FakeConnection) -> None:
        await connection.closed.wait()

    async with start(buffer_bytes=1000) as running:
        await running.deploy(program=program)
        _, writer = await connect(running.address)
        raw = request("POST", "/function/f", b"x" * 10_000)
        writer.write(raw[:-5000])
        await running.until(lambda: running.replicas()[0].heads == 1)  # so the body is on its way piece by piece
        writer.write(raw[-5000:])
        await running.until(lambda: running.replicas()[0].in_flight == 1)
        writer.transport.abort()
        await running.until(lambda: running.replicas()[0].in_flight == 0)
        assert running.backend.failures_reported == []
