"""What both programs do to a cluster, seen in the objects that the API server keeps."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from autoscaler.lease import Elector, LeaseSettings
from autoscaler.platforms.kubernetes import KubernetesPlatform
from gateway.contract import DEFAULT_NAMESPACE, ConflictError, NotFoundError
from tests.cluster.conftest import Backends, Target, until
from tests.doubles.kubernetes.functions import spec
from tests.unit.autoscaler.builders import configuration

pytestmark = pytest.mark.timeout(1200)


async def test_a_function_is_made_scaled_changed_and_removed(target: Target, backends: Backends) -> None:
    backend, once = await backends(), {"once": "1"}
    function = spec("f")
    function = replace(function, env_vars={**function.env_vars, **once}, labels={**function.labels, **once})
    await backend.create(function, 1)
    with pytest.raises(ConflictError):
        await backend.create(function, 1)
    await until(lambda: target.limits() == [(256, 1)])
    await backend.scale("f", DEFAULT_NAMESPACE, 2)
    await until(lambda: len(target.pods()) == 2)
    pods = {pod["metadata"]["uid"] for pod in target.pods()}
    more = replace(function, limits={"memory": "512Mi", "cpu": "2"}, requests={"memory": "512Mi", "cpu": "50m"})
    await backend.update(more)
    await until(lambda: target.limits() == [(512, 2)] * 2)
    assert {pod["metadata"]["uid"] for pod in target.pods()} == pods
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


async def test_the_controller_changes_every_axis(target: Target, backends: Backends) -> None:
    backend = await backends()
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
        reported = [pod["metadata"]["annotations"]["smoe.settings"] for pod in target.pods()]
        return reported == ['{"max_inflight":9}'] * 2 and target.limits() == [(512, 2)] * 2

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
