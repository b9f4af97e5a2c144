"""What the kernel counts of one replica: CPU seconds, throttled periods, waiting for a core, memory, and its limits.

Read from the replica's own cgroup (found by its process id) and ``/proc``, so they are the limits really set, not the
ones asked for. ``None`` is not known, which is not zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

from simulation.profiles.model.errors import MeasurementError


@dataclass(frozen=True)
class Counted:
    """Counters since the replica's start."""

    cpu_s: float | None
    periods: int | None
    throttled_periods: int | None
    waiting_s: float | None
    """Seconds it could have run and another process had the core (``/proc/PID/schedstat``), over its threads."""
    memory_bytes: int | None
    throttled_s: float | None = None
    """Seconds for which its CPU limit kept a core from it while it had something to compute there."""


@dataclass(frozen=True)
class Bandwidth:
    """CPU limit as the kernel holds it: ``quota_s`` in each ``period_s``; ``quota_s`` None is no limit."""

    quota_s: float | None
    period_s: float

    @property
    def share(self) -> float | None:
        """Real cores."""
        return None if self.quota_s is None else self.quota_s / self.period_s


class ReplicaCounters:
    """Counters of the process ``pid``."""

    def __init__(self, pid: int, mount: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")) -> None:
        self.pid = pid
        self._proc = proc
        paths = _own_paths(proc / str(pid) / "cgroup")
        self.version = 2 if (mount / "cgroup.controllers").exists() else 1
        if self.version == 2:
            folder = _below(mount, paths.get("", "/"))
            self._cpu = self._accounting = self._memory = folder
        else:
            self._cpu, self._accounting, self._memory = (
                _below(mount / name, paths.get(name, "/")) for name in ("cpu", "cpuacct", "memory")
            )

    def read(self) -> Counted:
        """The counters now."""
        stat = _table(self._cpu / "cpu.stat")
        if self.version == 2:
            cpu_s, throttled_s = _seconds(stat.get("usage_usec"), 1e6), _seconds(stat.get("throttled_usec"), 1e6)
            memory = _number(self._memory / "memory.current")
        else:
            used_ns = _number(self._accounting / "cpuacct.usage")
            cpu_s, throttled_s = _seconds(used_ns, 1e9), _seconds(stat.get("throttled_time"), 1e9)
            memory = _number(self._memory / "memory.usage_in_bytes")
        periods, stopped = stat.get("nr_periods"), stat.get("nr_throttled")
        return Counted(cpu_s, periods, stopped, self._waiting_s(), memory, throttled_s)

    def bandwidth(self) -> Bandwidth | None:
        """The CPU limit in force, None where the kernel has no such file here."""
        if self.version == 2:
            text = _text(self._cpu / "cpu.max").split()
            if len(text) != 2:
                return None
            return Bandwidth(None if text[0] == "max" else int(text[0]) / 1e6, int(text[1]) / 1e6)
        quota_us, period_us = (_number(self._cpu / name) for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
        if quota_us is None or period_us is None:
            return None
        return Bandwidth(None if quota_us < 0 else quota_us / 1e6, period_us / 1e6)

    def memory_limit_bytes(self) -> int | None:
        """The memory limit in force; None without one or where it cannot be read."""
        name = "memory.max" if self.version == 2 else "memory.limit_in_bytes"
        value = _number(self._memory / name)
        return None if value is None or value > 2**60 else value

    def _waiting_s(self) -> float | None:
        total = 0
        try:
            for task in (self._proc / str(self.pid) / "task").iterdir():
                total += int((task / "schedstat").read_text().split()[1])
        except (OSError, ValueError, IndexError):
            return None
        return total / 1e9


def listening_pid(address: str) -> int:
    """Process that listens on ``host:port``. Raises MeasurementError."""
    port = int(address.rpartition(":")[2])
    for entry in psutil.net_connections("tcp"):
        ports = tuple(entry.laddr)[1:]
        if entry.status == psutil.CONN_LISTEN and entry.pid is not None and ports == (port,):
            return entry.pid
    raise MeasurementError(f"no process of ours listens on {address}; the replica has ended")


def _own_paths(path: Path) -> dict[str, str]:
    """Cgroup by controller; key ``""`` is version 2."""
    paths = {}
    for line in _text(path).splitlines():
        _, controllers, folder = line.split(":", 2)
        for controller in controllers.split(","):
            paths[controller] = folder
    return paths


def _below(mount: Path, path: str) -> Path:
    """The folder of a cgroup; in a container the path may begin with folders that the mount does not show."""
    parts = [part for part in path.split("/") if part]
    for start in range(len(parts)):
        folder = mount.joinpath(*parts[start:])
        if folder.is_dir():
            return folder
    return mount


def _seconds(count: int | None, per_second: float) -> float | None:
    return None if count is None else count / per_second


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    try:
        return int(_text(path))
    except ValueError:
        return None


def _table(path: Path) -> dict[str, int]:
    rows = (line.split() for line in _text(path).splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}
