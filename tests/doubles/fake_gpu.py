"""GPUs whose memory is files, each allocation one of them: other processes map it by a handle that names it."""

from __future__ import annotations

import mmap
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from functions.device.leases import HANDLE_BYTES, LeaseError
from functions.memory.device_regions import DeviceFullError


class FakeMemory:
    """In place of ``CudaMemory``. ``plan`` gets the name of each call before it is made: it may raise, or wait."""

    granule: int = 1

    def __init__(
        self, folder: Path, room: int | None = None, plan: Callable[[str], object] = lambda call: None
    ) -> None:
        """``room``: bytes of each GPU."""
        folder.mkdir(exist_ok=True)
        self.folder, self.room, self.plan = folder, room, plan
        self.files: dict[int, Path] = {}
        self.counts: Counter[str] = Counter()

    def allocate(self, gpu: str, nbytes: int) -> int:
        self._called("allocate")
        used = sum(file.stat().st_size for file in self.files.values() if file.name.startswith(f"{gpu}."))
        if self.room is not None and used + nbytes > self.room:
            raise DeviceFullError("cudaMalloc: out of memory")
        pointer = 4096 * self.counts["allocate"]
        self.files[pointer] = self.folder / f"{gpu}.{os.getpid()}.{pointer}"
        self.files[pointer].write_bytes(bytes(nbytes))
        return pointer

    def write(self, pointer: int, offset: int, data: memoryview) -> None:
        self._called("write")
        with self.files[pointer].open("r+b") as file:
            file.seek(offset)
            file.write(data)

    def handle(self, pointer: int) -> bytes:
        self._called("handle")
        return self.files[pointer].name.encode().ljust(HANDLE_BYTES, b"\0")

    def free(self, pointer: int) -> None:
        self._called("free")
        self.files.pop(pointer).unlink()

    def check(self) -> None:
        self._called("check")

    def _called(self, name: str) -> None:
        self.counts[name] += 1
        self.plan(name)


class FakeOpener:
    """The worker's side: maps the file that a handle names."""

    def __init__(self, folder: Path, gpu: str = "GPU-a") -> None:
        self.folder, self._gpu = folder, gpu

    def gpu(self) -> str:
        return self._gpu

    def open(self, handle: bytes, nbytes: int) -> Tensor:
        path = self.folder / handle.rstrip(b"\0").decode()
        if not path.name.startswith(f"{self._gpu}.") or not path.is_file():
            raise LeaseError("cudaIpcOpenMemHandle: invalid argument")
        with path.open("r+b") as file:
            return torch.frombuffer(mmap.mmap(file.fileno(), nbytes), dtype=torch.uint8)
