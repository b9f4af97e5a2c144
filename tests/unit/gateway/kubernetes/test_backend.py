"""The gateway's Kubernetes backend on the API double: several copies, other writers, and an API server in trouble."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from gateway.backends.kubernetes.api import Object
from gateway.backends.kubernetes.backend import KubernetesBackend
from gateway.backends.kubernetes.informer import Informer
from gateway.contract import (
    DEFAULT_NAMESPACE,
    BackendError,
    ConflictError,
    FunctionSpec,
    InvalidSpecError,
    NotFoundError,
)
from tests.doubles.kubernetes.cluster import Node
from tests.doubles.kubernetes.fixtures import Backends, environment, ready, resources, until, until_so
from tests.doubles.kubernetes.functions import put_openfaas, spec, writes
from tests.doubles.kubernetes.running import Running

pytestmark = pytest.mark.timeout(600)
F = spec("f")
MORE = replace(F, limits={"memory": "512Mi", "cpu": "2"}, requests={"memory": "512Mi", "cpu": "50m"})


async def deployed(backend: KubernetesBackend, function: FunctionSpec = F, replicas: int = 1) -> None:
    await backend.create(function, replicas)
    await until(backend, ready(replicas), function.name)


@pytest.mark.slow
async def test_there_may_be_more_than_fifteen_functions(backends: Backends) -> None:
    backend = await backends()
    await asyncio.gather(*(backend.create(spec(f"f-{i}"), 1) for i in range(16)))
    for i in range(16):
        await until(backend, ready(1), f"f-{i}")
    assert len(backend.list(DEFAULT_NAMESPACE)) == 16


async def test_two_gateways_side_by_side_see_the_same_functions(double: Running, backends: Backends) -> None:
    one, two = await backends(), await backends()
    await deployed(one, replicas=2)
    await until_so(lambda: bool(two.list()))
    assert {replica.address for replica in (await until(two, ready(2))).ready} == {
        replica.address for replica in one.get("f", DEFAULT_NAMESPACE).ready
    }
    with pytest.raises(ConflictError):
        await two.create(F, 1)
    await two.scale("f", DEFAULT_NAMESPACE, 1)
    await until(one, ready(1))
    await one.delete("f", DEFAULT_NAMESPACE)
    await until_so(lambda: not two.list())
    assert not double.pods()


async def test_following_goes_on_after_an_error_of_the_program(
    backends: Backends, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    backend, take, failed = await backends(), Informer.take, list[str]()

    def fails_once(self: Informer, kind: str, document: Object) -> None:
        if kind != "BOOKMARK" and not failed:
            failed.append(kind)
            raise RuntimeError("unexpected")
        take(self, kind, document)

    monkeypatch.setattr(Informer, "take", fails_once)
    await deployed(backend)
    assert failed and "is tried again" in caplog.text


async def test_a_gateway_that_starts_again_finds_everything(backends: Backends) -> None:
    await deployed(await backends(), MORE, 3)
    state = (await backends()).get("f", DEFAULT_NAMESPACE)
    assert (state.spec, len(state.ready)) == (MORE, 3)


async def test_an_update_leaves_replicas_and_fields_of_others_alone(double: Running, backends: Backends) -> None:
    backend = await backends()
    await deployed(backend)
    double.do(lambda: _someone_else_scales(double))
    await until(backend, ready(4))
    await backend.update(replace(F, env_vars={**F.env_vars, "a": "b"}))
    await until(backend, lambda state: ready(4)(state) and environment(double.pods("f")[0]).get("a") == "b")
    document = double.deployment("f")
    assert document["spec"]["replicas"] == 4
    assert document["metadata"]["labels"]["owner"] == "someone"


def _someone_else_scales(double: Running) -> None:
    document = double.store.get("deployments", DEFAULT_NAMESPACE, "f")
    document["spec"]["replicas"] = 4
    document["metadata"]["labels"]["owner"] = "someone"
    double.store.replace("deployments", document, "kubectl")


async def test_labels_that_go_are_taken_away_and_restart_nothing(double: Running, backends: Backends) -> None:
    backend = await backends()
    await deployed(backend, replace(F, labels={"a": "1", "b": "2"}))
    before = {pod["metadata"]["name"] for pod in double.pods("f")}
    await backend.update(replace(F, labels={"b": "3"}))
    assert double.deployment("f")["metadata"]["labels"] == {"b": "3", "faas_function": "f"}
    assert {pod["metadata"]["name"] for pod in double.pods("f")} == before


async def test_new_limits_are_set_on_live_pods_and_on_those_that_come_later(
    double: Running, backends: Backends
) -> None:
    backend = await backends()
    await deployed(backend)
    await backend.update(MORE)
    assert [resources(pod)["limits"] for pod in double.pods("f")] == [MORE.limits]
    await backend.scale("f", DEFAULT_NAMESPACE, 3)
    await until_so(lambda: [resources(pod)["limits"] for pod in double.pods("f")] == [MORE.limits] * 3)


async def test_concurrency_reaches_live_pods(double: Running, backends: Backends) -> None:
    backend = await backends()
    await deployed(backend)
    await backend.update(replace(F, env_vars={**F.env_vars, "max_inflight": "9"}))
    assert backend.get("f", DEFAULT_NAMESPACE).max_inflight == 9
    assert [pod["metadata"]["annotations"]["smoe.settings"] for pod in double.pods("f")] == ['{"max_inflight":9}']


async def test_an_older_kubernetes_rolls_new_limits_out(double: Running, backends: Backends) -> None:
    double.set(version=(1, 32))
    backend = await backends()
    await deployed(backend)
    before = {pod["metadata"]["name"] for pod in double.pods("f")}
    await backend.update(MORE)
    await until_so(lambda: [resources(pod)["limits"] for pod in double.pods("f")] == [MORE.limits])
    assert not before & {pod["metadata"]["name"] for pod in double.pods("f")}
    assert any("1.32 cannot resize pods" in note for note in backend.info().notes)


async def test_a_kubernetes_that_is_too_old_is_refused_at_the_start(double: Running, backends: Backends) -> None:
    double.set(version=(1, 29))
    with pytest.raises(BackendError, match=r"Kubernetes 1\.29; this gateway needs 1\.30"):
        await backends()


async def test_what_a_node_cannot_hold_is_rolled_out_to_another(double: Running, backends: Backends) -> None:
    backend = await backends()
    await deployed(backend)
    double.do(lambda: double.cluster.nodes.update({"node-2": Node({"cpu": "64", "memory": "1Ti"})}))
    big = replace(F, limits={"memory": "100Gi", "cpu": "1000m"}, requests={"memory": "100Gi", "cpu": "50m"})
    await backend.update(big)
    await until_so(lambda: [pod["spec"].get("nodeName") for pod in double.pods("f")] == ["node-2"])
    assert len((await until(backend, ready(1))).ready) == 1


async def test_a_rolling_update_takes_nothing_away_before_the_new_replica_is_ready(
    double: Running, backends: Backends
) -> None:
    backend = await backends()
    await deployed(backend)
    (old,) = backend.get("f", DEFAULT_NAMESPACE).ready
    double.set(hold_starts=True)
    await backend.update(replace(F, image="smoe/function:2"))
    state = await until(backend, lambda state: len(state.replicas) == 2)
    assert [replica.id for replica in state.ready] == [old.id]
    double.do(double.cluster.let_start)
    state = await until(backend, ready(1))
    assert state.ready[0].id != old.id


async def test_a_function_leaves_the_gpu_that_the_controller_gave_it_when_it_is_deployed_again(
    double: Running, backends: Backends
) -> None:
    backend = await backends()
    await deployed(backend)

    def to_gpu() -> None:
        document = double.store.get("deployments", DEFAULT_NAMESPACE, "f")
        container = document["spec"]["template"]["spec"]["containers"][0]
        container["resources"] = {"limits": {"memory": "256Mi", "nvidia.com/gpu": "3"}, "requests": {"memory": "256Mi"}}
        container["env"].append({"name": "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "value": "30"})
        live = '{"limits": {"memory": "256Mi", "nvidia.com/gpu": "3"}, "requests": {}, "max_inflight": 4}'
        document["metadata"]["annotations"]["smoe.live"] = live
        double.store.replace("deployments", document, "smoe-controller")

    double.do(to_gpu)
    await until(backend, lambda state: state.spec.limits.get("nvidia.com/gpu") == "3")
    await backend.update(F)
    template = double.deployment("f")["spec"]["template"]["spec"]["containers"][0]
    assert template["resources"] == {"limits": dict(F.limits), "requests": dict(F.requests)}
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in {entry["name"] for entry in template["env"]}


@pytest.mark.slow
async def test_storms_of_conflicts_and_of_429_are_waited_out(double: Running, backends: Backends) -> None:
    backend = await backends()
    double.set(conflicts=2)
    await deployed(backend)
    double.set(conflicts=2)
    await backend.update(MORE)
    double.set(conflicts=2)
    await backend.scale("f", DEFAULT_NAMESPACE, 2)
    double.set(throttled=1)
    await backend.delete("f", DEFAULT_NAMESPACE)
    assert not double.pods()


async def test_an_endless_storm_is_an_error_and_not_a_hang(double: Running, backends: Backends) -> None:
    backend = await backends()
    double.set(conflicts=1000)
    with pytest.raises(ConflictError, match="answered 409"):
        await backend.create(F, 1)


async def test_a_cut_watch_goes_on_where_it_was(double: Running, backends: Backends) -> None:
    backend = await backends()
    await deployed(backend)
    double.do(double.api.cut_watches)
    await backend.scale("f", DEFAULT_NAMESPACE, 3)
    state = await until(backend, ready(3))
    assert state.desired_replicas == 3


async def test_a_watch_that_is_too_old_lists_again(double: Running, backends: Backends) -> None:
    backend = await backends()
    await deployed(backend)
    double.set(down=True)
    double.do(double.api.cut_watches)

    def meanwhile() -> None:
        double.store.delete("deployments", DEFAULT_NAMESPACE, "f")
        double.cluster.settle()
        double.store.compact()

    double.do(meanwhile)
    double.set(down=False)
    await until_so(lambda: not backend.list())
    with pytest.raises(NotFoundError):
        backend.get("f", DEFAULT_NAMESPACE)


async def test_while_the_api_server_is_gone_calls_are_still_routed_and_orders_are_errors(
    double: Running, backends: Backends
) -> None:
    backend = await backends()
    await deployed(backend, replicas=2)
    double.set(down=True)
    double.do(double.api.cut_watches)
    assert len(backend.get("f", DEFAULT_NAMESPACE).ready) == 2
    with pytest.raises(BackendError, match="answered 503"):
        await backend.scale("f", DEFAULT_NAMESPACE, 1)
    with pytest.raises(BackendError):
        await backend.create(spec("g"), 1)
    double.set(down=False)
    double.do(lambda: double.cluster.lose_node("node-1"))
    await until(backend, lambda state: not state.ready)


async def test_replicas_of_a_lost_node_take_no_calls(double: Running, backends: Backends) -> None:
    double.do(lambda: double.cluster.nodes.update({"node-2": Node()}))
    backend = await backends()
    await deployed(backend)
    double.do(lambda: double.cluster.lose_node("node-1"))
    await until(backend, lambda state: not state.ready)
    double.do(double.cluster.evict_lost)
    state = await until(backend, lambda state: len(state.ready) == 1)
    assert sorted(replica.state for replica in state.replicas) == ["draining", "ready"]


async def test_a_create_that_was_cut_off_before_its_service_is_completed(double: Running, backends: Backends) -> None:
    await deployed(await backends())
    double.do(lambda: double.store.delete("services", DEFAULT_NAMESPACE, "f"))
    await backends()
    await until_so(lambda: double.do(lambda: double.store.find("services", DEFAULT_NAMESPACE, "f")) is not None)
    service = double.do(lambda: double.store.find("services", DEFAULT_NAMESPACE, "f"))
    assert service["metadata"]["name"] == "f"


async def test_nothing_is_written_while_nothing_differs(double: Running, backends: Backends) -> None:
    await deployed(await backends())
    before = writes(double)
    second = await backends(resync_s=0.02)
    version = second.version()
    await second.wait_change(version, 0.2)
    assert writes(double) == before


async def test_values_of_secrets_are_not_kept(double: Running, backends: Backends) -> None:
    backend = await backends()
    await backend.put_secret("key", DEFAULT_NAMESPACE, b"s3cret", create=True)
    second = await backends()
    for one in (backend, second):
        assert one.secret_names(DEFAULT_NAMESPACE) == ["key"]
        assert "czNjcmV0" not in repr(vars(one.spaces[DEFAULT_NAMESPACE]._secret_names))
    assert double.do(lambda: double.store.get("secrets", DEFAULT_NAMESPACE, "key"))["data"] == {"key": "czNjcmV0"}


async def test_what_the_api_server_calls_invalid_is_the_callers_fault(backends: Backends) -> None:
    backend = await backends()
    with pytest.raises(InvalidSpecError, match="answered 422"):
        await backend.create(replace(F, labels={"a": "no label value!"}), 1)
    assert backend.list() == []


async def test_deployments_of_openfaas_itself_are_left_alone(double: Running, backends: Backends) -> None:
    put_openfaas(double, "g")
    backend = await backends()
    assert backend.list() == []
    with pytest.raises(ConflictError):
        await backend.create(spec("g"), 1)


async def test_usage_comes_from_the_metrics_server_where_there_is_one(double: Running, backends: Backends) -> None:
    without = await backends(usage_interval_s=0.02)
    await deployed(without)
    (replica,) = without.get("f", DEFAULT_NAMESPACE).replicas
    assert without.usage("f", DEFAULT_NAMESPACE)[replica.id].cpu_millicores is None
    double.set(metrics={replica.id: ("250m", "100Mi")})
    await until_so(lambda: without.usage("f", DEFAULT_NAMESPACE)[replica.id].cpu_millicores == 250.0)
    assert without.usage("f", DEFAULT_NAMESPACE)[replica.id].memory_bytes == 100 * 2**20


async def test_a_resize_that_waits_is_noted(double: Running, backends: Backends) -> None:
    backend = await backends()
    await deployed(backend)
    double.do(lambda: double.cluster.set_resizing("deferred"))
    await backend.update(MORE)
    await until_so(lambda: any("waits for its resize: Deferred" in note for note in backend.info().notes))
    assert len(backend.get("f", DEFAULT_NAMESPACE).ready) == 1  # it serves on with what it had


@pytest.mark.slow
async def test_followed_logs_go_on_with_replicas_that_come_later(double: Running, backends: Backends) -> None:
    backend = await backends()
    await deployed(backend)
    seen: list[str] = []

    async def follow() -> None:
        async for line in backend.logs("f", DEFAULT_NAMESPACE, instance=None, since_s=None, tail=0, follow=True):
            seen.append(line.text)

    def log(pod: str, text: str, time_s: float) -> None:
        double.do(lambda: double.cluster.log(DEFAULT_NAMESPACE, pod, text, time_s))

    (first,) = backend.get("f", DEFAULT_NAMESPACE).replicas
    log(first.id, "before", 1e9)
    following = asyncio.create_task(follow())
    await until_so(lambda: seen == ["before"])
    double.set(hold_starts=True)
    await backend.scale("f", DEFAULT_NAMESPACE, 2)
    state = await until(backend, lambda state: len(state.replicas) == 2)
    second = next(one for one in state.replicas if one.id != first.id)
    await until_so(lambda: ("pods/log", second.id) in asked(double))
    double.do(double.cluster.let_start)  # it was asked for its log before it had one
    await until(backend, ready(2))
    log(second.id, "later", 1e9 + 1)
    log(first.id, "again", 1e9 + 2)
    await until_so(lambda: sorted(seen) == ["again", "before", "later"])
    double.do(double.api.cut_watches)  # as a log's stream does with its container
    log(first.id, "restarted", 1e9 + 2.5)
    await backend.scale("f", DEFAULT_NAMESPACE, 3)
    await until_so(lambda: "restarted" in seen)
    await backend.delete("f", DEFAULT_NAMESPACE)
    await asyncio.wait_for(following, 100)
    assert seen[0] == "before" and sorted(seen) == ["again", "before", "later", "restarted"]


def asked(double: Running) -> set[tuple[str, str]]:
    """Resource and name of each call so far."""
    return double.do(lambda: {(call.resource, call.name) for call in double.api.calls})
