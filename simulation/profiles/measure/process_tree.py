"""CPU time of this process and of what it started; apart from machine.py, which the controller's image holds without
psutil."""

from __future__ import annotations

import psutil


def own_cpu_s() -> float:
    """CPU seconds of this process and all its descendants, ended ones included."""
    total_s, this_process = 0.0, psutil.Process()
    for process in (this_process, *this_process.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total_s += times.user + times.system + times.children_user + times.children_system
    return total_s
