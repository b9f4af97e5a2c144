"""The gateway's backend on an API server: several copies, other writers, live limits, and what is refused."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import replace

import pytest

from gateway.backends.kubernetes.backend import KubernetesBackend
from gateway.contract import DEFAULT_NAMESPACE, ConflictError, FunctionState, InvalidSpecError
from tests.cluster.conftest import Backends, Target, until
from tests.doubles.kubernetes.functions import openfaas_deployment, spec

pytestmark = pytest.mark.timeout(1200)
F = spec("f")
MORE = replace(F, limits={"memory": "512Mi", "cpu": "2"}, requests={"memory": "512Mi", "cpu": "50m"})


def state(backend: KubernetesBackend, name: str = "f") -> FunctionState:
    return backend.get(name, DEFAULT_NAMESPACE)


def all_ready(backend: KubernetesBackend, count: int) -> bool:
    """Whether both lists, of functions and of replicas, are as they should be."""
    all_ready = [one for one in backend.list() if one.spec.name == "f"]
    return bool(all_ready) and len(all_ready[0].ready) == count == len(all_ready[0].replicas)


@pytest.mark.slow
async def test_two_gateways_side_by_side_see_the_same_functions(target: Target, backends: Backends) -> None:
    one, two = await backends(), await backends()
    await one.create(F, 2)
    await until(lambda: all_ready(one, 2) and all_ready(two, 2))
    assert {replica.address for replica in state(one).ready} == {replica.address for replica in state(two).ready}
    with pytest.raises(ConflictError):
        await two.create(F, 1)
    await two.scale("f", DEFAULT_NAMESPACE, 1)
    await until(lambda: all_ready(one, 1))
    await one.delete("f", DEFAULT_NAMESPACE)
    await until(lambda: not two.list() and not target.pods())


@pytest.mark.slow
async def test_a_gateway_that_starts_again_finds_everything(backends: Backends) -> None:
    first = await backends()
    await first.create(MORE, 3)
    await until(lambda: all_ready(first, 3))
    second = await backends()
    assert (state(second).spec, len(state(second).ready)) == (MORE, 3)


@pytest.mark.slow
async def test_there_may_be_more_than_fifteen_functions(target: Target, backends: Backends) -> None:
    backend = await backends()
    names = {f"f-{i}" for i in range(16)}
    await asyncio.gather(*(backend.create(spec(name), 1) for name in names))
    assert {one.spec.name for one in backend.list()} == names
    await until(lambda: all(target.pods(name) for name in names))


async def test_an_update_leaves_replicas_and_fields_of_others_alone(target: Target, backends: Backends) -> None:
    backend = await backends()
    await backend.create(F, 1)
    someone = {"metadata": {"labels": {"owner": "someone"}}, "spec": {"replicas": 4}}
    target.asking.patch("apps/v1:deployments/f", someone)
    await until(lambda: state(backend).desired_replicas == 4)
    await backend.update(replace(F, env_vars={**F.env_vars, "a": "b"}))
    document = target.deployment()
    assert (document["spec"]["replicas"], document["metadata"]["labels"]["owner"]) == (4, "someone")
    assert {"name": "a", "value": "b"} in document["spec"]["template"]["spec"]["containers"][0]["env"]


async def test_labels_that_go_are_taken_away_and_restart_nothing(target: Target, backends: Backends) -> None:
    backend = await backends()
    await backend.create(replace(F, labels={"a": "1", "b": "2"}), 1)
    await until(lambda: all_ready(backend, 1))
    before = target.names()
    await backend.update(replace(F, labels={"b": "3"}))
    assert target.deployment()["metadata"]["labels"] == {"b": "3", "faas_function": "f"}
    assert target.names() == before


async def test_new_limits_are_set_on_live_pods_and_on_those_that_come_later(target: Target, backends: Backends) -> None:
    backend = await backends()
    await backend.create(F, 1)
    await until(lambda: all_ready(backend, 1))
    before = target.names()
    await backend.update(MORE)
    assert target.limits() == [(512, 2)] and target.names() == before
    template = target.deployment()["spec"]["template"]["spec"]["containers"][0]
    assert template["resources"]["limits"]["memory"] == "256Mi"
    await backend.scale("f", DEFAULT_NAMESPACE, 3)
    await until(lambda: target.limits() == [(512, 2)] * 3)


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [2, 4], ids=["after a resize", "after a scale-up, too"])
async def test_pods_that_are_killed_all_come_back_with_what_they_have_today(
    target: Target, backends: Backends, replicas: int
) -> None:
    backend = await backends()
    await backend.create(F, 2)
    await until(lambda: all_ready(backend, 2))
    await backend.update(replace(MORE, env_vars={**F.env_vars, "max_inflight": "9"}))
    await until(lambda: _new_pods_start_with(target, "512Mi") and target.limits() == [(512, 2)] * 2)
    await backend.scale("f", DEFAULT_NAMESPACE, replicas)
    await until(lambda: all_ready(backend, replicas))
    killed = target.names()
    for name in killed:
        target.asking.delete(f"pods/{name}", gracePeriodSeconds=0)

    def back() -> bool:
        pods = target.pods()
        settings = [pod["metadata"]["annotations"]["smoe.settings"] for pod in pods]
        return (
            all_ready(backend, replicas)
            and not killed & target.names()
            and target.limits() == [(512, 2)] * replicas
            and settings == ['{"max_inflight":9}'] * replicas
        )

    await until(back)
    assert len(killed) == replicas
    assert [one["restartCount"] for pod in target.pods() for one in pod["status"]["containerStatuses"]] == [
        0
    ] * replicas


def _new_pods_start_with(target: Target, memory: str) -> bool:
    spec = target.deployment()["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    return not spec.get("paused") and container["resources"]["limits"]["memory"] == memory


@pytest.mark.slow
async def test_concurrency_reaches_live_pods(target: Target, backends: Backends) -> None:
    backend = await backends()
    await backend.create(F, 1)
    await until(lambda: all_ready(backend, 1))
    await backend.update(replace(F, env_vars={**F.env_vars, "max_inflight": "9"}))
    assert state(backend).max_inflight == 9
    (pod,) = target.pods()
    assert pod["metadata"]["annotations"]["smoe.settings"] == '{"max_inflight":9}'


async def test_a_create_that_was_cut_off_before_its_service_is_completed(target: Target, backends: Backends) -> None:
    first = await backends()
    await first.create(F, 0)
    await first.close()
    target.asking.delete("services/f")
    await until(lambda: not target.asking.read("discovery.k8s.io/v1:endpointslices")["items"])
    await backends()
    await until(lambda: [one["metadata"]["name"] for one in target.asking.read("services")["items"]] == ["f"])


async def test_what_the_api_server_calls_invalid_is_the_callers_fault(target: Target, backends: Backends) -> None:
    backend = await backends()
    with pytest.raises(InvalidSpecError, match="answered 422"):
        await backend.create(replace(F, labels={"a": "no label value!"}), 1)
    assert backend.list() == []


async def test_deployments_of_openfaas_itself_are_left_alone(target: Target, backends: Backends) -> None:
    target.asking.create("apps/v1:deployments", openfaas_deployment("g", target.namespace))
    backend = await backends()
    assert backend.list() == []
    with pytest.raises(ConflictError):
        await backend.create(spec("g"), 1)


async def test_a_secret_s_value_is_in_the_cluster_and_not_in_the_gateway(target: Target, backends: Backends) -> None:
    one, two = await backends(), await backends()
    await one.put_secret("key", DEFAULT_NAMESPACE, b"s3cret", create=True)
    await until(lambda: two.secret_names(DEFAULT_NAMESPACE) == ["key"])
    written = base64.b64encode(b"s3cret").decode()
    assert target.asking.read("secrets/key")["data"] == {"key": written}
    kept = [vars(backend.spaces[DEFAULT_NAMESPACE]._secret_names) for backend in (one, two)]
    assert "key" in repr(kept) and written not in repr(kept)
