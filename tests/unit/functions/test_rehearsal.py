"""Made-up calls before a function is ready."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from functions import applications, worker
from functions.device.tensors import HostDevice
from functions.serving import rehearsal
from functions.serving.arrays_expert import load_expert
from functions.serving.expert_nodes import ArraysDevice
from functions.serving.node_host import NodeHost
from functions.serving.rehearsal import REHEARSED_TOKENS, rehearse
from functions.serving.relay import Relay
from functions.serving.server import FunctionServer, ServerSettings
from functions.serving.settings import FunctionSettings
from functions.serving.starting import Starting, become_ready
from functions.serving.token_bound import TokenBound
from functions.wire import format as wire
from functions.wire.messages import Reply, Request
from moe.manifest import load
from moe.runtime import NodeProgram, load_node


class Watched:
    """A program that notes how many tokens each of its calls has."""

    def __init__(self, program: Any, then: Callable[[], object] = lambda: None) -> None:
        self._program, self._then = program, then
        self.tokens: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._program, name)

    def run(self, tensors: Any, **options: Any) -> Any:
        values = tensors if isinstance(tensors, dict) else {"x": tensors}
        self.tokens.append(next(len(values[name]) for name in ("token_ids", "hidden", "x") if name in values))
        self._then()
        return self._program.run(tensors, **options)


def program_of(folder: Path, node_id: str) -> NodeProgram:
    return load_node(folder, load(folder, verify=False), node_id)


def host_of(program: Any, **options: Any) -> NodeHost:
    return NodeHost({program.id: program}, asyncio.get_running_loop(), HostDevice(), **options)


async def answer_of(host: NodeHost, x: torch.Tensor) -> Reply:
    replied: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
    host.submit(Request("POST", "/", {}, bytearray(wire.encode_bytes({"x": x})), 0.0), replied.set_result)
    return await asyncio.wait_for(replied, 100)


@pytest.mark.parametrize("node_id", ["segment-0", "segment-1", "segment-3", "expert-0-0"])
async def test_every_kind_of_node_answers_its_made_up_calls(
    bert: Path, node_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    program = Watched(program_of(bert, node_id))
    await rehearse(host_of(program))
    assert program.tokens == list(REHEARSED_TOKENS)
    assert not caplog.records


async def test_all_nodes_of_a_function_rehearse_also_behind_the_relay(bert: Path) -> None:
    programs = {node_id: Watched(program_of(bert, node_id)) for node_id in ("expert-0-0", "expert-1-1")}
    loop = asyncio.get_running_loop()
    await rehearse(Relay(NodeHost(programs, loop, HostDevice()), loop, "a key"))
    assert [program.tokens for program in programs.values()] == [list(REHEARSED_TOKENS)] * 2


async def test_an_expert_by_numpy_rehearses_too(bert: Path, caplog: pytest.LogCaptureFixture) -> None:
    program = Watched(load_expert(bert, load(bert, verify=False), "expert-0-0"))
    await rehearse(NodeHost({"expert-0-0": program}, asyncio.get_running_loop(), ArraysDevice()))
    assert program.tokens == list(REHEARSED_TOKENS)
    assert not caplog.records


async def test_a_rehearsal_keeps_to_the_tokens_that_a_function_takes(
    bert: Path, caplog: pytest.LogCaptureFixture
) -> None:
    program = Watched(program_of(bert, "expert-0-0"))
    await rehearse(host_of(program, tokens=TokenBound(5)))
    assert program.tokens == [min(tokens, 5) for tokens in REHEARSED_TOKENS]
    assert not caplog.records


async def test_rehearsed_calls_are_not_counted(bert: Path) -> None:
    host = host_of(program_of(bert, "expert-0-0"))
    await rehearse(host)
    assert b"smoe_worker_calls_total{" not in host.metrics()
    assert b"smoe_worker_batch_calls_count 0.0" in host.metrics()
    assert (await answer_of(host, torch.ones(2, 32))).status == 200
    assert b'smoe_worker_calls_total{code="200",node="expert-0-0"} 1.0' in host.metrics()


async def test_a_rehearsal_that_fails_is_logged_and_the_function_serves(
    bert: Path, caplog: pytest.LogCaptureFixture
) -> None:
    failures = [RuntimeError("not yet")] * len(REHEARSED_TOKENS)

    def fail() -> None:
        if failures:
            raise failures.pop()

    program = program_of(bert, "expert-0-0")
    host = host_of(Watched(program, fail))
    await rehearse(host)
    assert "the rehearsal of / was answered" in caplog.text
    x = torch.randn(3, 32)
    reply = await answer_of(host, x)
    torch.testing.assert_close(wire.decode(b"".join(reply.chunks))["y"], program.run({"x": x})["y"])


async def test_a_rehearsal_ends_when_its_time_is_up(
    bert: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rehearsal, "REHEARSAL_S", 0.0)
    program = Watched(program_of(bert, "expert-0-0"))
    await rehearse(host_of(program))
    assert len(program.tokens) < len(REHEARSED_TOKENS)
    assert "a rehearsal broke off" in caplog.text


async def test_a_worker_has_rehearsed_when_it_reports_that_it_is_ready(
    bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Watched(program_of(bert, "expert-0-0"))
    monkeypatch.setattr(applications, "build", lambda *_: host_of(program))
    at_ready: list[int] = []

    def ready() -> None:
        at_ready.extend(program.tokens)
        os.kill(os.getpid(), signal.SIGTERM)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        await worker._serve(FunctionSettings(bert, ("expert-0-0",)), listener, ready)
    assert at_ready == list(REHEARSED_TOKENS)


async def test_a_container_has_rehearsed_when_it_is_ready(bert: Path) -> None:
    server = FunctionServer(Starting(lambda: server), ServerSettings())
    server.ready = False
    was_ready: list[bool] = []
    program = Watched(program_of(bert, "expert-0-0"), lambda: was_ready.append(server.ready))
    settings = FunctionSettings(bert, ("expert-0-0",))
    await become_ready(server, settings, lambda _: host_of(program))
    assert was_ready == [False] * len(REHEARSED_TOKENS)
    assert server.ready
