"""Asynchronous calls that a NATS server keeps: they outlive the gateway that took them."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.calls import Call
from gateway.contract import FunctionSpec
from tests.doubles.fake_backend import FakeBackend
from tests.unit.gateway.gateways import Running, gateway_on
from tests.unit.gateway.test_asynchronous import Receiver, behind, receiver

nats = pytest.importorskip("nats")
from gateway import jetstream  # noqa: E402

__all__ = ["receiver"]
SERVER = shutil.which("nats-server", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(SERVER is None, reason="nats-server is not installed (Debian's package nats-server)"),
]


class Nats:
    """A real server with a folder of its own, which may end and come again on the same port."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"nats://127.0.0.1:{self.port}"
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        assert SERVER is not None
        where = ("-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", str(self._folder))
        nowhere = asyncio.subprocess.DEVNULL
        self._process = await asyncio.create_subprocess_exec(SERVER, *where, stdout=nowhere, stderr=nowhere)
        async with asyncio.timeout(100):  # the client would wait two seconds before its second attempt
            while not await self._answers():
                await asyncio.sleep(0.01)

    async def _answers(self) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except ConnectionRefusedError:
            return False
        writer.close()
        return True

    async def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            await self._process.wait()
            self._process = None


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Nats]:
    server = Nats(tmp_path / "nats")
    await server.start()
    yield server
    await server.stop()


@asynccontextmanager
async def gateway(folder: Path, server: Nats, **changes: Any) -> AsyncIterator[Running]:
    """A gateway that is connected with the server."""
    async with gateway_on(folder, nats=server.url, **changes) as running:
        await connected(running)
        yield running


async def with_function() -> FakeBackend:
    """A backend that knows the function when its gateway starts, as a cluster's does."""
    backend = FakeBackend()
    await backend.create(FunctionSpec("f", "test/f"), 1)
    return backend


async def connected(running: Running) -> None:
    queue = running.gateway.queue
    assert isinstance(queue, jetstream.JetStreamQueue)
    async with asyncio.timeout(100):
        while not queue.connected:
            await asyncio.sleep(0.01)


async def call_later(running: Running, receiver: Receiver, body: bytes = b"x", **headers: str) -> None:
    reply = await running.call("POST", "/async-function/f/a?b=c", body, x_callback_url=receiver.url, **headers)
    assert (reply.status, reply.text) == (202, "")


async def test_a_call_is_kept_run_and_called_back(tmp_path: Path, server: Nats, receiver: Receiver) -> None:
    async with gateway(tmp_path / "one", server) as running:
        await running.deploy()
        await call_later(running, receiver, b"hello", x_call_id="mine", x_more="yes")
        back = await receiver.next()
        assert (back.headers["x-call-id"], back.headers["x-function-status"]) == ("mine", "200")
        (seen,) = running.replicas()[0].requests
        assert (seen.method, seen.target, seen.body) == ("POST", "/a?b=c", b"hello")
        assert seen.headers["x-more"] == "yes"


async def test_a_call_that_its_gateway_could_not_finish_is_run_by_another(
    tmp_path: Path, server: Nats, receiver: Receiver
) -> None:
    gate = asyncio.Event()
    async with gateway(tmp_path / "one", server, drain_s=0.05) as one:
        await one.deploy(program=behind(gate))
        await call_later(one, receiver)
        await one.until(lambda: bool(one.replicas()[0].requests))
    async with gateway(tmp_path / "two", server, backend=await with_function()):
        assert (await receiver.next()).headers["x-function-status"] == "200"


@pytest.mark.slow
async def test_a_call_of_a_gateway_that_is_heard_no_more_is_run_by_another(
    tmp_path: Path, server: Nats, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jetstream, "ACK_WAIT_S", 0.5)
    gate = asyncio.Event()
    async with gateway(tmp_path / "one", server, drain_s=0.05) as one:
        await one.deploy(program=behind(gate))
        await call_later(one, receiver)
        await one.until(lambda: bool(one.replicas()[0].requests))
        queue: Any = one.gateway.queue
        for task in set(queue._tasks) - queue._busy:
            task.cancel()
        await queue._client.close()  # as if it had been killed: it neither beats, nor gives back, nor comes again
        async with gateway(tmp_path / "two", server, backend=await with_function()):
            assert (await receiver.next()).headers["x-function-status"] == "200"


def count_beats(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Subjects of the reports to the server, as they are sent, that a call is still being run."""
    beats: list[str] = []
    in_progress = nats.aio.msg.Msg.in_progress

    async def counted(message: Any) -> None:
        await in_progress(message)
        beats.append(message.subject)

    monkeypatch.setattr(nats.aio.msg.Msg, "in_progress", counted)
    return beats


@pytest.mark.slow
async def test_calls_longer_than_the_servers_patience_are_run_once(
    tmp_path: Path, server: Nats, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jetstream, "ACK_WAIT_S", 0.4)
    beats = count_beats(monkeypatch)
    gate = asyncio.Event()
    async with gateway(tmp_path / "one", server) as running:
        await running.deploy(program=behind(gate))
        await call_later(running, receiver)
        await running.until(lambda: bool(running.replicas()[0].requests))
        await running.until(lambda: len(beats) >= 9)  # a third of the patience apart: three times as long
        gate.set()
        await receiver.next()
        assert len(running.replicas()[0].requests) == 1


@pytest.mark.slow
async def test_accepted_calls_outlive_the_server(tmp_path: Path, server: Nats, receiver: Receiver) -> None:
    async with gateway(tmp_path / "one", server, async_workers=1) as running:
        gate = asyncio.Event()
        await running.deploy(program=behind(gate))
        for _ in range(2):
            await call_later(running, receiver)
        await running.until(lambda: bool(running.replicas()[0].requests))
        await server.stop()
        await server.start()
        gate.set()
        statuses = [(await receiver.next()).headers["x-function-status"] for _ in range(2)]
        assert statuses == ["200", "200"]


@pytest.mark.slow
async def test_nothing_is_accepted_that_is_not_kept(tmp_path: Path, receiver: Receiver) -> None:
    server = Nats(tmp_path / "nats")
    try:
        async with gateway_on(tmp_path / "one", nats=server.url) as running:
            await running.deploy()
            reply = await running.call("POST", "/async-function/f", b"x")
            assert (reply.status, reply.headers["retry-after"]) == (503, "1")
            assert reply.text == "asynchronous calls cannot be kept now: NATS does not answer; try again later"
            assert (await running.call("POST", "/function/f", b"x")).status == 200
            await server.start()
            await connected(running)
            await call_later(running, receiver)
            await receiver.next()
    finally:
        await server.stop()


async def test_a_gateway_that_never_reached_nats_ends_in_peace(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nowhere = Nats(tmp_path / "nats")
    async with gateway_on(tmp_path / "one", nats=nowhere.url.replace("//", "//user:s3cret@")) as running:
        await running.until(lambda: "NATS at 127.0.0.1" in caplog.text)
        assert (await running.call("POST", "/async-function/f", b"x")).status == 503
    assert "s3cret" not in caplog.text


async def test_a_full_stream_is_429_and_a_large_body_413(tmp_path: Path, server: Nats, receiver: Receiver) -> None:
    gate = asyncio.Event()
    async with gateway(tmp_path / "one", server, async_queue=2, async_workers=1) as running:
        await running.deploy(program=behind(gate))
        for _ in range(2):
            await call_later(running, receiver)
        full = await running.call("POST", "/async-function/f", b"x")
        assert (full.status, full.text) == (429, "2 asynchronous calls are waiting; try again later")
        large = await running.call("POST", "/async-function/f", b"x" * (1 << 20))
        assert large.status == 413 and "where NATS keeps it" in large.text
        gate.set()
        await receiver.next()


@pytest.mark.parametrize("older", [False, True])
async def test_calls_that_nats_keeps_are_bounded_in_bytes(
    tmp_path: Path, server: Nats, receiver: Receiver, older: bool
) -> None:
    gate = asyncio.Event()
    if older:  # a stream that an earlier version made
        client = await nats.connect(server.url)
        subjects, retention = [jetstream.SUBJECT], jetstream.api.RetentionPolicy.WORK_QUEUE
        new = jetstream.api.DiscardPolicy.NEW
        await client.jetstream().add_stream(
            name=jetstream.STREAM, subjects=subjects, retention=retention, discard=new, max_msgs=1000
        )
        await client.close()
    async with gateway(tmp_path / "one", server, async_held_bytes=100_000, async_workers=1) as running:
        await running.deploy(program=behind(gate))
        for _ in range(2):
            await call_later(running, receiver, b"x" * 40_000)
        full = await running.call("POST", "/async-function/f", b"x" * 40_000)
        assert (full.status, full.text) == (429, "100000 bytes of asynchronous calls are waiting; try again later")
        gate.set()
        await receiver.next()


async def test_what_is_no_call_is_thrown_away(
    tmp_path: Path, server: Nats, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    async with gateway(tmp_path / "one", server, async_workers=1) as running:
        await running.deploy()
        other = await nats.connect(server.url)
        for junk in (b"junk", b"{}\n", b'{"method": 7}\nx', b"\xff\n"):
            await other.jetstream().publish(jetstream.SUBJECT, junk)
        await other.close()
        await call_later(running, receiver)
        await receiver.next()
        assert len([one for one in caplog.records if "cannot be read" in one.message]) == 4
        await running.until(lambda: not running.gateway.metrics.async_pending)


def test_a_call_is_written_and_read_back() -> None:
    headers = [(b"x-a", b"\xe4"), (b"x-a", b"2")]
    call = Call("POST", "f", "team-a", b"/a?b=\xe4", headers, b"\n\x00body", length=6, client="1.2.3.4:5")
    assert jetstream.read(jetstream.written(call)) == call
