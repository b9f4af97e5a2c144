"""CUDA's runtime as managers and workers call it: the order of calls and the words of errors, its module played."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from functions.device import cuda_calls
from functions.device.cuda_calls import (
    CudaCallError,
    CudaOpener,
    _Foreign,
    call,
    gpu_uuid,
    handle_bytes,
    handle_of,
    runtime,
)
from functions.device.leases import HANDLE_BYTES, LeaseError
from functions.memory.cuda_memory import CudaMemory
from functions.memory.device_regions import DeviceFullError, LendError

UUIDS = [bytes(range(16)), bytes(range(16, 32))]
FIRST, SECOND = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f", "GPU-10111213-1415-1617-1819-1a1b1c1d1e1f"


class FakeHandle:
    def __init__(self, data: bytes = bytes(HANDLE_BYTES)) -> None:
        self.memory = ctypes.create_string_buffer(data, HANDLE_BYTES)

    def getPtr(self) -> int:
        return ctypes.addressof(self.memory)


class FakeRuntime:
    """``cuda.bindings.runtime`` on a machine with two GPUs; memory is counted, not there."""

    cudaError_t = SimpleNamespace(cudaSuccess=0, cudaErrorMemoryAllocation=2)
    cudaMemcpyKind = SimpleNamespace(cudaMemcpyHostToDevice=1)
    cudaIpcMemLazyEnablePeerAccess = 1

    def __init__(self, codes: Mapping[str, int] | None = None) -> None:
        """``codes``: what calls answer that fail."""
        self.codes = dict(codes or {})
        self.calls: list[tuple[Any, ...]] = []
        self.copied = b""

    def cudaIpcMemHandle_t(self) -> FakeHandle:
        return FakeHandle()

    def cudaGetErrorString(self, code: int) -> tuple[int, bytes]:
        return 0, {2: b"out of memory", 46: b"device unavailable"}[code]

    def cudaGetLastError(self) -> tuple[int]:
        return (0,)

    def __getattr__(self, name: str) -> Any:
        def asked(*arguments: Any) -> tuple[Any, ...]:
            self.calls.append((name, *arguments))
            if code := self.codes.get(name, 0):
                return (code, None)
            if name == "cudaMemcpy":
                self.copied = ctypes.string_at(arguments[1], arguments[2])
            return (0, *self._answer(name, arguments))

        return asked

    def _answer(self, name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        found: dict[str, Any] = {
            "cudaGetDeviceCount": 2,
            "cudaMalloc": 1000 * len(self.calls),
            "cudaIpcGetMemHandle": FakeHandle(b"h" * HANDLE_BYTES),
            "cudaIpcOpenMemHandle": 777,
        }
        if name == "cudaGetDeviceProperties":
            return (SimpleNamespace(uuid=SimpleNamespace(bytes=UUIDS[arguments[0]])),)
        return (found[name],) if name in found else ()


def test_a_gpu_is_named_as_nvml_names_it() -> None:
    assert gpu_uuid(FakeRuntime(), 1) == SECOND


def test_memory_is_taken_on_the_gpu_that_was_named_beside_a_spark_of_our_own() -> None:
    cuda = FakeRuntime()
    memory = CudaMemory(lambda: cuda)
    memory.allocate(SECOND, 4 << 20)
    memory.allocate(SECOND, 2 << 20)
    made = [one for one in cuda.calls if one[0] in ("cudaSetDevice", "cudaMalloc")]
    assert made == [
        ("cudaSetDevice", 1),
        ("cudaMalloc", 256),
        ("cudaSetDevice", 1),
        ("cudaMalloc", 4 << 20),
        ("cudaSetDevice", 1),
        ("cudaMalloc", 2 << 20),
    ]


def test_bytes_of_the_host_go_where_they_are_to_and_are_there_before_the_handle_is() -> None:
    cuda = FakeRuntime()
    memory = CudaMemory(lambda: cuda)
    pointer = memory.allocate(FIRST, 2 << 20)
    memory.write(pointer, 5, memoryview(b"0123456789")[2:6])
    assert (cuda.copied, cuda.calls[-1][1], cuda.calls[-1][4]) == (b"2345", pointer + 5, 1)
    assert memory.handle(pointer) == b"h" * HANDLE_BYTES
    assert [one[0] for one in cuda.calls[-2:]] == ["cudaDeviceSynchronize", "cudaIpcGetMemHandle"]
    memory.free(pointer)
    assert cuda.calls[-1] == ("cudaFree", pointer)


def test_a_check_writes_to_the_spark_of_every_gpu_in_use_and_waits() -> None:
    cuda = FakeRuntime()
    memory = CudaMemory(lambda: cuda)
    memory.check()
    assert cuda.calls == []
    memory.allocate(SECOND, 2 << 20)
    cuda.calls.clear()
    memory.check()
    assert [one[0] for one in cuda.calls] == ["cudaSetDevice", "cudaMemset", "cudaDeviceSynchronize"]
    cuda.codes["cudaMemset"] = 46
    with pytest.raises(LendError, match="cudaMemset: device unavailable"):
        memory.check()


def test_a_full_gpu_is_distinguished_from_every_other_error() -> None:
    cuda = FakeRuntime()
    memory = CudaMemory(lambda: cuda)
    memory.allocate(FIRST, 2 << 20)
    cuda.codes["cudaMalloc"] = 2
    with pytest.raises(DeviceFullError, match="cudaMalloc: out of memory"):
        memory.allocate(FIRST, 2 << 20)
    cuda.codes["cudaMalloc"] = 46
    with pytest.raises(LendError) as found:
        memory.allocate(FIRST, 2 << 20)
    assert not isinstance(found.value, DeviceFullError)


def test_a_gpu_that_is_not_there_is_a_sentence() -> None:
    with pytest.raises(LendError, match="sees no GPU GPU-x"):
        CudaMemory(FakeRuntime).allocate("GPU-x", 1)


def test_without_the_package_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(CudaCallError, match="cuda-bindings is not installed"):
        runtime()
    with pytest.raises(LendError, match="cuda-bindings is not installed"):
        CudaMemory().allocate(FIRST, 1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    with pytest.raises(LeaseError, match="cuda-bindings is not installed"):
        CudaOpener().gpu()


def test_without_a_driver_there_is_a_sentence() -> None:
    def missing() -> Any:
        raise RuntimeError("Failed to dlopen libcuda.so.1")

    with pytest.raises(CudaCallError, match=r"cudaGetDeviceCount: Failed to dlopen libcuda\.so\.1"):
        call(SimpleNamespace(cudaGetDeviceCount=missing), "cudaGetDeviceCount")


def test_a_worker_maps_the_handle_on_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, taken = FakeRuntime(), list[Any]()
    monkeypatch.setattr(cuda_calls, "runtime", lambda: cuda)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch, "as_tensor", lambda memory, device: taken.extend([memory, device]))
    opener = CudaOpener()
    assert opener.gpu() == SECOND
    opener.open(b"h" * HANDLE_BYTES, 10)
    assert [one[0] for one in cuda.calls[-2:]] == ["cudaSetDevice", "cudaIpcOpenMemHandle"]
    assert (handle_bytes(cuda.calls[-1][1]), cuda.calls[-1][2]) == (b"h" * HANDLE_BYTES, 1)
    assert taken[0].__cuda_array_interface__["data"] == (777, False)
    assert taken[1] == torch.device("cuda", 1)
    cuda.codes["cudaIpcOpenMemHandle"] = 46
    with pytest.raises(LeaseError, match="cudaIpcOpenMemHandle: device unavailable"):
        opener.open(b"h" * HANDLE_BYTES, 10)


def test_memory_that_pytorch_does_not_take_is_mapped_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(memory: object, device: object) -> Any:
        raise TypeError("no such interface")

    cuda = FakeRuntime()
    monkeypatch.setattr(cuda_calls, "runtime", lambda: cuda)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch, "as_tensor", refuse)
    with pytest.raises(LeaseError, match="PyTorch does not take mapped memory: no such interface"):
        CudaOpener().open(b"h" * HANDLE_BYTES, 10)
    assert cuda.calls[-1] == ("cudaIpcCloseMemHandle", 777)


def test_the_package_has_what_is_used_of_it() -> None:
    """Needs no GPU: without a driver every call answers an error."""
    cuda = pytest.importorskip("cuda.bindings.runtime", reason="needs the package cuda-bindings")
    data = bytes(range(HANDLE_BYTES))
    assert handle_bytes(handle_of(cuda, data)) == data
    assert bytes(cuda.cudaDeviceProp().uuid.bytes) == bytes(16)
    assert cuda.cudaGetErrorString(cuda.cudaError_t.cudaErrorMemoryAllocation)[1] == b"out of memory"
    assert int(cuda.cudaMemcpyKind.cudaMemcpyHostToDevice) == int(cuda.cudaIpcMemLazyEnablePeerAccess) == 1
    names = ["Malloc", "Free", "Memcpy", "Memset", "SetDevice", "GetDeviceCount", "DeviceSynchronize", "GetLastError"]
    names += ["IpcGetMemHandle", "IpcOpenMemHandle", "IpcCloseMemHandle"]
    assert all(callable(getattr(cuda, f"cuda{name}")) for name in names)


def test_foreign_memory_is_described_as_the_interface_has_it() -> None:
    assert _Foreign(4096, 7).__cuda_array_interface__ == {
        "shape": (7,),
        "typestr": "|u1",
        "data": (4096, False),
        "strides": None,
        "version": 3,
    }
