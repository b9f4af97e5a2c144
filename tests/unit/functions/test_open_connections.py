"""Clients that hold connections of a worker without a whole request, over real sockets: how many, and for how long."""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from functions.dispatch.client import ConnectionPool, request_head
from functions.serving import connection
from functions.wire.messages import Reply
from platform_words import connections
from platform_words.connections import SLOWEST_BYTES_S, allowed
from tests.unit.functions.conftest import Held, Running, echo, get, post, read_reply, turns

Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[..., Awaitable[Client]]
FAR_S = 600.0


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "LOOK_AGAIN_S", 0.01)
    monkeypatch.setattr(connection, "LINGER_S", 0.01)


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Connections to a server on which some bytes are sent; all are closed at the end."""
    clients: list[Client] = []

    async def opened(running: Running, sent: bytes = b"") -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        clients.append((reader, writer))
        writer.write(sent)
        return reader, writer

    yield opened
    for _, writer in clients:
        writer.close()
    await turns(3)


async def ended(client: Client) -> bytes:
    """All that still comes on a connection until the server closes it."""
    async with asyncio.timeout(100):
        with suppress(ConnectionResetError):
            return await client[0].read()
    return b""


async def until_open(running: Running, count: int) -> None:
    async with asyncio.timeout(100):
        while len(running.server.connections) != count:
            await asyncio.sleep(0)


async def trickle(client: Client) -> None:
    """A byte now and then, for as long as the other side takes any."""
    with suppress(ConnectionError):
        while True:
            client[1].write(b"x")
            await client[1].drain()
            await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    ("begun", "part"),
    [(b"POST / HTTP/1.1\r\nhost: x\r\nx-slow: ", "head"), (post(body=b"x" * 1_000_000)[:-900_000], "body")],
)
async def test_a_request_that_trickles_is_408_and_its_connection_closed(
    start: Any, connect: Connect, begun: bytes, part: str
) -> None:
    running = await start(echo(), **{f"{part}_s": 0.05})
    client = await connect(running, begun)
    trickling = asyncio.create_task(trickle(client))
    status, headers, body = await read_reply(client[0])
    assert (status, headers["connection"]) == (408, "close")
    assert f"the request's {part} did not come within 0.05 s".encode() in body
    assert await ended(client) == b""
    trickling.cancel()
    await until_open(running, 0)
    assert running.server.held_bytes == 0


async def test_a_body_has_its_time_from_its_head_on(start: Any, connect: Connect) -> None:
    running = await start(echo(), head_s=0.05, body_s=FAR_S)
    raw = post(body=b"abc")
    reader, writer = await connect(running, raw[:-1])
    slow, _ = await connect(running, b"GET / HTTP/1.1\r\n")
    assert (await read_reply(slow))[0] == 408  # by then the first one's head would have been late too
    writer.write(raw[-1:])
    status, _, body = await read_reply(reader)
    assert (status, body) == (200, b"abc")
    writer.close()


async def test_a_body_goes_on_for_as_long_as_it_brings_enough(start: Any, connect: Connect) -> None:
    """Its time passes by hand."""
    running = await start(echo(), body_s=FAR_S)
    size = 2 * int(SLOWEST_BYTES_S * FAR_S)
    raw = post(body=b"x" * size)
    reader, _ = await connect(running, raw[: -size // 2])
    async with asyncio.timeout(100):
        while running.server.held_bytes < size // 2:
            await asyncio.sleep(0)
        (client,) = running.server.connections
        client._late("body")
        assert client._refused is None
        client._late("body")
        assert (await read_reply(reader))[0] == 408


async def test_a_body_that_the_server_itself_does_not_read_is_not_late(start: Any, connect: Connect) -> None:
    held = Held()
    running = await start(held, body_s=FAR_S)
    ahead = connection.MAX_PIPELINED + 2
    reader, writer = await connect(running, post() * ahead + post(body=b"abc")[:-1])
    await held.wait(1)
    (client,) = running.server.connections
    async with asyncio.timeout(100):
        while not client._paused:
            await asyncio.sleep(0)
    client._late("body")
    for count in range(1, ahead + 1):
        await held.wait(count)
        held.calls[count - 1][1](Reply(200, (b"done",), "text/plain"))
        assert (await read_reply(reader))[0] == 200
    writer.write(b"c")
    await held.wait(ahead + 1)
    held.calls[-1][1](Reply(200, (b"last",), "text/plain"))
    assert (await read_reply(reader))[2] == b"last"


async def test_an_idle_connection_is_closed_and_one_with_a_call_is_not(start: Any, connect: Connect) -> None:
    held = Held()
    running = await start(held, keep_alive_s=0.05)
    busy = await connect(running, post())
    await held.wait(1)
    assert await ended(await connect(running)) == b""
    held.answer_all()
    assert (await read_reply(busy[0]))[0] == 200
    assert await ended(busy) == b""


async def test_at_the_limit_the_longest_idle_connection_ends_and_calls_do_not(start: Any, connect: Connect) -> None:
    held = Held()
    running = await start(held, max_connections=4, head_s=FAR_S, body_s=FAR_S)
    busy = await connect(running, post())
    await held.wait(1)
    idle = [await connect(running) for _ in range(30)]
    assert [await ended(one) for one in idle[:26]] == [b""] * 26
    await until_open(running, 5)
    assert (await running.send(get("/_/health")))[0][0] == 200
    held.answer_all()
    assert (await read_reply(busy[0]))[0] == 200


@pytest.mark.parametrize(
    "begun", [b"GET / HTTP/1.1\r\nhost: x\r\nx: ", post(body=b"x" * 100)[:-1]], ids=["head", "body"]
)
async def test_slow_requests_give_way_with_a_sentence(start: Any, connect: Connect, begun: bytes) -> None:
    running = await start(echo(), max_connections=4, head_s=FAR_S, body_s=FAR_S)
    slow = [await connect(running, begun) for _ in range(8)]
    for reader, _ in slow[:4]:
        status, headers, body = await read_reply(reader)
        assert (status, headers["x-openfaas-internal"], headers["retry-after"]) == (503, "smoe", "1")
        assert b"this request has been coming for longest" in body
    for _ in range(3):
        ((status, _, body),) = await running.send(post(body=b"abc"))
        assert (status, body) == (200, b"abc")


async def test_where_all_connections_have_calls_health_is_answered_and_others_get_503(
    start: Any, connect: Connect
) -> None:
    held = Held()
    running = await start(held, max_connections=3)
    calls = [await connect(running, post()) for _ in range(3)]
    await held.wait(3)
    ((status, headers, body),) = await running.send(post())
    assert (status, headers["x-openfaas-internal"]) == (503, "smoe")
    assert b"3 connections have calls under way, as many as smoe_max_connections allows" in body
    for path in ("/_/health", "/_/ready", "/metrics"):
        assert (await running.send(get(path)))[0][0] == 200
    held.answer_all()
    assert [(await read_reply(reader))[0] for reader, _ in calls] == [200] * 3
    again = asyncio.ensure_future(running.send(post()))
    await held.wait(4)
    held.answer_all()
    assert (await again)[0][0] == 200


async def test_while_all_have_calls_so_many_may_ask_for_health_at_once(
    start: Any, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "SPARE", 2)
    held = Held()
    running = await start(held, max_connections=3)
    busy = [await connect(running, post()) for _ in range(3)]
    await held.wait(3)
    asking = [await connect(running) for _ in range(9)]
    assert [await ended(one) for one in asking[:7]] == [b""] * 7
    for reader, writer in asking[7:]:
        writer.write(get("/_/health"))
        assert (await read_reply(reader))[0] == 200
    held.answer_all()
    assert [(await read_reply(reader))[0] for reader, _ in busy] == [200] * 3


async def test_a_kept_connection_that_gave_way_costs_its_owner_no_call(start: Any, connect: Connect) -> None:
    running = await start(echo(), max_connections=2)
    pool = ConnectionPool(running.address)
    head = request_head("/", running.address, "text/plain", 3, [])
    for _ in range(3):
        assert (await pool.call(head, [b"abc"], FAR_S)).body == b"abc"
        idle = [await connect(running) for _ in range(4)]
        assert await ended(idle[0]) == b""
    pool.close()


async def test_a_header_without_end_is_431_before_it_ends(start: Any, connect: Connect) -> None:
    running = await start(echo())
    client = await connect(running, b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 1_000_000)
    status, _, body = await read_reply(client[0])
    assert (status, running.server.held_bytes) == (431, 0)
    assert b"headers are larger than 65536 bytes" in body


async def test_heads_that_are_not_whole_share_the_room_of_bodies(start: Any, connect: Connect) -> None:
    running = await start(echo(), max_held_bytes=3000, head_s=FAR_S)
    begun = b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 900
    slow = [await connect(running, begun) for _ in range(3)]
    async with asyncio.timeout(100):
        while running.server.held_bytes < 3 * len(begun):
            await asyncio.sleep(0)
    refused = await connect(running, begun)
    assert (await read_reply(refused[0]))[0] == 429
    slow[0][1].write(b"\r\n\r\n")
    assert (await read_reply(slow[0][0]))[0] == 200
    assert running.server.held_bytes == 2 * len(begun)


async def test_trailers_of_a_chunked_body_change_no_header(start: Any, connect: Connect) -> None:
    held = Held()
    running = await start(held)
    head = b"POST / HTTP/1.1\r\nhost: x\r\nx-request-id: first\r\ntransfer-encoding: chunked\r\n\r\n"
    asked = await connect(running, head + b"1\r\na\r\n0\r\nx-request-id: second\r\nx-timeout-ms: 1\r\n\r\n")
    await held.wait(1)
    request = held.calls[0][0]
    assert (request.headers["x-request-id"], request.deadline_s, bytes(request.body)) == ("first", None, b"a")
    held.answer_all()
    assert (await read_reply(asked[0]))[0] == 200


FEW_FILES = """
import asyncio, resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (90, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
import uvloop
from functions.serving.server import FunctionServer, ServerSettings
from tests.unit.functions.conftest import echo
async def serve():
    listener = socket.create_server(("127.0.0.1", 0), backlog=16)
    await FunctionServer(echo(), ServerSettings()).start(listener)
    print(listener.getsockname()[1], flush=True)
    await asyncio.Event().wait()
uvloop.run(serve())
"""


@pytest.mark.slow
async def test_a_process_that_may_open_few_files_serves_on_below_many_idle_connections() -> None:
    process = subprocess.Popen([sys.executable, "-c", FEW_FILES], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(400)]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(post(body=b"abc"))
        assert (await read_reply(reader))[2] == b"abc"
        assert [await ended(one) for one in idle[:370]] == [b""] * 370
        for _, one in [*idle, (reader, writer)]:
            one.close()
    finally:
        process.kill()
        _, errors = process.communicate()
    assert b"Too many open files" not in errors


def test_a_limit_is_a_third_of_the_files_that_may_be_open_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    assert [allowed(most) for most in (0, 300, 4096)] == [341, 300, 341]
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert allowed(4096) == 4096 and allowed(0) > 1_000_000
