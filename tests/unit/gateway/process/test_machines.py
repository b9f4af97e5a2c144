from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.backends.process.machines import LOCK, MachineFolders, check_machines, placement_of
from gateway.backends.process.replica_changes import Member, next_change
from gateway.contract import BackendError, FunctionSpec, InvalidSpecError, ReplicaState
from gateway.placement import spread
from tests.unit.gateway.process.conftest import NAMESPACE, Starter, ask_json, ready, spec, until

places = st.dictionaries(st.sampled_from("abc"), st.integers(1, 4), min_size=1)
STATES: list[ReplicaState] = ["starting", "ready", "draining"]
placed = st.lists(st.tuples(st.sampled_from(STATES), st.integers(0, 1), st.sampled_from("abc")), max_size=8).map(
    lambda rows: [Member(f"r{i}", state, generation, i, machine) for i, (state, generation, machine) in enumerate(rows)]
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param("", {"a": 1}, id="home"),
        pytest.param("b=2", {"b": 2}, id="one"),
        pytest.param(" a = 1 , b=3", {"a": 1, "b": 3}, id="spaces"),
        pytest.param("a=0,b=1", {"b": 1}, id="none-on-a"),
    ],
)
def test_a_placement_names_replicas_by_node(text: str, found: dict[str, int]) -> None:
    assert placement_of(FunctionSpec("f", "i", annotations={"smoe.placement": text}), ("a", "b")) == found


@pytest.mark.parametrize("text", ["c=1", "a", "a=x", "a=1,a=2", "a=0", "=1", "a=-1"])
def test_a_placement_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(InvalidSpecError, match=r"smoe\.placement"):
        placement_of(FunctionSpec("f", "i", annotations={"smoe.placement": text}), ("a", "b"))


def test_a_placement_without_machines_is_refused() -> None:
    with pytest.raises(InvalidSpecError, match="no machines"):
        placement_of(FunctionSpec("f", "i", annotations={"smoe.placement": "a=1"}), ())


@pytest.mark.parametrize("machines", [("A",), ("a", "a"), (LOCK,), ("a/b",), ("",)])
def test_machine_names_are_checked(machines: tuple[str, ...]) -> None:
    with pytest.raises(BackendError, match="machine"):
        check_machines(machines)


@settings(deadline=None)
@given(places, st.integers(0, 12))
def test_replicas_are_spread_in_proportion(wanted: dict[str, int], desired: int) -> None:
    spread_replicas = spread(wanted, desired)
    assert sum(spread_replicas.values()) == desired
    total = sum(wanted.values())
    assert all(abs(spread_replicas[machine] - count * desired / total) < 1 for machine, count in wanted.items())
    assert spread(wanted, total) == wanted


@settings(deadline=None)
@given(placed, places)
def test_repeated_steps_end_with_every_replica_in_its_place(seen: list[Member], wanted: dict[str, int]) -> None:
    desired, order = sum(wanted.values()), 100
    for _ in range(60):
        step = next_change(seen, desired, 1, wanted)
        before = sum(one.state == "ready" for one in seen)
        assert sum(one.state == "ready" and one.id not in step.stop for one in seen) >= min(before, desired)
        assert len(step.machines) == step.start
        seen = [
            Member(one.id, "ready", one.generation, one.order, one.machine)
            for one in seen
            if one.id not in step.stop and one.state != "draining"
        ]
        for machine in step.machines:
            order += 1
            seen.append(Member(f"n{order}", "starting", 1, order, machine))
    assert sorted(one.machine for one in seen) == sorted(
        machine for machine, count in wanted.items() for _ in range(count)
    )
    assert all(one.generation == 1 for one in seen)


@pytest.mark.slow
async def test_a_replica_moves_to_another_machine_without_a_moment_in_which_none_is_ready(running: Starter) -> None:
    async with running(machines=("a", "b")) as backend:
        await backend.create(spec("echo"), 1)
        first = (await until(backend, "echo", ready(1))).ready[0]
        environ = (await ask_json(first.address))["environ"]
        assert (first.machine, environ["smoe_machine"]) == ("a", "a")
        assert Path(environ["smoe_weights_dir"]).is_dir()
        await backend.update(spec("echo", annotations={"smoe.placement": "b=1"}))
        while (state := backend.get("echo", NAMESPACE)).replicas != state.ready or state.ready[0].machine != "b":
            assert state.ready
            await backend.wait_change(backend.version(), 10.0)
        assert (await ask_json(state.ready[0].address))["environ"]["smoe_machine"] == "b"


@pytest.mark.slow
async def test_an_update_that_changes_the_placement_sets_the_number_of_replicas(running: Starter) -> None:
    async with running(machines=("a", "b")) as backend:
        await backend.create(spec("echo"), 2)
        await until(backend, "echo", ready(2))
        await backend.update(spec("echo", annotations={"smoe.placement": "a=1"}))
        await until(backend, "echo", ready(1))
        await backend.update(spec("echo", annotations={"smoe.placement": "a=1,b=2"}))
        state = await until(backend, "echo", ready(3))
        assert sorted(replica.machine for replica in state.ready) == ["a", "b", "b"]
        await backend.scale("echo", NAMESPACE, 1)
        await backend.update(spec("echo", annotations={"smoe.placement": "a=1,b=2"}, env_vars={"new": "yes"}))
        assert (await until(backend, "echo", ready(1))).desired_replicas == 1


@pytest.mark.slow
async def test_memory_folders_go_with_the_gateway(running: Starter, tmp_path: Path) -> None:
    async with running(machines=("a",), memory_root=tmp_path) as backend:
        assert backend.machines is not None
        folder = backend.machines.folder
        (folder / "a" / "weights").write_bytes(b"1234")
    assert not folder.exists()


async def test_the_next_gateway_removes_what_a_killed_one_left_but_not_what_a_live_one_has(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from gateway.backends.process.machines import MachineFolders\n"
        "folders = MachineFolders(['a'], Path(sys.argv[1])); print(folders.folder, flush=True); time.sleep(60)"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    left = Path((await process.stdout.readline()).decode().strip())
    MachineFolders(["a"], tmp_path).close()
    assert left.is_dir()
    process.kill()
    await process.wait()
    MachineFolders(["a"], tmp_path).close()
    assert not left.exists()
