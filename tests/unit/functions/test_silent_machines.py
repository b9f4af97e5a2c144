"""Machines that fall silent within a call, with real packets; and those that are slow, which are waited for."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import uvloop

from benchmarks.prism_real.network import Node, NotPermittedError, become_switch, connect
from functions.dispatch import client
from functions.serving.server import FunctionServer, ServerSettings
from functions.wire.messages import Reply, Request
from platform_words import liveness
from tests.unit.functions.callers import Caller, calling
from tests.unit.functions.conftest import Held, Running, echo, turns

FAR_S = 600.0
SILENCE_S = 0.3
LOOKS = 12
"""In which a machine would have been silent for four times as long as is waited for."""


class Kernel:
    """What the kernel knows, and how often it was asked; ``said`` stands for it where it is given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, said: float | None = None) -> None:
        self.looks = 0
        self.enough = asyncio.Event()
        real = liveness.silent_s

        def silent_s(connection: liveness.Socket) -> float:
            self.looks += 1
            if self.looks >= LOOKS:
                self.enough.set()
            return real(connection) if said is None else said

        monkeypatch.setattr(client.liveness, "silent_s", silent_s)


class FirstOnly(Held):
    """Answers its first call; the others wait for the test."""

    def submit(self, request: Request, answer: Callable[[Reply], None]) -> None:
        super().submit(request, answer)
        if len(self.calls) == 1:
            answer(Reply(200, (b"first",), "text/plain"))


async def served(node: Node, application: object) -> Running:
    """A function's server inside a node's network."""
    listener = node.run(lambda: socket.create_server((node.address, 0)))
    server = FunctionServer(application, ServerSettings(settle_s=0.0, drain_s=0.0))  # type: ignore[arg-type]
    await server.start(listener)
    return Running(server, listener.getsockname()[1])


def cut(number: int) -> None:
    """Take the link of the machine with this number down; neither end gets notice."""
    subprocess.run(["ip", "link", "set", f"port{number}", "down"], check=True)


@pytest.fixture
def story() -> Iterator[Callable[[Callable[[], Coroutine[Any, Any, None]]], None]]:
    """Run a story on a loop whose thread has a network of its own, to which nodes are joined."""
    with ThreadPoolExecutor(1) as thread:
        try:
            thread.submit(become_switch).result()
            thread.submit(connect, ["probe"], 100.0).result()
        except NotPermittedError as error:
            pytest.skip(error.message)
    with ThreadPoolExecutor(1) as thread:
        thread.submit(become_switch).result()
        yield lambda told: thread.submit(asyncio.run, told()).result(100)


@pytest.mark.slow
@pytest.mark.parametrize("cut_first", [False, True], ids=["waiting for the answer", "sending"])
def test_a_call_to_a_machine_that_falls_silent_is_answered_by_another_one(
    story: Callable[[Callable[[], Coroutine[Any, Any, None]]], None], monkeypatch: pytest.MonkeyPatch, cut_first: bool
) -> None:
    async def told() -> None:
        kernel = Kernel(monkeypatch)
        nodes = connect(["a", "b"], 1000.0)
        falls_silent, other = FirstOnly(), echo()
        a, b = await served(nodes[0], falls_silent), await served(nodes[1], other)
        async with calling("least-loaded") as caller:
            caller.dispatcher.silence_s = SILENCE_S
            caller.table(f"{nodes[0].address}:{a.port}", f"{nodes[1].address}:{b.port}")
            assert await caller.call(within_s=FAR_S) == b"first"
            assert await caller.call(b"its turn", within_s=FAR_S) == b"its turn"  # the next is the first one's again
            if cut_first:
                cut(0)
            call = asyncio.ensure_future(caller.call(b"again", within_s=FAR_S))
            if not cut_first:
                await falls_silent.wait(2)
                await kernel.enough.wait()  # by then the machine has acknowledged the call
                cut(0)
            assert await asyncio.wait_for(call, 90) == b"again"
            assert caller.record.repeats == ["silent"]
            assert (len(falls_silent.calls), len(other.seen)) == (1 if cut_first else 2, 2)
        await asyncio.gather(a.server.drain(), b.server.drain())

    story(told)


@pytest.mark.slow
async def test_a_replica_that_answers_late_is_waited_for(
    start: Any, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, late, other = Kernel(monkeypatch), Held(), echo()
    caller.dispatcher.silence_s = SILENCE_S
    caller.table(await start(late), await start(other))
    call = asyncio.ensure_future(caller.call(within_s=FAR_S))
    await asyncio.wait_for(kernel.enough.wait(), 100)
    late.answer_all(b"late")
    assert await call == b"late"
    assert (caller.record.repeats, other.seen) == ([], [])


@pytest.mark.slow
async def test_a_replica_that_does_not_read_for_a_while_is_waited_for(
    start: Any, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a worker below its CPU quota: its machine acknowledges, and has no room for more."""
    kernel, other = Kernel(monkeypatch), echo()
    body = bytes(32 * 1024 * 1024)

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await kernel.enough.wait()
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(len(body))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nread")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(slow, "127.0.0.1", 0, limit=1024)
    caller.dispatcher.silence_s = SILENCE_S
    caller.table(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", await start(other))
    assert await asyncio.wait_for(caller.call(body, within_s=FAR_S), 100) == b"read"
    assert (caller.record.repeats, other.seen) == ([], [])
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("others", [0, 1])
async def test_silence_is_no_reason_to_fail_where_there_is_no_other_replica(
    start: Any, caller: Caller, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    kernel, held = Kernel(monkeypatch, FAR_S), Held()
    caller.dispatcher.silence_s = 1e-3
    caller.table(await start(held), *[await start(echo()) for _ in range(others)])
    call = asyncio.ensure_future(caller.call(within_s=FAR_S))
    await held.wait(1)
    if others:
        assert await call == b"x"
        assert caller.record.repeats == ["silent"]
        return
    await asyncio.sleep(0)
    held.answer_all(b"after all")
    assert await call == b"after all"
    assert (caller.record.repeats, kernel.looks) == ([], 0)


async def test_silence_that_is_turned_off_is_not_looked_for(
    start: Any, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, held = Kernel(monkeypatch, FAR_S), Held()
    caller.dispatcher.silence_s = 0.0
    caller.table(await start(held), await start(echo()))
    call = asyncio.ensure_future(caller.call(within_s=FAR_S))
    await held.wait(1)
    held.answer_all(b"late")
    assert (await call, kernel.looks) == (b"late", 0)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_of_a_connection_that_is_closed_the_kernel_knows_nothing(
    run: Callable[[Coroutine[Any, Any, None]], None],
) -> None:
    async def told() -> None:
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        connection = writer.get_extra_info("socket")
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0
        liveness.probe(connection)
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) != 0
        writer.transport.abort()
        await turns(3)
        liveness.probe(connection)
        assert liveness.silent_s(connection) == 0.0
        server.close()
        await server.wait_closed()

    run(told())
