"""What the bodies and replies of all connections of a function's server may take together."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from functions import applications
from functions.serving import connection
from functions.serving.server import FunctionServer, ServerSettings
from functions.serving.settings import FunctionSettings
from functions.wire.messages import Reply
from moe.manifest import load
from platform_words import connections
from tests.unit.functions.conftest import Held, Running, Scripted, echo, get, post, read_reply, turns


async def begun(running: Running, size: int) -> asyncio.StreamWriter:
    """A call of which all but the last byte has come."""
    _, writer = await asyncio.open_connection("127.0.0.1", running.port)
    writer.write(post(body=b"x" * size)[:-1])
    async with asyncio.timeout(100):
        held = running.server.held_bytes
        while running.server.held_bytes < held + size - 1:
            await asyncio.sleep(0)
    return writer


async def test_bodies_of_all_connections_are_bounded_together_and_room_comes_back(start: Any) -> None:
    running = await start(echo(), max_body_bytes=100, max_held_bytes=150)
    first = await begun(running, 100)
    ((status, headers, body),) = await running.send(post(body=b"x" * 60))
    assert (status, headers["retry-after"]) == (429, "1"), body
    assert (await running.send(post(body=b"x" * 50)))[0][0] == 200
    first.close()
    async with asyncio.timeout(100):
        while running.server.connections:
            await asyncio.sleep(0)
    assert running.server.held_bytes == 0
    assert (await running.send(post(body=b"x" * 100)))[0][0] == 200


async def test_a_body_is_held_until_its_call_is_answered(start: Any) -> None:
    held = Held()
    running = await start(held, max_held_bytes=100)
    first = asyncio.ensure_future(running.send(post(body=b"x" * 80)))
    await held.wait(1)
    assert (await running.send(post(body=b"x" * 21)))[0][0] == 429
    held.answer_all()
    await first
    assert running.server.held_bytes == 0


async def test_a_refused_caller_reads_why_although_it_goes_on_sending(start: Any) -> None:
    running = await start(echo(), max_body_bytes=100)
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    writer.write(post(body=b"x" * 4_000_000))
    await writer.drain()
    assert (await read_reply(reader))[0] == 413
    assert running.server.held_bytes == 0
    writer.close()


LARGE = 32 * 1024 * 1024
"""More than the sockets of both ends take."""


async def test_a_reply_that_is_not_taken_counts_until_it_is(start: Any) -> None:
    running = await start(Scripted(lambda _: Reply(200, (bytes(LARGE),), "text/plain")), max_held_bytes=LARGE)
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port, limit=1024)
    writer.write(post())
    async with asyncio.timeout(100):
        while not running.server.held_bytes:
            await asyncio.sleep(0)
    assert (await running.send(post(body=b"x")))[0][0] == 429
    async with asyncio.timeout(100):
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(LARGE)
    await turns()
    assert running.server.held_bytes == 0
    writer.close()


async def test_who_does_not_take_a_reply_is_cut_off(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "TAKEN_WITHIN_S", 0.01)
    running = await start(Scripted(lambda _: Reply(200, (bytes(LARGE),), "text/plain")))
    _, writer = await asyncio.open_connection("127.0.0.1", running.port, limit=1024)
    writer.write(post())
    async with asyncio.timeout(100):
        while not running.server.connections:
            await asyncio.sleep(0)
        while running.server.connections:
            await asyncio.sleep(0)
    assert running.server.held_bytes == 0
    assert (await running.send(get("/_/health")))[0][0] == 200
    writer.close()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_who_takes_a_reply_slowly_is_cut_off_once_it_takes_too_little(
    run: Callable[[Coroutine[Any, Any, None]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time passes by hand."""
    enough = 1 << 20
    monkeypatch.setattr(connection, "TAKEN_WITHIN_S", 1000.0)
    monkeypatch.setattr(connections, "SLOWEST_BYTES_S", enough / 1000)

    async def story() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        served = FunctionServer(Scripted(lambda _: Reply(200, (bytes(LARGE),), "text/plain")), ServerSettings())
        await served.start(listener)
        reader, writer = await asyncio.open_connection(*listener.getsockname(), limit=1024)
        writer.write(post())
        async with asyncio.timeout(100):
            while not served.held_bytes:
                await asyncio.sleep(0)
            (client,) = served.connections
            assert client._transport is not None
            for _ in range(4):
                left = client._transport.get_write_buffer_size()
                while left - client._transport.get_write_buffer_size() < enough:
                    await reader.readexactly(1 << 16)
                client._look_at_untaken()
                assert not client._transport.is_closing()
            client._look_at_untaken()
            while served.connections:
                await asyncio.sleep(0)
        assert served.held_bytes == 0
        writer.close()
        served.settings.drain_s = 0.0
        await served.drain()

    run(story())


@pytest.mark.parametrize("node", ["segment-0", "segment-1", "expert-0-0"])
def test_a_function_takes_bodies_of_the_tokens_that_its_memory_is_sized_for(bert: Path, node: str) -> None:
    manifest, bounds = load(bert, verify=False), ServerSettings()
    applications.bound_bodies(bounds, manifest, FunctionSettings(bert, (node,), max_tokens=100_000))
    row = manifest.node(node).bytes_in_per_token
    assert 100_000 * row < bounds.max_body_bytes <= 100_000 * (row + 32) + applications.SMALL_BODY_BYTES
    assert bounds.max_body_bytes <= bounds.max_held_bytes < ServerSettings().max_body_bytes


FRAGMENTING = """
import resource
from functions.serving.heap import give_back_large_blocks
give_back_large_blocks()
MIB = 2**20
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
del (block := [bytearray(24 * MIB)])[:]
begin, kept = resident(), []
blocks = []
for _ in range(40):
    blocks.append(bytearray(4 * MIB))
    kept.append(bytes(5000))
held = resident() - begin
blocks.clear()
print(held // MIB, (resident() - begin) // MIB)
"""


def test_large_blocks_go_back_to_the_system_although_small_ones_lie_between_them() -> None:
    """After a freed block of 24 MiB glibc would take blocks of 4 MiB from the heap."""
    run = subprocess.run([sys.executable, "-c", FRAGMENTING], capture_output=True, text=True, check=True, timeout=100)
    held, left = map(int, run.stdout.split())
    assert held >= 159 and left <= 8
