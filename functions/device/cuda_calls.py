"""CUDA's runtime as weights managers and workers use it next to PyTorch, through NVIDIA's package ``cuda-bindings``.

Nothing is imported or called before it is needed: processes that are forked must not have used CUDA.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import uuid
from typing import Any

import torch
from torch import Tensor

from functions.device.leases import HANDLE_BYTES, LeaseError


class CudaCallError(Exception):
    """A call failed; the sentence has its name and CUDA's words. ``full``: for want of device memory."""

    def __init__(self, sentence: str, *, full: bool = False) -> None:
        super().__init__(sentence)
        self.full = full


def runtime() -> Any:
    """The module ``cuda.bindings.runtime``. Raises CudaCallError without the package."""
    try:
        return importlib.import_module("cuda.bindings.runtime")
    except ImportError as error:
        raise CudaCallError("the package cuda-bindings is not installed (pip install 'smoe[gpu]')") from error


def call(cuda: Any, name: str, *arguments: Any) -> Any:
    """What one call of the runtime ``cuda`` answers besides its error code, if anything. Raises CudaCallError."""
    try:
        code, *values = getattr(cuda, name)(*arguments)
    except RuntimeError as error:  # the package does not find the driver's library
        raise CudaCallError(f"{name}: {error}") from error
    if code == cuda.cudaError_t.cudaSuccess:
        return values[0] if values else None
    cuda.cudaGetLastError()  # clears the sticky error: a later call must not report this one
    _, words = cuda.cudaGetErrorString(code)
    message = words.decode(errors="replace") if isinstance(words, bytes) else str(words)
    raise CudaCallError(f"{name}: {message}", full=code == cuda.cudaError_t.cudaErrorMemoryAllocation)


def gpu_uuid(cuda: Any, index: int) -> str:
    """UUID of the GPU that this process knows as ``index``, as NVML and ``CUDA_VISIBLE_DEVICES`` write it."""
    identifier = call(cuda, "cudaGetDeviceProperties", index).uuid.bytes
    return f"GPU-{uuid.UUID(bytes=bytes(identifier)[:16])}"


def handle_bytes(handle: Any) -> bytes:
    """What a ``cudaIpcMemHandle_t`` holds. Read where it lies: only some versions of the package show its field."""
    return ctypes.string_at(int(handle.getPtr()), HANDLE_BYTES)


def handle_of(cuda: Any, data: bytes) -> Any:
    """A ``cudaIpcMemHandle_t`` that holds these 64 bytes."""
    handle = cuda.cudaIpcMemHandle_t()
    ctypes.memmove(int(handle.getPtr()), data, HANDLE_BYTES)
    return handle


class _Foreign:
    """Memory that is not PyTorch's own, in the form in which PyTorch takes it (CUDA array interface, version 3).

    It is not marked read-only, since PyTorch refuses such memory; programs never write weights.
    """

    def __init__(self, pointer: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (pointer, False),
            "strides": None,
            "version": 3,
        }


class CudaOpener:
    """Maps handles of another process on the GPU that PyTorch computes on here. All raise LeaseError."""

    def gpu(self) -> str:
        """UUID of that GPU."""
        try:
            return gpu_uuid(runtime(), torch.cuda.current_device())
        except CudaCallError as error:
            raise LeaseError(str(error)) from error

    def open(self, handle: bytes, nbytes: int) -> Tensor:
        """Memory of that GPU, uint8 ``[nbytes]``, mapped until this process ends: programs never release their weights.

        Not to be written.
        """
        index = torch.cuda.current_device()
        try:
            cuda = runtime()
            call(cuda, "cudaSetDevice", index)
            pointer = int(
                call(cuda, "cudaIpcOpenMemHandle", handle_of(cuda, handle), cuda.cudaIpcMemLazyEnablePeerAccess)
            )
        except CudaCallError as error:
            raise LeaseError(str(error)) from error
        try:
            return torch.as_tensor(_Foreign(pointer, nbytes), device=torch.device("cuda", index))
        except Exception as error:
            with contextlib.suppress(CudaCallError):
                call(cuda, "cudaIpcCloseMemHandle", pointer)
            raise LeaseError(f"PyTorch does not take mapped memory: {error}") from error
