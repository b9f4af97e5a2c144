"""Clients that hold connections of the gateway without a whole request: how many, and who gives way."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, suppress

import pytest
import uvicorn

from gateway.guard import RequestBounds, guarded
from gateway.serving import Server, listen
from platform_words.connections import SLOWEST_BYTES_S
from tests.doubles.fake_replica import FakeConnection, FakeRequest, reply
from tests.unit.gateway.client import WAIT_S, ask, connect, parse, request
from tests.unit.gateway.gateways import TIMEOUT_S, Running, Starter

Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Begun = Callable[..., Awaitable[Client]]
HEAD = b"POST /function/f HTTP/1.1\r\nhost: t\r\n"


@pytest.fixture
async def begun() -> AsyncIterator[Begun]:
    """Connections to a gateway on which some bytes are sent; all are closed at the end."""
    clients: list[Client] = []

    async def opened(running: Running, sent: bytes = b"") -> Client:
        clients.append(await connect(running.address))
        clients[-1][1].write(sent)
        return clients[-1]

    yield opened
    for _, writer in clients:
        writer.close()
    await asyncio.sleep(0)


async def rest_of(client: Client) -> bytes:
    async with asyncio.timeout(WAIT_S):
        with suppress(ConnectionResetError):
            return await client[0].read()
    return b""


async def test_idle_connections_end_for_new_ones_and_calls_are_served(start: Starter, begun: Begun) -> None:
    async with start(max_connections=4, request_head_timeout_s=TIMEOUT_S) as running:
        await running.deploy()
        idle = [await begun(running) for _ in range(40)]
        for _ in range(3):
            assert (await running.call("GET", "/function/f")).status == 200
        assert [await rest_of(client) for client in idle[:36]] == [b""] * 36


@pytest.mark.parametrize("sent", [HEAD + b"x: ", HEAD + b"content-length: 9\r\n\r\nabc"], ids=["head", "body"])
async def test_slow_requests_give_way_with_a_sentence(start: Starter, begun: Begun, sent: bytes) -> None:
    async with start(max_connections=4, request_head_timeout_s=TIMEOUT_S) as running:
        await running.deploy()
        slow = [await begun(running, sent) for _ in range(8)]
        for client in slow[:4]:
            answer = parse(await rest_of(client))
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")
            assert "this request has been coming for longest" in answer.text
        assert (await running.call("POST", "/function/f", b"abc")).status == 200
        assert [one.body for one in running.replicas()[0].requests] == [b"abc"]
        for _, writer in slow:  # the gateway would wait for them as it ends
            writer.close()


async def test_where_all_connections_have_calls_health_and_metrics_are_answered(start: Starter, begun: Begun) -> None:
    release = asyncio.Event()

    async def held(request: FakeRequest, connection: FakeConnection) -> None:
        await release.wait()
        connection.write(reply(200, b"done"))

    async with start(max_connections=3) as running:
        await running.deploy(program=held)
        calls = [await begun(running, request("GET", "/function/f")) for _ in range(3)]
        await running.until(lambda: len(running.replicas()[0].requests) == 3)
        refused = await running.call("GET", "/function/f")
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert refused.text == "3 connections have calls under way, as many as are allowed"
        assert (await running.call("GET", "/healthz")).status == 200
        assert "gateway_" in await running.metrics()
        release.set()
        assert [parse(await rest_of(client)).body for client in calls] == [b"done"] * 3
        assert (await running.call("GET", "/function/f")).status == 200


@pytest.mark.slow
async def test_a_body_that_trickles_is_408_and_one_that_brings_enough_goes_on(start: Starter, begun: Begun) -> None:
    window_s = 0.1
    async with start(read_timeout_s=window_s) as running:
        await running.deploy()
        slow = await begun(running, HEAD + b"content-length: 100\r\n\r\n")
        size, piece = 0, b"x" * (2 * int(SLOWEST_BYTES_S * window_s))
        large = await begun(running, HEAD + b"transfer-encoding: chunked\r\n\r\n")
        trickling = asyncio.create_task(_trickle(slow))
        answered = asyncio.create_task(slow[0].read())
        for _ in range(3):  # the slow one's time passes three times
            while not answered.done():
                large[1].write(b"%x\r\n%b\r\n" % (len(piece), piece))
                size += len(piece)
                await asyncio.sleep(window_s / 10)
            assert parse(answered.result()).text == f"the request's body did not come within {window_s:g} s"
            trickling.cancel()
            slow = await begun(running, HEAD + b"content-length: 100\r\n\r\n")
            trickling = asyncio.create_task(_trickle(slow))
            answered = asyncio.create_task(slow[0].read())
        large[1].write(b"0\r\n\r\n")
        async with asyncio.timeout(WAIT_S):
            head = await large[0].readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        assert len(running.replicas()[0].requests[-1].body) == size
        trickling.cancel()
        await answered


async def _trickle(client: Client) -> None:
    with suppress(ConnectionError):
        while True:
            client[1].write(b"x")
            await asyncio.sleep(0.01)


async def test_where_too_much_is_not_taken_who_has_taken_nothing_for_longest_is_cut_off(start: Starter) -> None:
    async def large(seen: FakeRequest, connection: FakeConnection) -> None:
        connection.write(reply(200, bytes(16 << 20)))  # more than the system takes on the way

    async with start(untaken_bytes=5 << 20) as running:
        await running.deploy(program=large)
        host, _, port = running.address.rpartition(":")
        with ExitStack() as lines:
            for count in range(1, 8):
                line = lines.enter_context(socket.socket())
                line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                line.connect((host, int(port)))
                line.sendall(request("GET", "/function/f", close=False))
                await running.until(lambda count=count: len(running.replicas()[0].requests) == count)  # type: ignore[misc]
            await running.until(lambda: len(running.replicas()[0].connections) <= 4)
            assert (await running.call("GET", "/healthz")).status == 200


async def test_who_takes_nothing_of_a_reply_is_cut_off_and_who_takes_it_slowly_is_not() -> None:
    block, ended = bytes(1 << 20), asyncio.Event()

    async def endless(scope: dict[str, str], receive: object, send: object) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})  # type: ignore[operator]
        try:
            for _ in range(1 << 20):
                await send({"type": "http.response.body", "body": block, "more_body": True})  # type: ignore[operator]
                if gone():
                    return
        finally:
            ended.set()

    protocol = guarded(RequestBounds(taken_within_s=0.05))

    def gone() -> bool:
        return not protocol.clients.open

    config = uvicorn.Config(endless, http=protocol, loop="none", lifespan="off", log_config=None, ws="none")  # type: ignore[arg-type]
    server, listener = Server(config, 0.0), listen("127.0.0.1", 0)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    reader, writer = await asyncio.open_connection(*listener.getsockname(), limit=1024)
    writer.write(request("GET", "/", close=False))
    async with asyncio.timeout(WAIT_S):
        for _ in range(50):
            await reader.readexactly(1 << 18)
        await ended.wait()
    assert gone()
    writer.close()
    server.should_exit = True
    await serving


async def test_the_limit_of_the_metrics_port_is_its_own(start: Starter, begun: Begun) -> None:
    async with start(max_connections=2, request_head_timeout_s=TIMEOUT_S) as running:
        idle = [await begun(running) for _ in range(2)]
        for _ in range(3):
            assert (await ask(running.metrics_address, "GET", "/metrics")).status == 200
        assert not any(client[0].at_eof() for client in idle)
