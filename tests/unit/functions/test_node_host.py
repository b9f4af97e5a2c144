"""Segments and experts behind their host: coalescing, limits, errors."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from functions.device.tensors import HostDevice
from functions.serving import node_host
from functions.serving.node_host import NodeHost
from functions.serving.speed import Speed
from functions.wire import format as wire
from functions.wire.messages import Reply, Request
from moe.manifest import load
from moe.runtime import NodeProgram, load_node
from tests.unit.functions.conftest import get, post


def programs(folder: Path, *ids: str) -> dict[str, NodeProgram]:
    manifest = load(folder, verify=False)
    return {node_id: load_node(folder, manifest, node_id) for node_id in ids}


class Asker:
    """Submits calls to a host and keeps the replies in order of their asking."""

    def __init__(self, host: NodeHost) -> None:
        self.host = host
        self.replies: list[asyncio.Future[Reply]] = []

    def ask(self, tensors: dict[str, torch.Tensor] | bytes, path: str = "/", **fields: Any) -> Request:
        body = tensors if isinstance(tensors, bytes) else wire.encode_bytes(tensors)
        request = Request("POST", path, fields.pop("headers", {}), bytearray(body), 0.0, **fields)
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.replies.append(future)
        self.host.submit(request, future.set_result)
        return request

    async def all(self) -> list[Reply]:
        async with asyncio.timeout(100):
            return [await future for future in self.replies]


def tensors_of(reply: Reply) -> dict[str, torch.Tensor]:
    assert reply.status == 200, reply.chunks
    return wire.decode(b"".join(reply.chunks))


def call(lengths: list[int], seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 250, (sum(lengths),), generator=generator)
    return {"token_ids": ids, "lengths": torch.tensor(lengths)}


async def test_calls_that_arrive_together_are_one_product_with_each_ones_own_answer(bert: Path) -> None:
    program = programs(bert, "segment-0")["segment-0"]
    runs = []

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(program, name)

        def run(self, tensors: dict[str, torch.Tensor], **options: Any) -> dict[str, torch.Tensor]:
            runs.append(tensors["lengths"].shape[0])
            return program.run(tensors, **options)

    asker = Asker(NodeHost({"segment-0": Counting()}, asyncio.get_running_loop(), HostDevice()))  # type: ignore[dict-item]
    calls = [call([3, 5], 1), call([1], 2), call([7, 2, 2], 3)]
    for tensors in calls:
        asker.ask(tensors)
    for tensors, reply in zip(calls, await asker.all(), strict=True):
        alone, together = program.run(tensors), tensors_of(reply)
        assert together.keys() == alone.keys()
        for name in alone:
            torch.testing.assert_close(together[name], alone[name], rtol=1e-5, atol=1e-6)
    assert runs == [6]


async def test_a_bad_call_gets_its_own_400_and_spoils_no_other(bert: Path) -> None:
    program = programs(bert, "expert-0-0")
    asker = Asker(NodeHost(program, asyncio.get_running_loop(), HostDevice()))
    good = {"x": torch.randn(2, 32)}
    asker.ask(good)
    asker.ask({"x": torch.randn(2, 31)})
    asker.ask(b"SMOEnothing")
    asker.ask({"y": torch.randn(2, 32)})
    asker.ask(good)
    replies = await asker.all()
    assert [reply.status for reply in replies] == [200, 400, 400, 400, 200]
    expected = program["expert-0-0"].run(good)["y"]
    torch.testing.assert_close(tensors_of(replies[4])["y"], expected)


async def test_a_call_that_breaks_the_product_fails_alone(bert: Path) -> None:
    program = programs(bert, "expert-0-0")["expert-0-0"]

    class Fragile:
        id = program.id
        check = program.check
        coalesce = program.coalesce
        split = program.split

        def run(self, tensors: dict[str, torch.Tensor], **options: Any) -> dict[str, torch.Tensor]:
            if bool(torch.isnan(tensors["x"]).any()):
                raise RuntimeError("a number that is none")
            return program.run(tensors, **options)

    asker = Asker(NodeHost({"expert-0-0": Fragile()}, asyncio.get_running_loop(), HostDevice()))  # type: ignore[dict-item]
    asker.ask({"x": torch.ones(1, 32)})
    asker.ask({"x": torch.full((1, 32), torch.nan)})
    asker.ask({"x": torch.ones(1, 32)})
    assert [reply.status for reply in await asker.all()] == [200, 500, 200]


async def test_expired_and_abandoned_calls_are_dropped_before_computing(bert: Path) -> None:
    loop = asyncio.get_running_loop()
    asker = Asker(NodeHost(programs(bert, "expert-0-0"), loop, HostDevice()))
    x = {"x": torch.ones(1, 32)}
    asker.ask(x, deadline_s=loop.time() - 0.001)
    asker.ask(x).abandoned = True
    asker.ask(x, deadline_s=loop.time() + 60)
    assert [reply.status for reply in await asker.all()] == [504, 504, 200]
    assert b"smoe_worker_batch_calls_sum 1.0" in asker.host.metrics()


async def test_a_grouped_function_serves_each_node_at_its_stage(bert: Path) -> None:
    hosted = programs(bert, "expert-0-1", "expert-1-1")
    asker = Asker(NodeHost(hosted, asyncio.get_running_loop(), HostDevice()))
    x = {"x": torch.randn(3, 32)}
    for path in ("/stage/expert-0-1", "/stage/expert-1-1", "/", "/stage/expert-0-0"):
        asker.ask(x, path)
    replies = await asker.all()
    assert [reply.status for reply in replies] == [200, 200, 404, 404]
    for reply, node_id in zip(replies, hosted, strict=False):
        torch.testing.assert_close(tensors_of(reply)["y"], hosted[node_id].run(x)["y"])


async def test_all_logits_are_not_mixed_with_last_logits(pipeline_of: Callable[[str], Path]) -> None:
    folder = pipeline_of("gpt2")
    program = programs(folder, "segment-3")["segment-3"]
    asker = Asker(NodeHost({"segment-3": program}, asyncio.get_running_loop(), HostDevice()))
    tensors = {"hidden": torch.randn(5, 32), "lengths": torch.tensor([2, 3])}
    for headers in ({}, {"x-smoe-all-logits": "1"}, {}):
        asker.ask(tensors, headers=headers)
    shapes = [tuple(tensors_of(reply)["logits"].shape) for reply in await asker.all()]
    assert shapes == [(2, 300), (5, 300), (2, 300)]


async def test_likeliest_tokens_come_in_place_of_logits_where_they_are_enough(
    pipeline_of: Callable[[str], Path],
) -> None:
    program = programs(pipeline_of("gpt2"), "segment-3")["segment-3"]
    asker = Asker(NodeHost({"segment-3": program}, asyncio.get_running_loop(), HostDevice()))
    tensors = {"hidden": torch.randn(5, 32), "lengths": torch.tensor([2, 3])}
    for headers in ({}, {"x-smoe-likeliest": "1"}):
        asker.ask(tensors, headers=headers)
    logits, likeliest = [tensors_of(reply) for reply in await asker.all()]
    assert likeliest.keys() == {"likeliest"}
    assert likeliest["likeliest"].tolist() == logits["logits"].argmax(-1).tolist()


async def test_health_is_answered_while_a_slow_node_computes(
    bert: Path, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_host, "INLINE_S", -1.0)
    program = programs(bert, "expert-0-0")["expert-0-0"]
    go = threading.Event()
    threads = []

    class Slow:
        id = program.id
        check = program.check
        coalesce = program.coalesce
        split = program.split

        def run(self, tensors: dict[str, torch.Tensor], **options: Any) -> dict[str, torch.Tensor]:
            threads.append(threading.current_thread())
            go.wait(5)
            return program.run(tensors, **options)

    host = NodeHost({"expert-0-0": Slow()}, asyncio.get_running_loop(), HostDevice())  # type: ignore[dict-item]
    running = await start(host)
    body = wire.encode_bytes({"x": torch.ones(64, 32)})
    slow = [asyncio.ensure_future(running.send(post(body=body))) for _ in range(3)]
    assert (await running.send(get("/_/health")))[0][0] == 200
    go.set()
    assert [(await one)[0][0] for one in slow] == [200, 200, 200]
    assert threading.main_thread() not in threads
    host.close()


def test_expected_time_follows_slow_batches_at_once_and_fast_ones_slowly() -> None:
    speed = Speed()
    assert speed.expected_s(1000) == 0
    speed.observe(100, 1.0)
    assert speed.expected_s(100) == pytest.approx(1.0)
    speed.observe(100, 0.0)
    assert speed.expected_s(100) == pytest.approx(0.9)


def test_small_batches_do_not_make_a_node_look_slow() -> None:
    speed = Speed()
    speed.observe(1, 0.001)
    assert speed.expected_s(320) == pytest.approx(0.01)
