"""Where a function's programs compute: the host, or a GPU of which MPS may give this process a share.

A share is bound by environment variables that CUDA reads once, when a process makes its context. So ``open_device``
puts them into the process's environment before its first CUDA call, and refuses a process that has used CUDA already.
Workers are forked: neither the warm parent nor a standby may make a context, which is why nothing in this package
touches ``torch.cuda`` when it is imported or while a worker is prepared.

A call's way on a GPU: views of the request → pinned host memory (calls in flight concatenated on the way) → device →
program → pinned host memory → reply; one stream, one thread, synchronised before anything is answered.

A GPU's errors are not a request's fault and most of them end the process's use of the GPU for good (a lost device, an
illegal address of this or another MPS client). Those, running out of device memory, and a call that does not come back
are ``DeviceLostError``: the function answers 503, the process ends and is started again.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import torch
from torch import Tensor

from functions.device.contract import DeviceLostError
from functions.device.lent import Lender
from functions.serving.gated import GatedExperts
from functions.serving.settings import DeviceSettings
from functions.wire import format as wire
from moe.manifest import Manifest
from moe.runtime import READ_ON_HOST, NodeProgram, load_node

log = logging.getLogger(__name__)

Tensors = dict[str, Tensor]

REHEARSED_TOKENS = (1, 32, 256)
"""Sizes computed before a worker is ready: CUDA loads kernels when they are first used."""
MPS_PID_FILE = "nvidia-cuda-mps-control.pid"
MPS_PIPE_DEFAULT = "/tmp/nvidia-mps"  # noqa: S108 (MPS' own default)
_DEVICE_WORDS = re.compile(
    r"CUDA error|CUDA driver error|CUDNN_STATUS|cuDNN error|CUBLAS_STATUS|device-side assert|NVML"
)
_MEMORY_WORDS = re.compile(r"out of memory|ALLOC_FAILED", re.IGNORECASE)


class Cuda:
    """The calls made to ``torch.cuda``. Every one may raise what PyTorch raises for CUDA."""

    def __init__(self) -> None:
        self._stream: torch.cuda.Stream | None = None

    def touched(self) -> bool:
        """Whether this process has used CUDA already."""
        return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]

    def open(self) -> torch.device:
        """Make the context and a stream of our own."""
        torch.cuda.init()  # type: ignore[no-untyped-call]
        place = torch.device("cuda", torch.cuda.current_device())
        self._stream = torch.cuda.Stream(place)  # type: ignore[no-untyped-call]
        return place

    def queue(self) -> AbstractContextManager[object]:
        """Operations inside go to our stream."""
        return torch.cuda.stream(self._stream)

    def finish(self) -> None:
        """Wait until everything on our stream is done."""
        assert self._stream is not None, "open it first"
        self._stream.synchronize()

    def pinned(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Page-locked host memory ``[*shape]``, uninitialised, that the device copies from and to by DMA."""
        return torch.empty(tuple(shape), dtype=dtype, pin_memory=True)

    def drop_cache(self) -> None:
        """Give device memory back that holds nothing."""
        torch.cuda.empty_cache()

    def words(self) -> str:
        """The device and what this process sees of it, for the log."""
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        free, total = torch.cuda.mem_get_info()
        multiprocessors = f"{properties.multi_processor_count} multiprocessors"
        return f"{properties.name}, {multiprocessors}, {free >> 20} of {total >> 20} MiB free"


class TorchDevice:
    """What host and GPU have in common: messages hold torch's tensors."""

    def decode(self, body: bytearray) -> Tensors:
        """The tensors of a message, ``[shapes in its header]``. Raises WireError."""
        return wire.decode(body)

    def encode(self, reply: Mapping[str, Tensor]) -> list[wire.Chunk]:
        """A reply ``[any shape]`` as chunks of a message."""
        return wire.encode(reply)


class HostDevice(TorchDevice):
    """The host itself: one product of all calls, nothing copied."""

    in_thread = False
    deadline_s = float("inf")

    def load(self, directory: Path, manifest: Manifest, node_id: str) -> NodeProgram:
        """A node's program with its weights in place. Raises KeyError, ManifestError."""
        return load_node(directory, manifest, node_id)

    def run(
        self, program: NodeProgram | GatedExperts, calls: Sequence[Mapping[str, Tensor]], all_logits: bool
    ) -> list[Tensors]:
        if len(calls) == 1 or isinstance(program, GatedExperts):
            return [program.run(call, all_logits=all_logits, checked=True) for call in calls]
        tensors, splits = program.coalesce(calls)
        return program.split(program.run(tensors, all_logits=all_logits, checked=True), splits)

    def check(self) -> None:
        """The host is always there."""


class GpuDevice(TorchDevice):
    """A GPU, or this process's share of one."""

    in_thread = True

    def __init__(self, driver: Cuda, place: torch.device, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self._driver = driver
        self._place = place
        self._lender: Lender | None = None
        self._spark = torch.zeros(1, device=place)

    def borrow(self, lender: Lender) -> None:
        """Take weights from ``lender`` where it has them. Its memory may go when its owner ends: then this device is
        lost too, and what was computed since the last look is answered to nobody."""
        self._lender = lender

    def load(self, directory: Path, manifest: Manifest, node_id: str) -> NodeProgram:
        """As of the host; computes a few made-up calls, so that the first real one finds its kernels loaded."""
        needed = manifest.node(node_id).parameter_bytes
        with _as_lost(f"{node_id} with its {needed >> 20} MiB of weights could not be put on the GPU"):
            lent = None if self._lender is None else self._lender.tensors
            program = load_node(directory, manifest, node_id, self._place, lent)
            for tokens in REHEARSED_TOKENS:
                self._run(program, [program.made_up(tokens)], all_logits=False)
        return program

    def run(self, program: NodeProgram, calls: Sequence[Mapping[str, Tensor]], all_logits: bool) -> list[Tensors]:
        """As in ``Device``, ``[tokens, …]``. Calls that do not fit into the device's memory together are computed one
        by one."""
        with _as_lost(f"{program.id} could not be computed"):
            replies = self._together(program, calls, all_logits)
        self._still_lent()
        return replies

    def _together(self, program: NodeProgram, calls: Sequence[Mapping[str, Tensor]], all_logits: bool) -> list[Tensors]:
        if len(calls) > 1:
            try:
                return self._run(program, calls, all_logits)
            except torch.OutOfMemoryError:
                log.warning("%s: %d calls do not fit into the GPU together; one by one", program.id, len(calls))
            self._driver.drop_cache()
        return [self._run(program, [call], all_logits)[0] for call in calls]

    def _still_lent(self) -> None:
        """Raises DeviceLostError when weights may not have been there while they were computed with."""
        if self._lender is not None and (reason := self._lender.gone()):
            raise DeviceLostError(reason)

    def check(self) -> None:
        self._still_lent()
        with _as_lost("the GPU does not answer"), self._driver.queue():
            self._spark.add_(1)
            self._driver.finish()

    def _run(self, program: NodeProgram, calls: Sequence[Mapping[str, Tensor]], all_logits: bool) -> list[Tensors]:
        splits = program.splits(calls)
        with torch.inference_mode(), self._driver.queue():
            there = {name: self._gathered(name, [call[name] for call in calls]) for name in calls[0]}
            reply = program.run(there, all_logits=all_logits, checked=True)
            here = {}
            for name, tensor in reply.items():
                here[name] = self._driver.pinned(tensor.shape, tensor.dtype)
                here[name].copy_(tensor, non_blocking=True)
            self._driver.finish()
        return program.split(here, splits)

    def _gathered(self, name: str, parts: Sequence[Tensor]) -> Tensor:
        """Parts of one input as one tensor on the device, or on the host where programs read it there."""
        if name in READ_ON_HOST:
            return parts[0] if len(parts) == 1 else torch.cat(tuple(parts))
        rows = sum(part.shape[0] for part in parts)
        whole = self._driver.pinned((rows, *parts[0].shape[1:]), parts[0].dtype)
        torch.cat(tuple(parts), out=whole)
        return whole.to(self._place, non_blocking=True)


def open_device(settings: DeviceSettings, driver: Cuda | None = None) -> HostDevice | GpuDevice:
    """The device of this process. The variables that bind a GPU share are set before CUDA is used at all.

    Raises DeviceLostError when CUDA is not there, was used before, or refuses.
    """
    if settings.kind == "cpu":
        return HostDevice()
    driver = driver or Cuda()
    if driver.touched():
        raise DeviceLostError("this process has used CUDA before its share was known, so the share would not hold")
    os.environ.update(settings.variables)
    _warn_without_daemon(settings.variables)
    try:
        place = driver.open()
        device = GpuDevice(driver, place, settings.deadline_s)
        log.info("computing on %s (%s)", driver.words(), ", ".join(f"{k}={v}" for k, v in settings.variables.items()))
    except Exception as error:  # an AssertionError where torch was built without CUDA
        raise DeviceLostError(f"the GPU could not be opened: {first_line(error)}") from error
    return device


def _warn_without_daemon(variables: Mapping[str, str]) -> None:
    """CUDA goes on without MPS when it finds no control daemon, and then a share holds nothing."""
    pipe = Path(variables.get("CUDA_MPS_PIPE_DIRECTORY", MPS_PIPE_DEFAULT))
    if "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" in variables and not (pipe / MPS_PID_FILE).exists():
        log.warning("no MPS control daemon at %s: CUDA will run without MPS, and the GPU share is not enforced", pipe)


@contextmanager
def _as_lost(what: str) -> Iterator[None]:
    """Errors of the device as DeviceLostError; errors of a program's own pass through."""
    try:
        yield
    except Exception as error:
        reason = lost_reason(error)
        if reason is None:
            raise
        raise DeviceLostError(f"{what}: {reason}") from error


def lost_reason(error: Exception) -> str | None:
    """Why the device must be given up after this error, in words; None where the error is not the device's.

    PyTorch raises ``torch.AcceleratorError`` for most errors of CUDA's runtime, and plain RuntimeErrors with the
    library's own words for those of cuBLAS, cuDNN and the driver.
    """
    if isinstance(error, torch.OutOfMemoryError):
        return f"out of device memory ({first_line(error)})"
    if not isinstance(error, RuntimeError):
        return None
    words = str(error)
    if isinstance(error, torch.AcceleratorError) or _DEVICE_WORDS.search(words):
        kind = "out of device memory" if _MEMORY_WORDS.search(words) else "the device failed"
        return f"{kind} ({first_line(error)})"
    return None


def first_line(error: BaseException) -> str:
    """The first line of an error's words: CUDA's go on for pages."""
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
