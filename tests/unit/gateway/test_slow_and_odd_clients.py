"""Clients that are slow, huge or no HTTP at all."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.guard import RequestBounds, guarded
from platform_words.connections import SLOWEST_BYTES_S
from tests.doubles.fake_replica import FakeConnection, FakeRequest, reply
from tests.parameters import examples
from tests.unit.gateway.client import WAIT_S, connect, parse, request, send_raw
from tests.unit.gateway.gateways import TIMEOUT_S, Running, Served, Starter


async def rest_of(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(WAIT_S):
        return await reader.read()


@pytest.mark.parametrize("sent", [b"", b"GET /function/f HTTP/1.1\r\nhost: t\r\nx-slow: 1"])
async def test_a_head_that_does_not_come_to_its_end_is_given_up(start: Starter, sent: bytes) -> None:
    async with start(request_head_timeout_s=0.1) as running:
        await running.deploy()
        reader, writer = await connect(running.address)
        writer.write(sent)
        data = await rest_of(reader)
        assert data == b"" if not sent else parse(data).status == 408
        writer.close()


async def test_trickling_bytes_does_not_put_off_the_end_of_a_head(start: Starter) -> None:
    async with start(request_head_timeout_s=0.2) as running:
        await running.deploy()
        reader, writer = await connect(running.address)

        async def trickle() -> None:
            writer.write(b"GET /function/f HTTP/1.1\r\n")
            while True:
                writer.write(b"x-slow: 1\r\n")
                await asyncio.sleep(0.01)

        trickling = asyncio.create_task(trickle())
        assert parse(await rest_of(reader)).status == 408
        trickling.cancel()
        writer.close()


async def test_a_head_of_very_many_short_headers_is_431(running: Running) -> None:
    reader, writer = await connect(running.address)
    writer.write(b"GET /healthz HTTP/1.1\r\nhost: t\r\n" + b"a: b\r\n" * 300)
    answer = parse(await rest_of(reader))
    assert (answer.status, answer.text) == (431, "the request has more than 256 headers")
    writer.close()


async def test_a_body_that_stops_is_given_up(start: Starter) -> None:
    async with start(read_timeout_s=0.1) as running:
        await running.deploy()
        reader, writer = await connect(running.address)
        writer.write(b"POST /function/f HTTP/1.1\r\nhost: t\r\ncontent-length: 100\r\n\r\nabc")
        answer = parse(await rest_of(reader))
        assert (answer.status, answer.text) == (408, "the request's body did not come within 0.1 s")
        writer.close()
        assert running.replicas()[0].requests == []


async def test_a_call_may_take_longer_than_the_bounds_on_its_request(start: Starter) -> None:
    async with start(request_head_timeout_s=0.05, read_timeout_s=0.05) as running:
        await running.deploy(program=None)
        reader, writer = await connect(running.address)
        writer.write(request("GET", "/function/f", close=False))
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.1)
        writer.write(request("GET", "/function/f/again"))
        assert b"/again" in await rest_of(reader)
        writer.close()


async def test_a_huge_head_is_431(start: Starter) -> None:
    async with start(max_head_bytes=4096) as running:
        await running.deploy()
        answer = await running.call("GET", "/function/f", X_Long="x" * 3000)
        assert answer.status == 200
        answer = parse(await send_raw(running.address, request("GET", "/function/f", X_Long="x" * 5000)))
        assert (answer.status, answer.headers["connection"]) == (431, "close")
        answer = parse(await send_raw(running.address, request("GET", "/function/f?" + "q" * 5000)))
        assert answer.status == 431


class Written(asyncio.Transport):
    """Remembers what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.data = b""
        self.closed = False
        self.ended = False
        self.aborted = False
        self.left = 0

    def get_write_buffer_size(self) -> int:
        return self.left

    def abort(self) -> None:
        self.aborted = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.data += data

    def is_closing(self) -> bool:
        return self.closed

    def write_eof(self) -> None:
        self.ended = True

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("piece", [b"x-more: " + b"x" * 90 + b"\r\n", b"x" * 100])
async def test_headers_without_end_are_431_before_they_end(piece: bytes) -> None:
    config = uvicorn.Config(_nothing, lifespan="off", log_config=None)
    protocol = guarded(RequestBounds(head_bytes=4096))(config, uvicorn.server.ServerState(), {})
    transport = Written()
    protocol.connection_made(transport)
    protocol.data_received(b"GET /function/f HTTP/1.1\r\nx-first: ")
    for _ in range(100):
        protocol.data_received(piece)
    assert (transport.ended, transport.closed) == (True, False)  # the client may go on sending for a moment
    protocol.connection_lost(None)
    assert transport.data.startswith(b"HTTP/1.1 431 ")


async def test_who_takes_a_reply_slowly_is_cut_off_once_it_takes_too_little() -> None:
    """Its time passes by hand."""
    bounds, most = RequestBounds(taken_within_s=1000.0), int(SLOWEST_BYTES_S * 1000.0)
    config = uvicorn.Config(_nothing, lifespan="off", log_config=None)
    protocol = guarded(bounds)(config, uvicorn.server.ServerState(), {})
    transport = Written()
    protocol.connection_made(transport)
    transport.left = 4 * most
    protocol.pause_writing()
    for _ in range(3):
        transport.left -= most
        protocol._look_at_untaken()
    assert not transport.aborted
    transport.left -= most - 1
    protocol._look_at_untaken()
    assert transport.aborted
    protocol.connection_lost(None)


async def _nothing(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("no request is whole")


async def test_a_refused_client_that_goes_on_sending_reads_why_and_is_dropped_soon(start: Starter) -> None:
    async with start(max_body_bytes=1000) as running:
        await running.deploy()
        for raw in (b"garbage\r\n\r\n", request("POST", "/function/f", b"x" * 1001)):
            reader, writer = await connect(running.address)
            writer.write(raw)
            writer.write(b"x" * 100_000)
            assert parse(await rest_of(reader)).status in (400, 413)
            writer.close()


async def test_garbage_behind_a_request_does_not_spoil_its_reply(running: Running) -> None:
    gate = asyncio.Event()

    async def program(seen: FakeRequest, connection: FakeConnection) -> None:
        await gate.wait()
        connection.write(reply(200, b"whole"))

    await running.deploy(program=program)
    reader, writer = await connect(running.address)
    writer.write(request("GET", "/function/f", close=False))
    await running.until(lambda: running.replicas()[0].in_flight == 1)
    writer.write(b"garbage\r\n\r\n")
    await running.call("GET", "/healthz")  # the garbage has been read by now
    gate.set()
    answer = parse(await rest_of(reader))
    assert (answer.status, answer.body) == (200, b"whole")
    writer.close()


async def test_trailers_cost_nothing_and_reach_nobody(running: Running) -> None:
    await running.deploy()
    trailers = b"".join(b"x-%d: y\r\n" % number for number in range(100))
    raw = request("POST", "/function/f", b"1\r\na\r\n0\r\n" + trailers + b"\r\n", transfer_encoding="chunked")
    seen = parse(await send_raw(running.address, raw)).json()
    assert seen["body"] == "a"
    assert not [name for name in seen["headers"] if name.startswith("x-0")]


@pytest.mark.parametrize(
    "raw",
    [
        b"garbage\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /function/f HTTP/1.1\r\nhost: t\r\nbad header\r\n\r\n",
        b"POST /function/f HTTP/1.1\r\nhost: t\r\ncontent-length: -1\r\n\r\n",
        b"POST /function/f HTTP/1.1\r\nhost: t\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /function/f HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nabc\r\n",
        b"CONNECT elsewhere:443 HTTP/1.1\r\nhost: elsewhere\r\n\r\n",
    ],
    ids=lambda raw: repr(raw[:24]),
)
async def test_what_is_no_http_is_400_and_reaches_no_function(running: Running, raw: bytes) -> None:
    await running.deploy()
    assert parse(await send_raw(running.address, raw)).status in (400, 405)
    assert running.replicas()[0].requests == []
    assert (await running.call("GET", "/function/f")).status == 200


async def test_an_upgrade_is_not_done_and_the_call_is_answered_plainly(running: Running) -> None:
    await running.deploy()
    raw = request("POST", "/function/f", b"body", close=False, Connection="Upgrade, close", Upgrade="h2c")
    seen = parse(await send_raw(running.address, raw)).json()
    assert seen["body"] == "body"
    assert "upgrade" not in seen["headers"]


async def test_http_1_0_clients_are_served(running: Running) -> None:
    await running.deploy()
    answer = parse(await send_raw(running.address, b"GET /function/f HTTP/1.0\r\n\r\n"))
    assert answer.status == 200


PIECES = st.lists(
    st.sampled_from(
        [
            b"GET", b"POST", b"TRACE", b" ", b"/", b"/function/echo", b"/system/functions", b"/%", b"?a=%00", b"*",
            b" HTTP/1.1", b" HTTP/9.9", b"\r\n", b"\r\n\r\n", b"\n", b"\x00", b"\xff\xfe", b"host: t", b": ", b"\t",
            b"content-length: 5", b"content-length: 99999999999999999999", b"transfer-encoding: chunked",
            b"expect: 100-continue", b"connection: upgrade", b"upgrade: websocket", b"5\r\nhello\r\n", b"0\r\n\r\n",
            b"authorization: Basic \xff", b"x-callback-url: http://[", b"hello", b"ffffffffffffffffff\r\n",
        ]
    )
    | st.binary(max_size=8),
    max_size=14,
)  # fmt: skip


@settings(max_examples=examples(150), derandomize=True, database=None, deadline=None)
@given(PIECES)
def test_no_bytes_bring_the_gateway_down(served: Served, pieces: list[bytes]) -> None:
    host, _, port = served.running.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as client:
        client.sendall(b"".join(pieces))
        client.shutdown(socket.SHUT_WR)
        said = b"".join(iter(lambda: client.recv(65536), b""))
    assert not said or said.startswith(b"HTTP/1.1 ")
    assert b"HTTP/1.1 5" not in said
    assert served.session.get(f"http://{served.running.address}/healthz", timeout=TIMEOUT_S).text == "OK"


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/function/f", "/v1/completions"])
async def test_bodies_of_all_calls_together_are_bounded_and_room_comes_back(start: Starter, path: str) -> None:
    async with start(held_bytes=1500, read_timeout_s=TIMEOUT_S) as running:
        await running.deploy()
        _, writer = await connect(running.address)
        writer.write(f"POST {path} HTTP/1.1\r\nhost: t\r\ncontent-length: 1001\r\n\r\n".encode() + b"x" * 1000)
        async with asyncio.timeout(WAIT_S):
            while (refused := await running.call("POST", "/function/f", b"x" * 600)).status == 200:
                pass
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert "holds bodies of 1000 bytes, 1500 at most" in refused.text
        assert (await running.call("POST", "/function/f", b"x" * 400)).status == 200
        writer.close()
        async with asyncio.timeout(WAIT_S):
            while (await running.call("POST", "/function/f", b"x" * 1400)).status != 200:
                await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /healthz HTTP/1.1\r\n", b"400"),
        (b"GET /healthz HTTP/1.1\r\nhost: a\r\nHost: b\r\n", b"400"),
        (b"GET /healthz HTTP/1.1\r\nhost: a\r\n", b"200"),
        (b"GET /healthz HTTP/1.0\r\n", b"200"),
    ],
)
async def test_a_request_has_one_host(running: Running, head: bytes, status: bytes) -> None:
    reader, writer = await connect(running.address)
    writer.write(head + b"connection: close\r\n\r\n")
    async with asyncio.timeout(WAIT_S):
        assert (await reader.read()).split(b" ", 2)[1] == status
    writer.close()
