"""Fixtures: a double of the API server, and the gateway's backends and the controller's platforms on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
from kubernetes import client

from autoscaler.platforms.kubernetes import KubernetesClient, KubernetesPlatform
from autoscaler.platforms.kubernetes.client import api_client
from gateway.backends.kubernetes.backend import KubernetesBackend
from gateway.backends.kubernetes.connection import Connection
from gateway.backends.kubernetes.settings import KubernetesSettings
from gateway.contract import DEFAULT_NAMESPACE, FunctionState
from tests.doubles.kubernetes import running
from tests.doubles.kubernetes.running import Running

WAIT_S = 100.0
Backends = Callable[..., Awaitable[KubernetesBackend]]
Platforms = Callable[..., KubernetesPlatform]


@pytest.fixture
def double() -> Iterator[Running]:
    with running() as found:
        yield found


@pytest.fixture
async def backends(double: Running) -> AsyncIterator[Backends]:
    """Starts backends on the double; ``token`` says who asks."""
    made: list[KubernetesBackend] = []

    async def start(token: str | None = None, **settings: Any) -> KubernetesBackend:
        header = None if token is None else f"Bearer {token}"
        chosen = KubernetesSettings(**{"first_wait_s": 0.01, "resync_s": 0.2, **settings})
        backend = KubernetesBackend(chosen, Connection(double.url, None, lambda: header))
        made.append(backend)
        await backend.start()
        return backend

    yield start
    for backend in made:
        await backend.close()


@pytest.fixture
def platforms(double: Running) -> Iterator[Platforms]:
    """Makes platforms for pipeline ``m`` on the double."""
    apis: list[client.ApiClient] = []

    def make(
        token: str | None = None,
        guard: Callable[[], None] = lambda: None,
        namespace: str = DEFAULT_NAMESPACE,
        **more: Any,
    ) -> KubernetesPlatform:
        configuration = client.Configuration(host=double.url)
        if token is not None:
            configuration.api_key["BearerToken"] = f"Bearer {token}"
        apis.append(api_client(configuration))
        asking = KubernetesClient(apis[-1], namespace, guard=guard, wait=lambda _: None)
        return KubernetesPlatform(asking, "m", **more)

    yield make
    for api in apis:
        api.close()


async def until(backend: KubernetesBackend, wanted: Callable[[FunctionState], bool], name: str = "f") -> FunctionState:
    """The function once it is as wanted, woken by the backend's own changes."""
    async with asyncio.timeout(WAIT_S):
        while True:
            version = backend.version()
            state = backend.get(name, DEFAULT_NAMESPACE)
            if wanted(state):
                return state
            await backend.wait_change(version, 1.0)


async def until_so(condition: Callable[[], bool]) -> None:
    """Wait for something that sends this process no notice."""
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.01)


def ready(count: int) -> Callable[[FunctionState], bool]:
    return lambda state: len(state.ready) == count == len(state.replicas)


def resources(pod: dict[str, Any]) -> dict[str, Any]:
    """Resources that a pod's container is to have."""
    found: dict[str, Any] = pod["spec"]["containers"][0]["resources"]
    return found


def environment(document: dict[str, Any]) -> dict[str, str]:
    """Variables of a Deployment's or pod's container."""
    spec = document["spec"].get("template", document)["spec"]
    return {entry["name"]: entry["value"] for entry in spec["containers"][0]["env"] if "value" in entry}
