"""Limits and usage by the kernel's real cgroups; skipped with a reason where they are not writable."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from gateway.backends.process.backend import ProcessBackend
from gateway.backends.process.cgroup.limits import CgroupsV1
from gateway.backends.process.workers import channel, child
from gateway.contract import Usage
from tests.unit.gateway.process.conftest import (
    NAMESPACE,
    Starter,
    ask,
    ask_json,
    eventually,
    eventually_async,
    log_texts,
    ready,
    spec,
    until,
)

MIB = 1 << 20


def limits_seen(backend: ProcessBackend, name: str) -> tuple[int, float]:
    """Memory limit in bytes and CPU share in cores, read from the files of the function's first replica."""
    record = next(iter(backend.function(name, NAMESPACE).replicas.values()))
    cgroups = backend.launcher.cgroups
    folders = [folder / record.slot for folder in cgroups.folders]
    if isinstance(cgroups, CgroupsV1):
        memory = next(path for folder in folders if (path := folder / "memory.limit_in_bytes").exists())
        cpu = next(folder for folder in folders if (folder / "cpu.cfs_quota_us").exists())
        quota_us = int((cpu / "cpu.cfs_quota_us").read_text())
        return int(memory.read_text()), quota_us / int((cpu / "cpu.cfs_period_us").read_text())
    folder = cgroups.folders[0] / record.slot
    quota_text, period_text = (folder / "cpu.max").read_text().split()
    return int((folder / "memory.max").read_text()), int(quota_text) / int(period_text)


@pytest.mark.slow
@pytest.mark.usefixtures("enforced")
async def test_limits_change_live_in_the_kernel_without_a_restart(running: Starter) -> None:
    async with running(cpu_scale=0.5) as backend:
        await backend.create(spec("f", limits={"memory": "128Mi", "cpu": "1"}), 1)
        before = await until(backend, "f", ready(1))
        assert limits_seen(backend, "f") == (128 * MIB, 0.5)
        await backend.update(spec("f", limits={"memory": "256Mi", "cpu": "3"}))
        assert limits_seen(backend, "f") == (256 * MIB, 1.5)
        await backend.update(spec("f", limits={"memory": "64Mi", "cpu": "100m"}))
        assert limits_seen(backend, "f") == (64 * MIB, 0.05)
        after = backend.get("f", NAMESPACE)
        assert [replica.pid for replica in after.ready] == [replica.pid for replica in before.ready]
        assert any("cpu_scale" in note for note in backend.info().notes)


@pytest.mark.usefixtures("enforced")
async def test_a_replica_out_of_memory_is_restarted_with_that_reason(backend: ProcessBackend) -> None:
    await backend.create(spec("f", limits={"memory": "48Mi"}, env_vars={"eat_mib": "200"}), 1)
    state = await until(backend, "f", ready(1))
    with pytest.raises((OSError, IndexError)):
        await ask(state.ready[0].address, "/eat")
    await until(backend, "f", lambda s: s.restarts == 1 and bool(s.ready))
    assert any("out of memory" in text for text in await log_texts(backend, "f"))


@pytest.mark.slow
@pytest.mark.usefixtures("enforced")
async def test_a_memory_limit_below_use_waits_and_kills_nobody(running: Starter) -> None:
    async with running(usage_interval_s=0.05) as backend:
        await backend.create(spec("f", limits={"memory": "256Mi"}, env_vars={"eat_mib": "100"}), 1)
        before = (await until(backend, "f", ready(1))).ready[0]
        await ask_json(before.address, "/eat")
        changed = spec("f", limits={"memory": "64Mi"}, env_vars={"eat_mib": "100"})
        await backend.update(changed)
        assert limits_seen(backend, "f")[0] == 256 * MIB
        assert (await ask_json(before.address))["pid"] == before.pid
        await ask_json(before.address, "/free")
        await eventually(lambda: limits_seen(backend, "f")[0] == 64 * MIB)
        texts = await log_texts(backend, "f")
    assert any("keeps its old limit" in text for text in texts)
    assert any("memory use fits now" in text for text in texts)


@pytest.mark.slow
@pytest.mark.usefixtures("enforced")
async def test_cgroups_are_gone_after_close(running: Starter) -> None:
    async with running() as backend:
        await backend.create(spec("f"), 2)
        await until(backend, "f", ready(2))
        folders = backend.launcher.cgroups.folders
        assert all(folder.is_dir() for folder in folders)
    assert not any(folder.exists() for folder in folders)


@pytest.mark.slow
@pytest.mark.usefixtures("enforced")
async def test_the_quota_holds_a_busy_replica_to_its_share(running: Starter) -> None:
    async with running(usage_interval_s=0.02) as backend:
        busy = spec("f", limits={"cpu": "200m"})
        await backend.create(busy, 1)
        replica = (await until(backend, "f", ready(1))).ready[0]

        async def hammer() -> None:
            while True:
                await ask(replica.address)

        callers = [asyncio.create_task(hammer()) for _ in range(4)]
        loop = asyncio.get_running_loop()

        async def used_s(at_least_s: float) -> tuple[float, float]:
            """The replica's CPU seconds once they are at least so many, and the time then."""
            async with asyncio.timeout(100):
                while (cpu_s := (await usage_of(backend)).cpu_seconds_total) is None or cpu_s < at_least_s:
                    await asyncio.sleep(0.01)
                return cpu_s, loop.time()

        first_s, began = await used_s(0.0)
        last_s, ended = await used_s(first_s + 0.2)  # a second of a fifth of a core
        for caller in callers:
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
        assert (last_s - first_s) / (ended - began) <= 0.2 * 1.3


async def usage_of(backend: ProcessBackend) -> Usage:
    return next(iter(backend.usage("f", NAMESPACE).values()), Usage(None, None, None))


@pytest.mark.slow
@pytest.mark.parametrize("use_cgroups", [True, False])
async def test_usage_is_measured_with_and_without_cgroups(running: Starter, use_cgroups: bool) -> None:
    async with running(use_cgroups=use_cgroups, usage_interval_s=0.05) as backend:
        await backend.create(spec("f", limits={"memory": "256Mi"}, env_vars={"eat_mib": "50"}), 1)
        replica = (await until(backend, "f", ready(1))).ready[0]
        await ask_json(replica.address, "/eat")

        async def eaten() -> bool:
            usage = await usage_of(backend)
            return (usage.memory_bytes or 0) > 50 * MIB and usage.cpu_millicores is not None

        await eventually_async(eaten)
        usage = await usage_of(backend)
        assert usage.memory_bytes is not None
        assert usage.memory_bytes < 120 * MIB
        assert usage.cpu_seconds_total is not None
        assert 0 < usage.cpu_seconds_total < 30


async def test_limits_that_cannot_be_enforced_are_noted(running: Starter, tmp_path: Path) -> None:
    async with running(cgroup_root=tmp_path / "nothing-here") as backend:
        await backend.create(spec("f", limits={"memory": "64Mi", "cpu": "1"}), 1)
        await until(backend, "f", ready(1))
        assert any("not enforced" in note for note in backend.info().notes)


@pytest.mark.slow
async def test_a_limit_that_no_replica_fits_in_is_reported(running: Starter, enforced: None) -> None:
    async with running() as backend:
        await backend.create(spec("f", limits={"memory": "4Ki"}), 1)
        await until(backend, "f", lambda s: s.restarts >= 1)
        reasons = ("less than an empty replica uses", "out of memory")
        assert any(reason in text for text in await log_texts(backend, "f") for reason in reasons)


@pytest.mark.slow
@pytest.mark.usefixtures("enforced")
async def test_what_starts_or_ends_gives_way_to_what_serves(running: Starter) -> None:
    async with running(starting_share=0.25, background_share=0.5) as backend:
        cgroups = backend.launcher.cgroups
        shares: list[str] = []
        set_share = cgroups.set_share

        def noted(slot: str, share: float) -> None:
            set_share(slot, share)
            shares.append(f"{slot} {share} {share_seen(backend, slot)}")

        cgroups.set_share = noted  # type: ignore[method-assign]
        await backend.create(spec("f"), 1)
        await until(backend, "f", ready(1))
        slot = next(iter(backend.function("f", NAMESPACE).replicas.values())).slot
        of_f = [line for line in shares if line.startswith(slot)]
        assert of_f[-1] == f"{slot} 1.0 1.0"
        await backend.create(spec("b", annotations={"smoe.background": "true"}), 1)
        await until(backend, "b", ready(1))
        assert shares[-1].endswith(" 0.5 0.5")
        assert share_seen(backend, "ending") == 0.5


def test_a_process_that_ends_enters_the_cgroup_of_those_that_end(tmp_path: Path) -> None:
    ending = tmp_path / "cgroup.procs"
    ending.touch()
    ours, theirs = channel.pair()
    me = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.dup2(theirs.fileno(), 100)
        child.run(me, 100, [], str(ending))
    theirs.close()
    ours.close()  # no message names what to become
    _, status = os.waitpid(pid, 0)
    assert (os.waitstatus_to_exitcode(status), ending.read_text()) == (0, "0")


def share_seen(backend: ProcessBackend, slot: str) -> float:
    """A slot's weight against other slots, from the kernel's file."""
    cgroups = backend.launcher.cgroups
    if isinstance(cgroups, CgroupsV1):
        folder = next(folder / slot for folder in cgroups.folders if (folder / slot / "cpu.shares").exists())
        return round(int((folder / "cpu.shares").read_text()) / 1024, 2)
    return int((cgroups.folders[0] / slot / "cpu.weight").read_text()) / 100
