"""Standbys on Kubernetes: pods that wait with an active one's limits and next to no CPU request."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from autoscaler.contract import Burst
from autoscaler.errors import PlatformError
from gateway.backends.kubernetes import standbys
from gateway.backends.kubernetes.api import ApiError
from gateway.backends.kubernetes.backend import KubernetesBackend
from gateway.backends.kubernetes.functions import Functions
from gateway.backends.kubernetes.keeper import Keeper
from gateway.backends.kubernetes.space import RESIZED_AT_ONCE
from gateway.contract import DEFAULT_NAMESPACE, Activation, FunctionSpec, FunctionState, InvalidSpecError, Replica
from tests.doubles.kubernetes.errors import forbidden
from tests.doubles.kubernetes.fixtures import Backends, Platforms, ready, resources, until, until_so
from tests.doubles.kubernetes.functions import put, spec
from tests.doubles.kubernetes.running import Running

pytestmark = pytest.mark.timeout(600)
AT_ONCE = {"standby_held_s": 0.0, "standby_others_s": 0.0}
BURST = {"smoe.live-settings": "true", "smoe.burst": "standbys=2"}


def bursting(rule: str = "standbys=2", **changes: Any) -> FunctionSpec:
    return spec("f", annotations={**BURST, "smoe.burst": rule}, **changes)


def states(*wanted: str) -> Any:
    return lambda state: [replica.state for replica in state.replicas] == list(wanted)


async def activate(backend: KubernetesBackend, count: int, lease_s: float = 600.0) -> FunctionState:
    await backend.activate(Activation("ingress", {("f", DEFAULT_NAMESPACE): count}, lease_s))
    return backend.get("f", DEFAULT_NAMESPACE)


def cpu_requests(double: Running) -> list[str]:
    return sorted(resources(pod)["requests"]["cpu"] for pod in double.pods("f"))


def pods(double: Running) -> int:
    count: int = double.deployment("f")["spec"]["replicas"]
    return count


async def test_a_standby_requests_next_to_no_cpu_until_it_is_activated_and_keeps_its_limits(
    double: Running, backends: Backends
) -> None:
    backend = await backends(**AT_ONCE)
    await backend.create(bursting(), 1)
    await until(backend, states("ready", "standby", "standby"))
    await until_so(lambda: cpu_requests(double) == ["10m", "10m", "50m"])
    active = await activate(backend, 1)  # at once: nothing is waited for
    assert states("ready", "ready", "standby")(active) and (active.activated, active.desired_replicas) == (1, 1)
    await until_so(lambda: cpu_requests(double) == ["10m", "50m", "50m"])
    assert states("ready", "standby", "standby")(await activate(backend, 0))
    await until_so(lambda: cpu_requests(double) == ["10m", "10m", "50m"])
    assert all(resources(pod)["limits"] == {"memory": "256Mi", "cpu": "1000m"} for pod in double.pods("f"))
    assert backend.get("f", DEFAULT_NAMESPACE).activated_s > 0


async def test_an_activation_ends_with_its_lease(double: Running, backends: Backends) -> None:
    backend = await backends(**AT_ONCE)
    await backend.create(bursting(), 1)
    await until(backend, states("ready", "standby", "standby"))
    await activate(backend, 2, lease_s=0.1)
    await until(backend, lambda state: states("ready", "standby", "standby")(state) and state.activated_s > 0)


async def test_replicas_are_scaled_next_to_standbys_and_standbys_come_and_go_without_a_roll_out(
    double: Running, backends: Backends
) -> None:
    backend = await backends(**AT_ONCE)
    await backend.create(bursting(), 1)
    before = await until(backend, states("ready", "standby", "standby"))
    await backend.scale("f", DEFAULT_NAMESPACE, 2)
    assert pods(double) == 4 and backend.get("f", DEFAULT_NAMESPACE).desired_replicas == 2
    await until(backend, states("ready", "ready", "standby", "standby"))
    await backend.update(bursting("standbys=1"))
    assert pods(double) == 3
    await until(backend, states("ready", "ready", "standby"))
    await backend.update(spec("f"))
    assert pods(double) == 2
    after = await until(backend, ready(2))
    assert {replica.id for replica in before.replicas} & {replica.id for replica in after.replicas}
    await backend.scale("f", DEFAULT_NAMESPACE, 0)
    assert pods(double) == 0 and backend.get("f", DEFAULT_NAMESPACE).desired_replicas == 0


async def test_a_roll_out_brings_and_takes_standbys_too(double: Running, backends: Backends) -> None:
    backend = await backends(**AT_ONCE)
    await backend.create(spec("f"), 2)
    await until(backend, ready(2))
    await backend.update(bursting(image="smoe/function:2"))
    assert pods(double) == 4
    await until(backend, states("ready", "ready", "standby", "standby"))
    await backend.update(spec("f", image="smoe/function:3"))
    assert pods(double) == 2
    await until(backend, ready(2))


async def test_of_a_class_of_service_that_no_resize_may_change_standbys_request_all(
    double: Running, backends: Backends
) -> None:
    backend = await backends(**AT_ONCE)
    whole = {"memory": "256Mi", "cpu": "1"}
    await backend.create(bursting("standbys=1", limits=whole, requests=whole), 1)
    await until(backend, states("ready", "standby"))
    await activate(backend, 1)
    assert cpu_requests(double) == ["1", "1"]
    assert not [call for call in double.api.calls if call.resource == "pods/resize"]


def resizes(double: Running) -> int:
    return sum(call.resource == "pods/resize" for call in double.api.calls)


@pytest.mark.slow
async def test_another_gateway_leaves_what_one_has_activated_and_takes_back_what_one_that_is_gone_had(
    double: Running, backends: Backends, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await backends(**AT_ONCE)
    await one.create(bursting("standbys=1"), 1)
    await until(one, states("ready", "standby"))
    await activate(one, 1)
    await until_so(lambda: bool(notes(double)) and cpu_requests(double) == ["50m", "50m"])
    before, other = resizes(double), await backends(**AT_ONCE, resync_s=0.02)
    first = [replica.id for replica in one.get("f", DEFAULT_NAMESPACE).ready]
    assert (await until(other, states("ready", "standby"))).ready[0].id == first[0]
    await asyncio.sleep(0.3)  # the other one has looked again and again
    assert (resizes(double), cpu_requests(double)) == (before, ["50m", "50m"])
    await one.close()
    later = time.time() + standbys.NOTED_S + 1
    monkeypatch.setattr("gateway.backends.kubernetes.space.time.time", lambda: later)
    await until_so(lambda: cpu_requests(double) == ["10m", "50m"])
    assert states("ready", "standby")(other.get("f", DEFAULT_NAMESPACE))


async def test_who_releases_a_pod_takes_its_note_away_and_whoever_has_it_activated_too_notes_it(
    double: Running, backends: Backends
) -> None:
    one, other = await backends(**AT_ONCE), await backends(standby_held_s=0.0, resync_s=0.02)
    await one.create(bursting("standbys=1"), 1)
    await until_so(lambda: bool(other.list()))
    for backend in (one, other):
        await until(backend, states("ready", "standby"))
    await activate(one, 1)
    await until_so(lambda: bool(notes(double)))
    (first,) = notes(double)
    await activate(other, 1)
    await activate(one, 0)
    await until_so(lambda: cpu_requests(double) == ["10m", "50m"] or notes(double) not in ([], [first]))
    await until_so(lambda: cpu_requests(double) == ["50m", "50m"])
    await activate(other, 0)
    await until_so(lambda: cpu_requests(double) == ["10m", "50m"] and not notes(double))


def notes(double: Running) -> list[str]:
    annotations = (pod["metadata"].get("annotations", {}) for pod in double.pods("f"))
    return [text for each in annotations if (text := each.get("smoe.activated"))]


@pytest.mark.parametrize(
    ("pods", "order"),
    [
        ("a1 a2 b3", "a1 b3 a2"),
        ("a1 b2 a3 c4 b5 b6", "a1 b2 c4 a3 b5 b6"),
        ("a1 a2 a3", "a1 a2 a3"),
        ("a1- a2 a3 b4", "a2 b4 a3"),  # one that is not ready holds no machine's place
    ],
)
def test_those_that_take_calls_are_on_different_machines_first_then_the_oldest(pods: str, order: str) -> None:
    replicas = [
        Replica(pod, pod, "starting" if pod.endswith("-") else "ready", None, 0.0, pod[0]) for pod in pods.split()
    ]
    for count in range(len(replicas) + 1):
        there = list(standbys.opened(replicas, count))
        assert [replica.id for replica in there if replica.state == "ready"] == order.split()[:count]
        assert [replica.id for replica in there if replica.state == "standby"] == order.split()[count:]
        assert {replica.id for replica in there} == set(pods.split())


def test_a_short_activation_is_not_noted_and_a_long_one_every_five_minutes() -> None:
    lowered, pod = standbys.Lowered("here", held_s=5.0, others_s=60.0), Replica("p", "a:1", "ready")
    state = FunctionState(bursting("standbys=1"), 0, (pod,), 1, 0.0, standbys=1, activated=1)
    assert lowered.look(state, {"p"}, {}, 0.0) == standbys.Look(again_s=30.0)
    assert lowered.look(state, {"p"}, {}, 30.0) == standbys.Look(noted={"p": True}, again_s=300.0)
    written = {"p": standbys.Note("here", 599.0)}
    assert lowered.look(state, {"p"}, written, 31.0) == standbys.Look(again_s=299.0)
    elsewhere = {"p": standbys.Note("there", 299.0)}
    assert lowered.look(state, {"p"}, elsewhere, 331.0).noted == {"p": True}


def test_a_pod_that_two_gateways_had_activated_keeps_its_request_until_the_last_calls_have_been_answered() -> None:
    lowered, pod = standbys.Lowered("here", held_s=5.0, others_s=60.0), Replica("p", "a:1", "ready")
    state = FunctionState(bursting("standbys=1"), 0, (pod,), 1, 0.0, standbys=1, activated=1)
    written, elsewhere = {"p": standbys.Note("here", 599.0)}, {"p": standbys.Note("there", 299.0)}
    lowered.look(state, {"p"}, written, 331.0)
    released = replace(state, replicas=(replace(pod, state="standby"),), activated=0)
    assert lowered.look(released, {"p"}, written, 400.0) == standbys.Look(again_s=5.0)
    assert lowered.look(released, {"p"}, elsewhere, 403.0) == standbys.Look(), "another gateway has it activated, too"
    assert lowered.look(released, {"p"}, elsewhere, 500.0) == standbys.Look()
    assert lowered.look(released, {"p"}, {}, 500.0) == standbys.Look(again_s=5.0), "released there: it may have calls"
    assert lowered.look(released, {"p"}, {}, 505.0) == standbys.Look(lowered={"p"})


def test_a_pod_that_waited_before_another_gateways_note_waits_the_whole_time_once_it_is_gone() -> None:
    lowered, pod = standbys.Lowered("here", held_s=5.0, others_s=60.0), Replica("p", "a:1", "standby")
    state = FunctionState(bursting("standbys=1"), 0, (pod,), 1, 0.0, standbys=1)
    assert lowered.look(state, {"p"}, {}, 0.0) == standbys.Look(again_s=60.0)
    assert lowered.look(state, {"p"}, {"p": standbys.Note("there", 600.0)}, 30.0) == standbys.Look()
    assert lowered.look(state, {"p"}, {}, 200.0) == standbys.Look(again_s=60.0)


def test_activations_that_follow_each_other_closely_are_noted_once_until_the_pod_is_lowered() -> None:
    lowered, pod = standbys.Lowered("here", held_s=5.0, others_s=60.0), Replica("p", "a:1", "ready")
    active = FunctionState(bursting("standbys=1"), 0, (pod,), 1, 0.0, standbys=1, activated=1)
    released = replace(active, replicas=(replace(pod, state="standby"),), activated=0)
    written_s: list[float] = []
    for half in range(160):  # 240 s
        now_s = 1.5 * half
        notes = {"p": standbys.Note("here", written_s[-1] + 600.0 - now_s)} if written_s else {}
        look = lowered.look(released if half % 2 else active, {"p"}, notes, now_s)
        assert not look.lowered and look.noted in ({}, {"p": True}), half
        written_s += [now_s] * len(look.noted)
    assert written_s == [30.0]
    look = lowered.look(released, {"p"}, {"p": standbys.Note("here", 300.0)}, 1.5 * 159 + 5.0)
    assert (look.lowered, look.noted) == ({"p"}, {"p": False})


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("1600 there", standbys.Note("there", 600.0)),
        *(
            (text, standbys.Note("", 0.0))
            for text in ("", "there", "-1 there", "1e3 there", "² there", "9000 there", f"{'9' * 400} there")
        ),
    ],
)
def test_a_note_that_cannot_be_read_or_has_no_end_is_nobodys(text: str, note: standbys.Note) -> None:
    assert standbys.Note.of({"metadata": {"annotations": {"smoe.activated": text}}}, 1000.0) == note
    assert standbys.Note.of({"metadata": {}}, 1000.0) == standbys.Note("", 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("error", [ApiError("PATCH f-0", 500, "no"), ValueError("no")], ids=["refused", "unexpected"])
async def test_pods_of_several_functions_are_kept_at_the_same_time_and_one_that_cannot_be_holds_up_no_other(
    double: Running,
    backends: Backends,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    under_way, most, failed, kept, keep = 0, 0, 0, set(), Keeper.keep
    released = asyncio.Event()

    async def held(self: Keeper, name: str, *arguments: Any, **options: Any) -> bool:
        nonlocal under_way, most, failed
        under_way += 1
        most = max(most, under_way)
        await released.wait()
        under_way -= 1
        if name == "f-0":
            failed += 1
            raise error
        kept.add(name)
        return await keep(self, name, *arguments, **options)

    monkeypatch.setattr(Keeper, "keep", held)
    names = [f"f-{i}" for i in range(12)]
    for name in names:
        put(double, spec(name), 1)
    await backends(resync_s=0.05)
    await until_so(lambda: under_way >= RESIZED_AT_ONCE)
    released.set()
    await until_so(lambda: kept == set(names[1:]))
    assert most == RESIZED_AT_ONCE
    kept.clear()
    await until_so(lambda: kept == set(names[1:]) and failed > 1)  # all are looked at again
    logged = [record for record in caplog.records if "could not" in record.message]
    assert logged and all(bool(record.exc_info) == isinstance(error, ValueError) for record in logged)


@pytest.mark.parametrize("rule", ["standbys=2", "standbys=1,sleep_s=3.0"])
async def test_an_update_that_is_refused_leaves_no_replicas_behind(
    double: Running, backends: Backends, monkeypatch: pytest.MonkeyPatch, rule: str
) -> None:
    backend = await backends(**AT_ONCE)
    await backend.create(spec("f"), 1)
    await until(backend, ready(1))
    better = bursting(rule, image="smoe/function:2")
    double.api.refusals["patch", "deployments"] = forbidden("deployments.apps", "f", "no")
    for _ in range(2):
        with pytest.raises(InvalidSpecError):
            await backend.update(better)
        assert (pods(double), backend.get("f", DEFAULT_NAMESPACE).desired_replicas) == (1, 1)
    double.api.refusals.clear()

    async def refuse(*_: Any) -> None:
        raise InvalidSpecError("no")

    with monkeypatch.context() as patched:
        patched.setattr(Functions, "roll_out", refuse)
        for _ in range(2):
            with pytest.raises(InvalidSpecError):
                await backend.update(better)
            assert (pods(double), backend.get("f", DEFAULT_NAMESPACE).standbys) == (1, 0)
        patched.setattr(Functions, "put_back", AsyncMock())  # nor where that fails, too
        for _ in range(2):
            with pytest.raises(InvalidSpecError):
                await backend.update(better)
            assert backend.get("f", DEFAULT_NAMESPACE).desired_replicas == 1
    await backend.update(better)
    assert (pods(double), backend.get("f", DEFAULT_NAMESPACE).desired_replicas) == (1 + int(rule[9]), 1)


async def test_of_a_function_with_a_gpu_share_controller_and_gateway_count_no_standbys(
    double: Running, backends: Backends, platforms: Platforms
) -> None:
    backend, platform = await backends(**AT_ONCE), platforms()
    limits = {"memory": "256Mi", "cpu": "1", "nvidia.com/gpu": "2"}
    put(double, spec("f", limits=limits), 3)
    present = platform.configurations()["f"]
    with pytest.raises(PlatformError, match="GPU share"):
        platform.apply("f", present, replace(present, burst=Burst(2)))
    double.deployment("f")["metadata"]["annotations"]["smoe.burst"] = "standbys=2"
    other = platforms().configurations()["f"]
    assert (other.replicas, other.standbys) == (3, 0)
    await until_so(lambda: [state.desired_replicas for state in backend.list()] == [3])


@pytest.mark.slow
async def test_a_controller_orders_standbys_and_leaves_their_requests_to_the_gateway(
    double: Running, backends: Backends, platforms: Platforms
) -> None:
    backend, platform = await backends(**AT_ONCE), platforms()
    await backend.create(spec("f"), 1)
    await until(backend, ready(1))
    present = platform.configurations()["f"]
    target = replace(present, replicas=2, burst=Burst(2, sleep_s=3.0))
    platform.apply("f", present, target)
    assert pods(double) == 4 and platform.configurations()["f"] == target
    await until(backend, lambda state: states(*["standby"] * 4)(state) and state.desired_replicas == 2)
    await until_so(lambda: cpu_requests(double) == ["10m"] * 4)
    platform.configurations()
    platform.keep()
    assert cpu_requests(double) == ["10m"] * 4
    platform.apply("f", target, replace(target, memory_mb=512))
    platform.configurations()
    platform.keep()
    assert {resources(pod)["limits"]["memory"] for pod in double.pods("f")} == {"512Mi"}
    assert cpu_requests(double) == ["10m"] * 4
    platform.apply("f", replace(target, memory_mb=512), replace(present, memory_mb=512))
    assert pods(double) == 1
    await until(backend, ready(1))
    await until_so(lambda: cpu_requests(double) == ["50m"])


async def test_standbys_that_no_node_has_room_for_take_no_replica_away(double: Running, platforms: Platforms) -> None:
    platform = platforms(unschedulable_s=0.0)
    put(double, bursting("standbys=40", limits={"memory": "4Gi", "cpu": "1"}, requests={"memory": "4Gi"}), 42)
    configuration = platform.configurations()["f"]
    assert configuration.replicas == 2
    assert any(condition.kind == "unschedulable" for condition in platform.conditions())
    assert platform.bounds()["f"].replicas == 2
