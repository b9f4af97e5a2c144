"""The guardian: a small process that ends whatever the gateway and the warm parent could not end themselves.

It is forked from the warm parent before anything is imported, reads one pipe whose writing end only the parent holds,
and knows from it the process groups (``+PID``, ``-PID``), the cgroups (``@PATH``) and the machines' memory folder
(``#PATH``) in use. When the pipe ends — the parent is gone, and the parent never outlives the gateway — it kills them,
removes the cgroups and ends; the memory folder goes only when the gateway is gone too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from gateway.backends.process import kernel, machines

_IGNORED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGPIPE,
    signal.SIGUSR1,
    signal.SIGUSR2,
)


def watch(reading_end: int) -> None:
    """Body of the guardian; returns when everything is gone."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    kernel.name_process("smoe-guardian")
    groups: set[int] = set()
    cgroups: list[Path] = []
    folders: list[Path] = []
    rest = b""
    while chunk := os.read(reading_end, 65536):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            _note(line.decode(), groups, cgroups, folders)
    for group in groups:
        kernel.kill_group(group)
    deadline = time.monotonic() + 5.0
    while cgroups and time.monotonic() < deadline:
        cgroups = [path for path in cgroups if not empty_cgroup(path)]
        time.sleep(0.02)
    for folder in folders:
        machines.remove_if_abandoned(folder)


def _note(line: str, groups: set[int], cgroups: list[Path], folders: list[Path]) -> None:
    if line.startswith("+"):
        groups.add(int(line[1:]))
    elif line.startswith("-"):
        groups.discard(int(line[1:]))
    elif line.startswith("@"):
        cgroups.append(Path(line[1:]))
    elif line.startswith("#"):
        folders.append(Path(line[1:]))


def empty_cgroup(path: Path) -> bool:
    """Kill every process below ``path`` and remove the folders; False while something is left."""
    if not path.is_dir():
        return True
    below = [Path(folder) for folder, _, _ in os.walk(path, topdown=False)]
    done = True
    for folder in below:
        for pid in processes(folder):
            if pid != os.getpid():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        try:
            folder.rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            done = False
    return done


def processes(folder: Path) -> list[int]:
    """Process ids in one cgroup folder; empty where it is gone.

    Processes outside our PID namespace are listed as 0, which ``kill`` would take for our own group: left out.
    """
    try:
        pids = [int(line) for line in (folder / "cgroup.procs").read_text().split()]
        return [pid for pid in pids if pid > 0]
    except OSError:
        return []
