"""Backends keep :class:`gateway.contract.Backend`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gateway.contract import (
    DEFAULT_NAMESPACE,
    Activation,
    ConflictError,
    FunctionSpec,
    FunctionState,
    InvalidSpecError,
    LogLine,
    NotFoundError,
)
from gateway.metrics import GatewayMetrics
from tests.cluster.namespaces import WAIT_S
from tests.contract.gateway.conftest import Case
from tests.parameters import some_fast

pytestmark = pytest.mark.timeout(1200)


async def until(case: Case, wanted: Callable[[FunctionState], bool], name: str = "f") -> FunctionState:
    """The state once it is as wanted, woken by the backend's own changes."""
    async with asyncio.timeout(WAIT_S):
        while True:
            version = case.backend.version()
            state = case.backend.get(name, DEFAULT_NAMESPACE)
            if wanted(state):
                return state
            await case.backend.wait_change(version, 1.0)


def ready(count: int) -> Callable[[FunctionState], bool]:
    return lambda state: len(state.ready) == count == len(state.replicas)


async def start_times(case: Case, count: int) -> list[float]:
    """As many start times as asked for: on Kubernetes a pod's address may be seen before its own event is."""
    times: list[float] = []
    async with asyncio.timeout(WAIT_S):
        while True:
            version = case.backend.version()
            times += case.backend.start_seconds()
            if len(times) >= count:
                assert len(times) == count
                return times
            await case.backend.wait_change(version, 1.0)


async def status_of(address: str) -> int:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET / HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
    async with asyncio.timeout(WAIT_S):
        line = await reader.readline()
    writer.close()
    await writer.wait_closed()
    return int(line.split()[1])


async def texts(case: Case, tail: int = 0) -> list[str]:
    lines = case.backend.logs("f", DEFAULT_NAMESPACE, instance=None, since_s=None, tail=tail, follow=False)
    return [line.text async for line in lines]


async def test_a_function_comes_up_answers_scales_and_goes(case: Case) -> None:
    spec = FunctionSpec("f", case.image, labels={"a": "b"})
    await case.backend.create(spec, 2)
    state = await until(case, ready(2))
    assert state.spec == spec
    assert state.desired_replicas == 2
    assert len({replica.id for replica in state.replicas}) == 2
    assert len({replica.address for replica in state.ready}) == 2
    if case.answers:
        assert [await status_of(replica.address) for replica in state.ready] == [200, 200]

    await case.backend.scale("f", DEFAULT_NAMESPACE, 3)
    await until(case, ready(3))
    await case.backend.scale("f", DEFAULT_NAMESPACE, 0)
    assert (await until(case, ready(0))).desired_replicas == 0

    await case.backend.delete("f", DEFAULT_NAMESPACE)
    with pytest.raises(NotFoundError):
        case.backend.get("f", DEFAULT_NAMESPACE)
    assert case.backend.list() == []


async def test_what_exists_is_not_created_again(case: Case) -> None:
    await case.backend.create(FunctionSpec("f", case.image), 0)
    with pytest.raises(ConflictError):
        await case.backend.create(FunctionSpec("f", case.image), 0)


async def test_what_is_unknown_is_not_found(case: Case) -> None:
    with pytest.raises(NotFoundError):
        await case.backend.update(FunctionSpec("f", case.image))
    with pytest.raises(NotFoundError):
        await case.backend.delete("f", DEFAULT_NAMESPACE)
    with pytest.raises(NotFoundError):
        await case.backend.scale("f", DEFAULT_NAMESPACE, 1)
    with pytest.raises(NotFoundError):
        case.backend.usage("f", DEFAULT_NAMESPACE)
    with pytest.raises(NotFoundError):
        case.backend.logs("f", DEFAULT_NAMESPACE, instance=None, since_s=None, tail=0, follow=False)
    case.backend.report_failure("f", DEFAULT_NAMESPACE, "nobody")


@pytest.mark.parametrize(
    ("field", "value"),
    some_fast(
        [
            ("limits", {"memory": "128 elephants"}),
            ("limits", {"cpu": "-1"}),
            ("limits", {"bananas": "1"}),
            ("requests", {"memory": "x"}),
            ("env_vars", {"max_inflight": "many"}),
            ("secrets", ("not-there",)),
        ],
        2,
    ),
)
async def test_what_cannot_be_is_refused_and_changes_nothing(case: Case, field: str, value: Any) -> None:
    good = FunctionSpec("f", case.image)
    with pytest.raises(InvalidSpecError):
        await case.backend.create(replace(good, **{field: value}), 1)
    assert case.backend.list() == []
    await case.backend.create(good, 0)
    with pytest.raises(InvalidSpecError):
        await case.backend.update(replace(good, **{field: value}))
    assert case.backend.get("f", DEFAULT_NAMESPACE).spec == good


async def test_limits_labels_and_max_inflight_change_without_a_new_replica(case: Case) -> None:
    spec = FunctionSpec(
        "f", case.image, env_vars={"max_inflight": "2"}, limits={"cpu": "1"}, annotations=case.annotations
    )
    await case.backend.create(spec, 1)
    before = await until(case, ready(1))
    assert before.max_inflight == 2
    changed = replace(spec, env_vars={"max_inflight": "5"}, limits={"cpu": "500m"}, labels={"x": "y"})
    await case.backend.update(changed)
    after = case.backend.get("f", DEFAULT_NAMESPACE)
    assert [replica.id for replica in after.ready] == [replica.id for replica in before.ready]
    assert (after.max_inflight, after.spec) == (5, changed)


async def test_a_new_environment_means_new_replicas(case: Case) -> None:
    await case.backend.create(FunctionSpec("f", case.image), 1)
    before = {replica.id for replica in (await until(case, ready(1))).replicas}
    await case.backend.update(FunctionSpec("f", case.image, env_vars={"a": "b"}))
    after = await until(case, lambda state: ready(1)(state) and state.ready[0].id not in before)
    if case.answers:
        assert await status_of(after.ready[0].address) == 200


async def test_changes_wake_those_who_wait(case: Case) -> None:
    version = case.backend.version()
    assert await case.backend.wait_change(version, 0.01) == version
    waiting = asyncio.create_task(case.backend.wait_change(version, WAIT_S))
    await case.backend.create(FunctionSpec("f", case.image), 0)
    assert await waiting > version
    assert await case.backend.wait_change(version, WAIT_S) > version


async def test_usage_is_by_replica_and_start_times_are_given_once(case: Case) -> None:
    await case.backend.create(FunctionSpec("f", case.image), 2)
    state = await until(case, ready(2))
    assert set(case.backend.usage("f", DEFAULT_NAMESPACE)) == {replica.id for replica in state.replicas}
    times = await start_times(case, 2)
    assert all(0 < seconds < WAIT_S for seconds in times)
    assert case.backend.start_seconds() == []


@pytest.mark.slow
@pytest.mark.containers
async def test_logs_hold_what_replicas_wrote_and_follow_until_the_function_goes(case: Case) -> None:
    await case.backend.create(FunctionSpec("f", case.image), 1)
    state = await until(case, ready(1))
    followed: list[LogLine] = []

    async def follow() -> None:
        stream = case.backend.logs("f", DEFAULT_NAMESPACE, instance=None, since_s=None, tail=0, follow=True)
        async for line in stream:
            followed.append(line)

    following = asyncio.create_task(follow())
    assert await status_of(state.ready[0].address) == 200
    assert await status_of(state.ready[0].address) == 200
    async with asyncio.timeout(WAIT_S):
        while sum("/" in text for text in await texts(case)) < 2:
            await case.backend.wait_change(case.backend.version(), 0.02)
    assert len(await texts(case, tail=1)) == 1
    await case.backend.delete("f", DEFAULT_NAMESPACE)
    await asyncio.wait_for(following, WAIT_S)
    assert {line.name for line in followed} == {"f"}
    assert sum("/" in line.text for line in followed if line.instance == state.ready[0].id) >= 2


async def test_secrets_are_made_replaced_listed_and_removed(case: Case) -> None:
    put = case.backend.put_secret
    await put("one", DEFAULT_NAMESPACE, b"1", create=True)
    with pytest.raises(ConflictError):
        await put("one", DEFAULT_NAMESPACE, b"2", create=True)
    await put("one", DEFAULT_NAMESPACE, b"2", create=False)
    with pytest.raises(NotFoundError):
        await put("two", DEFAULT_NAMESPACE, b"2", create=False)
    assert case.backend.secret_names(DEFAULT_NAMESPACE) == ["one"]
    await case.backend.create(FunctionSpec("f", case.image, secrets=("one",)), 0)
    await case.backend.delete_secret("one", DEFAULT_NAMESPACE)
    assert case.backend.secret_names(DEFAULT_NAMESPACE) == []
    with pytest.raises(NotFoundError):
        await case.backend.delete_secret("one", DEFAULT_NAMESPACE)


@pytest.mark.containers
async def test_after_close_nothing_listens_but_what_a_cluster_holds(case: Case) -> None:
    await case.backend.create(FunctionSpec("f", case.image), 2)
    addresses = [replica.address for replica in (await until(case, ready(2))).ready]
    await case.backend.close()
    for address in addresses:
        if case.outlives:
            assert await status_of(address) == 200
            continue
        with pytest.raises(OSError):
            await status_of(address)


async def test_info_names_the_provider(case: Case) -> None:
    info = case.backend.info()
    assert info.provider and info.orchestration and info.version


async def test_standbys_wait_until_they_are_activated_or_are_refused_in_words(case: Case) -> None:
    spec = FunctionSpec("f", case.image, annotations={**case.annotations, "smoe.burst": "standbys=1"})
    activation = Activation("test", {("f", DEFAULT_NAMESPACE): 1}, 600.0)
    if not case.backend.info().standbys:
        with pytest.raises(InvalidSpecError, match="standbys"):
            await case.backend.create(spec, 1)
        with pytest.raises(InvalidSpecError, match="standbys"):
            await case.backend.activate(activation)
        return
    await case.backend.create(spec, 1)
    await until(case, lambda state: sorted(one.state for one in state.replicas) == ["ready", "standby"])
    await case.backend.activate(activation)
    assert len(case.backend.get("f", DEFAULT_NAMESPACE).ready) == 2
    await case.backend.activate(replace(activation, levels={}))
    assert len(case.backend.get("f", DEFAULT_NAMESPACE).ready) == 1
    await case.backend.delete("f", DEFAULT_NAMESPACE)


async def test_open_standbys_of_a_sleeping_function_are_counted_as_activated_and_not_as_ready(case: Case) -> None:
    if not case.backend.info().standbys:
        pytest.skip("this backend has no standbys")
    spec = FunctionSpec("f", case.image, annotations={**case.annotations, "smoe.burst": "standbys=2,sleep_s=9"})
    await case.backend.create(spec, 1)
    await until(case, lambda state: [one.state for one in state.replicas] == ["standby"] * 3)
    metrics = GatewayMetrics(case.backend, 1.0)
    for asked, expected in ((0, (1, 0, 2)), (1, (1, 0, 2)), (2, (1, 1, 1)), (3, (1, 2, 0))):
        await case.backend.activate(Activation("test", {("f", DEFAULT_NAMESPACE): asked}, 600.0))
        assert case.backend.get("f", DEFAULT_NAMESPACE).available == 1
        assert tuple(by_state(metrics, state) for state in ("ready", "activated", "standby")) == expected


async def test_the_time_of_activated_standbys_stays_known_once_they_are_gone(case: Case) -> None:
    if not case.backend.info().standbys:
        pytest.skip("this backend has no standbys")
    plain = FunctionSpec("f", case.image, annotations=case.annotations)
    await case.backend.create(replace(plain, annotations={**case.annotations, "smoe.burst": "standbys=1"}), 1)
    await until(case, lambda state: sorted(one.state for one in state.replicas) == ["ready", "standby"])
    metrics, labels = GatewayMetrics(case.backend, 1.0), {"function_name": f"f.{DEFAULT_NAMESPACE}"}
    for level in (1, 0):
        await case.backend.activate(Activation("test", {("f", DEFAULT_NAMESPACE): level}, 600.0))
        await until(case, lambda state, level=level: len(state.ready) == 1 + level)
    await case.backend.update(plain)
    await until(case, lambda state: [one.state for one in state.replicas] == ["ready"])
    assert (metrics.registry.get_sample_value("smoe_standby_activated_seconds_total", labels) or 0) > 0


def by_state(metrics: GatewayMetrics, state: str) -> int:
    labels = {"function_name": f"f.{DEFAULT_NAMESPACE}", "state": state}
    return int(metrics.registry.get_sample_value("smoe_function_replicas", labels) or 0)
