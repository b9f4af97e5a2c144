"""Standbys on Kubernetes: pods that wait with an active one's limits and next to no CPU request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autoscaler.contract import Burst
from gateway.backends.kubernetes.backend import KubernetesBackend
from gateway.contract import DEFAULT_NAMESPACE, Activation, FunctionSpec, FunctionState
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


async def test_another_gateway_leaves_what_one_has_activated_and_takes_back_what_one_that_is_gone_had(
    double: Running, backends: Backends
) -> None:
    one, other = await backends(standby_held_s=0.0), await backends(standby_held_s=0.0)
    await one.create(bursting("standbys=1"), 1)
    await until_so(lambda: bool(other.list()))
    for backend in (one, other):
        await until(backend, states("ready", "standby"))
    first = [replica.id for replica in one.get("f", DEFAULT_NAMESPACE).ready]
    assert first == [replica.id for replica in other.get("f", DEFAULT_NAMESPACE).ready]
    await activate(one, 1)
    assert cpu_requests(double) == ["50m", "50m"]
    await one.close()
    third = await backends(**AT_ONCE)
    await until(third, states("ready", "standby"))
    await until_so(lambda: cpu_requests(double) == ["10m", "50m"])
    assert states("ready", "standby")(other.get("f", DEFAULT_NAMESPACE))


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
