"""Orders for many functions, while others change or delete them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gateway.contract import BackendError
from tests.doubles.fake_backend import FakeBackend
from tests.unit.gateway.gateways import Running, Starter

ORDERS = {"functions": {"a": {"replicas": 2, "annotations": {"by": "orders"}}, "b": {"replicas": 3}}}


class Interrupted(FakeBackend):
    """Something else happens before a function is scaled."""

    def __init__(self) -> None:
        super().__init__()
        self.before: dict[str, Callable[[], Awaitable[object]]] = {}

    async def scale(self, name: str, namespace: str, replicas: int) -> None:
        if name in self.before:
            await self.before[name]()
        await super().scale(name, namespace, replicas)


async def deployed(running: Running) -> None:
    for name in ("a", "b"):
        document = {"service": name, "image": f"{name}:1"}
        assert (await running.system("POST", "/system/functions", document)).status == 202


def kept(running: Running) -> dict[str, tuple[str, int]]:
    return {state.spec.name: (state.spec.image, state.desired_replicas) for state in running.backend.list()}


async def test_a_deployment_between_two_orders_is_kept(start: Starter) -> None:
    backend = Interrupted()
    async with start(backend=backend) as running:
        await deployed(running)
        document = {"service": "b", "image": "b:2", "annotations": {"new": "yes"}}
        backend.before["a"] = lambda: running.system("PUT", "/system/functions", document)
        orders = {"functions": {"a": {"replicas": 2}, "b": {"replicas": 3, "annotations": {"by": "orders"}}}}
        assert (await running.system("POST", "/system/scale-functions", orders)).status == 202
        assert kept(running) == {"a": ("a:1", 2), "b": ("b:2", 3)}
        assert backend.get("b", "openfaas-fn").spec.annotations == {"new": "yes", "by": "orders"}
    async with start() as running:
        assert kept(running) == {"a": ("a:1", 2), "b": ("b:2", 3)}


async def test_a_function_deleted_between_two_orders_stays_deleted(start: Starter) -> None:
    backend = Interrupted()
    async with start(backend=backend) as running:
        await deployed(running)
        backend.before["b"] = lambda: running.system("DELETE", "/system/functions", {"functionName": "a"})
        assert (await running.system("POST", "/system/scale-functions", ORDERS)).status == 202
    async with start() as running:
        assert kept(running) == {"b": ("b:1", 3)}


async def test_what_was_carried_out_before_an_order_failed_is_stored(start: Starter) -> None:
    backend = Interrupted()

    async def fail() -> None:
        raise BackendError("no room")

    async with start(backend=backend) as running:
        await deployed(running)
        backend.before["b"] = fail
        assert (await running.system("POST", "/system/scale-functions", ORDERS)).status == 500
    async with start() as running:
        assert kept(running) == {"a": ("a:1", 2), "b": ("b:1", 1)}
        assert running.backend.get("a", "openfaas-fn").spec.annotations == {"by": "orders"}


async def test_an_annotation_is_stored_although_the_scale_is_refused(start: Starter) -> None:
    backend = Interrupted()

    async def refused() -> None:
        raise BackendError("no room")

    async with start(backend=backend) as running:
        await deployed(running)
        backend.before["a"] = refused
        assert (await running.system("POST", "/system/scale-functions", ORDERS)).status >= 400
    async with start() as running:
        assert running.backend.get("a", "openfaas-fn").spec.annotations["by"] == "orders"
