"""Functions in every namespace that its owner annotated ``openfaas=1``, and in no other."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any, cast

import pytest

from gateway.backends.kubernetes.backend import KubernetesBackend
from gateway.backends.kubernetes.connection import Connection
from gateway.backends.kubernetes.settings import KubernetesSettings
from gateway.contract import (
    DEFAULT_NAMESPACE,
    BackendError,
    ConflictError,
    FunctionState,
    GatewayError,
    InvalidSpecError,
    NotFoundError,
)
from tests.doubles.kubernetes import Cluster, running
from tests.doubles.kubernetes.copies import copied
from tests.doubles.kubernetes.errors import Refusal
from tests.doubles.kubernetes.fixtures import Backends, ready, until_so
from tests.doubles.kubernetes.functions import spec
from tests.doubles.kubernetes.running import Running
from tests.unit.gateway.gateways import Running as Gateway
from tests.unit.gateway.gateways import gateway_on

pytestmark = pytest.mark.timeout(600)
TEAM = "team-a"
F = spec("f", namespace=TEAM)


def annotated(double: Running, name: str = TEAM, **annotations: str) -> None:
    double.do(lambda: double.cluster.add_namespace(name, annotations or {"openfaas": "1"}))


def annotate(double: Running, annotations: dict[str, str], name: str = TEAM) -> None:
    def change() -> None:
        document = copied(double.store.get("namespaces", "", name))
        document["metadata"]["annotations"] = annotations
        double.store.replace("namespaces", document, "kubectl")

    double.do(change)


def names(backend: KubernetesBackend) -> list[str]:
    return [one.name for one in backend.namespaces()]


def images(states: list[FunctionState]) -> dict[str, str]:
    return {state.spec.key: state.spec.image for state in states}


async def until_ready(backend: KubernetesBackend, namespace: str = TEAM, count: int = 1) -> FunctionState:
    await until_so(lambda: ready(count)(backend.get("f", namespace)))
    return backend.get("f", namespace)


async def test_functions_of_one_name_live_apart_in_two_namespaces(double: Running, backends: Backends) -> None:
    annotated(double)
    backend = await backends(all_namespaces=True)
    assert names(backend) == [DEFAULT_NAMESPACE, TEAM]
    await backend.create(spec("f", image="home:1"), 1)
    await backend.create(F, 2)
    there, here = await until_ready(backend, TEAM, 2), await until_ready(backend, DEFAULT_NAMESPACE)
    assert not {one.address for one in here.replicas} & {one.address for one in there.replicas}
    assert images(backend.list()) == {"f.openfaas-fn": "home:1", "f.team-a": F.image}
    assert images(backend.list(TEAM)) == {"f.team-a": F.image}
    await backend.scale("f", TEAM, 1)
    await backend.update(spec("f", namespace=TEAM, image="team:2"))
    assert double.deployment("f", TEAM)["spec"]["replicas"] == 1
    assert images(backend.list()) == {"f.openfaas-fn": "home:1", "f.team-a": "team:2"}
    await backend.delete("f", DEFAULT_NAMESPACE)
    assert images(backend.list()) == {"f.team-a": "team:2"}
    assert double.do(lambda: double.store.find("services", TEAM, "f")) is not None


async def test_a_gateway_that_starts_again_finds_the_functions_of_all_namespaces(
    double: Running, backends: Backends
) -> None:
    annotated(double)
    await (await backends(all_namespaces=True)).create(F, 1)
    assert (await backends(all_namespaces=True)).get("f", TEAM).spec == F
    assert (await backends()).list() == []


async def test_logs_usage_and_secrets_are_of_their_namespace(double: Running, backends: Backends) -> None:
    annotated(double)
    double.set(metrics={})
    backend = await backends(all_namespaces=True, usage_interval_s=0.02)
    await backend.put_secret("key", TEAM, b"1", create=True)
    assert (backend.secret_names(TEAM), backend.secret_names(DEFAULT_NAMESPACE)) == (["key"], [])
    with pytest.raises(InvalidSpecError, match="needs secret key, which does not exist in openfaas-fn"):
        await backend.create(spec("f", secrets=("key",)), 1)
    with pytest.raises(NotFoundError):
        await backend.delete_secret("key", DEFAULT_NAMESPACE)
    await backend.create(spec("f", namespace=TEAM, secrets=("key",)), 1)
    (replica,) = (await until_ready(backend)).replicas
    double.do(lambda: double.cluster.log(TEAM, replica.id, "hello", 1e9))
    lines = [line async for line in backend.logs("f", TEAM, instance=None, since_s=None, tail=0, follow=False)]
    assert [(line.namespace, line.text) for line in lines] == [(TEAM, "hello")]
    double.set(metrics={replica.id: ("250m", "100Mi")})
    await until_so(lambda: backend.usage("f", TEAM)[replica.id].cpu_millicores == 250.0)
    await backend.delete_secret("key", TEAM)
    assert backend.secret_names(TEAM) == []


async def test_a_namespace_comes_and_goes_with_its_annotation(double: Running, backends: Backends) -> None:
    double.do(lambda: double.cluster.add_namespace(TEAM))
    backend = await backends(all_namespaces=True)
    assert names(backend) == [DEFAULT_NAMESPACE]
    annotate(double, {"openfaas": "1", "owner": "a"})
    await until_so(lambda: names(backend) == [DEFAULT_NAMESPACE, TEAM])
    assert backend.namespaces()[1].annotations == {"openfaas": "1", "owner": "a"}
    await backend.create(F, 1)
    await until_ready(backend)
    version = backend.version()
    annotate(double, {})
    await until_so(lambda: names(backend) == [DEFAULT_NAMESPACE])
    assert backend.list() == [] and backend.version() > version
    assert [pod["metadata"]["namespace"] for pod in double.pods("f")] == [TEAM], "it runs on"
    annotate(double, {"openfaas": "true"})
    await until_so(lambda: images(backend.list()) == {"f.team-a": F.image})


@pytest.mark.slow
async def test_followed_logs_end_with_the_annotation(double: Running, backends: Backends) -> None:
    annotated(double)
    backend = await backends(all_namespaces=True)
    await backend.create(F, 1)
    (replica,) = (await until_ready(backend)).replicas
    seen: list[str] = []

    async def follow() -> None:
        async for line in backend.logs("f", TEAM, instance=None, since_s=None, tail=0, follow=True):
            seen.append(line.text)

    following = asyncio.create_task(follow())
    double.do(lambda: double.cluster.log(TEAM, replica.id, "hello", 1e9))
    await until_so(lambda: seen == ["hello"])
    annotate(double, {})
    await asyncio.wait_for(following, 100)
    assert seen == ["hello"]


@pytest.mark.parametrize(
    ("namespace", "sentence"),
    [
        ("nowhere", "namespace 'nowhere' does not exist; there is openfaas-fn, team-a"),
        ("plain", "namespace 'plain' is not for functions: it lacks the annotation openfaas=1"),
        ("refused", "namespace 'refused' is not for functions: it lacks the annotation openfaas=1"),
        ("kube-system", "namespace 'kube-system' belongs to Kubernetes itself"),
    ],
)
async def test_other_namespaces_are_refused_with_the_reason(
    double: Running, backends: Backends, namespace: str, sentence: str
) -> None:
    annotated(double)
    annotated(double, "plain", team="b")
    annotated(double, "refused", openfaas="0")
    annotated(double, "kube-system")
    backend = await backends(all_namespaces=True)
    assert names(backend) == [DEFAULT_NAMESPACE, TEAM]
    with pytest.raises(InvalidSpecError, match=sentence):
        backend.check_namespace(namespace)
    for refused in (
        lambda: backend.create(spec("f", namespace=namespace), 1),
        lambda: backend.delete("f", namespace),
        lambda: backend.put_secret("key", namespace, b"1", create=True),
    ):
        with pytest.raises(NotFoundError, match=sentence):
            await refused()
    assert double.pods() == []


async def test_without_the_setting_there_is_one_namespace_and_no_other_is_asked_for(
    double: Running, backends: Backends
) -> None:
    annotated(double)
    backend = await backends()
    assert names(backend) == [DEFAULT_NAMESPACE]
    with pytest.raises(InvalidSpecError, match="namespace 'team-a' does not exist; there is openfaas-fn"):
        backend.check_namespace(TEAM)
    assert not double.do(lambda: [call for call in double.api.calls if call.resource == "namespaces"])


async def test_home_may_be_any_namespace_and_is_openfaas_fn_to_clients(double: Running, backends: Backends) -> None:
    annotated(double)
    annotated(double, "other")
    backend = await backends(namespace=TEAM, all_namespaces=True)
    await backend.create(spec("f"), 1)
    assert double.deployment("f", TEAM)["metadata"]["namespace"] == TEAM
    assert names(backend) == [DEFAULT_NAMESPACE, "other"]
    assert backend.namespaces()[0].annotations == {"openfaas": "1"}
    with pytest.raises(InvalidSpecError, match="namespace 'team-a' is known here as openfaas-fn"):
        backend.check_namespace(TEAM)


async def test_a_function_belongs_to_the_namespace_it_is_in_whatever_it_was_written_for(
    double: Running, backends: Backends
) -> None:
    """As after `kubectl get -o yaml | sed | kubectl apply`, or a gateway whose home was another."""
    annotated(double)
    await (await backends(namespace=TEAM)).create(spec("f"), 1)
    backend = await backends(all_namespaces=True)
    assert backend.get("f", TEAM).spec == F
    await backend.update(spec("f", namespace=TEAM, limits={"memory": "512Mi", "cpu": "2"}))
    assert backend.get("f", TEAM).spec.limits["memory"] == "512Mi"


async def test_a_namespace_that_may_not_be_read_is_noted_and_served_once_it_may(
    double: Running, backends: Backends, caplog: pytest.LogCaptureFixture
) -> None:
    everything = {"apiGroups": ["", "apps", "discovery.k8s.io"], "verbs": ["get", "list", "watch", "create", "patch"]}
    everything["resources"] = ["deployments", "services", "pods", "endpointslices", "secrets", "namespaces"]
    grants = [{**everything, "namespace": place} for place in ("", DEFAULT_NAMESPACE)]
    annotated(double)
    double.set(users={"me": "me"}, grants={"me": grants})
    backend = await backends("me", all_namespaces=True, resync_s=0.05)
    sentence = "namespace team-a is for functions, but this gateway cannot read it: .*answered 403"
    with pytest.raises(InvalidSpecError, match=sentence):
        backend.check_namespace(TEAM)
    assert [note for note in backend.info().notes if note.startswith("namespace team-a")]
    await backend.create(spec("f"), 1)
    double.set(grants={"me": [*grants, {**everything, "namespace": TEAM}]})
    await until_so(lambda: names(backend) == [DEFAULT_NAMESPACE, TEAM])
    assert not [note for note in backend.info().notes if note.startswith("namespace")]
    assert len([one for one in caplog.records if "cannot read it" in one.message]) == 1


async def test_a_gateway_that_may_not_list_namespaces_reports_it_at_the_start(
    double: Running, backends: Backends
) -> None:
    double.set(refusals={("list", "namespaces"): Refusal(403, "Forbidden", "namespaces is forbidden")})
    with pytest.raises(BackendError, match="namespaces is forbidden"):
        await backends(all_namespaces=True)


@pytest.mark.slow
async def test_watches_of_many_namespaces_leave_room_for_calls(double: Running, backends: Backends) -> None:
    count = 20
    for number in range(count):
        annotated(double, f"team-{number}")
    backend = await backends(all_namespaces=True, request_timeout_s=5.0)
    await until_so(lambda: double.do(lambda: double.api.watching) == 4 * (count + 1) + 1)
    await asyncio.gather(*(backend.create(spec("f", namespace=f"team-{number}"), 1) for number in range(count)))
    assert len(backend.list()) == count


@pytest.mark.slow
async def test_clients_of_the_gateway_reach_every_namespace(tmp_path: Path) -> None:
    """The REST API over it: ``?namespace=``, ``namespace`` in bodies, and ``NAME.NAMESPACE``."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with running(lambda: Cluster(serve_port=port)) as double:
        annotated(double)
        settings = KubernetesSettings(all_namespaces=True, function_port=port, first_wait_s=0.01)
        backend = KubernetesBackend(settings, Connection(double.url, None, lambda: None))
        async with gateway_on(tmp_path, cast(Any, backend), keeps_functions=False) as gateway:
            await use_every_door(gateway)
            assert (await gateway.system("GET", "/healthz")).status == 200


async def use_every_door(gateway: Gateway) -> None:
    deployment = {"service": "f", "image": "test/echo:1", "namespace": TEAM}
    notes = (await gateway.system("GET", "/system/info")).json()["notes"]
    assert [note for note in notes if note.startswith("Asynchronous calls wait in the memory of the gateway")]
    assert (await gateway.system("GET", "/system/namespaces")).json() == [DEFAULT_NAMESPACE, TEAM]
    body = (await gateway.system("GET", f"/system/namespace/{TEAM}")).json()
    assert body == {"name": TEAM, "annotations": {"openfaas": "1"}, "labels": {}}
    secret = {"name": "key", "namespace": TEAM, "value": "1"}
    assert (await gateway.system("POST", "/system/secrets", secret)).status == 202
    assert (await gateway.system("GET", f"/system/secrets?namespace={TEAM}")).json() == [
        {"name": "key", "namespace": TEAM}
    ]
    assert (await gateway.system("PUT", "/system/functions", deployment)).status == 404
    assert (await gateway.system("POST", "/system/functions", {**deployment, "secrets": ["key"]})).status == 202
    assert (await gateway.call("POST", f"/function/f.{TEAM}", b"x")).status == 200
    assert (await gateway.call("POST", "/function/f", b"x")).status == 404
    assert (await gateway.system("GET", "/system/functions")).json() == []
    (listed,) = (await gateway.system("GET", f"/system/functions?namespace={TEAM}")).json()
    assert (listed["name"], listed["namespace"], listed["invocationCount"]) == ("f", TEAM, 1)
    order = {"serviceName": "f", "replicas": 2, "namespace": TEAM}
    assert (await gateway.system("POST", "/system/scale-function/f", order)).status == 202
    many = {"functions": {f"f.{TEAM}": {"replicas": 3}}}
    assert (await gateway.system("POST", "/system/scale-functions", many)).status == 202
    for where in (f"f.{TEAM}?usage=1", f"f?namespace={TEAM}"):
        assert (await gateway.system("GET", f"/system/function/{where}")).json()["replicas"] == 3
    assert (await gateway.system("GET", f"/system/logs?name=f&namespace={TEAM}")).status == 200
    assert f"f.{TEAM}" in (await gateway.system("GET", "/system/replicas")).json()["functions"]
    sentence = "namespace 'nowhere' does not exist; there is openfaas-fn, team-a"
    refused = await gateway.system("POST", "/system/functions", {**deployment, "namespace": "nowhere"})
    assert (refused.status, refused.text) == (400, sentence)
    assert (await gateway.system("GET", "/system/namespace/nowhere")).status == 404
    assert (await gateway.system("DELETE", f"/system/functions?namespace={TEAM}", {"functionName": "f"})).status == 202
    assert (await gateway.call("POST", f"/function/f.{TEAM}", b"x")).status == 404
    assert (await gateway.system("DELETE", "/system/secrets", {"name": "key"})).status == 404
    assert (await gateway.system("DELETE", "/system/secrets", {"name": "key", "namespace": TEAM})).status == 202


@pytest.mark.parametrize("crossed", ["create", "delete"])
async def test_two_gateways_share_all_namespaces(double: Running, backends: Backends, crossed: Any) -> None:
    annotated(double)
    one, two = await backends(all_namespaces=True), await backends(all_namespaces=True)
    await one.create(F, 1)
    if crossed == "create":
        with pytest.raises(ConflictError, match=r"function f\.team-a exists already"):
            await two.create(F, 1)
    else:
        await two.delete("f", TEAM)
        await until_so(lambda: not one.list())
        with pytest.raises(GatewayError, match="there is no function f in namespace team-a"):
            one.get("f", TEAM)
