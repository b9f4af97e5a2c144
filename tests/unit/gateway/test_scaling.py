"""Scale from zero: one order, calls wait and are then forwarded."""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.contract import BackendError
from tests.doubles.fake_backend import FakeBackend
from tests.unit.gateway.gateways import Running, Starter


class Counting(FakeBackend):
    """Remembers orders to scale, and can refuse them."""

    def __init__(self) -> None:
        super().__init__()
        self.orders: list[int] = []
        self.refuse = False

    async def scale(self, name: str, namespace: str, replicas: int) -> None:
        self.orders.append(replicas)
        if self.refuse:
            raise BackendError("no room")
        await super().scale(name, namespace, replicas)


async def waiting_calls(running: Running, count: int) -> list[asyncio.Task[Any]]:
    """Calls that have reached the gateway and wait there."""
    calls = [asyncio.create_task(running.call("POST", "/function/f", b"x")) for _ in range(count)]
    await running.until(lambda: len(running.replicas()) > 0)
    return calls


async def test_many_calls_at_zero_make_one_order_and_all_are_answered(start: Starter) -> None:
    backend = Counting()
    async with start(backend=backend) as running:
        await running.deploy(replicas=0)
        backend.hold_starts = True
        calls = await waiting_calls(running, 10)
        for _ in range(50):
            await asyncio.sleep(0)
        assert not any(call.done() for call in calls)
        backend.let_start()
        assert [(await call).status for call in calls] == [200] * 10
        assert backend.orders == [1]


async def test_the_order_is_for_the_least_number_of_the_label(start: Starter) -> None:
    backend = Counting()
    async with start(backend=backend) as running:
        await running.deploy(replicas=0, labels={"com.openfaas.scale.min": "3"})
        assert (await running.call("POST", "/function/f", b"x")).status == 200
        assert backend.orders == [3]


async def test_a_call_waits_for_a_function_that_is_starting_without_an_order(start: Starter) -> None:
    backend = Counting()
    async with start(backend=backend) as running:
        backend.hold_starts = True
        await running.deploy(replicas=1)
        (call,) = await waiting_calls(running, 1)
        backend.let_start()
        assert (await call).status == 200
        assert backend.orders == []


async def test_a_function_that_does_not_come_up_in_time_is_503(start: Starter) -> None:
    async with start(start_wait_s=0.05) as running:
        running.backend.hold_starts = True
        await running.deploy(replicas=0)
        answer = await running.call("POST", "/function/f", b"x")
        assert (answer.status, answer.text) == (503, "No endpoints available for: f.")
        assert (answer.headers["retry-after"], answer.headers["x-openfaas-internal"]) == ("1", "proxy")


async def test_switched_off_a_function_at_zero_is_503_at_once(start: Starter) -> None:
    backend = Counting()
    async with start(backend=backend, scale_from_zero=False) as running:
        await running.deploy(replicas=0)
        assert (await running.call("POST", "/function/f", b"x")).status == 503
        assert backend.orders == []


async def test_an_order_the_backend_refuses_is_500_with_its_reason_and_the_next_call_orders_again(
    start: Starter,
) -> None:
    backend = Counting()
    async with start(backend=backend) as running:
        await running.deploy(replicas=0)
        backend.refuse = True
        answer = await running.call("POST", "/function/f", b"x")
        assert (answer.status, "no room" in answer.text) == (500, True)
        backend.refuse = False
        assert (await running.call("POST", "/function/f", b"x")).status == 200


async def test_a_function_deleted_while_calls_wait_is_404(start: Starter) -> None:
    async with start() as running:
        running.backend.hold_starts = True
        await running.deploy(replicas=1)
        (call,) = await waiting_calls(running, 1)
        await running.backend.delete("f", "openfaas-fn")
        assert (await call).status == 404


async def test_a_client_that_stops_waiting_does_not_stop_the_order_of_others(start: Starter) -> None:
    async with start() as running:
        await running.deploy(replicas=0)
        running.backend.hold_starts = True
        first, second = await waiting_calls(running, 2)
        first.cancel()
        running.backend.let_start()
        assert (await second).status == 200
