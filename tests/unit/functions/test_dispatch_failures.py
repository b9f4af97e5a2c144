"""Calls whose replicas fail, refuse or are busy: what is repeated, what is final, what waits."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest

from functions.dispatch.client import HttpConnection, ReplyTimeoutError, TransportError
from functions.dispatch.dispatcher import MAX_ATTEMPTS, CallRecord
from functions.dispatch.replicas import FunctionReplicas, ReplicaAddress
from functions.wire.errors import (
    CallError,
    DeadlineError,
    NodeFailedError,
    NodeRefusedError,
    NoReplicaError,
    OverloadedError,
)
from functions.wire.messages import Reply, Request, error_reply
from tests.unit.functions.callers import DEAD, Caller, refusing
from tests.unit.functions.conftest import Held, Scripted, echo, turns


async def test_an_unreachable_replica_is_set_aside_and_the_call_repeated(caller: Caller, start: Any) -> None:
    caller.table(DEAD, await start(echo()))
    assert await caller.call(b"a") == b"a"
    assert caller.record.repeats == ["connect"]
    assert await caller.call(b"b") == b"b"
    assert caller.record.repeats == []


async def test_a_replica_that_dies_during_a_call_is_replaced(caller: Caller, start: Any) -> None:
    held = Held()
    dying, living = await start(held), await start(echo())
    caller.table(dying, living)
    call = asyncio.ensure_future(caller.call(b"precious"))
    await held.wait(1)
    dying.server.settings.drain_s = 0.0
    await dying.server.drain()
    assert await call == b"precious"
    assert caller.record.repeats == ["broken"]


@pytest.mark.parametrize("status", [500, 502, 503])
async def test_failures_of_the_platform_are_repeated_on_another_replica(
    caller: Caller, start: Any, status: int
) -> None:
    bad = refusing(status)
    caller.table(await start(bad), await start(echo()))
    assert await caller.call(b"a") == b"a"
    assert caller.record.repeats == ["status"]
    assert len(bad.seen) == 1


@pytest.mark.parametrize("status", [400, 404, 413, 422])
async def test_a_4xx_is_final(caller: Caller, start: Any, status: int) -> None:
    bad = refusing(status)
    caller.table(await start(bad), await start(bad))
    with pytest.raises(NodeRefusedError) as caught:
        await caller.call()
    assert caught.value.status == status
    assert len(bad.seen) == 1


async def test_a_500_of_the_functions_own_is_not_repeated(caller: Caller, start: Any) -> None:
    bad = refusing(500, platform=False)
    caller.table(await start(bad))
    with pytest.raises(NodeFailedError):
        await caller.call()
    assert len(bad.seen) == 1


async def test_repeats_are_bounded(caller: Caller, start: Any) -> None:
    bad = refusing(503)
    caller.table(await start(bad))
    with pytest.raises(NodeFailedError, match=f"failed {MAX_ATTEMPTS} times"):
        await caller.call()
    assert len(bad.seen) == MAX_ATTEMPTS


async def test_429_is_not_an_attempt_but_a_turn_to_wait(caller: Caller, start: Any) -> None:
    answers = [429] * (MAX_ATTEMPTS + 3)

    def script(request: Request) -> Reply:
        if answers:
            return error_reply(answers.pop(), "overloaded", "busy", platform=True, retry_after_s=1)
        return Reply(200, (b"at last",))

    caller.table(await start(Scripted(script)))
    assert await caller.call() == b"at last"
    assert caller.record.repeats == ["busy"] * (MAX_ATTEMPTS + 3)


async def test_429_until_the_deadline_ends_with_504(caller: Caller, start: Any) -> None:
    caller.table(await start(refusing(429)))
    with pytest.raises(DeadlineError):
        await caller.call(within_s=0.05)


async def test_a_busy_replica_is_passed_over_for_a_free_one(caller: Caller, start: Any) -> None:
    caller.table(await start(refusing(429)), await start(echo()))
    assert await caller.call(b"a") == b"a"
    assert caller.record.repeats in ([], ["busy"])


async def test_a_kept_connection_closed_by_the_other_end_is_no_failure(caller: Caller, start: Any) -> None:
    running = await start(echo())
    caller.table(running)
    assert await caller.call(b"a") == b"a"
    for connection in list(running.server.connections):
        connection.close()
    assert await caller.call(b"b") == b"b"
    assert caller.record.repeats == []


async def test_a_replica_back_at_its_old_address_is_tried_again(caller: Caller, start: Any) -> None:
    running = await start(echo())
    caller.table(running)
    slot = caller.dispatcher._functions["f"].slots[running.address]
    slot.failures, slot.suspended_until_s = 1, 0.0
    assert await caller.call(b"a") == b"a"
    assert slot.failures == 0


async def test_a_replica_that_failed_for_hours_is_still_set_aside(caller: Caller, start: Any) -> None:
    running = await start(echo())
    caller.table(running)
    function = caller.dispatcher._functions["f"]
    slot = function.slots[running.address]
    slot.failures = 5000
    caller.dispatcher._failed(function, slot, set())
    assert slot.suspended_until_s > asyncio.get_running_loop().time()


async def test_replicas_taken_from_the_table_get_no_new_calls(caller: Caller, start: Any) -> None:
    old, new = echo(), echo()
    first, second = await start(old), await start(new)
    caller.table(first)
    await caller.call()
    caller.table(second)
    await caller.call()
    assert (len(old.seen), len(new.seen)) == (1, 1)


async def test_a_replica_that_drains_gets_only_calls_that_go_on_from_what_it_holds(caller: Caller, start: Any) -> None:
    old, new = echo(), echo()
    first, second = (ReplicaAddress(one, one) for one in [(await start(app)).address for app in (old, new)])

    async def call_first() -> bytes:
        reply = await caller.dispatcher.call_replica(
            "f", first.id, "/", [b"on"], deadline_s=caller.loop.time() + 5.0, request_id="id-1", record=CallRecord()
        )
        return bytes(reply.body)

    caller.dispatcher.update({"f": FunctionReplicas(0, (first, second))})
    caller.dispatcher.update({"f": FunctionReplicas(0, (second,), draining=(first,))})
    assert caller.dispatcher.replicas("f") == [second] and caller.dispatcher.draining("f") == [first]
    for _ in range(3):
        await caller.call()
    assert (len(old.seen), len(new.seen)) == (0, 3)
    assert await call_first() == b"on"
    caller.dispatcher.update({"f": FunctionReplicas(0, (second,))})
    with pytest.raises(TransportError, match="no replica"):
        await call_first()
    assert caller.dispatcher.draining("f") == []


async def test_a_replica_that_was_never_ready_is_not_among_those_that_drain(caller: Caller) -> None:
    caller.dispatcher.update({"f": FunctionReplicas(0, (), draining=(ReplicaAddress("one", DEAD),))})
    assert caller.dispatcher.draining("f") == []


@pytest.mark.parametrize("cancelled", [False, True], ids=["its time is over", "cancelled"])
async def test_a_call_that_ends_keeps_nothing_of_a_body_that_is_not_read(cancelled: bool) -> None:
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as reads_nothing:
        _, connection = await loop.create_connection(lambda: HttpConnection(loop), *reads_nothing.getsockname())
        call = asyncio.ensure_future(connection.call(b"POST", [bytes(32 << 20)], 600.0 if cancelled else 0.0))
        await turns(1)
        assert connection._transport is not None and connection._transport.get_write_buffer_size()
        if cancelled:
            call.cancel()
        with pytest.raises(asyncio.CancelledError if cancelled else ReplyTimeoutError):
            await call
        await turns(3)
        assert connection._transport is None


@pytest.mark.parametrize(
    "raw",
    [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc", b"HTTP/1.1 200 OK\r\n"],
)
async def test_a_broken_reply_is_a_failure_of_the_platform(caller: Caller, start: Any, raw: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(raw)
        writer.close()

    broken = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = broken.sockets[0].getsockname()[1]
    caller.table(f"127.0.0.1:{port}", await start(echo()))
    assert await caller.call(b"a") == b"a"
    assert caller.record.repeats == ["broken"]
    broken.close()


async def test_many_calls_under_random_failures_all_end_in_the_right_answer(caller: Caller, start: Any) -> None:
    def flaky(period: int) -> Callable[[Request], Reply]:
        count = iter(range(1_000_000))

        def script(request: Request) -> Reply:
            if next(count) % period == 0:
                return error_reply(503, "x", "down", platform=True)
            return Reply(200, (bytes(request.body),))

        return script

    caller.table(*[await start(Scripted(flaky(n)), max_inflight=3) for n in (3, 5, 7)], max_inflight=4)
    bodies = [str(i).encode() for i in range(150)]
    calls = [
        caller.dispatcher.call(
            "f", "/", [body], deadline_s=caller.loop.time() + 20, request_id="i", record=CallRecord()
        )
        for body in bodies
    ]
    assert [bytes(reply.body) for reply in await asyncio.gather(*calls)] == bodies
    assert caller.dispatcher.in_flight("f") == 0


@pytest.mark.parametrize(("error", "status"), [(OverloadedError, 429), (NoReplicaError, 503), (DeadlineError, 504)])
def test_errors_know_the_status_they_become(error: type[CallError], status: int) -> None:
    assert error("x").status == status
