"""Memory and CPU limits and usage by cgroup, version 1 or 2, one cgroup per slot, found and probed at the start.

Where nothing is writable, :class:`Cgroups` answers "not measured, not limited" and gives the reason in ``notes``.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from gateway.backends.process.workers.guardian import empty_cgroup
from gateway.contract import NOT_MEASURED, Usage

log = logging.getLogger(__name__)

PREFIX = "smoe-"
ENDING = "ending"
ENDING_SHARE = 0.5
MIN_QUOTA_US = 1000
"""The kernel's smallest CFS quota and period."""
MAX_PERIOD_US = 1_000_000
UNLIMITED_V1 = -1
_NOTHING: Mapping[str, Path] = {}


class Cgroups:
    """One tree of cgroups, a folder per slot. This base, where nothing is writable, limits and measures nothing."""

    def __init__(self, notes: tuple[str, ...] = (), by_controller: Mapping[str, Path] = _NOTHING, period_s: float = 0):
        """``notes``: why limits are not enforced; ``by_controller``: the folder of each one that may be used."""
        self.notes = notes
        self._by = dict(by_controller)
        self._period_s = period_s
        self.folders = tuple(dict.fromkeys(self._by.values()))
        """What has to be emptied and removed at the end."""
        self.ending: Path | None = None
        """The file a process writes ``0`` to when it ends: all that end share one small part of the processors, because
        taking a process's memory apart takes ten times the processor time of its last call. None: there is none."""
        if "cpu" in self._by:
            (self._by["cpu"] / ENDING).mkdir(exist_ok=True)
            self.ending = self._by["cpu"] / ENDING / "cgroup.procs"
            self.set_share(ENDING, ENDING_SHARE)

    def make(self, slot: str) -> list[Path]:
        """Create the slot; returns the files a process writes ``0`` to in order to join."""
        for folder in self.folders:
            (folder / slot).mkdir(exist_ok=True)
        return [folder / slot / "cgroup.procs" for folder in self.folders]

    def set_cpu(self, slot: str, cores: float | None) -> bool:
        """Real cores; False where this machine cannot limit."""
        return False

    def set_share(self, slot: str, share: float) -> None:
        """Its weight against other slots where processors are short; 1 is the usual weight."""

    def set_memory(self, slot: str, limit_bytes: int | None) -> bool:
        """False when more than that is in use after reclaiming, and the old limit stays."""
        return True

    def measure(self, slot: str) -> Usage:
        """Its counters; the CPU rate follows from two of them."""
        return NOT_MEASURED

    def oom_kills(self, slot: str) -> int:
        return 0

    def remove(self, slot: str) -> bool:
        """Kill what is left in the slot and remove it; False when something is left."""
        return all([empty_cgroup(folder / slot) for folder in self.folders])  # noqa: C419 (each one is tried)

    def close(self) -> None:
        for folder in self.folders:
            empty_cgroup(folder)


def quota(cores: float, period_s: float) -> tuple[int, int]:
    """``(quota_us, period_us)``: the desired period, or a longer one where the kernel's least quota asks for it."""
    period_us = min(MAX_PERIOD_US, max(MIN_QUOTA_US, round(period_s * 1e6)))
    if cores * period_us < MIN_QUOTA_US:
        period_us = min(MAX_PERIOD_US, round(MIN_QUOTA_US / cores))
    return max(MIN_QUOTA_US, round(cores * period_us)), period_us


class CgroupsV1(Cgroups):
    """A folder per controller; controllers that are not writable are missing."""

    def set_cpu(self, slot: str, cores: float | None) -> bool:
        if "cpu" not in self._by:
            return False
        folder = self._by["cpu"] / slot
        if cores is None:
            return _write(folder / "cpu.cfs_quota_us", UNLIMITED_V1)
        quota_us, period_us = quota(cores, self._period_s)
        # The kernel checks each write against the other value, so the quota goes out of the way first.
        _write(folder / "cpu.cfs_quota_us", UNLIMITED_V1)
        return _write(folder / "cpu.cfs_period_us", period_us) and _write(folder / "cpu.cfs_quota_us", quota_us)

    def set_share(self, slot: str, share: float) -> None:
        if "cpu" in self._by:
            _write(self._by["cpu"] / slot / "cpu.shares", max(2, round(1024 * share)))

    def set_memory(self, slot: str, limit_bytes: int | None) -> bool:
        """Version 1 reclaims by itself when the limit is lowered and refuses (EBUSY) what does not fit."""
        if "memory" not in self._by:
            return True
        folder = self._by["memory"] / slot
        value = UNLIMITED_V1 if limit_bytes is None else limit_bytes
        plain, with_swap = folder / "memory.limit_in_bytes", folder / "memory.memsw.limit_in_bytes"
        if not with_swap.exists():
            return _write(plain, value)
        if _write(plain, value):
            _write(with_swap, value)
            return True
        # Raising: the limit with swap has to be raised first.
        return _write(with_swap, value) and _write(plain, value)

    def measure(self, slot: str) -> Usage:
        cpu = memory = None
        if "cpuacct" in self._by:
            usage_ns = _number(self._by["cpuacct"] / slot / "cpuacct.usage")
            cpu = None if usage_ns is None else usage_ns / 1e9
        if "memory" in self._by:
            folder = self._by["memory"] / slot
            memory = _working_set(_number(folder / "memory.usage_in_bytes"), folder, "total_inactive_file")
        return Usage(cpu, None, memory)

    def oom_kills(self, slot: str) -> int:
        return (
            _table(self._by["memory"] / slot / "memory.oom_control").get("oom_kill", 0) if "memory" in self._by else 0
        )


class CgroupsV2(Cgroups):
    """One folder per slot with the ``cpu`` and ``memory`` controllers, as far as they are delegated to us."""

    def __init__(self, notes: tuple[str, ...], base: Path, controllers: Iterable[str], period_s: float) -> None:
        self._base = base
        super().__init__(notes, dict.fromkeys(controllers, base), period_s)
        self.folders = (base,)  # a slot needs its cgroup without any controller too: ending it ends what is in it

    def set_cpu(self, slot: str, cores: float | None) -> bool:
        if "cpu" not in self._by:
            return False
        text = "max" if cores is None else " ".join(map(str, quota(cores, self._period_s)))
        return _write(self._base / slot / "cpu.max", text)

    def set_share(self, slot: str, share: float) -> None:
        if "cpu" in self._by:
            _write(self._base / slot / "cpu.weight", max(1, round(100 * share)))

    def set_memory(self, slot: str, limit_bytes: int | None) -> bool:
        """Version 2 kills when ``memory.max`` goes below usage, so reclaim first and look."""
        if "memory" not in self._by:
            return True
        folder = self._base / slot
        if limit_bytes is not None:
            used = _number(folder / "memory.current") or 0
            if used > limit_bytes:
                _write(folder / "memory.reclaim", used - limit_bytes)
                used = _number(folder / "memory.current") or 0
            if used > limit_bytes:
                return False
        if (folder / "memory.swap.max").exists():
            _write(folder / "memory.swap.max", "max" if limit_bytes is None else 0)
        return _write(folder / "memory.max", "max" if limit_bytes is None else limit_bytes)

    def measure(self, slot: str) -> Usage:
        folder = self._base / slot
        usage_us = _table(folder / "cpu.stat").get("usage_usec")
        memory = None
        if "memory" in self._by:
            memory = _working_set(_number(folder / "memory.current"), folder, "inactive_file")
        return Usage(None if usage_us is None else usage_us / 1e6, None, memory)

    def oom_kills(self, slot: str) -> int:
        return _table(self._base / slot / "memory.events").get("oom_kill", 0)


def _working_set(usage: int | None, folder: Path, inactive_key: str) -> int | None:
    """Usage without file pages that can be dropped at any time, as cAdvisor counts it."""
    if usage is None:
        return None
    return max(0, usage - _table(folder / "memory.stat").get(inactive_key, 0))


def _write(path: Path, value: object) -> bool:
    try:
        descriptor = os.open(path, os.O_WRONLY)
    except OSError:
        return False
    try:
        os.write(descriptor, str(value).encode())
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _read(path: Path) -> bytes:
    """A small file of the kernel, in one read: a hundred replicas are measured every second. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, 1 << 16)
    finally:
        os.close(descriptor)


def _number(path: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(_read(path))
    return None


def _table(path: Path) -> dict[str, int]:
    """``key value`` lines of a flat keyed cgroup file."""
    try:
        rows = (line.split() for line in _read(path).decode().splitlines())
        return {row[0]: int(row[1]) for row in rows if len(row) == 2}
    except (OSError, ValueError):
        return {}
