"""Memory on NVIDIA's GPUs for :mod:`functions.memory.device_regions`: allocated here, mapped by others (CUDA IPC).

Allocations are CUDA's own (``cudaMalloc``), not a caching allocator's, and take whole 2 MiB: CUDA shares the block in
which an allocation lies, so a smaller one could show its neighbours to whoever maps it, and its handle another address.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from functions.device.cuda_calls import CudaCallError, call, gpu_uuid, handle_bytes, runtime
from functions.memory.device_regions import DeviceFullError, LendError

SPARK_BYTES = 256
"""Memory of our own on each GPU, written to find out whether the GPU is there."""


class CudaMemory:
    """Memory on all GPUs that this process sees. A GPU gets a context when it is first named.

    Calls block and must come from one thread. All raise LendError.
    """

    granule = 2 << 20
    """Bytes; allocations are multiples of it, and each is alone in its granules."""

    def __init__(self, library: Callable[[], Any] = runtime) -> None:
        """``library``: gives CUDA's runtime when it is first needed."""
        self._library = library
        self._sparks: dict[str, tuple[int, int]] = {}
        """UUID → the GPU's index here, and the pointer of our own memory on it."""
        self._lying: dict[int, int] = {}
        """Pointer → index of its GPU."""

    def allocate(self, gpu: str, nbytes: int) -> int:
        """The pointer of ``nbytes`` new bytes on the GPU with this UUID. Raises DeviceFullError without room."""
        index = self._opened(gpu)
        self._call("cudaSetDevice", index)
        pointer = int(self._call("cudaMalloc", nbytes))
        self._lying[pointer] = index
        return pointer

    def write(self, pointer: int, offset: int, data: memoryview) -> None:
        """Copy bytes of the host's into an allocation."""
        self._call("cudaSetDevice", self._lying[pointer])
        host = np.frombuffer(data, dtype=np.uint8)
        kind = self._library().cudaMemcpyKind.cudaMemcpyHostToDevice
        self._call("cudaMemcpy", pointer + offset, host.ctypes.data, len(data), kind)

    def handle(self, pointer: int) -> bytes:
        """Wait until everything is written; 64 bytes by which another process maps the allocation."""
        self._call("cudaSetDevice", self._lying[pointer])
        self._call("cudaDeviceSynchronize")  # copies from ordinary memory may end after their call
        return handle_bytes(self._call("cudaIpcGetMemHandle", pointer))

    def free(self, pointer: int) -> None:
        """Give an allocation back that nobody maps."""
        self._call("cudaSetDevice", self._lying.pop(pointer))
        self._call("cudaFree", pointer)

    def check(self) -> None:
        """Raises LendError when a GPU that memory was taken from is not there any more."""
        for index, spark in self._sparks.values():
            self._call("cudaSetDevice", index)
            self._call("cudaMemset", spark, 0, SPARK_BYTES)
            self._call("cudaDeviceSynchronize")

    def _opened(self, gpu: str) -> int:
        if gpu not in self._sparks:
            indices = range(int(self._call("cudaGetDeviceCount")))
            index = next((one for one in indices if self._uuid(one) == gpu), None)
            if index is None:
                raise LendError(f"the weights manager sees no GPU {gpu}")
            self._call("cudaSetDevice", index)
            self._sparks[gpu] = index, int(self._call("cudaMalloc", SPARK_BYTES))
        return self._sparks[gpu][0]

    def _uuid(self, index: int) -> str:
        return str(self._asked(gpu_uuid, index))

    def _call(self, name: str, *arguments: Any) -> Any:
        return self._asked(call, name, *arguments)

    def _asked(self, question: Callable[..., Any], *arguments: Any) -> Any:
        """The runtime's answer. Raises LendError, DeviceFullError."""
        try:
            return question(self._library(), *arguments)
        except CudaCallError as error:
            raise (DeviceFullError if error.full else LendError)(str(error)) from error
