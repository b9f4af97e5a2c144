"""Regions on GPUs whose memory is played by files: copied once, lent, freed when nobody has them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from functions.memory import device_regions
from functions.memory.device_regions import Copy, DeviceRegions, LendError
from functions.memory.regions import RegionError, Regions
from tests.doubles.fake_gpu import FakeMemory
from tests.parameters import examples

CONTENT = bytes(range(100))
A, B = "GPU-a", "GPU-b"


def filled(folder: Path, *names: str) -> Regions:
    regions = Regions(folder / "node")
    for name in names:
        hold(regions, name)
    return regions


def hold(regions: Regions, name: str, content: bytes = CONTENT) -> None:
    path = regions.path(name)
    path.parent.mkdir(exist_ok=True)
    fresh = path.with_suffix(".fresh")
    fresh.write_bytes(content)
    fresh.replace(path)


async def idle(devices: DeviceRegions) -> None:
    """Until nothing is under way."""
    async with asyncio.timeout(100):
        while devices._tasks:
            await asyncio.gather(*devices._tasks, return_exceptions=True)
            await asyncio.sleep(0)


def fail_at(call: str, error: Exception) -> Callable[[str], None]:
    def plan(name: str) -> None:
        if name == call:
            raise error

    return plan


async def test_a_region_is_copied_once_for_all_who_ask_at_once_and_later(tmp_path: Path) -> None:
    memory = FakeMemory(tmp_path / "gpu")
    devices = DeviceRegions(filled(tmp_path, "p/one"), memory)
    answers = await asyncio.gather(*(devices.lend("p/one", A) for _ in range(5)))
    answers.append(await devices.lend("p/one", A))
    assert len(set(map(id, answers))) == 1
    assert memory.counts == {"allocate": 1, "write": 1, "handle": 1}
    assert next(iter(memory.files.values())).read_bytes() == CONTENT
    assert devices.held() == [{"name": "p/one", "gpu": A, "bytes": 100, "leases": 6}]


async def test_each_gpu_has_a_copy_of_its_own(tmp_path: Path) -> None:
    memory = FakeMemory(tmp_path / "gpu")
    devices = DeviceRegions(filled(tmp_path, "p/one"), memory)
    one, other = await asyncio.gather(devices.lend("p/one", A), devices.lend("p/one", B))
    assert one.handle != other.handle
    assert memory.counts["write"] == 2


async def test_a_large_region_is_written_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_regions, "PIECE", 33)
    memory = FakeMemory(tmp_path / "gpu")
    await DeviceRegions(filled(tmp_path, "p/one"), memory).lend("p/one", A)
    assert memory.counts["write"] == 4
    assert next(iter(memory.files.values())).read_bytes() == CONTENT


async def test_what_nobody_has_stays_for_the_next_worker_while_its_region_is_held(tmp_path: Path) -> None:
    memory = FakeMemory(tmp_path / "gpu")
    devices = DeviceRegions(filled(tmp_path, "p/one"), memory)
    first = await devices.lend("p/one", A)
    devices.give_back(first)
    await idle(devices)
    assert await devices.lend("p/one", A) is first
    assert memory.counts == {"allocate": 1, "write": 1, "handle": 1}


async def test_a_released_region_is_freed_with_its_last_lease_and_not_before(tmp_path: Path) -> None:
    memory = FakeMemory(tmp_path / "gpu")
    devices = DeviceRegions(filled(tmp_path, "p/one"), memory)
    first, second = await devices.lend("p/one", A), await devices.lend("p/one", A)
    devices.released("p/one")
    devices.give_back(first)
    await idle(devices)
    assert memory.counts["free"] == 0
    devices.give_back(second)
    await idle(devices)
    assert (memory.counts["free"], memory.files, devices.held()) == (1, {}, [])


async def test_a_region_released_while_it_comes_is_freed_once_nobody_has_it(tmp_path: Path) -> None:
    go = threading.Event()
    memory = FakeMemory(tmp_path / "gpu", plan=lambda call: call == "write" and go.wait(10))
    devices = DeviceRegions(filled(tmp_path, "p/one"), memory)
    asking = asyncio.ensure_future(devices.lend("p/one", A))
    await asyncio.sleep(0)
    devices.released("p/one")
    asking.cancel()
    go.set()
    await asyncio.gather(asking, return_exceptions=True)
    await idle(devices)
    assert (memory.counts["free"], memory.files) == (1, {})


async def test_a_region_of_other_content_is_copied_again(tmp_path: Path) -> None:
    memory = FakeMemory(tmp_path / "gpu")
    regions = filled(tmp_path, "p/one")
    devices = DeviceRegions(regions, memory)
    old = await devices.lend("p/one", A)
    hold(regions, "p/one", CONTENT[::-1])
    new = await devices.lend("p/one", A)
    assert memory.files[new.pointer].read_bytes() == CONTENT[::-1]
    assert memory.files[old.pointer].read_bytes() == CONTENT
    devices.give_back(old)
    await idle(devices)
    assert list(memory.files) == [new.pointer]


async def test_where_room_is_needed_the_least_recently_lent_goes_first(tmp_path: Path) -> None:
    memory = FakeMemory(tmp_path / "gpu")
    devices = DeviceRegions(filled(tmp_path, "p/1", "p/2", "p/3", "p/4"), memory, limit_bytes=300)
    first, second, third = [await devices.lend(f"p/{number}", A) for number in (1, 2, 3)]
    devices.give_back(first)
    devices.give_back(second)
    devices.give_back(await devices.lend("p/1", A))
    await devices.lend("p/4", A)
    assert {one["name"] for one in devices.held()} == {"p/1", "p/3", "p/4"}
    assert third.leases == 1


async def test_a_region_takes_whole_granules_and_the_limit_counts_them(tmp_path: Path) -> None:
    memory = FakeMemory(tmp_path / "gpu")
    memory.granule = 256
    devices = DeviceRegions(filled(tmp_path, "p/one", "p/two"), memory, limit_bytes=500)
    await devices.lend("p/one", A)
    assert [file.stat().st_size for file in memory.files.values()] == [256]
    with pytest.raises(LendError, match=r"p/two takes 256 bytes of GPU-a; of the 500 .* 256 are lent"):
        await devices.lend("p/two", A)


async def test_what_is_lent_is_never_dropped_for_another(tmp_path: Path) -> None:
    memory = FakeMemory(tmp_path / "gpu")
    devices = DeviceRegions(filled(tmp_path, "p/1", "p/2"), memory, limit_bytes=150)
    await devices.lend("p/1", A)
    with pytest.raises(LendError, match=r"p/2 takes 100 bytes of GPU-a; of the 150 .* 100 are lent"):
        await devices.lend("p/2", A)
    await devices.lend("p/2", B)  # the limit is each GPU's
    assert memory.counts["free"] == 0


async def test_two_that_fit_one_at_a_time_do_not_refuse_each_other(tmp_path: Path) -> None:
    devices = DeviceRegions(filled(tmp_path, "p/1", "p/2"), FakeMemory(tmp_path / "gpu"), limit_bytes=150)
    answers = await asyncio.gather(devices.lend("p/1", A), devices.lend("p/2", A), return_exceptions=True)
    assert [type(one) for one in answers] == [Copy, device_regions.DeviceFullError]


async def test_a_gpu_that_is_full_gives_up_what_nobody_has(tmp_path: Path) -> None:
    memory = FakeMemory(tmp_path / "gpu", room=250)
    devices = DeviceRegions(filled(tmp_path, "p/1", "p/2", "p/3"), memory)
    devices.give_back(await devices.lend("p/1", A))
    await devices.lend("p/2", A)
    await devices.lend("p/3", A)
    assert {one["name"] for one in devices.held()} == {"p/2", "p/3"}
    with pytest.raises(LendError, match="out of memory"):
        await devices.lend("p/1", A)


async def test_what_is_not_held_or_has_no_allowed_name_is_not_lent(tmp_path: Path) -> None:
    devices = DeviceRegions(filled(tmp_path), FakeMemory(tmp_path / "gpu"))
    with pytest.raises(LendError, match="p/none is not in the memory of this node"):
        await devices.lend("p/none", A)
    with pytest.raises(RegionError, match="PIPELINE/FILE"):
        await devices.lend("../node/p", A)


@pytest.mark.parametrize("call", ["write", "handle"])
async def test_a_copy_that_fails_is_reported_to_all_and_leaves_nothing(tmp_path: Path, call: str) -> None:
    memory = FakeMemory(tmp_path / "gpu", plan=fail_at(call, LendError("cudaMemcpy: unknown error")))
    devices = DeviceRegions(filled(tmp_path, "p/one"), memory)
    answers = await asyncio.gather(*(devices.lend("p/one", A) for _ in range(3)), return_exceptions=True)
    assert [str(one) for one in answers] == ["cudaMemcpy: unknown error"] * 3
    assert (memory.files, devices.held()) == ({}, [])
    memory.plan = lambda call: None
    await devices.lend("p/one", A)


async def test_a_gpu_that_hangs_is_reported_and_nobody_waits(tmp_path: Path) -> None:
    go, reported = threading.Event(), list[str]()
    memory = FakeMemory(tmp_path / "gpu", plan=lambda call: go.wait(10))
    devices = DeviceRegions(filled(tmp_path, "p/one"), memory, on_lost=reported.append, call_s=0.05)
    with pytest.raises(LendError, match=r"within 0\.05 s"):
        await devices.lend("p/one", A)
    with pytest.raises(LendError, match="stops"):
        await devices.lend("p/one", A)
    go.set()
    assert reported == ["a GPU did not answer the weights manager within 0.05 s"]


async def test_a_gpu_that_is_gone_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_regions, "CHECK_S", 0.001)
    reported: list[str] = []
    memory = FakeMemory(tmp_path / "gpu", plan=fail_at("check", LendError("cudaMemset: device unavailable")))
    async with asyncio.timeout(100):
        await DeviceRegions(filled(tmp_path), memory, on_lost=reported.append).watch()
    assert reported == ["cudaMemset: device unavailable"]


async def test_nothing_is_freed_when_the_manager_ends(tmp_path: Path) -> None:
    memory = FakeMemory(tmp_path / "gpu")
    devices = DeviceRegions(filled(tmp_path, "p/one"), memory)
    copy = await devices.lend("p/one", A)
    devices.released("p/one")
    devices.close()
    devices.give_back(copy)
    await idle(devices)
    assert memory.counts["free"] == 0


STEPS = st.lists(
    st.tuples(st.sampled_from(["lend", "lend", "give back", "release", "hold"]), st.integers(0, 3)), max_size=30
)


@settings(max_examples=examples(40), deadline=None)
@given(STEPS)
def test_whatever_happens_lent_memory_is_there_and_the_limit_holds(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    folder = tmp_path_factory.mktemp("devices")

    async def story() -> None:
        memory = FakeMemory(folder / "gpu")
        regions = filled(folder, *(f"p/{number}" for number in range(4)))
        devices = DeviceRegions(regions, memory, limit_bytes=250)
        lent: list[Copy] = []
        for step, number in steps:
            name = f"p/{number}"
            if step == "lend":
                lent += [one for one in [await _lent(devices, name)] if one is not None]
            elif step == "give back" and lent:
                devices.give_back(lent.pop(number % len(lent)))
            elif step == "release":
                regions.release(name)
                devices.released(name)
            elif step == "hold":
                hold(regions, name, bytes([number]) * 100)
            assert all(one.pointer in memory.files for one in lent)
            await idle(devices)
            assert sum(file.stat().st_size for file in memory.files.values()) <= 250
        for copy in lent:
            devices.give_back(copy)
        for number in range(4):
            devices.released(f"p/{number}")
        await idle(devices)
        assert memory.files == {}
        devices.close()

    asyncio.run(story())


async def _lent(devices: DeviceRegions, name: str) -> Copy | None:
    try:
        return await devices.lend(name, A)
    except LendError:
        return None
