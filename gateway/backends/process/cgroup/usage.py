"""CPU and memory of running replicas, measured once per interval: cgroup counters, else ``/proc``."""

from __future__ import annotations

from dataclasses import replace

import psutil

from gateway.backends.process.record import Record
from gateway.contract import NOT_MEASURED, Usage


def measure(record: Record, by_cgroup: Usage, now_s: float) -> None:
    """Update ``record.usage``. ``now_s`` is loop time; the CPU rate is over the time since the last measuring."""
    cpu_s, memory_bytes = by_cgroup.cpu_seconds_total, by_cgroup.memory_bytes
    if (cpu_s is None or memory_bytes is None) and record.pid is not None:
        by_proc = from_proc(record.pid)
        cpu_s = by_proc.cpu_seconds_total if cpu_s is None else cpu_s
        memory_bytes = by_proc.memory_bytes if memory_bytes is None else memory_bytes
    before, record.usage = record.usage, Usage(cpu_s, None, memory_bytes)
    elapsed_s = now_s - record.measured_at_s
    record.measured_at_s = now_s
    if before.cpu_seconds_total is not None and cpu_s is not None and elapsed_s > 0:
        millicores = max(0.0, (cpu_s - before.cpu_seconds_total) / elapsed_s * 1000)
        record.usage = replace(record.usage, cpu_millicores=millicores)


def from_proc(pid: int) -> Usage:
    """CPU of a process and its ended children; its memory without what it shares. Not measured when it is gone."""
    try:
        process = psutil.Process(pid)
        times = process.cpu_times()
        memory = process.memory_info()
    except psutil.Error:
        return NOT_MEASURED
    cpu_seconds = times.user + times.system + times.children_user + times.children_system
    return Usage(cpu_seconds, None, max(0, memory.rss - memory.shared))
