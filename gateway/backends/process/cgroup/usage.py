"""CPU and memory of running replicas, measured once per interval: cgroup counters, else ``/proc``."""

from __future__ import annotations

import psutil

from gateway.backends.process.cgroup.limits import Measured
from gateway.backends.process.function import Record
from gateway.contract import Usage


def measure(record: Record, by_cgroup: Measured, now_s: float) -> None:
    """Update ``record.usage``. ``now_s`` is loop time; the CPU rate is over the time since the last measuring."""
    measured = by_cgroup
    if (measured.cpu_seconds is None or measured.memory_bytes is None) and record.pid is not None:
        by_proc = from_proc(record.pid)
        measured = Measured(
            by_proc.cpu_seconds if measured.cpu_seconds is None else measured.cpu_seconds,
            by_proc.memory_bytes if measured.memory_bytes is None else measured.memory_bytes,
        )
    before, record.usage = record.usage, Usage(measured.cpu_seconds, None, measured.memory_bytes)
    elapsed_s = now_s - record.measured_at_s
    record.measured_at_s = now_s
    if before.cpu_seconds_total is not None and measured.cpu_seconds is not None and elapsed_s > 0:
        millicores = max(0.0, (measured.cpu_seconds - before.cpu_seconds_total) / elapsed_s * 1000)
        record.usage = Usage(measured.cpu_seconds, millicores, measured.memory_bytes)


def from_proc(pid: int) -> Measured:
    """CPU of a process and its ended children; its memory without what it shares. Both None when it is gone."""
    try:
        process = psutil.Process(pid)
        times = process.cpu_times()
        memory = process.memory_info()
    except psutil.Error:
        return Measured(None, None)
    cpu_seconds = times.user + times.system + times.children_user + times.children_system
    return Measured(cpu_seconds, max(0, memory.rss - memory.shared))
