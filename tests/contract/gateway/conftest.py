"""The backends under the contract: each factory gives a started backend and an image that answers HTTP there."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gateway.backends.kubernetes.backend import KubernetesBackend
from gateway.backends.kubernetes.connection import Connection
from gateway.backends.kubernetes.settings import KubernetesSettings
from gateway.backends.process.backend import ProcessBackend
from gateway.backends.process.settings import ProcessSettings
from gateway.contract import Backend
from tests.cluster.namespaces import CLUSTER, PULL, Namespaces
from tests.doubles.fake_backend import FakeBackend
from tests.doubles.kubernetes import Cluster, running
from tests.doubles.kubernetes.functions import RUN_IMAGE


@dataclass(frozen=True)
class Case:
    """A started backend and the name of an image that serves ``/`` there and writes a log line per call."""

    backend: Backend
    image: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Annotations of a function so that ``max_inflight`` changes live."""
    outlives: bool = False
    """Whether replicas go on when the backend is closed, because a cluster holds them."""
    answers: bool = True
    """Whether something listens at the replicas' addresses; in a cluster whose kubelets are faked nothing does."""


Factory = Callable[[Path], AbstractAsyncContextManager[Case]]


@asynccontextmanager
async def fake(state: Path) -> AsyncIterator[Case]:
    backend = FakeBackend()
    await backend.start()
    try:
        yield Case(backend, "test/echo:1")
    finally:
        await backend.close()


@asynccontextmanager
async def process(state: Path) -> AsyncIterator[Case]:
    images = {"test/echo": "tests.unit.gateway.process.entries:echo"}
    settings = ProcessSettings(
        state=state, images=images, settle_s=0.05, blanks=1, write_timeout_s=10.0, caller_keys=False
    )
    backend = ProcessBackend(settings)
    await backend.start()
    try:
        yield Case(backend, "test/echo:1")
    finally:
        await backend.close()


@asynccontextmanager
async def kubernetes(state: Path) -> AsyncIterator[Case]:
    """Against the API double, whose pods are small servers."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with running(lambda: Cluster(serve_port=port)) as double:
        settings = KubernetesSettings(function_port=port, first_wait_s=0.01)
        backend = KubernetesBackend(settings, Connection(double.url, None, lambda: None))
        await backend.start()
        try:
            yield Case(backend, "test/echo:1", {"smoe.live-settings": "true"}, outlives=True)
        finally:
            await backend.close()


@asynccontextmanager
async def cluster(namespaces: Namespaces) -> AsyncIterator[Case]:
    """In a namespace of the cluster that ``SMOE_TEST_KUBECONFIG`` names."""
    with namespaces.one() as asking:
        settings = KubernetesSettings(
            namespace=asking.namespace, kubeconfig=namespaces.kubeconfig, image_pull_policy=PULL
        )
        backend = KubernetesBackend(settings)
        await backend.start()
        try:
            image, live = RUN_IMAGE or "test/echo:1", {"smoe.live-settings": "true"}
            yield Case(backend, image, live, outlives=True, answers=bool(RUN_IMAGE))
        finally:
            await backend.close()


BACKEND_FACTORIES: dict[str, Factory] = {"fake": fake, "process": process, "kubernetes": kubernetes}


@pytest.fixture(params=[*BACKEND_FACTORIES, *CLUSTER])
async def case(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Case]:
    if request.param != "cluster":
        async with BACKEND_FACTORIES[request.param](tmp_path / "state") as found:
            yield found
        return
    if request.node.get_closest_marker("containers") and not RUN_IMAGE:
        pytest.skip("this needs pods whose containers run: name an image that the cluster has, SMOE_TEST_IMAGE=IMAGE")
    async with cluster(request.getfixturevalue("namespaces")) as found:
        yield found
