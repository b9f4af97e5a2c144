"""Replicas that die, lie or are late: what the client gets, what is repeated, what is reported to the backend."""

from __future__ import annotations

import asyncio
import http.client
import socket
from collections.abc import Callable

import pytest

from gateway import upstream
from gateway.contract import BackendError
from gateway.upstream import IDLE_S
from platform_words.labels import PIPELINE_LABEL
from tests.doubles.fake_backend import FakeBackend
from tests.doubles.fake_replica import FakeConnection, FakeRequest, Program, echo, reply
from tests.unit.gateway.client import connect, parse, request, send_raw
from tests.unit.gateway.gateways import Running, Starter

RETRY = {"com.openfaas.retry.attempts": "2"}


def saying(data: bytes, then: Callable[[FakeConnection], None] = FakeConnection.close) -> Program:
    """A program that sends ``data``, whatever it is asked, and then ends its connection."""

    async def program(seen: FakeRequest, connection: FakeConnection) -> None:
        connection.write(data)
        then(connection)

    return program


def once(first: Program, later: Program) -> Program:
    """``first`` for the first call of all replicas together, ``later`` for the others."""
    programs = [first]

    async def program(seen: FakeRequest, connection: FakeConnection) -> None:
        await (programs.pop() if programs else later)(seen, connection)

    return program


dies = saying(b"", FakeConnection.abort)
works = saying(reply(200, b"fine"), lambda connection: None)


async def test_a_replica_that_refuses_connections_is_passed_over_and_reported(running: Running) -> None:
    await running.deploy(replicas=3)
    dead, alive = running.replicas()[:2], running.replicas()[2]
    for replica in dead:
        running.backend.kill("f", replica.id)
    for _ in range(3):
        assert (await running.call("POST", "/function/f", b"x")).json()["replica"] not in {one.id for one in dead}
    assert set(running.backend.failures_reported) <= {one.id for one in dead}
    assert running.backend.failures_reported
    assert 'smoe_gateway_repeats_total{function_name="f.openfaas-fn",reason="connect"}' in await running.metrics()
    assert alive.id


async def test_a_replica_s_address_may_be_of_ipv6() -> None:
    """As the Kubernetes backend writes those of pods."""
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "::1", 0)
    pool = upstream.UpstreamPool()
    async with server:
        connection, kept = await pool.take(f"[::1]:{server.sockets[0].getsockname()[1]}")
        assert connection.usable and not kept
        connection.abort("the test is over")


async def test_the_only_replica_refusing_connections_is_waited_out(running: Running) -> None:
    await running.deploy()
    dead = running.replicas()[0].id
    running.backend.kill("f", dead)
    answer = await running.call("POST", "/function/f", b"x")
    assert answer.status == 200
    assert answer.json()["replica"] != dead


async def test_a_replica_dying_before_its_reply_is_502_without_leave_to_repeat(running: Running) -> None:
    await running.deploy(replicas=2, program=dies)
    answer = await running.call("POST", "/function/f", b"x")
    assert (answer.status, answer.headers["x-openfaas-internal"]) == (502, "proxy")
    assert answer.text.startswith("Can't reach service for: f.")
    assert sum(len(replica.requests) for replica in running.replicas()) == 1
    assert len(running.backend.failures_reported) == 1


async def test_with_the_annotation_the_call_is_repeated_on_another_replica(running: Running) -> None:
    await running.deploy(replicas=2, program=once(dies, works), annotations=RETRY)
    answer = await running.call("POST", "/function/f", b"x")
    assert (answer.status, answer.body) == (200, b"fine")
    assert [len(replica.requests) for replica in running.replicas()] == [1, 1]


async def test_repeats_end_after_the_attempts_allowed(running: Running) -> None:
    await running.deploy(replicas=5, program=dies, annotations=RETRY)
    assert (await running.call("POST", "/function/f", b"x")).status == 502
    assert sum(len(replica.requests) for replica in running.replicas()) == 3


@pytest.mark.parametrize("attempts", ["-1", "x", "", "²", "1.5"])
async def test_attempts_that_are_no_number_allow_no_repeat(running: Running, attempts: str) -> None:
    annotations = {"com.openfaas.retry.attempts": attempts}
    await running.deploy(replicas=2, program=once(dies, works), annotations=annotations)
    assert (await running.call("POST", "/function/f", b"x")).status == 502


async def test_a_reply_of_the_platform_is_repeated_one_of_the_function_is_not(running: Running) -> None:
    platform = saying(reply(503, b"draining", X_OpenFaaS_Internal="smoe"), lambda connection: None)
    own = saying(reply(503, b"my own"), lambda connection: None)
    await running.deploy("p", 2, once(platform, works), annotations=RETRY)
    await running.deploy("o", 2, once(own, works), annotations=RETRY)
    assert (await running.call("POST", "/function/p", b"x")).status == 200
    assert (await running.call("POST", "/function/o", b"x")).body == b"my own"


async def test_listed_codes_are_repeated_whoever_answered_them(running: Running) -> None:
    busy = saying(reply(429, b"busy"), lambda connection: None)
    listed = RETRY | {"com.openfaas.retry.codes": "429, 418"}
    await running.deploy("a", 2, once(busy, works), annotations=listed)
    await running.deploy("b", 2, once(busy, works), annotations=RETRY)
    assert (await running.call("POST", "/function/a", b"x")).status == 200
    assert (await running.call("POST", "/function/b", b"x")).status == 429


async def test_bodies_too_large_to_hold_are_not_repeated(start: Starter) -> None:
    async with start(buffer_bytes=100) as running:
        await running.deploy(replicas=2, program=once(dies, works), annotations=RETRY)
        assert (await running.call("POST", "/function/f", b"x" * 2_000_000)).status == 502


async def test_a_replica_dying_within_its_reply_cuts_the_clients_connection(running: Running) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n"
    await running.deploy(program=saying(head + b"x" * 10), annotations=RETRY)
    with pytest.raises(http.client.IncompleteRead):
        parse(await send_raw(running.address, request("POST", "/function/f", b"x")))
    assert len(running.replicas()[0].requests) == 1


@pytest.mark.parametrize("size", [b"zz", b"-1", b"ffffffffffffffffff"])
async def test_chunks_that_are_garbage_cut_the_clients_connection(running: Running, size: bytes) -> None:
    data = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n" + size + b"\r\nx\r\n"
    first_part, _, rest = data.partition(b"abc\r\n")

    async def program(seen: FakeRequest, connection: FakeConnection) -> None:
        connection.write(first_part + b"abc\r\n")
        await asyncio.sleep(0)
        connection.write(rest)

    await running.deploy(program=program)
    try:
        answer = parse(await send_raw(running.address, request("GET", "/function/f")))
    except http.client.IncompleteRead:
        return
    assert answer.status == 502


@pytest.mark.parametrize(
    "data",
    [
        b"hello\r\n\r\n",
        b"HTTP/1.1 banana OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"a: " + b"x" * 300_000 + b"\r\n\r\n",
        b"",
    ],
    ids=lambda data: repr(data[:30]),
)
async def test_replies_that_are_no_http_are_502(running: Running, data: bytes) -> None:
    await running.deploy(program=saying(data))
    assert (await running.call("GET", "/function/f")).status == 502


async def test_what_a_function_sends_unasked_is_never_taken_for_the_next_reply(running: Running) -> None:
    spy = reply(200, b"meant for nobody")

    async def program(seen: FakeRequest, connection: FakeConnection) -> None:
        connection.write(reply(200, seen.target.encode()) + spy)

    await running.deploy(program=program)
    for number in range(3):
        assert (await running.call("GET", f"/function/f/{number}")).text == f"/{number}"


async def test_informational_replies_before_the_real_one_are_skipped(running: Running) -> None:
    early = b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"
    await running.deploy(program=saying(early + reply(200, b"real", X_Real="1")))
    answer = await running.call("GET", "/function/f")
    assert (answer.status, answer.body, answer.headers["x-real"]) == (200, b"real", "1")
    assert "link" not in answer.headers


async def test_no_reply_in_time_is_502_and_is_not_repeated(start: Starter) -> None:
    async def program(seen: FakeRequest, connection: FakeConnection) -> None:
        await asyncio.Event().wait()

    async with start(upstream_timeout_s=0.05) as running:
        await running.deploy(replicas=2, program=program, annotations=RETRY)
        answer = await running.call("POST", "/function/f", b"x")
        assert (answer.status, answer.headers["x-openfaas-internal"]) == (502, "proxy")
        assert "no reply within 0.05 s" in answer.text
        assert sum(len(replica.requests) for replica in running.replicas()) == 1
        assert running.backend.failures_reported == []


async def test_a_stream_may_take_longer_than_the_timeout_once_it_began(start: Starter) -> None:
    async def program(seen: FakeRequest, connection: FakeConnection) -> None:
        connection.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n12")
        await asyncio.sleep(0.1)
        connection.write(b"34")

    async with start(upstream_timeout_s=0.05) as running:
        await running.deploy(program=program)
        assert (await running.call("GET", "/function/f")).body == b"1234"


async def test_a_function_deleted_within_a_call_is_an_error_reply_not_a_crash(running: Running) -> None:
    async def program(seen: FakeRequest, connection: FakeConnection) -> None:
        await running.backend.delete("f", "openfaas-fn")

    await running.deploy(program=program, annotations=RETRY)
    assert (await running.call("GET", "/function/f")).status == 404


async def test_a_kept_connection_closed_by_an_idle_replica_is_replaced(running: Running) -> None:
    await running.deploy()
    assert (await running.call("GET", "/function/f")).status == 200
    (kept,) = running.replicas()[0].connections
    kept.close()
    await running.until(lambda: not running.replicas()[0].connections)
    assert (await running.call("GET", "/function/f")).status == 200


async def test_calls_go_to_the_replica_with_the_fewest_in_flight_and_free_slots_first(running: Running) -> None:
    free = asyncio.Event()

    async def program(seen: FakeRequest, connection: FakeConnection) -> None:
        await free.wait()
        connection.write(reply(200))

    await running.deploy(replicas=3, program=program, env_vars={"max_inflight": "2"})
    calls = [asyncio.create_task(running.call("POST", "/function/f", b"x")) for _ in range(6)]
    await running.until(lambda: sum(one.in_flight for one in running.replicas()) == 6)
    assert [replica.in_flight for replica in running.replicas()] == [2, 2, 2]
    refused = await running.call("POST", "/function/f", b"x")
    assert (refused.status, refused.headers["x-openfaas-internal"]) == (429, "faas-middleware")
    free.set()
    assert {(await call).status for call in calls} == {200}


async def test_replicas_that_are_equal_take_turns(running: Running) -> None:
    await running.deploy(replicas=3)
    for _ in range(9):
        await running.call("GET", "/function/f")
    assert [len(replica.requests) for replica in running.replicas()] == [3, 3, 3]


async def test_calls_of_others_go_on_while_one_streams(running: Running) -> None:
    async def program(seen: FakeRequest, connection: FakeConnection) -> None:
        connection.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n")
        await asyncio.Event().wait()

    await running.deploy("s", 1, program)
    await running.deploy("f")
    reader, writer = await connect(running.address)
    writer.write(request("GET", "/function/s"))
    await reader.readuntil(b"x\r\n")
    assert (await running.call("GET", "/function/f")).status == 200
    writer.transport.abort()
    await running.until(lambda: running.gateway.metrics.invocations["s.openfaas-fn"] == 1)


async def test_a_replica_that_stops_reading_a_large_body_is_given_up(start: Starter) -> None:
    async with start(upstream_timeout_s=0.2, buffer_bytes=1000, max_body_bytes=1 << 30) as running:
        await running.deploy()

        def stop_reading(connection: FakeConnection) -> None:
            assert connection.transport is not None
            connection.transport.pause_reading()

        running.replicas()[0].on_head = stop_reading
        reader, writer = await connect(running.address)
        writer.write(b"POST /function/f HTTP/1.1\r\nhost: t\r\ncontent-length: 100000000\r\n\r\n")

        async def pour() -> None:
            while True:
                writer.write(b"x" * 100_000)
                await writer.drain()

        pouring = asyncio.create_task(pour())
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 100)
        assert b" 502 " in head.splitlines()[0]
        pouring.cancel()
        await asyncio.gather(pouring, return_exceptions=True)
        writer.close()


class NoRoom(FakeBackend):
    """Cannot bring a function up again."""

    async def scale(self, name: str, namespace: str, replicas: int) -> None:
        raise BackendError("no room")


async def test_a_function_put_to_zero_within_a_call_that_cannot_come_back_is_500(start: Starter) -> None:
    async with start(backend=NoRoom()) as running:

        async def goes(seen: FakeRequest, connection: FakeConnection) -> None:
            await FakeBackend.scale(running.backend, "f", "openfaas-fn", 0)

        await running.deploy(program=goes, annotations=RETRY)
        answer = await running.call("POST", "/function/f", b"x")
        assert (answer.status, answer.text) == (500, "f could not be scaled up: no room")


async def test_connections_that_were_idle_for_long_are_not_used_again(running: Running) -> None:
    now_s = [0.0]
    running.gateway.forwarder.pool.clock = lambda: now_s[0]
    await running.deploy()
    seen = []
    for pause_s in (0.0, IDLE_S - 0.1, IDLE_S + 0.1):
        now_s[0] += pause_s
        assert (await running.call("GET", "/function/f")).status == 200
        (connection,) = running.replicas()[0].connections
        seen.append(connection)
    assert seen[0] is seen[1] is not seen[2]


async def test_no_more_connections_are_kept_than_allowed(running: Running) -> None:
    gate = asyncio.Event()

    async def program(seen: FakeRequest, connection: FakeConnection) -> None:
        await gate.wait()
        connection.write(reply(200))

    running.gateway.forwarder.pool.per_address = 2
    await running.deploy(program=program)
    calls = [asyncio.create_task(running.call("GET", "/function/f")) for _ in range(5)]
    await running.until(lambda: running.replicas()[0].in_flight == 5)
    gate.set()
    answers = await asyncio.gather(*calls)
    await running.until(lambda: len(running.replicas()[0].connections) == 2)
    assert [answer.status for answer in answers] == [200] * 5


@pytest.mark.parametrize(("replicas", "annotations"), [(2, RETRY), (2, {}), (1, RETRY)])
async def test_a_silent_machine_is_given_up_only_where_the_call_can_go_on_elsewhere(
    start: Starter, monkeypatch: pytest.MonkeyPatch, replicas: int, annotations: dict[str, str]
) -> None:
    """The kernel reports silence of the machine that is asked first, which answers when the test lets it."""
    arrived, free = asyncio.Event(), asyncio.Event()
    asked: list[object] = []

    def silent_s(connection: object) -> float:
        asked.append(connection)
        return 1e9 if connection is asked[0] else 0.0

    monkeypatch.setattr(upstream.liveness, "silent_s", silent_s)

    async def waits(seen: FakeRequest, connection: FakeConnection) -> None:
        arrived.set()
        await free.wait()
        connection.write(reply(200, b"after all"))

    elsewhere = replicas > 1 and bool(annotations)
    async with start(upstream_silence_s=1e-3) as running:
        await running.deploy(replicas=replicas, program=once(waits, works), annotations=annotations)
        call = asyncio.ensure_future(running.call("POST", "/function/f", b"x"))
        await asyncio.wait_for(arrived.wait(), 100)
        if not elsewhere:
            free.set()
        answer = await asyncio.wait_for(call, 100)
        free.set()
        assert (answer.status, answer.body) == (200, b"fine" if elsewhere else b"after all")
        assert sum(len(replica.requests) for replica in running.replicas()) == 1 + elsewhere


# the caller's time


PIPELINE = {"labels": {PIPELINE_LABEL: "p"}, "annotations": RETRY}


async def test_a_pipelines_function_is_given_what_is_left_after_a_cold_start_and_a_repeat(start: Starter) -> None:
    async with start() as running:
        running.backend.hold_starts = True
        await running.deploy(program=once(dies, echo), **PIPELINE)
        call = asyncio.ensure_future(running.call("POST", "/function/f", b"x", x_timeout_ms="60000"))
        await running.until(lambda: len(running.replicas()) > 0)
        await asyncio.sleep(0.05)
        running.backend.let_start()
        assert 0 < float((await call).json()["headers"]["x-timeout-ms"]) <= 59_960


async def test_time_that_is_spent_before_a_replica_is_there_is_a_504(start: Starter) -> None:
    async with start() as running:
        running.backend.hold_starts = True
        await running.deploy(**PIPELINE)
        answer = await running.call("POST", "/function/f", b"x", x_timeout_ms="50")
        assert (answer.status, answer.headers["x-openfaas-internal"]) == (504, "proxy")
        assert not running.replicas()[0].requests
        assert (
            'gateway_function_invocation_total{code="504",function_name="f.openfaas-fn"} 1.0' in await running.metrics()
        )


@pytest.mark.parametrize("stated", ["soon", "0", "-1", "nan", "inf"])
async def test_time_that_cannot_be_is_the_functions_to_refuse(running: Running, stated: str) -> None:
    await running.deploy(**PIPELINE)
    answer = await running.call("POST", "/function/f", b"x", x_timeout_ms=stated)
    assert answer.json()["headers"]["x-timeout-ms"] == stated


async def test_what_other_functions_make_of_the_header_is_theirs(running: Running) -> None:
    await running.deploy()
    answer = await running.call("POST", "/function/f", b"x", x_timeout_ms="60000")
    assert answer.json()["headers"]["x-timeout-ms"] == "60000"
