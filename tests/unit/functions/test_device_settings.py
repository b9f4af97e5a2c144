"""Where a function computes, and when that is decided; nothing here runs on a GPU."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest
import torch

from functions import worker
from functions.device import tensors as devices
from functions.device.tensors import (
    Cuda,
    DeviceLostError,
    GpuDevice,
    open_device,
)
from functions.serving.settings import DeviceSettings, SettingsError, from_environment
from tests.unit.functions.fake_driver import SHARE, FakeDriver


@pytest.mark.parametrize(
    ("environ", "kind"),
    [
        ({}, "cpu"),
        (SHARE, "cuda"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-1"}, "cpu"),
        ({"smoe_device": "cuda"}, "cuda"),
        ({**SHARE, "smoe_device": "cpu"}, "cpu"),
    ],
)
def test_a_function_computes_on_the_gpu_where_it_has_a_share(bert: Path, environ: dict[str, str], kind: str) -> None:
    device = from_environment({"smoe_pipeline": str(bert), "smoe_nodes": "expert-0-0", **environ}).device
    assert device.kind == kind
    assert device.variables == ({} if kind == "cpu" else {key: environ[key] for key in environ if key in SHARE})


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"smoe_device": "gpu"}, "it takes cpu or cuda"),
        ({**SHARE, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "0"}, "above 0, at most 100"),
        ({**SHARE, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "1e2"}, "above 0, at most 100"),
        ({**SHARE, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "8G"}, "DEVICE=SIZE"),
        ({**SHARE, "smoe_device_timeout": "0s"}, "counts as hung"),
    ],
)
def test_device_settings_that_cannot_hold_are_refused(bert: Path, environ: dict[str, str], says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        from_environment({"smoe_pipeline": str(bert), "smoe_nodes": "expert-0-0", **environ})


def test_the_variables_of_a_share_are_set_before_the_device_is_opened(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for key in SHARE:
        monkeypatch.setenv(key, "of somebody else")
    driver = FakeDriver()
    opened = open_device(DeviceSettings("cuda", {**SHARE, "CUDA_MPS_PIPE_DIRECTORY": "/nowhere"}), driver)
    assert isinstance(opened, GpuDevice)
    assert {key: driver.environ_at_open[key] for key in SHARE} == SHARE
    assert "no MPS control daemon at /nowhere" in caplog.text
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)


def test_a_process_that_has_used_cuda_gets_no_share() -> None:
    with pytest.raises(DeviceLostError, match="before its share was known"):
        open_device(DeviceSettings("cuda", SHARE), FakeDriver(touched=True))


def test_cuda_is_asked_in_the_right_order_and_only_then(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Stream:
        def __init__(self, place: torch.device) -> None:
            asked.append(f"stream on {place}")

        def synchronize(self) -> None:
            asked.append("synchronize")

    def init() -> None:
        asked.append("init with " + os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"])

    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "of somebody else")
    monkeypatch.setattr(torch.cuda, "init", init)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(Cuda, "words", lambda self: "a played device")
    monkeypatch.setattr(devices, "GpuDevice", lambda driver, place, deadline_s: driver.finish())
    open_device(DeviceSettings("cuda", {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30"}))
    assert asked == ["init with 30", "stream on cuda:0", "synchronize"]


def test_the_log_names_the_gpu_and_its_memory_in_mib(monkeypatch: pytest.MonkeyPatch) -> None:
    found = SimpleNamespace(name="GPU 1", multi_processor_count=12)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: found)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (3 << 29, 2 << 30))
    assert Cuda().words() == "GPU 1, 12 multiprocessors, 1536 of 2048 MiB free"


def test_a_torch_without_cuda_says_so() -> None:
    if torch.version.cuda is not None:
        pytest.skip("this torch was built with CUDA")
    with pytest.raises(DeviceLostError, match="could not be opened: Torch not compiled with CUDA enabled"):
        open_device(DeviceSettings("cuda"))


def test_preparing_a_standby_touches_no_gpu(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def touched(*_: object) -> NoReturn:
        raise AssertionError("CUDA was used")

    for name in ("init", "_lazy_init", "is_available", "device_count", "current_device", "Stream", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, touched)
    environ = {"smoe_pipeline": str(bert), "smoe_nodes": "expert-0-0", "write_timeout": "1s", **SHARE}
    runner = []
    monkeypatch.setattr(worker, "_runner", lambda: runner.append(asyncio.Runner()) or runner[0])
    worker.prepare(environ)
    runner[0].close()
    assert os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") != SHARE["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"]


@pytest.mark.slow
def test_what_the_warm_parent_imports_touches_no_gpu() -> None:
    program = (
        "import torch\n"
        "def touched(*_): raise SystemExit('CUDA was used while importing')\n"
        "for name in ('init', '_lazy_init', 'is_available', 'device_count', 'current_device'):\n"
        "    setattr(torch.cuda, name, touched)\n"
        "import functions.worker, functions.app, functions.memory.manager, gateway.backends.watchdog\n"
        "assert 'libcuda' not in open('/proc/self/maps').read(), 'the driver is loaded'\n"
        "assert not torch.cuda.is_initialized()\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], timeout=100, stderr=subprocess.PIPE, text=True)
    assert ended.returncode == 0, ended.stderr
