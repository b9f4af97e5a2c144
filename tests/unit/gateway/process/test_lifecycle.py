"""Replicas as real processes: start, scale, update, crash, drain, health."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
from pathlib import Path

import pytest

from gateway.backends.process.backend import ProcessBackend
from gateway.backends.process.settings import BackoffSettings, ProcessSettings
from gateway.contract import BackendError, ConflictError, InvalidSpecError, NotFoundError
from tests.unit.gateway.process.conftest import (
    NAMESPACE,
    Starter,
    alive,
    arrived,
    ask,
    ask_json,
    eventually,
    eventually_async,
    log_texts,
    ready,
    spec,
    until,
)


@pytest.mark.slow
async def test_replicas_start_serve_and_are_gone_after_close(running: Starter) -> None:
    async with running() as backend:
        await backend.create(spec("f", env_vars={"colour": "red"}), 2)
        state = await until(backend, "f", ready(2))
        answers = [await ask_json(replica.address) for replica in state.ready]
        assert {answer["pid"] for answer in answers} == {replica.pid for replica in state.ready}
        environ = answers[0]["environ"]
        assert (environ["colour"], environ["OMP_NUM_THREADS"]) == ("red", "1")
        assert state.ready[0].address.endswith(":" + answers[0]["environ"]["port"])
        assert len(backend.start_seconds()) == 2
        assert backend.start_seconds() == []
        pids = [replica.pid for replica in state.replicas if replica.pid]
        parent = backend.launcher.parent_pid
        assert parent
    assert not any(alive(pid) for pid in [*pids, parent])


@pytest.mark.slow
async def test_replicas_do_not_see_the_environment_of_the_gateway(
    running: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET_OF_THE_GATEWAY", "x")
    async with running(inject_env=lambda one: {"injected": one.name, "both": "injected"}) as backend:
        await backend.create(spec("f", env_vars={"both": "own"}), 1)
        state = await until(backend, "f", ready(1))
        environ = (await ask_json(state.ready[0].address))["environ"]
    assert "A_SECRET_OF_THE_GATEWAY" not in environ
    assert (environ["injected"], environ["both"]) == ("f", "own")


@pytest.mark.slow
async def test_a_replica_holds_its_log_by_its_two_outputs_alone(backend: ProcessBackend) -> None:
    await backend.create(spec("f"), 1)
    (replica,) = (await until(backend, "f", ready(1))).ready
    folder = Path(f"/proc/{replica.pid}/fd")
    held = {entry.name: entry.readlink() for entry in folder.iterdir()}
    assert {name for name, to in held.items() if to == held["1"]} == {"1", "2"}


@pytest.mark.slow
async def test_a_replicas_process_has_its_functions_name(backend: ProcessBackend) -> None:
    await backend.create(spec("f"), 1)
    (replica,) = (await until(backend, "f", ready(1))).ready
    assert Path(f"/proc/{replica.pid}/comm").read_text().strip() == "f"


async def test_scaling_to_zero_and_back(backend: ProcessBackend) -> None:
    await backend.create(spec("f"), 1)
    await until(backend, "f", ready(1))
    await backend.scale("f", NAMESPACE, 0)
    await until(backend, "f", ready(0))
    await backend.scale("f", NAMESPACE, 2)
    state = await until(backend, "f", ready(2))
    assert state.restarts == 0


@pytest.mark.slow
async def test_draining_loses_no_call_in_flight(backend: ProcessBackend) -> None:
    await backend.create(spec("f", env_vars={"slow_s": "0.5"}), 2)
    state = await until(backend, "f", ready(2))
    calls = [asyncio.create_task(ask_json(replica.address, "/slow")) for replica in state.ready for _ in range(4)]
    await arrived(backend, "/slow", 8)
    await backend.scale("f", NAMESPACE, 0)
    during = backend.get("f", NAMESPACE)
    assert [replica.state for replica in during.replicas] == ["draining", "draining"]
    answers = await asyncio.gather(*calls)
    assert {answer["pid"] for answer in answers} == {replica.pid for replica in state.ready}
    await until(backend, "f", ready(0))


@pytest.mark.slow
async def test_a_replica_that_does_not_drain_in_time_is_killed(backend: ProcessBackend) -> None:
    await backend.create(spec("f", env_vars={"slow_s": "60", "write_timeout": "100ms"}), 1)
    state = await until(backend, "f", ready(1))
    call = asyncio.create_task(ask(state.ready[0].address, "/slow"))
    await arrived(backend, "/slow")
    await backend.scale("f", NAMESPACE, 0)
    await until(backend, "f", ready(0))
    assert any("write_timeout" in text for text in await log_texts(backend, "f"))
    await asyncio.gather(call, return_exceptions=True)


async def test_a_killed_replica_is_replaced_and_the_log_has_the_reason(backend: ProcessBackend) -> None:
    await backend.create(spec("f"), 1)
    before = (await until(backend, "f", ready(1))).ready[0]
    assert before.pid
    os.kill(before.pid, signal.SIGKILL)
    after = await until(backend, "f", lambda s: bool(s.ready) and s.ready[0].id != before.id)
    assert after.restarts == 1
    assert any("SIGKILL" in text and "at once" in text for text in await log_texts(backend, "f"))


async def test_a_crash_loop_backs_off_and_logs_the_exit_code(running: Starter) -> None:
    async with running(backoff=BackoffSettings(first_s=0.01, factor=2.0, limit_s=3600.0)) as backend:
        await backend.create(spec("f", "crash"), 1)
        await until(backend, "f", lambda s: s.restarts >= 3)
        texts = await log_texts(backend, "f")
    assert "about to fail" in texts
    reasons = [text for text in texts if "exited with code 3" in text]
    assert "at once" in reasons[0]
    assert "in 0.01 s" in reasons[1]
    assert "in 0.02 s" in reasons[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("image", "words"),
    [
        ("crash", "exited with code 3: about to fail"),
        ("broken", "exited with code 1: ValueError: the weights are not there"),
    ],
)
async def test_replicas_that_end_again_and_again_before_they_are_ready_are_a_problem_until_one_is(
    running: Starter, image: str, words: str
) -> None:
    async with running(backoff=BackoffSettings(first_s=0.01)) as backend:
        await backend.create(spec("f", image), 1)
        state = await until(backend, "f", lambda s: bool(s.problems))
        assert state.restarts >= 3 and [problem.partition(": ")[2] for problem in state.problems] == [words]
        await backend.update(spec("f"))
        assert (await until(backend, "f", ready(1))).problems == ()


async def test_a_program_that_raises_leaves_its_traceback_in_the_log(backend: ProcessBackend) -> None:
    await backend.create(spec("f", "broken"), 1)
    await until(backend, "f", lambda s: s.restarts >= 1)
    assert "ValueError: the weights are not there" in await log_texts(backend, "f")


@pytest.mark.slow
async def test_a_replica_that_never_becomes_ready_is_replaced(running: Starter) -> None:
    async with running(ready_timeout_s=0.3) as backend:
        await backend.create(spec("f", "never_ready"), 1)
        await until(backend, "f", lambda s: s.restarts >= 1)
        assert any("did not become ready" in text for text in await log_texts(backend, "f"))


async def test_a_new_environment_rolls_with_one_more_replica_and_never_fewer(backend: ProcessBackend) -> None:
    await backend.create(spec("f", env_vars={"v": "1"}), 2)
    old = {replica.id for replica in (await until(backend, "f", ready(2))).ready}
    await backend.update(spec("f", env_vars={"v": "2"}))
    counts = []
    while True:
        version = backend.version()
        state = backend.get("f", NAMESPACE)
        counts.append((len(state.ready), sum(replica.state != "draining" for replica in state.replicas)))
        if ready(2)(state) and not old & {replica.id for replica in state.ready}:
            break
        await backend.wait_change(version, 5.0)
    assert min(count for count, _ in counts) == 2
    assert max(all_of_them for _, all_of_them in counts) == 3
    assert [(await ask_json(replica.address))["environ"]["v"] for replica in state.ready] == ["2", "2"]


@pytest.mark.slow
async def test_an_update_that_cannot_start_keeps_the_old_replicas(backend: ProcessBackend) -> None:
    await backend.create(spec("f"), 1)
    old = (await until(backend, "f", ready(1))).ready[0]
    await backend.update(spec("f", "crash"))
    state = await until(backend, "f", lambda s: s.restarts >= 2)
    assert old.id in {replica.id for replica in state.ready}
    assert (await ask_json(old.address))["pid"] == old.pid


async def test_max_inflight_labels_and_annotations_change_without_a_restart(backend: ProcessBackend) -> None:
    await backend.create(spec("f", env_vars={"max_inflight": "2"}), 1)
    before = (await until(backend, "f", ready(1))).ready[0]
    await backend.update(spec("f", env_vars={"max_inflight": "5"}, labels={"a": "b"}, annotations={"c": "d"}))

    async def changed() -> bool:
        return int((await ask_json(before.address))["limit"]) == 5

    await eventually_async(changed)
    state = backend.get("f", NAMESPACE)
    assert (state.max_inflight, state.spec.labels) == (5, {"a": "b"})
    assert [replica.pid for replica in state.ready] == [before.pid]


@pytest.mark.slow
async def test_a_dead_warm_parent_is_started_again_and_replicas_come_back(backend: ProcessBackend) -> None:
    await backend.create(spec("f"), 2)
    before = await until(backend, "f", ready(2))
    parent = backend.launcher.parent_pid
    assert parent
    os.kill(parent, signal.SIGKILL)
    old = {replica.id for replica in before.replicas}
    after = await until(backend, "f", lambda s: ready(2)(s) and not old & {replica.id for replica in s.ready})
    assert not any(alive(replica.pid) for replica in before.replicas if replica.pid)
    assert (await ask_json(after.ready[0].address))["pid"] == after.ready[0].pid
    assert any("warm parent died" in text for text in await log_texts(backend, "f"))


async def test_what_waits_for_a_warm_parent_that_cannot_come_back_holds_up_no_end(
    running: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail() -> None:
        raise BackendError("no room")

    async with running(concurrent_starts=1) as backend:
        await backend.create(spec("f"), 2)
        before = {replica.id for replica in (await until(backend, "f", ready(2))).ready}
        monkeypatch.setattr(backend.launcher, "_start_parent", fail)
        assert backend.launcher.parent_pid
        os.kill(backend.launcher.parent_pid, signal.SIGKILL)
        await until(backend, "f", lambda s: len(s.replicas) == 2 and not before & {one.id for one in s.replicas})
        await backend.scale("f", NAMESPACE, 1)
        await until(backend, "f", lambda s: len(s.replicas) == 1)
        async with asyncio.timeout(30):
            await backend.close()


@pytest.mark.slow
async def test_a_replica_whose_start_fails_in_any_way_is_started_again(
    running: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once because its cgroup cannot be made, once by an error that nobody foresaw."""
    failures = iter((FileNotFoundError(2, "No such file or directory", "cgroup"), RuntimeError("of no kind we know")))
    async with running(backoff=BackoffSettings(first_s=0.01), blanks=0) as backend:
        cgroups, make = backend.launcher.cgroups, backend.launcher.cgroups.make

        def failing(slot: str) -> list[Path]:
            for failure in failures:
                raise failure
            return make(slot)

        monkeypatch.setattr(cgroups, "make", failing)
        await backend.create(spec("f"), 1)
        assert (await until(backend, "f", ready(1))).restarts == 2
        texts = " ".join(await log_texts(backend, "f"))
        assert "its cgroup could not be made: [Errno 2]" in texts and "RuntimeError of no kind we know" in texts


async def test_the_log_file_of_a_replica_that_ended_goes_once_there_are_newer_ones(
    running: Starter, tmp_path: Path
) -> None:
    async with running(backoff=BackoffSettings(first_s=0.01), log_files=1) as backend:
        await backend.create(spec("f", "crash"), 1)
        await until(backend, "f", lambda s: s.restarts >= 4)
        assert len(list((tmp_path / "state" / "logs").glob("*/*.log"))) <= 3


@pytest.mark.slow
async def test_a_replica_that_refuses_connections_is_replaced_when_reported(backend: ProcessBackend) -> None:
    await backend.create(spec("f"), 1)
    before = (await until(backend, "f", ready(1))).ready[0]
    record = backend.function("f", NAMESPACE).replicas[before.id]
    record.address = "127.0.0.1:1"
    backend.report_failure("f", NAMESPACE, before.id)
    await until(backend, "f", lambda s: bool(s.ready) and s.ready[0].id != before.id)
    assert any("refused connections" in text for text in await log_texts(backend, "f"))


async def test_a_healthy_replica_survives_a_false_report(backend: ProcessBackend) -> None:
    await backend.create(spec("f"), 1)
    before = (await until(backend, "f", ready(1))).ready[0]
    backend.report_failure("f", NAMESPACE, before.id)
    backend.report_failure("f", NAMESPACE, "no-such-replica")
    await arrived(backend, "/_/health")
    assert (await ask_json(before.address))["pid"] == before.pid


@pytest.mark.slow
async def test_a_silent_replica_is_killed_after_several_probes(running: Starter) -> None:
    async with running(probe_interval_s=0.05, probe_timeout_s=0.05, probe_failures=2) as backend:
        await backend.create(spec("f"), 1)
        before = (await until(backend, "f", ready(1))).ready[0]
        assert before.pid
        os.kill(before.pid, signal.SIGSTOP)
        await until(backend, "f", lambda s: bool(s.ready) and s.ready[0].id != before.id)
        assert any("health probes" in text for text in await log_texts(backend, "f"))


@pytest.mark.slow
async def test_deleting_ends_the_processes_and_the_name_is_free_at_once(backend: ProcessBackend) -> None:
    await backend.create(spec("f", env_vars={"slow_s": "0.3"}), 1)
    first = (await until(backend, "f", ready(1))).ready[0]
    call = asyncio.create_task(ask_json(first.address, "/slow"))
    await arrived(backend, "/slow")
    await backend.delete("f", NAMESPACE)
    with pytest.raises(NotFoundError):
        backend.get("f", NAMESPACE)
    await backend.create(spec("f"), 1)
    second = (await until(backend, "f", ready(1))).ready[0]
    assert second.pid != first.pid
    assert (await call)["pid"] == first.pid
    await eventually(lambda: first.pid is not None and not alive(first.pid))


async def test_wrong_requests_are_refused_with_their_kind_of_error(backend: ProcessBackend) -> None:
    await backend.create(spec("f"), 0)
    with pytest.raises(ConflictError):
        await backend.create(spec("f"), 1)
    with pytest.raises(NotFoundError):
        await backend.update(spec("g"))
    with pytest.raises(NotFoundError):
        await backend.scale("g", NAMESPACE, 1)
    with pytest.raises(InvalidSpecError, match=r"known: test/broken, .*envProcess"):
        await backend.create(dataclasses.replace(spec("g"), image="who/knows"), 1)
    with pytest.raises(InvalidSpecError, match="secret"):
        await backend.create(spec("g", secrets=("absent",)), 1)
    with pytest.raises(InvalidSpecError, match="max_inflight"):
        await backend.create(spec("g", env_vars={"max_inflight": "many"}), 1)
    with pytest.raises(InvalidSpecError, match="bytes"):
        await backend.create(spec("g", env_vars={"big": "x" * 200_000}), 1)
    assert [state.spec.name for state in backend.list()] == ["f"]


async def test_a_module_that_cannot_be_imported_is_reported_at_the_start(tmp_path: Path) -> None:
    backend = ProcessBackend(ProcessSettings(state=tmp_path, images={"x": "no_such_module_here:main"}))
    with pytest.raises(BackendError, match="cannot import no_such_module_here"):
        await backend.start()
    await backend.close()


async def test_waiting_for_a_change_ends_at_once_or_after_its_time(backend: ProcessBackend) -> None:
    version = backend.version()
    assert await backend.wait_change(version - 1, 60.0) == version
    assert await backend.wait_change(version, 0.01) == version
    waiting = asyncio.create_task(backend.wait_change(version, 60.0))
    await asyncio.sleep(0)
    await backend.create(spec("f"), 0)
    assert await waiting > version


@pytest.mark.slow
async def test_starts_and_ends_take_turns(running: Starter) -> None:
    gap_s = 0.4
    async with running(start_gap_s=gap_s) as backend:
        loop = asyncio.get_running_loop()
        for name in ("f", "g"):
            await backend.create(spec(name), 1)
        begun_s = loop.time()
        for name in ("f", "g"):
            await backend.scale(name, NAMESPACE, 2)
        for name in ("f", "g"):
            await until(backend, name, ready(2))
        assert loop.time() - begun_s >= 2 * gap_s  # four replicas, of which the first came at once
        begun_s = loop.time()
        for name in ("f", "g"):
            await backend.scale(name, NAMESPACE, 0)
        for name in ("f", "g"):
            await until(backend, name, lambda state: not state.replicas)
        assert loop.time() - begun_s >= 3 * gap_s  # whichever function they are of
