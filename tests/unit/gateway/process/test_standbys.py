from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.backends.process.replica_changes import Exchanges
from gateway.backends.process.workers.standbys import Standbys
from gateway.contract import BackendError
from tests.unit.gateway.process.conftest import ENTRIES, NAMESPACE, Starter, ask_json, eventually, ready, spec, until

LABELS = {"smoe.pipeline": "small"}


@dataclass
class Processes:
    """Stands in for the launcher: makes numbered slots of given sizes and notes those that were ended."""

    bytes_by_entry: Mapping[str, int]
    made: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)

    async def prepare(self, entry: str, environ: Mapping[str, str]) -> tuple[str, int]:
        self.made.append(f"{entry}{len(self.made)}")
        return self.made[-1], self.bytes_by_entry[entry]

    def pool(self, desired: int, limit_bytes: int) -> Standbys:
        return Standbys(desired, limit_bytes, self.prepare, self.ended.append)

    @property
    def alive_bytes(self) -> int:
        return sum(self.bytes_by_entry[slot[0]] for slot in self.made if slot not in self.ended)


async def test_a_group_gets_standbys_once_it_has_started_something() -> None:
    processes = Processes({"a": 1})
    pool = processes.pool(2, 100)
    await pool.fill(lambda: True)
    assert pool.count() == 0
    assert pool.take("one", "f", "a", {}) is None
    assert pool.take("one", "g", "a", {}) is None
    await pool.fill(lambda: True)
    assert pool.take("one", "f", "a", {}) == "a0"
    assert pool.count() == 1


async def test_a_group_gets_no_more_standbys_than_it_has_functions() -> None:
    processes = Processes({"a": 1})
    pool = processes.pool(3, 100)
    for function in ("f", "g", "f"):
        pool.take("one", function, "a", {})
    await pool.fill(lambda: True)
    assert pool.count() == 2


async def test_the_group_used_longest_ago_gives_way_when_memory_is_short() -> None:
    processes = Processes({"a": 30, "b": 40})
    pool = processes.pool(2, 100)
    for function in ("f", "g"):
        pool.take("old", function, "a", {})
    await pool.fill(lambda: True)
    for function in ("h", "i"):
        pool.take("new", function, "b", {})
    await pool.fill(lambda: True)
    assert processes.ended == ["a1", "a0"]
    assert pool.count() == 2
    assert pool.take("new", "f", "b", {}) == "b2"


async def test_a_group_that_is_used_again_is_no_longer_the_one_used_longest_ago() -> None:
    processes = Processes({"a": 40, "b": 40, "c": 40})
    pool = processes.pool(1, 100)
    for group, entry in (("one", "a"), ("two", "b")):
        pool.take(group, "f", entry, {})
    await pool.fill(lambda: True)
    assert pool.take("one", "f", "a", {}) == "a1"
    await pool.fill(lambda: True)
    pool.take("three", "f", "c", {})
    await pool.fill(lambda: True)
    assert processes.ended == ["b0"]
    assert pool.take("one", "f", "a", {}) == "a2"


async def test_a_standby_that_died_is_not_handed_out() -> None:
    processes = Processes({"a": 1})
    pool = processes.pool(1, 100)
    pool.take("one", "f", "a", {})
    await pool.fill(lambda: True)
    pool.forget("a0")
    assert pool.take("one", "f", "a", {}) is None


async def test_a_standby_that_cannot_be_prepared_is_left_out() -> None:
    async def fails(entry: str, environ: Mapping[str, str]) -> tuple[str, int]:
        raise BackendError("no memory")

    pool = Standbys(2, 100, fails, lambda slot: None)
    pool.take("one", "f", "a", {})
    await pool.fill(lambda: True)
    assert pool.count() == 0


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=25), st.integers(1, 4), st.integers(0, 60))
def test_memory_stays_within_its_limit_whatever_is_started(
    uses: list[tuple[str, bool]], desired: int, limit: int
) -> None:
    processes = Processes({"a": 5, "b": 11, "c": 23})

    async def story() -> None:
        pool = processes.pool(desired, limit)
        for number, (name, filled) in enumerate(uses):
            taken = pool.take(name, f"function-{number % 3}", name, {})
            if taken is not None:
                assert taken[0] == name
                processes.ended.append(taken)  # it is a replica now
            if filled:
                await pool.fill(lambda: True)
                assert processes.alive_bytes <= limit
                assert pool.count() == sum(slot not in processes.ended for slot in processes.made)

    asyncio.run(story())


@pytest.mark.slow
async def test_a_replica_starts_from_a_prepared_process(running: Starter) -> None:
    images = {"test/prepared": f"{ENTRIES}:prepared"}
    async with running(images=images, standbys=1) as backend:
        await backend.create(spec("first", "prepared", labels=LABELS), 1)
        state = await until(backend, "first", ready(1))
        assert (await ask_json(state.ready[0].address))["environ"]["prepared_for"] == ""
        pool = backend.launcher.standbys
        await eventually(lambda: pool.count() == 1)
        await backend.create(spec("second", "prepared", labels=LABELS, env_vars={"own": "yes"}), 1)
        state = await until(backend, "second", ready(1))
        environ = (await ask_json(state.ready[0].address))["environ"]
        assert (environ["prepared_for"], environ["OPENFAAS_NAME"], environ["own"]) == ("first", "second", "yes")


@pytest.mark.slow
async def test_functions_of_other_pipelines_do_not_take_it(running: Starter) -> None:
    images = {"test/prepared": f"{ENTRIES}:prepared"}
    async with running(images=images, standbys=1) as backend:
        await backend.create(spec("first", "prepared", labels=LABELS), 1)
        await eventually(lambda: backend.launcher.standbys.count() == 1)
        await backend.create(spec("other", "prepared", labels={"smoe.pipeline": "large"}), 1)
        state = await until(backend, "other", ready(1))
        assert (await ask_json(state.ready[0].address))["environ"]["prepared_for"] == ""


@pytest.mark.slow
async def test_an_ingress_has_standbys_of_its_own(running: Starter) -> None:
    images = {"test/prepared": f"{ENTRIES}:prepared"}
    async with running(images=images, standbys=2) as backend:
        pool = backend.launcher.standbys
        await backend.create(spec("worker", "prepared", labels={**LABELS, "smoe.nodes": "expert-0-0"}), 1)
        await backend.create(spec("front", "prepared", labels={**LABELS, "smoe.nodes": "ingress"}), 1)
        await eventually(lambda: pool.count() == 2)
        await backend.scale("front", NAMESPACE, 2)
        state = await until(backend, "front", ready(2))
        environ = (await ask_json(state.ready[1].address))["environ"]
        assert (environ["prepared_for"], environ["OPENFAAS_NAME"]) == ("front", "front")


def test_exchanges_go_on_in_turn() -> None:
    again: list[str] = []
    turns = Exchanges(1)
    assert turns.begin("a", lambda: None)
    assert not turns.begin("b", lambda: again.append("b"))
    assert not turns.begin("c", lambda: again.append("c"))
    assert turns.begin("a", lambda: None)
    turns.done("a")
    assert again == ["b", "c"]  # both are asked; who begins takes the turn


@pytest.mark.slow
async def test_not_all_functions_are_exchanged_at_once(running: Starter) -> None:
    async with running(exchanges=1) as backend:
        names = ("a", "b", "c")
        for name in names:
            await backend.create(spec(name), 1)
        for name in names:
            await until(backend, name, ready(1))
        for name in names:
            await backend.update(spec(name, env_vars={"new": "yes"}))
        most, version = 0, backend.version()

        def new(name: str) -> bool:
            replicas = backend.get(name, NAMESPACE).replicas
            return len(replicas) == 1 and backend.function(name, NAMESPACE).replicas[replicas[0].id].generation

        while not all(map(new, names)):
            most = max(most, sum(len(backend.get(name, NAMESPACE).replicas) for name in names))
            version = await backend.wait_change(version, 10.0)
        assert most == 4
