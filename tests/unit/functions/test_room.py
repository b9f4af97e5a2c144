"""Room for tokens: in the ingress, where passes wait for it, and in a function, which refuses."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from functions.device.tensors import HostDevice
from functions.ingress.calls import PassContext
from functions.ingress.packing import HELD_PASSES, MAX_PACKED_TOKENS, PassQueue, in_parts
from functions.ingress.room import TokenRoom
from functions.serving.node_host import NodeHost
from functions.serving.token_bound import TokenBound
from functions.wire.arrays import Arrays
from functions.wire.errors import DeadlineError, OverloadedError
from tests.unit.functions.conftest import turns
from tests.unit.functions.test_node_host import Asker, call, programs, tensors_of
from tests.unit.functions.test_packing import Passes, context

FAR_S = 1e6


def soon_s(more_s: float = FAR_S) -> float:
    return asyncio.get_running_loop().time() + more_s


class Meter(Passes):
    """Passes that note the most tokens which were under way at once."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = self.most = 0

    async def __call__(self, inputs: Arrays, context: PassContext) -> Arrays:
        size = sum(len(inputs[name]) for name in ("token_ids", "decoder_token_ids") if name in inputs)
        self.tokens += size
        self.most = max(self.most, self.tokens)
        try:
            await turns(3)
            return await super().__call__(inputs, context)
        finally:
            self.tokens -= size


async def test_room_is_given_in_order_of_arrival_and_comes_back() -> None:
    room, order = TokenRoom(TokenBound(10), 100), []
    sizes = [6, 6, 3, 10, 1]

    async def pass_of(number: int, size: int) -> None:
        taken = await room.take(size, soon_s())
        order.append(number)
        await turns(2)
        room.give(taken)

    await asyncio.gather(*(pass_of(number, size) for number, size in enumerate(sizes)))
    assert order == [0, 1, 2, 3, 4]
    assert await room.take(10, soon_s(0.0)) == 10


async def test_what_is_larger_than_all_room_goes_alone() -> None:
    room = TokenRoom(TokenBound(10), 100)
    small = await room.take(1, soon_s())
    large = asyncio.ensure_future(room.take(25, soon_s()))
    await turns(3)
    assert not large.done()
    room.give(small)
    assert await large == 10
    with pytest.raises(DeadlineError):
        await room.take(1, soon_s(0.0))


@pytest.mark.parametrize("granted", [False, True])
async def test_who_gives_up_leaves_its_room_to_those_behind_it(granted: bool) -> None:
    """Also where room was granted in the same turn of the loop."""
    room = TokenRoom(TokenBound(10), 100)
    held = await room.take(10, soon_s())
    first = asyncio.ensure_future(room.take(10, soon_s()))
    second = asyncio.ensure_future(room.take(4, soon_s()))
    await turns(3)
    if granted:
        room.give(held)
    first.cancel()
    if not granted:
        room.give(held)
    assert await asyncio.wait_for(second, 100) == 4
    assert await room.take(6, soon_s(0.0)) == 6


async def test_those_who_wait_for_room_are_bounded_in_number() -> None:
    room = TokenRoom(TokenBound(1), 1)
    await room.take(1, soon_s())
    waiting = asyncio.ensure_future(room.take(1, soon_s()))
    await turns(3)
    with pytest.raises(OverloadedError, match="1 passes wait"):
        await room.take(1, soon_s())
    waiting.cancel()


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 5)), min_size=1, max_size=40), st.integers(1, 40))
def test_parts_are_the_texts_in_order_each_as_large_as_may_be(sizes: list[tuple[int, int]], most: int) -> None:
    ids = [[number] * size for number, (size, _) in enumerate(sizes)]
    answers = [[number] * size for number, (_, size) in enumerate(sizes)]
    parts = list(in_parts(ids, answers, most))
    assert [text for part, _ in parts for text in part] == ids
    assert [text for _, part in parts for text in part or ()] == answers
    totals = [sum(map(len, (*texts, *(more or ())))) for texts, more in parts]
    for total, (texts, _) in zip(totals, parts, strict=True):
        assert total <= most or len(texts) == 1
    for total, (texts, more) in zip(totals, parts[1:], strict=False):
        assert total + len(texts[0]) + len((more or [[]])[0]) > most


@pytest.mark.parametrize("limit", [0, 2])
async def test_callers_that_exceed_the_bound_together_are_all_answered_within_it(limit: int) -> None:
    passes = Meter()
    queue = PassQueue(passes, limit, 1000, TokenBound(4096))
    calls = [[[1000 * caller + text] * 252 for text in range(80)] for caller in range(3)]
    replies = await asyncio.gather(*(queue.run(ids, None, context(FAR_S)) for ids in calls))
    for ids, reply in zip(calls, replies, strict=True):
        assert reply["embedding"][:, 0].tolist() == [sum(text) for text in ids]
        assert np.array_equal(reply["states"][:, 0], np.concatenate(ids).astype(np.float32))
    assert max(len(inputs["token_ids"]) for inputs in passes.seen) <= MAX_PACKED_TOKENS
    assert 1008 < passes.most <= 4096


async def test_tokens_of_the_decoder_take_room_too() -> None:
    passes = Meter()
    queue = PassQueue(passes, 0, 1000, TokenBound(100))
    ids, answers = [[1] * 30] * 2, [[1] * 60] * 2
    await asyncio.gather(*(queue.run(ids, answers, context(FAR_S)) for _ in range(3)))
    assert passes.most == 90


async def test_requests_of_too_many_tokens_together_are_refused_before_any_work() -> None:
    passes = Passes()
    passes.gate.clear()
    queue = PassQueue(passes, 0, 1000, TokenBound(10))
    half = [[1] * 10] * (HELD_PASSES // 2)
    waiting = [asyncio.ensure_future(queue.run(half, None, context(FAR_S))) for _ in range(2)]
    await turns(3)
    with pytest.raises(OverloadedError, match=f"requests of {10 * HELD_PASSES} tokens"):
        await queue.run([[1]], None, context(FAR_S))
    passes.gate.set()
    await asyncio.gather(*waiting)
    await queue.run([[1]], None, context(FAR_S))


def host(bert: Path, node: str, most: int) -> Asker:
    return Asker(NodeHost(programs(bert, node), asyncio.get_running_loop(), HostDevice(), tokens=TokenBound(most)))


async def test_a_function_takes_its_tokens_at_once_and_refuses_more_until_there_is_room(bert: Path) -> None:
    asker = host(bert, "segment-0", 10)
    for lengths in ([6], [4], [1]):
        asker.ask(call(lengths, 1))
    first, second, third = await asker.all()
    assert (first.status, second.status, third.status) == (200, 200, 429)
    assert third.headers["retry-after"] == "1"
    assert b"calls of 10 tokens are under way, of at most 10; this one has 1" in bytes(third.chunks[0])
    asker.ask(call([10], 2))
    assert tensors_of((await asker.all())[-1])["residual"].shape[0] == 10


async def test_a_call_of_more_tokens_than_a_function_takes_names_number_and_bound(bert: Path) -> None:
    asker = host(bert, "expert-0-0", 10)
    asker.ask({"x": torch.zeros(11, 32)})
    (reply,) = await asker.all()
    assert reply.status == 413
    assert b"the call has 11 tokens; this function takes at most 10 (smoe_max_tokens)" in bytes(reply.chunks[0])


async def test_calls_that_come_to_nothing_give_their_room_back(bert: Path) -> None:
    asker = host(bert, "segment-0", 10)
    asker.ask(call([10], 1), deadline_s=0.0)
    asker.ask({"x": torch.zeros(2, 32)})
    assert [reply.status for reply in await asker.all()] == [504, 400]
    gone: Any = asker.ask(call([10], 1))
    gone.abandon()
    await asker.all()
    asker.ask(call([10], 1))
    assert (await asker.all())[-1].status == 200
