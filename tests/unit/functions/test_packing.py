"""Requests packed into one pass, and the grouping and summing that the ingress does itself."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.harness.local_pipeline import LocalPipeline
from functions.ingress.calls import PassContext
from functions.ingress.exchange import exchange
from functions.ingress.packing import GATHER_S, MAX_PACKED_TOKENS, PassQueue
from functions.wire import arrays
from functions.wire import format as wire
from functions.wire.arrays import Arrays
from functions.wire.errors import CallError, DeadlineError, NodeFailedError, NodeRefusedError, OverloadedError
from moe.families.routing import dispatch
from moe.reference import WholeModel
from tests.unit.functions.conftest import turns
from tests.unit.functions.test_pass import ask, assert_close


class Passes:
    """Passes that the test lets go; a text's embedding is its sum, a token's state is the token."""

    def __init__(self, bad: int = -1) -> None:
        self.seen: list[Arrays] = []
        self.contexts: list[PassContext] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.bad = bad

    async def __call__(self, inputs: Arrays, context: PassContext) -> Arrays:
        self.seen.append(inputs)
        self.contexts.append(context)
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        ids, lengths = inputs["token_ids"], inputs["lengths"]
        if self.bad in ids:
            raise NodeRefusedError("a bad token", 400)
        sums = np.add.reduceat(ids, np.cumsum([0, *lengths[:-1]]))
        return {"embedding": sums[:, None].astype(np.float32), "states": ids[:, None].astype(np.float32)}


def context(within_s: float = 5.0, name: str = "r") -> PassContext:
    return PassContext(name, asyncio.get_running_loop().time() + within_s)


async def test_waiting_requests_go_together_and_each_gets_its_own_part() -> None:
    passes = Passes()
    passes.gate.clear()
    queue = PassQueue(passes, 1, 100)
    texts = [[[1, 2]], [[3], [4, 5]], [[6]], [[7, 8, 9], [10]]]
    calls = [asyncio.ensure_future(queue.run(ids, None, context(name=f"r{i}"))) for i, ids in enumerate(texts)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    passes.gate.set()
    for ids, reply in zip(texts, await asyncio.gather(*calls), strict=True):
        assert reply["embedding"][:, 0].tolist() == [sum(text) for text in ids]
        assert reply["states"][:, 0].tolist() == [token for text in ids for token in text]
    assert [len(inputs["lengths"]) for inputs in passes.seen] == [1, 5]
    assert passes.contexts[1].request_id == "r1,r2,r3"


async def test_without_a_limit_each_request_is_a_pass_of_its_own() -> None:
    passes = Passes()
    queue = PassQueue(passes, 0, 100)
    await asyncio.gather(*(queue.run([[i]], None, context()) for i in range(5)))
    assert len(passes.seen) == 5


async def test_a_pack_is_bounded_in_tokens() -> None:
    passes = Passes()
    queue = PassQueue(passes, 1, 100)
    ids = [[1] * (MAX_PACKED_TOKENS // 2)]
    await asyncio.gather(*(queue.run(ids, None, context()) for _ in range(5)))
    assert max(len(inputs["token_ids"]) for inputs in passes.seen) <= MAX_PACKED_TOKENS
    assert len(passes.seen) == 3


class Held(Passes):
    """Passes that are let go one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.gates: list[asyncio.Event] = []

    async def __call__(self, inputs: Arrays, context: PassContext) -> Arrays:
        gate = asyncio.Event()
        self.gates.append(gate)
        reply = await super().__call__(inputs, context)
        await gate.wait()
        return reply

    @property
    def sizes(self) -> list[int]:
        return [len(inputs["lengths"]) for inputs in self.seen]


async def test_two_passes_share_those_who_wait_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = asyncio.get_running_loop().time()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now_s)
    passes = Held()
    queue = PassQueue(passes, 2, 100)
    calls = [asyncio.ensure_future(queue.run([[i]], None, context())) for i in range(10)]
    await turns(4)
    assert passes.sizes == [1, 1]
    now_s += GATHER_S + 0.002
    for gate in passes.gates[:2]:
        gate.set()
    await turns(4)
    assert passes.sizes == [1, 1, 5, 3]
    for _ in range(3):
        for gate in passes.gates:
            gate.set()
        await turns(4)
    assert [reply["embedding"].item() for reply in await asyncio.gather(*calls)] == list(range(10))


async def test_the_first_of_many_waits_a_moment_for_company_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = asyncio.get_running_loop().time()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now_s)
    passes = Held()
    queue = PassQueue(passes, 2, 100)
    calls = [asyncio.ensure_future(queue.run([[i]], None, context())) for i in range(8)]
    await turns(4)
    passes.gates[0].set()
    await turns(4)
    assert passes.sizes == [1, 1, 4]
    passes.gates[1].set()
    await turns(4)
    assert passes.sizes == [1, 1, 4], "two wait, fewer than the four under way"
    now_s += GATHER_S + 0.002
    await turns(4)
    assert passes.sizes == [1, 1, 4, 2]
    for gate in passes.gates:
        gate.set()
    await asyncio.gather(*calls)


async def test_a_refused_request_spoils_no_other_of_its_pack() -> None:
    passes = Passes(bad=99)
    queue = PassQueue(passes, 1, 100)
    calls = [queue.run([[token]], None, context()) for token in (1, 2, 99, 3)]
    replies = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(replies[2], NodeRefusedError)
    assert [reply["embedding"].item() for i, reply in enumerate(replies) if i != 2] == [1, 2, 3]  # type: ignore[index]


@pytest.mark.parametrize("error", [NodeFailedError("all replicas are gone"), RuntimeError("a bug")])
async def test_a_failed_pass_fails_all_who_were_in_it(error: Exception) -> None:
    passes = Passes()
    passes.error = error
    queue = PassQueue(passes, 1, 100)
    replies = await asyncio.gather(*(queue.run([[1]], None, context()) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(reply, CallError) for reply in replies)
    passes.error = None
    assert (await queue.run([[5]], None, context()))["embedding"].item() == 5


async def test_who_waits_beyond_its_deadline_gets_504_and_no_pass() -> None:
    passes = Passes()
    passes.gate.clear()
    queue = PassQueue(passes, 1, 100)
    first = asyncio.ensure_future(queue.run([[1]], None, context()))
    await asyncio.sleep(0)
    with pytest.raises(DeadlineError):
        await queue.run([[2]], None, context(within_s=0.01))
    passes.gate.set()
    await first
    assert (await queue.run([[3]], None, context()))["embedding"].item() == 3
    assert [inputs["token_ids"].tolist() for inputs in passes.seen] == [[1], [3]]


async def test_too_many_waiting_requests_are_refused() -> None:
    passes = Passes()
    passes.gate.clear()
    queue = PassQueue(passes, 1, 2)
    calls = [asyncio.ensure_future(queue.run([[i]], None, context())) for i in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError):
        await queue.run([[9]], None, context())
    passes.gate.set()
    await asyncio.gather(*calls)


async def test_requests_whose_clients_left_make_room_for_others() -> None:
    passes = Passes()
    passes.gate.clear()
    queue = PassQueue(passes, 1, 2)
    first, *waiting = [asyncio.ensure_future(queue.run([[i]], None, context())) for i in range(3)]
    await turns()
    waiting[0].cancel()
    await turns()
    next_one = asyncio.ensure_future(queue.run([[3]], None, context()))
    await turns()
    passes.gate.set()
    replies = await asyncio.gather(first, waiting[1], next_one)
    assert [reply["embedding"][0, 0] for reply in replies] == [0, 2, 3]


@pytest.mark.slow
def test_packed_requests_through_processes_equal_the_whole_model(bert: Path) -> None:
    whole = WholeModel(bert)
    texts = [f"request number {i}" for i in range(24)]
    with (
        LocalPipeline(bert, max_functions=3, environ={"smoe_max_passes": "1"}) as pipeline,
        ThreadPoolExecutor(8) as threads,
    ):
        answers = list(threads.map(lambda text: ask(pipeline.url, {"inputs": text}), texts))
    for text, answer in zip(texts, answers, strict=True):
        assert_close(answer["embeddings"], whole.embed([text]))


@st.composite
def routings(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    tokens, experts = draw(st.integers(1, 9)), draw(st.integers(1, 6))
    k = draw(st.integers(1, experts))
    seed = np.random.default_rng(draw(st.integers(0, 999)))
    ids = np.stack([seed.permutation(experts)[:k] for _ in range(tokens)]).astype(np.int64)
    return ids, seed.random((tokens, k), np.float32), seed.standard_normal((tokens, 4)).astype(np.float32), experts


@given(routings(), st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
def test_grouping_and_summing_equal_the_references_bit_for_bit(
    routing: tuple[np.ndarray, np.ndarray, np.ndarray, int], dtype: torch.dtype
) -> None:
    ids, gates, x, _ = routing
    x_torch = torch.from_numpy(x).to(dtype)
    x_array = arrays.decode(wire.encode_bytes({"x": x_torch}))["x"]
    ours, theirs = exchange(ids, gates), dispatch(torch.from_numpy(ids), torch.from_numpy(gates))
    assert ours.experts == theirs.experts
    parts, expected = ours.scatter(x_array), theirs.scatter(x_torch)
    for part, other in zip(parts, expected, strict=True):
        assert part.tobytes() == b"".join(wire.encode({"x": other})[-1:])
    outputs = [other * (expert + 1) for expert, other in zip(theirs.experts, expected, strict=True)]
    returned = [arrays.decode(wire.encode_bytes({"y": output}))["y"] for output in outputs]
    summed = arrays.encode({"h": ours.combine(x_array, returned)})
    reference = theirs.combine(x_torch, outputs)
    assert torch.equal(wire.decode(b"".join(summed))["h"], reference)


@given(st.lists(st.floats(width=32), min_size=1, max_size=20))
def test_bfloat16_is_rounded_as_torch_rounds(values: list[float]) -> None:
    array = np.array(values, np.float32)
    ours = arrays.from_float32(array, np.dtype(np.uint16))
    theirs = torch.from_numpy(array).to(torch.bfloat16)
    back = arrays.as_float32(ours)
    np.testing.assert_array_equal(back, theirs.float().numpy())


def test_arrays_and_tensors_speak_the_same_messages() -> None:
    given_ = {"x": torch.randn(2, 3), "ids": torch.arange(4), "b": torch.ones(3).to(torch.bfloat16)}
    message = wire.encode_bytes(given_)
    assert b"".join(arrays.encode(arrays.decode(message))) == message
