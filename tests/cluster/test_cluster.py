"""What both programs do to a cluster, seen in the objects that the API server keeps."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client

from autoscaler.contract import MIB
from autoscaler.lease import Elector, LeaseSettings
from autoscaler.platform.kubernetes import KubernetesClient, KubernetesPlatform
from autoscaler.platform.kubernetes import connect as connect_controller
from autoscaler.platform.quantities import parse_quantity
from gateway.backends.kubernetes import KubernetesSettings
from gateway.backends.kubernetes.backend import KubernetesBackend
from gateway.contract import DEFAULT_NAMESPACE, ConflictError, NotFoundError
from tests.doubles.kubernetes import running
from tests.doubles.kubernetes.functions import spec
from tests.unit.autoscaler.builders import configuration

REAL = os.environ.get("SMOE_TEST_KUBECONFIG", "")
WAIT_S = 120.0 if REAL else 20.0
pytestmark = pytest.mark.timeout(300)


@dataclass
class Target:
    """An API server and a namespace in it."""

    kubeconfig: Path
    namespace: str
    asking: KubernetesClient

    def pods(self) -> list[dict[str, Any]]:
        """Those that are to stay."""
        found = self.asking.pods("faas_function=f")
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def limits(self) -> list[tuple[float, float]]:
        """MiB and cores of each pod; the API server writes quantities in its own way."""
        found = (pod["spec"]["containers"][0]["resources"]["limits"] for pod in self.pods())
        return [(parse_quantity(one["memory"]) / MIB, parse_quantity(one["cpu"])) for one in found]

    def deployment(self) -> dict[str, Any]:
        (found,) = self.asking.deployments("faas_function=f")
        return found


def _kubeconfig_of(url: str, folder: Path) -> Path:
    path = folder / "kubeconfig"
    named = {"current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        **named,
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {}}],
    }
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.fixture(
    params=["double", pytest.param("real", marks=pytest.mark.skipif(not REAL, reason="SMOE_TEST_KUBECONFIG not set"))]
)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Target]:
    with ExitStack() as stack:
        if request.param == "double":
            kubeconfig = _kubeconfig_of(stack.enter_context(running()).url, tmp_path)
        else:
            kubeconfig = Path(REAL)
        api = connect_controller(kubeconfig)
        stack.callback(api.close)
        core, namespace = client.CoreV1Api(api), f"smoe-test-{uuid.uuid4().hex[:8]}"
        core.create_namespace({"metadata": {"name": namespace}}, _preload_content=False)
        stack.callback(core.delete_namespace, namespace, _preload_content=False)
        yield Target(kubeconfig, namespace, KubernetesClient(api, namespace))


@pytest.fixture
async def backend(target: Target) -> AsyncIterator[KubernetesBackend]:
    found = KubernetesBackend(KubernetesSettings(namespace=target.namespace, kubeconfig=target.kubeconfig))
    await found.start()
    yield found
    await found.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.05)


async def test_a_function_is_made_scaled_changed_and_removed(target: Target, backend: KubernetesBackend) -> None:
    function, once = spec("f"), {"once": "1"}
    function = replace(function, env_vars={**function.env_vars, **once}, labels={**function.labels, **once})
    await backend.create(function, 1)
    with pytest.raises(ConflictError):
        await backend.create(function, 1)
    await until(lambda: target.limits() == [(256, 1)])
    await backend.scale("f", DEFAULT_NAMESPACE, 2)
    await until(lambda: len(target.pods()) == 2)
    template = target.deployment()["spec"]["template"]
    more = replace(function, limits={"memory": "512Mi", "cpu": "2"}, requests={"memory": "512Mi", "cpu": "50m"})
    await backend.update(more)
    await until(lambda: target.limits() == [(512, 2)] * 2)
    assert target.deployment()["spec"]["template"] == template
    await backend.update(replace(spec("f"), image="smoe/function:2", limits=more.limits, requests=more.requests))
    document = target.deployment()
    (container,) = document["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "smoe/function:2"
    assert "once" not in {entry["name"] for entry in container["env"]} | document["metadata"]["labels"].keys()
    assert document["spec"]["replicas"] == 2
    await backend.delete("f", DEFAULT_NAMESPACE)
    await until(lambda: not target.pods())
    with pytest.raises(NotFoundError):
        backend.get("f", DEFAULT_NAMESPACE)


async def test_the_controller_changes_every_axis(target: Target, backend: KubernetesBackend) -> None:
    await backend.create(spec("f"), 1)
    await until(lambda: len(target.pods()) == 1)
    platform = KubernetesPlatform(target.asking, "m")
    present = platform.configurations()["f"]
    assert present == configuration()
    live = configuration(2, memory_mb=512, cpu_cores=2.0, concurrency=9)
    await asyncio.to_thread(platform.apply, "f", present, live)
    assert platform.configurations() == {"f": live}

    def in_line() -> bool:
        platform.configurations()
        platform.keep()
        told = [pod["metadata"]["annotations"]["smoe.settings"] for pod in target.pods()]
        return told == ['{"max_inflight":9}'] * 2 and target.limits() == [(512, 2)] * 2

    await until(in_line)
    share = configuration(2, memory_mb=512, cpu_cores=0.0, gpu_share=0.3, concurrency=9)
    await asyncio.to_thread(platform.apply, "f", live, share)
    assert platform.configurations() == {"f": share}
    container = target.deployment()["spec"]["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"] == {"memory": "512Mi", "nvidia.com/gpu": "3"}
    assert {"name": "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "value": "30"} in container["env"]
    await until(lambda: backend.get("f", DEFAULT_NAMESPACE).spec.limits.get("nvidia.com/gpu") == "3")


def test_one_of_two_controllers_leads_and_the_other_follows_it(target: Target) -> None:
    now_s = 0.0
    one, two = (
        Elector(target.asking, LeaseSettings("controller", name), clock=lambda: now_s) for name in ("one", "two")
    )
    assert one.step() and not two.step() and one.step()
    now_s = 8.0
    assert not two.step()
    now_s = 22.1
    assert two.step() and not one.leads()
    two.release()
    assert one.step()
