"""What the suite runs on: an API server and a namespace of its own in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from autoscaler.contract import MIB
from autoscaler.platforms.quantities import float_quantity
from gateway.backends.kubernetes.backend import KubernetesBackend
from gateway.backends.kubernetes.settings import KubernetesSettings
from tests.cluster.namespaces import CLUSTER, PULL, WAIT_S, Asking, namespaces_of
from tests.doubles.kubernetes import running
from tests.doubles.kubernetes.cluster import Cluster
from tests.doubles.kubernetes.kubeconfig import write_kubeconfig

Backends = Callable[..., Awaitable[KubernetesBackend]]


@dataclass
class Target:
    """An API server and a namespace in it."""

    kubeconfig: Path
    asking: Asking
    another: Callable[[], Asking]
    """Makes one more namespace of this test."""

    @property
    def namespace(self) -> str:
        return self.asking.namespace

    def pods(self, function: str = "f") -> list[dict[str, Any]]:
        """Those that are to stay."""
        pods = self.asking.pods(f"faas_function={function}")
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    def names(self, function: str = "f") -> set[str]:
        return {pod["metadata"]["name"] for pod in self.pods(function)}

    def limits(self, function: str = "f") -> list[tuple[float, float]]:
        """MiB and cores of each pod; the API server writes quantities in its own way."""
        limits = (pod["spec"]["containers"][0]["resources"]["limits"] for pod in self.pods(function))
        return [(float_quantity(one["memory"]) / MIB, float_quantity(one["cpu"])) for one in limits]

    def deployment(self, function: str = "f") -> dict[str, Any]:
        return self.asking.read(f"apps/v1:deployments/{function}")


@pytest.fixture(params=["double", "double without kubelets", *CLUSTER])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    with ExitStack() as stack:
        if request.param == "cluster":
            made = request.getfixturevalue("namespaces")
        else:
            double = stack.enter_context(running(lambda: _cluster(request.param)))
            made = stack.enter_context(namespaces_of(write_kubeconfig(tmp_path / "kubeconfig", double.url)))

        def another() -> Asking:
            return stack.enter_context(made.one())

        yield Target(made.kubeconfig, another(), another)


def _cluster(kind: str) -> Cluster:
    cluster = Cluster()
    cluster.hold_starts = kind != "double"
    return cluster


@pytest.fixture
async def backends(target: Target) -> AsyncIterator[Backends]:
    """Starts gateways' backends in the namespace."""
    made: list[KubernetesBackend] = []

    async def start(**more: Any) -> KubernetesBackend:
        settings = KubernetesSettings(
            namespace=target.namespace, kubeconfig=target.kubeconfig, image_pull_policy=PULL, **more
        )
        made.append(KubernetesBackend(settings))
        await made[-1].start()
        return made[-1]

    yield start
    for one in made:
        await one.close()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that sends this process no notice."""
    async with asyncio.timeout(WAIT_S):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.05)
