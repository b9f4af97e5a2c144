"""New pods start with today's memory: after crashes, scale-ups and lost pods none ends in a crash loop."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from gateway.backends.kubernetes.backend import KubernetesBackend
from gateway.contract import DEFAULT_NAMESPACE, FunctionSpec
from tests.doubles.kubernetes.fixtures import Backends, Platforms, ready, resources, until, until_so
from tests.doubles.kubernetes.functions import spec, writes
from tests.doubles.kubernetes.running import Running
from tests.unit.autoscaler.builders import configuration

pytestmark = pytest.mark.timeout(600)
F = spec("f")
MORE = replace(F, limits={"memory": "512Mi", "cpu": "2"}, requests={"memory": "512Mi", "cpu": "50m"})
NEEDS = "400Mi"


def names(double: Running) -> set[str]:
    return {pod["metadata"]["name"] for pod in double.pods("f")}


def template(double: Running) -> dict[str, Any]:
    found: dict[str, Any] = double.deployment("f")["spec"]["template"]["spec"]["containers"][0]["resources"]
    return found


def restarts(double: Running) -> int:
    return sum(one["restartCount"] for pod in double.pods("f") for one in pod["status"]["containerStatuses"])


def followed(double: Running, function: FunctionSpec) -> bool:
    """Whether new pods are made with the function's resources, and nothing is left of the way there."""
    document = double.deployment("f")
    annotations = document["metadata"]["annotations"]
    return (
        template(double)["limits"] == function.limits
        and "paused" not in document["spec"]
        and "smoe.template" not in annotations
    )


async def grown(double: Running, backend: KubernetesBackend, replicas: int = 2) -> None:
    """Replicas of 256 MiB that were given 512 while they ran, and by now use more than 256."""
    await backend.create(F, replicas)
    await until(backend, ready(replicas))
    await backend.update(MORE)
    await until_so(lambda: followed(double, MORE))
    double.do(lambda: double.cluster.needs.update({"f": NEEDS}))


async def test_more_memory_reaches_the_template_and_no_pod_is_replaced(double: Running, backends: Backends) -> None:
    backend = await backends()
    await backend.create(F, 2)
    await until(backend, ready(2))
    before = names(double)
    await backend.update(MORE)
    await until_so(lambda: followed(double, MORE))
    assert names(double) == before and restarts(double) == 0
    assert len(double.do(lambda: list(double.store.all("replicasets")))) == 1, "nothing was rolled out"


async def test_after_a_resize_every_pod_that_is_killed_comes_back_at_once(double: Running, backends: Backends) -> None:
    backend = await backends()
    await grown(double, backend)
    for pod in double.pods("f"):
        double.do(lambda pod=pod: double.cluster.delete_pod(pod))  # type: ignore[misc]
    await until(backend, ready(2))
    assert restarts(double) == 0
    assert [resources(pod)["limits"] for pod in double.pods("f")] == [MORE.limits] * 2


async def test_after_a_resize_replicas_that_are_added_start_with_it(double: Running, backends: Backends) -> None:
    backend = await backends()
    await grown(double, backend)
    await backend.scale("f", DEFAULT_NAMESPACE, 5)
    await until(backend, ready(5))
    assert restarts(double) == 0


async def test_the_controller_s_growth_reaches_new_pods_too(
    double: Running, backends: Backends, platforms: Platforms
) -> None:
    backend = await backends()
    await backend.create(F, 2)
    await until(backend, ready(2))
    platform = platforms()
    platform.apply("f", platform.configurations()["f"], configuration(2, memory_mb=512))
    await until_so(lambda: template(double)["limits"]["memory"] == "512Mi" and "paused" not in _spec(double))
    double.do(lambda: double.cluster.needs.update({"f": NEEDS}))
    for pod in double.pods("f"):
        double.do(lambda pod=pod: double.cluster.delete_pod(pod))  # type: ignore[misc]
    await until(backend, ready(2))
    assert restarts(double) == 0 and len(double.do(lambda: list(double.store.all("replicasets")))) == 1


def _spec(double: Running) -> dict[str, Any]:
    found: dict[str, Any] = double.deployment("f")["spec"]
    return found


async def test_pods_that_are_ended_for_want_of_memory_are_replaced_when_they_get_more(
    double: Running, backends: Backends
) -> None:
    """A resize alone would leave them as they are (kubernetes/kubernetes#138760)."""
    double.do(lambda: double.cluster.needs.update({"f": NEEDS}))
    backend = await backends()
    await backend.create(F, 2)
    await until_so(lambda: restarts(double) == 2)
    await backend.update(MORE)
    await until(backend, ready(2))
    assert restarts(double) == 0
    assert [resources(pod)["limits"] for pod in double.pods("f")] == [MORE.limits] * 2


async def test_pods_that_would_be_ended_again_are_left_to_the_kubelet(double: Running, backends: Backends) -> None:
    double.do(lambda: double.cluster.needs.update({"f": NEEDS}))
    backend = await backends()
    await backend.create(F, 1)
    await until_so(lambda: restarts(double) == 1)
    before = names(double)
    await backend.create(spec("g"), 1)
    await until(backend, ready(1), "g")
    assert names(double) == before and "delete pods" not in writes(double)


async def test_less_memory_leaves_the_template_which_holds_enough(double: Running, backends: Backends) -> None:
    backend = await backends()
    await backend.create(MORE, 1)
    await until(backend, ready(1))
    await backend.update(F)
    await until_so(lambda: [resources(pod)["limits"] for pod in double.pods("f")] == [F.limits])
    assert template(double)["limits"] == MORE.limits


async def test_a_function_at_zero_gets_its_template_in_one_step(double: Running, backends: Backends) -> None:
    backend = await backends()
    await backend.create(F, 0)
    await backend.update(MORE)
    await until_so(lambda: followed(double, MORE))
    double.do(lambda: double.cluster.needs.update({"f": NEEDS}))
    await backend.scale("f", DEFAULT_NAMESPACE, 1)
    await until(backend, ready(1))
    assert restarts(double) == 0


async def test_a_deployment_that_somebody_paused_is_left_alone(double: Running, backends: Backends) -> None:
    backend = await backends()
    await backend.create(F, 1)
    await until(backend, ready(1))
    document = double.deployment("f")
    document["spec"]["paused"] = True
    double.do(lambda: double.store.replace("deployments", document, "kubectl"))
    await backend.update(MORE)
    await until_so(lambda: [resources(pod)["limits"] for pod in double.pods("f")] == [MORE.limits])
    assert _spec(double)["paused"] and template(double)["limits"] == F.limits


async def test_what_a_gateway_left_half_done_another_one_ends(double: Running, backends: Backends) -> None:
    """Killed after its first step: the Deployment is paused with the new template, its ReplicaSet has the old one."""
    first = await backends()
    await first.create(F, 1)
    await until(first, ready(1))
    await first.close()
    document = double.deployment("f")
    live = {"limits": dict(MORE.limits), "requests": dict(MORE.requests), "max_inflight": 4}
    document["metadata"]["annotations"] |= {"smoe.live": json.dumps(live), "smoe.template": json.dumps(live)}
    document["spec"]["paused"] = True
    container = document["spec"]["template"]["spec"]["containers"][0]
    container["resources"] = {"limits": dict(MORE.limits), "requests": dict(MORE.requests)}
    before = names(double)
    double.do(lambda: double.store.replace("deployments", document, "smoe-gateway"))
    await backends()
    await until_so(lambda: followed(double, MORE))
    assert names(double) == before
