"""Choice of replicas, waiting, and repeats, against real servers with scripted answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from functions.dispatch.replicas import FunctionReplicas, Opening, ReplicaAddress
from functions.wire.errors import (
    DeadlineError,
    NoReplicaError,
    NotDeployedError,
    OverloadedError,
)
from functions.wire.messages import Reply
from tests.unit.functions.callers import DEAD, Caller, calling
from tests.unit.functions.conftest import Held, echo


async def test_a_call_carries_request_id_and_time_left(caller: Caller, start: Any) -> None:
    application = echo()
    caller.table(await start(application))
    assert await caller.call(b"abc", within_s=200.0) == b"abc"
    request = application.seen[0]
    assert request.request_id == "id-1"
    assert 100_000 < float(request.headers["x-timeout-ms"]) <= 200_000


async def test_calls_go_to_the_replica_with_the_fewest_in_flight(caller: Caller, start: Any) -> None:
    helds = [Held(), Held(), Held()]
    caller.table(*[await start(held) for held in helds])
    calls = [asyncio.ensure_future(caller.call()) for _ in range(6)]
    for held in helds:
        await held.wait(2)
    assert [len(held.calls) for held in helds] == [2, 2, 2]
    for held in helds:
        held.answer_all()
    assert await asyncio.gather(*calls) == [b"done"] * 6


async def test_round_robin_takes_replicas_in_turn_whatever_they_have_in_flight(start: Any) -> None:
    helds = [Held(), Held(), Held()]
    async with calling("round-robin") as caller:
        caller.table(*[await start(held) for held in helds])
        first = [asyncio.ensure_future(caller.call()) for _ in range(3)]
        for held in helds:
            await held.wait(1)
        helds[1].answer_all()
        helds[2].answer_all()
        await asyncio.gather(*first[1:])
        fourth = asyncio.ensure_future(caller.call())
        await helds[0].wait(2)  # least-loaded would have gone elsewhere
        assert [len(held.calls) for held in helds] == [2, 1, 1]
        helds[0].answer_all()
        await asyncio.gather(first[0], fourth)


async def test_random_reaches_every_replica(start: Any) -> None:
    echoes = [echo(), echo(), echo()]
    async with calling("random") as caller:
        caller.table(*[await start(application) for application in echoes])
        async with asyncio.timeout(100):
            while not all(application.seen for application in echoes):
                await caller.call()
    assert sum(len(application.seen) for application in echoes) >= 3


async def test_local_first_goes_elsewhere_only_when_no_local_slot_is_free(start: Any) -> None:
    away, here = Held(), Held()
    async with calling("local-first", "b") as caller:
        caller.table(await start(away), await start(here), max_inflight=2, nodes=("a", "b"))
        calls = [asyncio.ensure_future(caller.call()) for _ in range(2)]
        await here.wait(2)
        calls.append(asyncio.ensure_future(caller.call()))
        await away.wait(1)
        assert (len(here.calls), len(away.calls)) == (2, 1)
        for held in (away, here):
            held.answer_all()
        assert await asyncio.gather(*calls) == [b"done"] * 3


async def test_local_first_without_a_local_replica_calls_the_others(start: Any) -> None:
    async with calling("local-first", "c") as caller:
        caller.table(await start(echo()), await start(echo()), nodes=("a", "b"))
        assert await caller.call(b"far") == b"far"
        assert caller.record.node in ("a", "b")


async def test_a_call_goes_to_the_node_it_names_and_its_record_says_where(caller: Caller, start: Any) -> None:
    echoes = [echo(), echo()]
    caller.table(*[await start(one) for one in echoes], nodes=("a", "b"))
    for _ in range(3):
        await caller.call(node="b")
    assert (len(echoes[0].seen), len(echoes[1].seen)) == (0, 3)
    assert caller.record.node == "b"
    assert [replica.node for replica in caller.dispatcher.replicas("f")] == ["a", "b"]


async def test_a_named_node_whose_replica_is_dead_costs_a_repeat_not_the_call(caller: Caller, start: Any) -> None:
    caller.table(DEAD, await start(echo()), nodes=("a", "b"))
    assert await caller.call(b"x", node="a") == b"x"
    assert (caller.record.node, caller.record.repeats) == ("b", ["connect"])


async def test_a_call_that_waited_goes_to_its_node_where_both_come_free(caller: Caller, start: Any) -> None:
    a, b = Held(), Held()
    caller.table(await start(a), await start(b), max_inflight=1, nodes=("a", "b"))
    calls = [asyncio.ensure_future(caller.call(node=node)) for node in ("a", "b", "b")]
    await a.wait(1)
    await b.wait(1)
    b.answer_all()
    await b.wait(2)
    a.answer_all()
    b.answer_all()
    await asyncio.gather(*calls)
    assert (len(a.calls), len(b.calls)) == (1, 2)


async def test_calls_beyond_the_slots_wait_in_order_of_arrival(caller: Caller, start: Any) -> None:
    held = Held()
    caller.table(await start(held), max_inflight=2)
    calls = [asyncio.ensure_future(caller.call(str(i).encode())) for i in range(6)]
    for i in range(6):
        await held.wait(min(6, i + 2))
        assert caller.dispatcher.in_flight("f") <= 2
        held.calls[i][1](Reply(200, (bytes(held.calls[i][0].body),)))
        assert await calls[i] == str(i).encode()
    assert [bytes(request.body) for request, _ in held.calls] == [b"0", b"1", b"2", b"3", b"4", b"5"]


async def test_a_full_queue_refuses_with_429(start: Any) -> None:
    caller, held = Caller(queue_limit=1), Held()
    caller.table(await start(held), max_inflight=1)
    calls = [asyncio.ensure_future(caller.call()) for _ in range(2)]
    await held.wait(1)
    with pytest.raises(OverloadedError) as caught:
        await caller.call()
    assert caught.value.status == 429
    held.answer_all()
    await held.wait(2)
    held.answer_all()
    await asyncio.gather(*calls)
    caller.dispatcher.close()
    await asyncio.sleep(0)


async def test_callers_that_left_keep_no_places_in_the_queue() -> None:
    caller = Caller(queue_limit=2)
    caller.table()
    gone = [asyncio.ensure_future(caller.call()) for _ in range(2)]
    await asyncio.sleep(0)
    for call in gone:
        call.cancel()
    await asyncio.gather(*gone, return_exceptions=True)
    with pytest.raises(NoReplicaError):
        await caller.call(within_s=0.02)
    caller.dispatcher.close()


async def test_without_a_replica_the_deadline_ends_in_503(caller: Caller) -> None:
    with pytest.raises(NoReplicaError):
        await caller.call(within_s=0.02)


@pytest.mark.slow
async def test_a_call_of_a_function_that_is_not_deployed_is_refused_with_its_name_long_before_its_time(
    caller: Caller, start: Any
) -> None:
    caller.table()
    caller.dispatcher.update({"other": FunctionReplicas(0, ())})
    with pytest.raises(NotDeployedError, match="f is not deployed"):
        await caller.call(within_s=1000.0)
    assert caller.dispatcher.absent(["f", "other"]) == ["f"]
    call = asyncio.ensure_future(caller.call(b"deployed meanwhile", within_s=1000.0))
    await asyncio.sleep(0)
    caller.table(await start(echo()))
    assert await call == b"deployed meanwhile"


@pytest.mark.slow
async def test_calls_that_wait_when_their_function_is_removed_are_refused(caller: Caller, start: Any) -> None:
    caller.table()
    call = asyncio.ensure_future(caller.call(within_s=1000.0))
    await asyncio.sleep(0)
    caller.dispatcher.update({})
    with pytest.raises(NoReplicaError, match="is not deployed"):
        await call


async def test_a_call_waits_for_a_replica_that_appears(caller: Caller, start: Any) -> None:
    call = asyncio.ensure_future(caller.call(b"late"))
    await asyncio.sleep(0)
    caller.table(await start(echo()))
    assert await call == b"late"


async def test_a_waiting_call_ends_with_504_at_its_deadline(caller: Caller, start: Any) -> None:
    held = Held()
    caller.table(await start(held), max_inflight=1)
    first = asyncio.ensure_future(caller.call())
    await held.wait(1)
    with pytest.raises(DeadlineError):
        await caller.call(within_s=0.02)
    held.answer_all()
    assert await first == b"done"


async def test_a_reply_that_does_not_come_ends_with_504_and_frees_the_slot(caller: Caller, start: Any) -> None:
    held = Held()
    caller.table(await start(held), max_inflight=1)
    with pytest.raises(DeadlineError):
        await caller.call(within_s=0.02)
    assert caller.dispatcher.in_flight("f") == 0
    assert len(held.calls) <= 1  # none where it did not get there in time; never repeated
    held.answer_all()


async def test_a_cancelled_call_frees_its_slot_for_the_next(caller: Caller, start: Any) -> None:
    held = Held()
    caller.table(await start(held), max_inflight=1)
    calls = [asyncio.ensure_future(caller.call()) for _ in range(3)]
    await held.wait(1)
    calls[1].cancel()
    calls[0].cancel()
    await held.wait(2)
    held.answer_all()
    assert await calls[2] == b"done"


async def test_busy_seconds_count_a_replica_once_however_many_calls_it_has(caller: Caller, start: Any) -> None:
    held = Held()
    caller.table(await start(held))
    assert caller.dispatcher.busy_s("f") == caller.dispatcher.busy_s("unknown") == 0
    begun_s = caller.loop.time()
    calls = [asyncio.ensure_future(caller.call()) for _ in range(3)]
    await held.wait(3)
    assert 0 < caller.dispatcher.busy_s("f") <= caller.loop.time() - begun_s
    held.answer_all()
    await asyncio.gather(*calls)
    busy_s = caller.dispatcher.busy_s("f")
    assert 0 < busy_s <= caller.loop.time() - begun_s
    assert caller.dispatcher.busy_s("f") == busy_s


async def test_activated_replicas_serve_those_who_wait_and_their_first_call_is_noted(
    caller: Caller, start: Any
) -> None:
    held = Held()
    full, standby = await start(held), await start(echo())
    caller.table(full, max_inflight=1)
    first = asyncio.ensure_future(caller.call())
    await held.wait(1)
    second = asyncio.ensure_future(caller.call(b"second"))
    await asyncio.sleep(0)
    opening = caller.dispatcher.opening = Opening(caller.loop.time())
    both = tuple(ReplicaAddress(one.address, one.address) for one in (full, standby))
    caller.dispatcher.merge({"f": FunctionReplicas(1, both)})
    assert await second == b"second"
    assert opening.first_call_s is not None and opening.first_answer_s is not None
    assert 0 <= opening.first_call_s < opening.first_answer_s
    held.answer_all()
    await first


async def test_equally_loaded_replicas_take_turns(caller: Caller, start: Any) -> None:
    echoes = [echo(), echo()]
    addresses = [(await start(one)).address for one in echoes]
    replicas = tuple(ReplicaAddress(address, address) for address in addresses)
    caller.dispatcher.update({"f": FunctionReplicas(0, replicas)})
    for _ in range(4):
        await caller.call()
    assert [len(one.seen) for one in echoes] == [2, 2]
