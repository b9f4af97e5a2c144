"""Replicas with GPU shares: found GPUs, environment, refusals, exchanges. GPUs and MPS are faked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.backends.process.backend import ProcessBackend
from gateway.backends.process.gpu.seats import Gpu
from gateway.backends.process.gpu.shares import Found, GpuShares, find_gpus
from gateway.backends.process.settings import ProcessSettings
from gateway.backends.process.workers.parent import used_gpu
from gateway.contract import BackendError, ConflictError, FunctionSpec, InvalidSpecError
from tests.unit.gateway.process.conftest import IMAGES, NAMESPACE, ask_json, log_texts, ready, spec, until

A, B = Gpu("GPU-a", "made up", 80_000), Gpu("GPU-b", "made up", 80_000)
Gpus = Callable[..., AbstractAsyncContextManager[ProcessBackend]]


class FakeMps:
    pipe = Path("/fake/pipe")

    def __init__(self, fails: str = "") -> None:
        self.fails = fails

    async def ready(self) -> None:
        if self.fails:
            raise BackendError(self.fails)

    async def close(self) -> None:
        """Nothing runs."""


@pytest.fixture
def with_gpus(tmp_path: Path) -> Gpus:
    @asynccontextmanager
    async def begin(*gpus: Gpu, fails: str = "", **changes: Any) -> AsyncIterator[ProcessBackend]:
        options: dict[str, Any] = {"settle_s": 0.05, "blanks": 1, "write_timeout_s": 10.0, **changes}
        settings = ProcessSettings(state=tmp_path / "state", images=IMAGES, **options)
        shares = GpuShares(settings, lambda: Found(gpus), FakeMps(fails))  # type: ignore[arg-type]
        backend = ProcessBackend(settings, shares)
        await backend.start()
        try:
            yield backend
        finally:
            await backend.close()

    return begin


def share(name: str, tenths: int, **fields: Any) -> FunctionSpec:
    return spec(name, limits={"nvidia.com/gpu": str(tenths)}, **fields)


@pytest.mark.slow
async def test_a_replica_gets_its_gpu_and_its_share_in_its_environment_and_others_get_nothing(with_gpus: Gpus) -> None:
    async with with_gpus(A) as backend:
        await backend.create(share("f", 3, env_vars={"CUDA_VISIBLE_DEVICES": "GPU-of-others"}), 1)
        await backend.create(spec("plain"), 1)
        environ = (await ask_json((await until(backend, "f", ready(1))).ready[0].address))["environ"]
        plain = (await ask_json((await until(backend, "plain", ready(1))).ready[0].address))["environ"]
        notes = backend.info().notes
    assert environ["CUDA_VISIBLE_DEVICES"] == "GPU-a"
    assert environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "30"
    assert environ["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=24000M"
    assert (environ["CUDA_MPS_PIPE_DIRECTORY"], environ["smoe_device"]) == ("/fake/pipe", "cuda")
    assert not any(key.startswith("CUDA") or key == "smoe_device" for key in plain)
    assert "GPU GPU-a (made up, 80000 MiB): 3 of 10 tenths are taken." in notes


async def test_a_machine_without_gpus_refuses_shares(with_gpus: Gpus) -> None:
    async with with_gpus() as backend:
        with pytest.raises(InvalidSpecError, match="this machine has 0"):
            await backend.create(share("f", 1), 1)


@pytest.mark.slow
async def test_what_does_not_fit_is_refused_and_the_function_stays_as_it_was(with_gpus: Gpus) -> None:
    async with with_gpus(A) as backend:
        await backend.create(share("f", 4), 2)
        with pytest.raises(ConflictError, match="left over are 2 tenths of GPU-a"):
            await backend.create(share("g", 3), 1)
        with pytest.raises(ConflictError, match="3 replicas, 1 more than now"):
            await backend.scale("f", NAMESPACE, 3)
        with pytest.raises(ConflictError):
            await backend.update(share("f", 6))
        with pytest.raises(InvalidSpecError, match="0 to 10"):
            await backend.update(share("f", 11))
        state = await until(backend, "f", ready(2))
        assert (state.desired_replicas, state.spec.limits) == (2, {"nvidia.com/gpu": "4"})
        assert [one.spec.name for one in backend.list()] == ["f"]
        await backend.delete("f", NAMESPACE)
        await backend.create(share("g", 10), 1)
        await until(backend, "g", ready(1))


@pytest.mark.slow
async def test_a_change_of_share_exchanges_the_worker_behind_a_switchover(with_gpus: Gpus) -> None:
    async with with_gpus(A, B) as backend:
        await backend.create(share("f", 8), 1)
        before = (await until(backend, "f", ready(1))).ready[0]
        seen: list[int] = []
        watching = asyncio.ensure_future(_least_ready(backend, seen))
        await backend.update(share("f", 5))
        after = await until(backend, "f", lambda state: ready(1)(state) and state.ready[0].id != before.id)
        watching.cancel()
        environ = (await ask_json(after.ready[0].address))["environ"]
    assert min(seen) == 1
    assert environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "50"
    assert environ["CUDA_VISIBLE_DEVICES"] == "GPU-b"


async def _least_ready(backend: ProcessBackend, seen: list[int]) -> None:
    while True:
        version = backend.version()
        seen.append(len(backend.get("f", NAMESPACE).ready))
        await backend.wait_change(version, 5.0)


@pytest.mark.slow
async def test_where_both_shares_do_not_fit_the_old_replicas_go_first_one_by_one(with_gpus: Gpus) -> None:
    async with with_gpus(A) as backend:
        await backend.create(share("f", 5), 2)
        old = {replica.id for replica in (await until(backend, "f", ready(2))).ready}
        seen: list[int] = []
        watching = asyncio.ensure_future(_least_ready(backend, seen))
        await backend.update(share("f", 4))
        state = await until(backend, "f", lambda one: ready(2)(one) and not old & {replica.id for replica in one.ready})
        watching.cancel()
        texts = await log_texts(backend, "f")
        assert backend.gpus.seats.held(A) == 8
    assert min(seen) == 1
    assert state.restarts == 0
    assert any("no GPU has room for both shares" in text for text in texts)


@pytest.mark.slow
async def test_a_crashed_replica_comes_back_on_its_share(with_gpus: Gpus) -> None:
    async with with_gpus(A) as backend:
        await backend.create(share("f", 10), 1)
        first = (await until(backend, "f", ready(1))).ready[0]
        backend.function("f", "openfaas-fn").kill(
            next(iter(backend.function("f", "openfaas-fn").replicas.values())), "x"
        )
        state = await until(backend, "f", lambda one: ready(1)(one) and one.ready[0].id != first.id)
    assert state.restarts == 1


async def test_without_mps_a_replica_does_not_start_and_the_log_has_the_reason(with_gpus: Gpus) -> None:
    async with with_gpus(A, fails="the MPS control daemon did not answer") as backend:
        await backend.create(share("f", 1), 1)
        await until(backend, "f", lambda state: state.restarts >= 2)
        texts = await log_texts(backend, "f")
    assert any("could not be started: the MPS control daemon did not answer" in text for text in texts)


KEEPS_MEMORY = {"smoe.gpu-memory": "true"}


@pytest.mark.slow
async def test_who_keeps_memory_on_gpus_sees_all_of_them_under_the_same_daemon_and_holds_no_tenths(
    with_gpus: Gpus,
) -> None:
    async with with_gpus(A, B) as backend:
        await backend.create(spec("f", annotations=KEEPS_MEMORY), 1)
        environ = (await ask_json((await until(backend, "f", ready(1))).ready[0].address))["environ"]
        assert backend.gpus.seats.held(A) == backend.gpus.seats.held(B) == 0
    assert {key: environ[key] for key in environ if key.startswith("CUDA") or key == "smoe_device"} == {
        "smoe_device": "cuda",
        "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b",
        "CUDA_MPS_PIPE_DIRECTORY": "/fake/pipe",
    }


@pytest.mark.slow
async def test_who_keeps_memory_on_gpus_waits_for_the_daemon_as_shares_do(with_gpus: Gpus) -> None:
    async with with_gpus(A, fails="the MPS control daemon did not answer") as backend:
        await backend.create(spec("f", annotations=KEEPS_MEMORY), 1)
        await until(backend, "f", lambda state: state.restarts >= 1)
        texts = await log_texts(backend, "f")
    assert any("could not be started: the MPS control daemon did not answer" in text for text in texts)


@pytest.mark.slow
async def test_on_a_machine_without_gpus_keeping_memory_there_changes_nothing(with_gpus: Gpus) -> None:
    async with with_gpus(fails="nobody may ask") as backend:
        await backend.create(spec("f", annotations=KEEPS_MEMORY), 1)
        environ = (await ask_json((await until(backend, "f", ready(1))).ready[0].address))["environ"]
    assert not any(key.startswith("CUDA") or key == "smoe_device" for key in environ)


@pytest.mark.slow
async def test_beginning_to_keep_memory_on_gpus_takes_a_new_process(with_gpus: Gpus) -> None:
    async with with_gpus(A) as backend:
        await backend.create(spec("f"), 1)
        before = (await until(backend, "f", ready(1))).ready[0]
        await backend.update(spec("f", annotations=KEEPS_MEMORY))
        state = await until(backend, "f", lambda state: ready(1)(state) and state.ready[0].id != before.id)
        assert state.ready[0].pid != before.pid


class FakeNvml:
    """What this room asks of the module ``pynvml``."""

    NVML_COMPUTEMODE_PROHIBITED = 2
    NVML_DEVICE_MIG_ENABLE = 1

    class NVMLError(Exception):
        pass

    def __init__(self, *devices: dict[str, Any], fails: bool = False) -> None:
        self.devices, self.fails, self.open = devices, fails, 0

    def nvmlInit(self) -> None:
        if self.fails:
            raise self.NVMLError("no driver")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:
        return self.devices[index]

    def nvmlDeviceGetUUID(self, device: dict[str, Any]) -> Any:
        return device["uuid"]

    def nvmlDeviceGetName(self, device: dict[str, Any]) -> str:
        return "made up"

    def nvmlDeviceGetMemoryInfo(self, device: dict[str, Any]) -> SimpleNamespace:
        return SimpleNamespace(total=24 << 30)

    def nvmlDeviceGetComputeMode(self, device: dict[str, Any]) -> int:
        return device.get("mode", 0)

    def nvmlDeviceGetMigMode(self, device: dict[str, Any]) -> list[int]:
        if "mig" not in device:
            raise self.NVMLError("not supported")
        return [device["mig"], device["mig"]]


def test_gpus_are_found_by_nvml_without_those_that_cannot_be_shared() -> None:
    nvml = FakeNvml(
        {"uuid": "GPU-1"}, {"uuid": b"GPU-2", "mig": 0}, {"uuid": "GPU-3", "mig": 1}, {"uuid": "GPU-4", "mode": 2}
    )
    gpus = find_gpus(nvml, {})
    assert gpus.gpus == (Gpu("GPU-1", "made up", 24576), Gpu("GPU-2", "made up", 24576))
    assert [note.partition(" is not used: ")[2] for note in gpus.notes] == [
        "MIG is on, which knows no tenths.",
        "its compute mode is prohibited.",
    ]
    assert nvml.open == 0


@pytest.mark.parametrize(
    ("visible", "uuids"), [("1", ["GPU-20"]), ("GPU-1", ["GPU-10"]), ("", []), ("GPU-20,0", ["GPU-10", "GPU-20"])]
)
def test_cuda_visible_devices_of_the_gateway_is_obeyed(visible: str, uuids: list[str]) -> None:
    nvml = FakeNvml({"uuid": "GPU-10"}, {"uuid": "GPU-20"})
    assert [gpu.uuid for gpu in find_gpus(nvml, {"CUDA_VISIBLE_DEVICES": visible}).gpus] == uuids


def test_a_machine_without_a_driver_has_no_gpus() -> None:
    assert find_gpus(FakeNvml(fails=True), {}).gpus == ()


def test_a_parent_that_uses_a_gpu_is_noticed_by_its_open_device_files(tmp_path: Path) -> None:
    (tmp_path / "0").symlink_to("/dev/null")
    assert used_gpu(str(tmp_path)) == ""
    (tmp_path / "7").symlink_to("/dev/nvidiactl")
    assert used_gpu(str(tmp_path)) == "/dev/nvidiactl"
