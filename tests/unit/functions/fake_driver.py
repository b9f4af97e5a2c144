"""A GPU whose device calls are faked: what tests of GPU workers share."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from functions.device.tensors import (
    GpuDevice,
)
from moe.manifest import Manifest, load
from moe.runtime import HOST, NodeProgram, load_node

SHARE = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=24000M"}


class FakeDriver:
    """A device whose memory is the host's; ``plan`` is called at the start of each computation and may raise."""

    def __init__(self, plan: Callable[[int], object] = lambda count: None, touched: bool = False) -> None:
        self.plan, self.used = plan, touched
        self.computed = self.dropped = self.unfinished = 0
        self.environ_at_open: dict[str, str] = {}

    def touched(self) -> bool:
        return self.used

    def open(self) -> torch.device:
        self.environ_at_open = dict(os.environ)
        return HOST

    @contextlib.contextmanager
    def _queue(self) -> Iterator[None]:
        self.computed += 1
        self.plan(self.computed)
        yield

    def queue(self) -> contextlib.AbstractContextManager[object]:
        return self._queue()

    def finish(self) -> None:
        self.unfinished = 0

    def pinned(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        self.unfinished += 1
        return torch.empty(tuple(shape), dtype=dtype)

    def drop_cache(self) -> None:
        self.dropped += 1

    def words(self) -> str:
        return "a played device"


def gpu(driver: FakeDriver, deadline_s: float = 30.0) -> GpuDevice:
    return GpuDevice(driver, HOST, deadline_s)


def fail_at(number: int, error: Exception) -> Callable[[int], None]:
    def plan(count: int) -> None:
        if count >= number:
            raise error

    return plan


def every_node(folder: Path) -> Iterator[tuple[Manifest, NodeProgram]]:
    manifest = load(folder, verify=False)
    for node in manifest.nodes:
        yield manifest, load_node(folder, manifest, node.id)
