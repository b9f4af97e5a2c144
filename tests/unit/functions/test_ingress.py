"""The ingress on its own: requests whose client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from functions.dispatch.replicas import FunctionReplicas
from functions.ingress.handler import CLIENT_GONE, Ingress
from functions.serving.settings import from_environment
from functions.wire.messages import Counting, Reply, Request
from moe.manifest import load


class Nothing:
    """A resolver that never names a replica."""

    async def run(self, update: Callable[[Mapping[str, FunctionReplicas]], None]) -> None:
        await asyncio.Event().wait()


@pytest.mark.parametrize("passes", ["0", "1"])
async def test_a_request_whose_client_left_is_given_up_and_holds_nothing(bert: Path, passes: str) -> None:
    loop = asyncio.get_running_loop()
    settings = from_environment({"smoe_pipeline": str(bert), "smoe_nodes": "ingress", "smoe_max_passes": passes})
    ingress = Ingress(load(bert), settings, loop)
    ingress.follow(Nothing())
    answers: list[Reply] = []
    answered = asyncio.Event()

    def answer(reply: Reply) -> None:
        answers.append(reply)
        answered.set()

    request = Request("POST", "/", {}, bytearray(b'{"inputs": "hello"}'), loop.time(), request_id="r")
    ingress.submit(request, answer)

    def waiting() -> int:
        return sum(len(function.waiting) for function in ingress.dispatcher._functions.values())

    while not waiting():
        await asyncio.sleep(0)
    request.abandon()
    await asyncio.wait_for(answered.wait(), 100)
    assert [reply.status for reply in answers] == [CLIENT_GONE]
    assert ingress.instruments.in_flight == 0
    assert ingress.instruments.requests == {"200": 0, str(CLIENT_GONE): 1}
    for _ in range(3):
        await asyncio.sleep(0)
    assert all(waiter.turn.cancelled() for f in ingress.dispatcher._functions.values() for waiter in f.waiting)
    ingress.close()


async def test_requests_that_the_server_turns_away_are_counted_as_failed_and_slow(bert: Path) -> None:
    settings = from_environment({"smoe_pipeline": str(bert), "smoe_nodes": "ingress"})
    ingress = Ingress(load(bert), settings, asyncio.get_running_loop())
    assert isinstance(ingress, Counting)
    ingress.refused(429)
    assert ingress.instruments.requests == {"200": 0, "429": 1}
    assert ingress.instruments.request_seconds.counts[-1] == 1
    ingress.close()


@pytest.mark.parametrize(("path", "field"), [("/", "inputs"), ("/v1/embeddings", "input")])
async def test_a_text_of_more_tokens_than_functions_take_at_once_is_refused_before_any_call(
    bert: Path, path: str, field: str
) -> None:
    loop = asyncio.get_running_loop()
    settings = from_environment({"smoe_pipeline": str(bert), "smoe_nodes": "ingress", "smoe_max_tokens": "9"})
    ingress = Ingress(load(bert), settings, loop)
    ingress.follow(Nothing())
    answered: asyncio.Future[Reply] = loop.create_future()
    body = bytearray(b'{"%s": ["short", "ten bytes!"]}' % field.encode())
    ingress.submit(Request("POST", path, {}, body, loop.time()), answered.set_result)
    reply = await asyncio.wait_for(answered, 100)
    assert reply.status == 413
    assert b"a text has 10 tokens; the functions of this deployment take at most 9 at once" in bytes(reply.chunks[0])
    ingress.close()
