"""Standbys of a function: started, without calls and nearly without CPU, until they are activated."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.activations import MAX_SENDERS, Activations
from gateway.backends.process.backend import ProcessBackend
from gateway.backends.process.cgroup.limits import CgroupsV1
from gateway.backends.process.replica_changes import Member, next_change, opened
from gateway.contract import Activation, FunctionSpec, FunctionState, InvalidSpecError
from gateway.scaling import ScaleFromZero
from gateway.specs import burst_of
from tests.unit.gateway.process.conftest import NAMESPACE, Starter, ask_json, eventually, spec, until


def bursting(standbys: int = 2, **changes: Any) -> FunctionSpec:
    return spec("f", annotations={"smoe.burst": f"standbys={standbys}"}, limits={"cpu": "1"}, **changes)


def states(state: FunctionState) -> list[str]:
    return sorted(replica.state for replica in state.replicas)


async def activate(backend: ProcessBackend, count: int, sender: str = "ingress", lease_s: float = 600.0) -> None:
    await backend.activate(Activation(sender, {("f", NAMESPACE): count}, lease_s))


def cores(backend: ProcessBackend) -> dict[str, float]:
    """Replica → CPU limit, from the kernel's files."""
    cgroups, limits = backend.launcher.cgroups, {}
    for record in backend.function("f", NAMESPACE).replicas.values():
        for folder in (folder / record.slot for folder in cgroups.folders):
            if isinstance(cgroups, CgroupsV1) and (folder / "cpu.cfs_quota_us").exists():
                quota_us = int((folder / "cpu.cfs_quota_us").read_text())
                limits[record.id] = quota_us / int((folder / "cpu.cfs_period_us").read_text())
            elif (folder / "cpu.max").exists():
                quota_text, period_text = (folder / "cpu.max").read_text().split()
                limits[record.id] = int(quota_text) / int(period_text)
    return limits


async def test_standbys_wait_are_activated_and_wait_again(backend: ProcessBackend) -> None:
    await backend.create(bursting(), 1)
    before = await until(backend, "f", lambda s: states(s) == ["ready", "standby", "standby"])
    assert (before.desired_replicas, before.standbys, before.activated, before.activated_s) == (1, 2, 0, 0.0)
    await activate(backend, 1)
    active = backend.get("f", NAMESPACE)  # at once: nothing is waited for
    assert states(active) == ["ready", "ready", "standby"] and active.activated == 1
    assert before.ready[0] in active.ready  # the one that served goes on
    (activated,) = set(active.ready) - set(before.ready)
    assert (await ask_json(activated.address))["pid"] == activated.pid
    await activate(backend, 9)
    assert states(backend.get("f", NAMESPACE)) == ["ready", "ready", "ready"]  # no more than there are
    await activate(backend, 0)
    after = backend.get("f", NAMESPACE)
    assert states(after) == ["ready", "standby", "standby"]
    assert after.activated_s > 0
    assert after.activated_s == backend.get("f", NAMESPACE).activated_s  # and no longer grows
    assert {replica.pid for replica in after.replicas} == {replica.pid for replica in before.replicas}


@pytest.mark.slow
@pytest.mark.usefixtures("enforced")
async def test_a_standby_has_next_to_no_cpu_until_it_is_activated(running: Starter) -> None:
    async with running(standby_floor_cores=0.125) as backend:
        await backend.create(bursting(1), 1)
        await until(backend, "f", lambda s: states(s) == ["ready", "standby"])
        await eventually(lambda: sorted(cores(backend).values()) == [0.125, 1.0])
        await activate(backend, 1)
        assert list(cores(backend).values()) == [1.0, 1.0]
        await activate(backend, 0)
        assert list(cores(backend).values()) == [1.0, 1.0]  # calls that it still has are answered first
        await eventually(lambda: sorted(cores(backend).values()) == [0.125, 1.0])


@pytest.mark.slow
async def test_between_requests_the_desired_replica_waits_too_and_counts_as_available(backend: ProcessBackend) -> None:
    await backend.create(spec("f", annotations={"smoe.burst": "standbys=1,sleep_s=2"}, limits={"cpu": "1"}), 1)
    waiting = await until(backend, "f", lambda s: states(s) == ["standby", "standby"])
    assert (waiting.desired_replicas, waiting.standbys, waiting.activated, waiting.available) == (1, 2, 0, 1)
    await activate(backend, 1)
    assert states(backend.get("f", NAMESPACE)) == ["ready", "standby"]
    await activate(backend, 9)
    assert states(backend.get("f", NAMESPACE)) == ["ready", "ready"]
    await activate(backend, 0)
    assert states(backend.get("f", NAMESPACE)) == ["standby", "standby"]


async def test_a_call_that_no_ingress_announced_activates_a_waiting_replica(backend: ProcessBackend) -> None:
    await backend.create(spec("f", annotations={"smoe.burst": "standbys=0,sleep_s=2"}, limits={"cpu": "1"}), 1)
    waiting = await until(backend, "f", lambda s: states(s) == ["standby"])
    state = await ScaleFromZero(backend, enabled=False, wait_s=60.0).ready_state(waiting)
    assert states(state) == ["ready"]


@pytest.mark.slow
async def test_an_activation_ends_with_its_lease(backend: ProcessBackend) -> None:
    await backend.create(bursting(1), 1)
    await until(backend, "f", lambda s: states(s) == ["ready", "standby"])
    await activate(backend, 1, lease_s=0.2)
    await until(backend, "f", lambda s: states(s) == ["ready", "standby"] and s.activated_s > 0)


async def test_scaling_up_takes_a_standby_at_once_and_starts_another_one(backend: ProcessBackend) -> None:
    await backend.create(bursting(1), 1)
    await until(backend, "f", lambda s: states(s) == ["ready", "standby"])
    await backend.scale("f", NAMESPACE, 2)
    assert len(backend.get("f", NAMESPACE).ready) == 2
    await until(backend, "f", lambda s: states(s) == ["ready", "ready", "standby"])
    await backend.scale("f", NAMESPACE, 0)
    await until(backend, "f", lambda s: not s.replicas)


@pytest.mark.slow
async def test_a_replica_that_dies_is_replaced_by_a_standby(backend: ProcessBackend) -> None:
    await backend.create(bursting(1), 1)
    before = await until(backend, "f", lambda s: states(s) == ["ready", "standby"])
    record = backend.function("f", NAMESPACE).replicas[before.ready[0].id]
    backend.function("f", NAMESPACE).kill(record, "killed by a test")
    await until(backend, "f", lambda s: len(s.ready) == 1 and s.ready != before.ready)
    await until(backend, "f", lambda s: states(s) == ["ready", "standby"])


@pytest.mark.slow
async def test_without_its_annotation_a_function_loses_its_standbys_and_keeps_its_replica(
    backend: ProcessBackend,
) -> None:
    await backend.create(bursting(2), 1)
    before = await until(backend, "f", lambda s: states(s) == ["ready", "standby", "standby"])
    await backend.update(spec("f", limits={"cpu": "1"}))
    after = await until(backend, "f", lambda s: states(s) == ["ready"])
    assert after.ready == before.ready


@pytest.mark.slow
async def test_a_rolling_update_exchanges_standbys_too_and_always_has_one_that_takes_calls(
    backend: ProcessBackend,
) -> None:
    await backend.create(bursting(1), 1)
    before = await until(backend, "f", lambda s: states(s) == ["ready", "standby"])
    await backend.update(bursting(1, env_vars={"new": "1"}))
    while {replica.id for replica in backend.get("f", NAMESPACE).replicas} & {one.id for one in before.replicas}:
        assert backend.get("f", NAMESPACE).ready
        await asyncio.sleep(0.005)
    await until(backend, "f", lambda s: states(s) == ["ready", "standby"])


def test_the_largest_number_of_all_senders_counts_and_each_lasts_for_its_lease() -> None:
    held = Activations()
    held.put(Activation("a", {("f", "n"): 1, ("g", "n"): 1}, 10.0), 0.0)
    held.put(Activation("b", {("f", "n"): 3}, 5.0), 0.0)
    assert held.levels(1.0) == {("f", "n"): 3, ("g", "n"): 1}
    assert held.next_end_s() == 5.0
    assert held.levels(6.0) == {("f", "n"): 1, ("g", "n"): 1}
    held.put(Activation("a", {("f", "n"): 0}, 10.0), 7.0)
    assert held.levels(8.0) == {("f", "n"): 0}
    for number in range(MAX_SENDERS):
        held.put(Activation(str(number), {}, 10.0), 8.0)
    assert held.levels(8.0) == {}  # the one silent for longest is forgotten


def member(name: str, state: Any, generation: int = 0, machine: str = "") -> Member:
    return Member(name, state, generation, int(name), machine)


def test_those_that_take_calls_go_on_and_each_machine_keeps_its_share() -> None:
    members = [member("1", "standby"), member("2", "ready"), member("3", "starting"), member("4", "draining")]
    assert opened(members, 1, 0) == {"2"}
    assert opened(members, 2, 0) == {"1", "2"}
    assert opened([member("1", "ready"), member("2", "standby", 1)], 1, 1) == {"2"}  # the new generation
    placed = [member(str(order), "standby", machine=machine) for order, machine in enumerate("aabb")]
    assert opened(placed, 2, 0, {"a": 1, "b": 1}) == {"0", "2"}
    assert opened(placed, 3, 0, {"a": 1, "b": 1}) == {"0", "1", "2"}


def test_a_standby_ends_before_a_replica_that_takes_calls() -> None:
    change = next_change([member("1", "standby"), member("2", "ready")], 1, 0)
    assert (change.start, change.stop) == (0, ("1",))


@pytest.mark.parametrize("text", ["", "7", "standbys=-1", "standbys=101", "standbys=1,hold_s=nan", "standbys=1,hold=1"])
def test_a_rule_that_is_none_is_refused_in_words(text: str) -> None:
    with pytest.raises(InvalidSpecError, match=r"smoe\.burst.*standbys=N"):
        burst_of(spec("f", annotations={"smoe.burst": text}))
