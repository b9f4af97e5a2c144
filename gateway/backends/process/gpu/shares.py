"""The GPUs of this machine as the backend uses them: found by NVML, booked in tenths, shared through MPS."""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.backends.process.gpu.mps import Mps
from gateway.backends.process.gpu.seats import Gpu, Seats, binding
from gateway.backends.process.settings import ProcessSettings
from platform_words.resources import GPU_TENTHS, MPS_PIPE

_DRIVER = Path("/proc/driver/nvidia/version")
_MIB = 1 << 20


@dataclass(frozen=True)
class Found:
    """GPUs that can be shared, and sentences about those that cannot."""

    gpus: tuple[Gpu, ...] = ()
    notes: tuple[str, ...] = ()


class GpuShares:
    """Seats on GPUs, and what a replica with one needs. On a machine without GPUs it does nothing."""

    def __init__(
        self, settings: ProcessSettings, look: Callable[[], Found] | None = None, mps: Mps | None = None
    ) -> None:
        """``look``: finds the GPUs, by default NVML. ``mps``: by default a daemon that runs already or one of ours."""
        self.seats = Seats(())
        self._look = look or find_gpus
        self._mps = mps or Mps(settings.state, settings.python)
        self._found = Found()

    async def find(self) -> None:
        """Look for GPUs; before that there are none."""
        self._found = await asyncio.to_thread(self._look)
        self.seats = Seats(self._found.gpus)

    async def ready(self) -> None:
        """Returns once shares hold: an MPS control daemon runs. Raises BackendError."""
        await self._mps.ready()

    async def close(self) -> None:
        """End our MPS daemon, after the last replica."""
        await self._mps.close()

    def environment(self, gpu: Gpu, tenths: int) -> Mapping[str, str]:
        """Environment of a replica with ``tenths`` of ``gpu``, after :meth:`ready`."""
        return {**binding(gpu, tenths), MPS_PIPE: str(self._mps.pipe)}

    def memory_environment(self) -> Mapping[str, str]:
        """Environment of a replica that keeps memory on these GPUs for others, after :meth:`ready`.

        It names all GPUs, reached through the same daemon as those others, without a share. Empty without GPUs.
        """
        if not self.seats.gpus:
            return {}
        return {
            "smoe_device": "cuda",
            "CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in self.seats.gpus),
            MPS_PIPE: str(self._mps.pipe),
        }

    def notes(self) -> list[str]:
        """GPUs and what is promised of them, for /system/info."""
        shared = [
            f"GPU {gpu.uuid} ({gpu.name}, {gpu.memory_mib} MiB): "
            f"{self.seats.promised(gpu)} of {GPU_TENTHS} tenths are taken."
            for gpu in self.seats.gpus
        ]
        return [*shared, *self._found.notes]


def find_gpus(nvml: Any = None, environ: Mapping[str, str] = os.environ) -> Found:
    """NVIDIA's GPUs on this machine, by NVML, which makes no CUDA context. Blocks for a moment.

    ``nvml``: the module ``pynvml``. Left out are GPUs that ``CUDA_VISIBLE_DEVICES`` does not name (by UUID or by NVML's
    index), those cut up by MIG, which takes no tenths, and those whose compute mode is *prohibited*.
    """
    if nvml is None:
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            missing = (
                "This machine has an NVIDIA driver, but the package nvidia-ml-py is not installed: no GPU is used."
            )
            return Found(notes=(missing,) if _DRIVER.exists() else ())
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return Found(notes=(f"NVML does not work ({error}): no GPU is used.",) if _DRIVER.exists() else ())
    try:
        return _seen(nvml, environ.get("CUDA_VISIBLE_DEVICES"))
    except nvml.NVMLError as error:
        return Found(notes=(f"NVML failed while GPUs were looked for ({error}): no GPU is used.",))
    finally:
        nvml.nvmlShutdown()


def _seen(nvml: Any, visible: str | None) -> Found:
    gpus: list[Gpu] = []
    notes: list[str] = []
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid, name = _text(nvml.nvmlDeviceGetUUID(handle)), _text(nvml.nvmlDeviceGetName(handle))
        if visible is not None and not _named(visible, index, uuid):
            continue
        mig, _ = _asked(nvml, nvml.nvmlDeviceGetMigMode, handle, (0, 0))
        if mig == nvml.NVML_DEVICE_MIG_ENABLE:
            notes.append(f"GPU {uuid} ({name}) is not used: MIG is on, which knows no tenths.")
        elif _asked(nvml, nvml.nvmlDeviceGetComputeMode, handle, None) == nvml.NVML_COMPUTEMODE_PROHIBITED:
            notes.append(f"GPU {uuid} ({name}) is not used: its compute mode is prohibited.")
        else:
            gpus.append(Gpu(uuid, name, int(nvml.nvmlDeviceGetMemoryInfo(handle).total) // _MIB))
    return Found(tuple(gpus), tuple(notes))


def _named(visible: str, index: int, uuid: str) -> bool:
    """CUDA takes indices, UUIDs, and beginnings of UUIDs."""
    names = [name.strip() for name in visible.split(",")]
    return any(name == str(index) or (name.startswith("GPU-") and uuid.startswith(name)) for name in names)


def _asked(nvml: Any, question: Callable[[Any], Any], handle: Any, otherwise: Any) -> Any:
    """The answer of a GPU, or ``otherwise`` from one that does not know the question."""
    try:
        return question(handle)
    except nvml.NVMLError:
        return otherwise


def _text(answer: str | bytes) -> str:
    """Earlier versions of pynvml answer bytes."""
    return answer.decode() if isinstance(answer, bytes) else answer
