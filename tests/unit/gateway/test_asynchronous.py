"""``/async-function``: accepted at once, run later, called back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from gateway.asynchronous import AsyncQueue
from gateway.contract import Replica
from tests.doubles.fake_replica import FakeConnection, FakeReplica, FakeRequest, reply
from tests.unit.gateway.client import connect, request
from tests.unit.gateway.gateways import Running, Starter


class Receiver:
    """A server for callbacks that answers with the given statuses, then with 200."""

    def __init__(self, *statuses: int) -> None:
        self._statuses = list(statuses)
        self.got: asyncio.Queue[FakeRequest] = asyncio.Queue()
        state = Replica("receiver", "", "ready")
        self._server = FakeReplica("receiver", self._answer, lambda instance, text: None, 0, state)

    async def _answer(self, seen: FakeRequest, connection: FakeConnection) -> None:
        self.got.put_nowait(seen)
        status = self._statuses.pop(0) if self._statuses else 200
        connection.write(reply(status, b"", Location="/elsewhere", Set_Cookie="a=b"))

    async def listen(self) -> None:
        await self._server.listen()

    def end(self) -> None:
        self._server.end()

    @property
    def url(self) -> str:
        return f"http://{self._server.state.address}/back?x=1"

    async def next(self) -> FakeRequest:
        return await asyncio.wait_for(self.got.get(), 100)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    server = Receiver()
    await server.listen()
    yield server
    server.end()


async def gated(open_gate: asyncio.Event, seen: FakeRequest, connection: FakeConnection) -> None:
    await open_gate.wait()
    connection.write(reply(200))


def behind(gate: asyncio.Event) -> Callable[[FakeRequest, FakeConnection], Awaitable[None]]:
    return lambda seen, connection: gated(gate, seen, connection)


async def test_a_call_is_accepted_run_and_called_back(running: Running, receiver: Receiver) -> None:
    async def program(seen: FakeRequest, connection: FakeConnection) -> None:
        connection.write(reply(418, seen.body.upper(), content_type="x/y", X_Own="1", Set_Cookie="c=d"))

    await running.deploy(program=program)
    answer = await running.call("POST", "/async-function/f/sub?q=1", b"body", X_Callback_Url=receiver.url)
    assert (answer.status, answer.body) == (202, b"")
    back = await receiver.next()
    assert (back.method, back.target, back.body) == ("POST", "/back?x=1", b"BODY")
    assert back.headers["x-call-id"] == answer.headers["x-call-id"]
    assert back.headers["x-function-status"] == "418"
    assert back.headers["x-function-name"] == "f"
    assert float(back.headers["x-duration-seconds"]) >= 0
    assert (back.headers["content-type"], back.headers["x-own"]) == ("x/y", "1")
    assert "set-cookie" not in back.headers
    assert running.replicas()[0].requests[0].target == "/sub?q=1"


async def test_a_callers_own_id_comes_back(running: Running, receiver: Receiver) -> None:
    await running.deploy()
    answer = await running.call("POST", "/async-function/f", X_Call_Id="mine", X_Callback_Url=receiver.url)
    assert answer.headers["x-call-id"] == "mine"
    assert (await receiver.next()).headers["x-call-id"] == "mine"


async def test_only_post_is_asynchronous(running: Running) -> None:
    await running.deploy()
    assert (await running.call("GET", "/async-function/f")).status == 405


async def test_an_unknown_function_is_accepted_and_the_callback_has_404(running: Running, receiver: Receiver) -> None:
    assert (await running.call("POST", "/async-function/g", X_Callback_Url=receiver.url)).status == 202
    assert (await receiver.next()).headers["x-function-status"] == "404"


async def test_a_reply_that_breaks_off_is_called_back_as_503_without_body(running: Running, receiver: Receiver) -> None:
    async def program(seen: FakeRequest, connection: FakeConnection) -> None:
        connection.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\npart")
        connection.close()

    await running.deploy(program=program)
    await running.call("POST", "/async-function/f", X_Callback_Url=receiver.url)
    back = await receiver.next()
    assert (back.headers["x-function-status"], back.body) == ("503", b"")


@pytest.mark.parametrize(
    "url", ["ftp://host/x", "file:///etc/passwd", "host/x", "http://", "http://[::1", "http://h:port/", "//h/x"]
)
async def test_callbacks_go_to_http_addresses_only(running: Running, url: str) -> None:
    await running.deploy()
    answer = await running.call("POST", "/async-function/f", X_Callback_Url=url)
    assert (answer.status, answer.text) == (400, "X-Callback-Url takes an http or https address")
    assert running.replicas()[0].requests == []


async def test_a_full_queue_is_429_and_takes_calls_again_later(start: Starter) -> None:
    gate = asyncio.Event()
    async with start(async_queue=2, async_workers=1) as running:
        await running.deploy(program=behind(gate))
        statuses = [(await running.call("POST", "/async-function/f")).status]
        await running.until(lambda: running.replicas()[0].in_flight == 1)
        statuses += [(await running.call("POST", "/async-function/f")).status for _ in range(3)]
        assert statuses == [202, 202, 202, 429]
        assert "smoe_async_pending 3.0" in await running.metrics()
        gate.set()
        await running.until(lambda: running.gateway.metrics.async_pending == 0)
        assert (await running.call("POST", "/async-function/f")).status == 202


async def test_bodies_over_the_limit_of_asynchronous_calls_are_413(start: Starter) -> None:
    async with start(async_body_bytes=100) as running:
        await running.deploy()
        assert (await running.call("POST", "/async-function/f", b"x" * 100)).status == 202
        assert (await running.call("POST", "/async-function/f", b"x" * 101)).status == 413


async def test_what_was_accepted_is_run_before_the_gateway_ends(start: Starter) -> None:
    gate = asyncio.Event()
    async with start(async_workers=1) as running:
        await running.deploy(program=behind(gate))
        replica = running.replicas()[0]
        for _ in range(5):
            assert (await running.call("POST", "/async-function/f")).status == 202
        gate.set()
    assert len(replica.requests) == 5


async def test_callbacks_are_tried_again_with_pauses_and_a_bound(start: Starter) -> None:
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    server = Receiver(500, 503)
    await server.listen()
    async with start() as running:
        running.gateway.queue.callbacks.pause = pause
        await running.deploy()
        await running.call("POST", "/async-function/f", X_Callback_Url=server.url)
        assert len([await server.next() for _ in range(3)]) == 3
        await running.until(lambda: running.gateway.metrics.async_pending == 0)
        assert pauses == [0.2, 0.8]
        server.end()
        await running.call("POST", "/async-function/f", X_Callback_Url=server.url)
        await running.until(lambda: running.gateway.metrics.callback_failures == 1)
        assert pauses == [0.2, 0.8, 0.2, 0.8]
        assert "smoe_async_callback_failures_total 1.0" in await running.metrics()


@pytest.mark.slow
async def test_a_receiver_that_trickles_has_one_deadline_for_the_whole_answer(start: Starter) -> None:
    async def trickle(seen: FakeRequest, connection: FakeConnection) -> None:
        connection.write(b"HTTP/1.1 200 OK\r\nx-slow: ")
        while True:
            connection.write(b"a")
            await asyncio.sleep(0.02)

    async def no_pause(seconds: float) -> None: ...

    slow = FakeReplica("slow", trickle, lambda instance, text: None, 0, Replica("slow", "", "ready"))
    await slow.listen()
    async with start(callback_timeout_s=0.1) as running:
        running.gateway.queue.callbacks.pause = no_pause
        await running.deploy()
        await running.call("POST", "/async-function/f", X_Callback_Url=f"http://{slow.state.address}/")
        await running.until(lambda: running.gateway.metrics.callback_failures == 1)
        assert running.gateway.metrics.async_pending == 0
    slow.end()


async def test_callbacks_follow_no_redirects(running: Running) -> None:
    server = Receiver(302)
    await server.listen()
    await running.deploy()
    await running.call("POST", "/async-function/f", X_Callback_Url=server.url)
    assert (await server.next()).target == "/back?x=1"
    await running.until(lambda: running.gateway.metrics.async_pending == 0)
    assert server.got.empty()
    server.end()


async def test_what_is_not_run_in_time_is_dropped_with_a_word_in_the_log(
    start: Starter, caplog: pytest.LogCaptureFixture
) -> None:
    async with start(drain_s=0.1, async_workers=1) as running:
        await running.deploy(program=behind(asyncio.Event()))
        for _ in range(3):
            await running.call("POST", "/async-function/f")
        assert isinstance(running.gateway.queue, AsyncQueue)
    assert "3 asynchronous calls were dropped at shutdown" in caplog.text


async def test_a_client_that_leaves_after_202_changes_nothing(running: Running, receiver: Receiver) -> None:
    await running.deploy()
    reader, writer = await connect(running.address)
    writer.write(request("POST", "/async-function/f", b"x", X_Callback_Url=receiver.url))
    await reader.readuntil(b"\r\n\r\n")
    writer.transport.abort()
    assert (await receiver.next()).headers["x-function-status"] == "200"


async def test_bodies_that_wait_have_a_common_limit(start: Starter) -> None:
    gate = asyncio.Event()
    async with start(async_held_bytes=10_000, async_workers=1) as running:
        await running.deploy(program=behind(gate))
        statuses = [(await running.call("POST", "/async-function/f", b"x" * 4_000)).status for _ in range(3)]
        assert statuses == [202, 202, 429]
        gate.set()
        await running.until(lambda: running.gateway.metrics.async_pending == 0)
        assert (await running.call("POST", "/async-function/f", b"x" * 9_000)).status == 202


async def test_heads_of_calls_that_wait_count_too(start: Starter) -> None:
    gate = asyncio.Event()
    async with start(async_held_bytes=10_000, async_workers=1) as running:
        await running.deploy(program=behind(gate))
        statuses = [(await running.call("POST", "/async-function/f", x_long="x" * 4_000)).status for _ in range(3)]
        assert statuses == [202, 202, 429]
        gate.set()


async def endless(seen: FakeRequest, connection: FakeConnection) -> None:
    connection.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    while not connection.closed.is_set():
        connection.write(b"3e8\r\n" + b"x" * 1000 + b"\r\n")
        await asyncio.sleep(0)


async def test_a_reply_too_large_for_a_callback_is_given_up(start: Starter, receiver: Receiver) -> None:
    async with start(async_held_bytes=10_000) as running:
        await running.deploy(program=endless)
        await running.call("POST", "/async-function/f", X_Callback_Url=receiver.url)
        back = await receiver.next()
        assert back.headers["x-function-status"] == "503"
        assert back.body.startswith(b"the reply was not kept: the gateway holds bodies of ")
        await running.until(lambda: not running.replicas()[0].connections)


@pytest.mark.slow
async def test_replies_that_are_collected_count_in_the_total_of_all_bodies(start: Starter, receiver: Receiver) -> None:
    gate = asyncio.Event()

    async def program(seen: FakeRequest, connection: FakeConnection) -> None:
        connection.write(b"HTTP/1.1 200 OK\r\ncontent-length: 6001\r\n\r\n" + b"x" * 6000)
        await gate.wait()
        connection.write(b"y")

    async with start(held_bytes=10_000, async_held_bytes=9_000) as running:
        await running.deploy(program=program)
        await running.call("POST", "/async-function/f", x_callback_url=receiver.url)
        await running.until(lambda: held_bytes(running) >= 6000)
        assert (await running.call("POST", "/function/f", b"x" * 5000)).status == 503
        await running.call("POST", "/async-function/f", x_callback_url=receiver.url)
        refused = await receiver.next()
        assert refused.headers["x-function-status"] == "503"
        assert refused.body.startswith(b"the reply was not kept: the gateway holds bodies of ")
        gate.set()
        assert len((await receiver.next()).body) == 6001
        await running.until(lambda: held_bytes(running) == 0)


async def test_a_large_reply_is_called_back_whole_with_its_length(running: Running, receiver: Receiver) -> None:
    large = bytes(range(256)) * 5000

    async def program(seen: FakeRequest, connection: FakeConnection) -> None:
        connection.write(reply(200, large))

    await running.deploy(program=program)
    await running.call("POST", "/async-function/f", X_Callback_Url=receiver.url)
    back = await receiver.next()
    assert (back.headers["content-length"], back.body == large) == (str(len(large)), True)


def held_bytes(running: Running) -> int:
    return running.gateway.held.taken


async def test_a_call_that_takes_too_long_is_called_back_as_504_and_frees_its_worker(
    start: Starter, receiver: Receiver
) -> None:
    async def answer(seen: FakeRequest, connection: FakeConnection) -> None:
        await (endless(seen, connection) if seen.target == "/endless" else gated(asyncio.Event(), seen, connection))

    async with start(async_timeout_s=0.05, async_workers=1) as running:
        await running.deploy(program=answer)
        for target in ("/endless", "/silent"):
            await running.call("POST", f"/async-function/f{target}", X_Callback_Url=receiver.url)
            back = await receiver.next()
            assert (back.headers["x-function-status"], back.body) == ("504", b"")
        await running.until(lambda: not running.replicas()[0].connections)
        await running.until(lambda: running.gateway.metrics.async_pending == 0)
