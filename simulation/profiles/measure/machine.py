"""Which machine this is, as far as it decides how fast a function runs; and how busy it is just now."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from simulation.profiles.model.errors import ProfileError

PACKAGES = ("torch", "numpy", "uvloop", "httptools")
"""Their versions decide speed, so they go into a profile."""


@dataclass(frozen=True)
class Machine:
    """Facts of a machine. ``memory_mib`` counts MiB; ``tick_s`` is the kernel's timer tick, 0 where unknown."""

    cpu_model: str
    cpu_cores: int
    memory_mib: int
    kernel: str
    cgroup_version: int
    """1 or 2; 0 where none is mounted."""
    tick_s: float
    gpu: str = ""
    """Name of the GPU, empty without one."""

    def to_json(self) -> dict[str, object]:
        return asdict(self)


def this_machine() -> Machine:
    """The machine this runs on."""
    return Machine(
        cpu_model=_cpu_model(Path("/proc/cpuinfo")),
        cpu_cores=len(os.sched_getaffinity(0)),
        memory_mib=_memory_mib(Path("/proc/meminfo")),
        kernel=platform.release(),
        cgroup_version=cgroup_version(Path("/sys/fs/cgroup")),
        tick_s=tick_s(),
        gpu=gpu_name(),
    )


def cgroup_version(mount: Path) -> int:
    """Version of the hierarchy at ``mount`` that holds the CPU controller; 0 where there is none."""
    if (mount / "cgroup.controllers").exists():
        return 2
    return 1 if (mount / "cpu").is_dir() else 0


def tick_s() -> float:
    """Seconds between two ticks of the coarse clock, which the timer interrupt moves; 0 where there is none."""
    clock_monotonic_coarse = 6  # linux/time.h; Python names only the fine clocks
    try:
        return round(time.clock_getres(clock_monotonic_coarse), 6)
    except OSError:
        return 0.0


def busy_s(stat: Path = Path("/proc/stat")) -> float:
    """CPU seconds since boot in which the machine's cores did not idle, time stolen by a hypervisor included."""
    fields = [int(value) for value in stat.read_text().split("\n", 1)[0].split()[1:9]]
    user, nice, system, _, _, hard, soft, steal = (*fields, *[0] * (8 - len(fields)))
    return (user + nice + system + hard + soft + steal) / os.sysconf("SC_CLK_TCK")


def cpu_s(pids: Iterable[int]) -> float:
    """CPU seconds so far of processes, their ended threads included, to the nanosecond (clock_getcpuclockid(3) of
    Linux); psutil counts hundredths. A process that has ended counts nothing."""
    total_s = 0.0
    for pid in pids:
        with suppress(OSError):
            total_s += time.clock_gettime((~pid << 3) | 2)
    return total_s


def gpu_name() -> str:
    """Name of the first NVIDIA GPU, empty without one or without its driver."""
    try:
        listed = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return listed.stdout.splitlines()[0].strip() if listed.stdout.strip() else ""


def require_gpu(name: str) -> None:
    """Raises ProfileError where GPU shares were asked for and there is no GPU, of this ``name``."""
    if not name:
        raise ProfileError(
            "GPU shares were asked for, but this machine has no NVIDIA GPU (nvidia-smi names none): shares under MPS "
            "can only be measured on a GPU. Leave --gpu-shares out to profile the CPU"
        )


def versions() -> Mapping[str, str]:
    """Versions of Python, of this project and of the packages that decide speed."""
    versions = {"python": platform.python_version()}
    for name in ("smoe", *PACKAGES):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def _cpu_model(path: Path) -> str:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model", "Hardware"):
            return value.strip()
    return platform.processor() or platform.machine()


def _memory_mib(path: Path) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) // 1024
    return 0
