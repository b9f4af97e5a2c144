"""Finds out which cgroups this process may use, makes our own below them, removes what dead gateways left.

Our folders are named ``smoe-PID-STARTTIME-GENERATION``: PID and start time (``/proc/PID/stat``, field 22) name the
gateway that owns them, so a later gateway can distinguish dead owners from live ones.
"""

from __future__ import annotations

import logging
import os
import re
import time
from pathlib import Path

from gateway.backends.process.cgroup.limits import PREFIX, Cgroups, CgroupsV1, CgroupsV2
from gateway.backends.process.workers.guardian import empty_cgroup, processes

log = logging.getLogger(__name__)

_V1_CONTROLLERS = ("cpu", "cpuacct", "memory")
_LEFTOVER_PATIENCE_S = 2.0
_OURS = re.compile(rf"{PREFIX}(\d+)-(\d+)-\d+")


def detect(root: Path, proc: Path, generation: int, period_s: float) -> Cgroups:
    """The cgroups to use; where none are, those that limit nothing, with the reason. Never raises.

    Blocks while leftovers end.
    """
    name = f"{PREFIX}{os.getpid()}-{start_time(proc, os.getpid())}-{generation}"
    path_by_controller = _own_paths(proc)
    if (root / "cgroup.controllers").exists():
        return _detect_v2(root, proc, path_by_controller.get("", "/"), name, period_s)
    if any((root / controller).is_dir() for controller in _V1_CONTROLLERS):
        return _detect_v1(root, proc, path_by_controller, name, period_s)
    return Cgroups((f"No cgroups are mounted at {root}: memory and CPU limits are accepted but not enforced.",))


def _detect_v1(root: Path, proc: Path, path_by_controller: dict[str, str], name: str, period_s: float) -> Cgroups:
    folders: dict[str, Path] = {}
    missing = []
    for controller in _V1_CONTROLLERS:
        base = _below(root / controller, path_by_controller.get(controller, "/"))
        remove_leftovers(base, proc)
        try:
            (base / name).mkdir(exist_ok=True)
        except OSError as error:
            missing.append(f"{controller} ({error.strerror})")
            continue
        folders[controller] = (base / name).resolve()
    notes = (f"cgroup v1 not writable here: {', '.join(missing)}; those limits are not enforced.",) if missing else ()
    return CgroupsV1(notes, folders, period_s) if folders else Cgroups(notes)


def _detect_v2(root: Path, proc: Path, path: str, name: str, period_s: float) -> Cgroups:
    base = _below(root, path)
    remove_leftovers(base, proc)
    try:
        (base / name).mkdir(exist_ok=True)
    except OSError as error:
        return Cgroups((f"cgroup v2 at {base} is not writable ({error.strerror}): limits are not enforced.",))
    available = (base / "cgroup.controllers").read_text().split()
    usable = set()
    for controller in ("cpu", "memory"):
        if controller in available and _enable(base, controller) and _enable(base / name, controller):
            usable.add(controller)
    missing = sorted({"cpu", "memory"} - usable)
    notes: tuple[str, ...] = ()
    if missing:
        notes = (
            f"cgroup v2 does not give us {' and '.join(missing)} (not delegated, or other processes live in {base}): "
            "those limits are not enforced.",
        )
    return CgroupsV2(notes, base / name, usable, period_s)


def _enable(folder: Path, controller: str) -> bool:
    """Hand a controller down. A cgroup with processes in it cannot: if they are only us, move to a leaf first."""
    control = folder / "cgroup.subtree_control"
    try:
        if controller in control.read_text().split():
            return True
        control.write_text(f"+{controller}")
    except OSError:
        if processes(folder) != [os.getpid()]:
            return False
        leaf = folder / "gateway"
        try:
            leaf.mkdir(exist_ok=True)
            (leaf / "cgroup.procs").write_text(str(os.getpid()))
            control.write_text(f"+{controller}")
        except OSError:
            return False
    return True


def remove_leftovers(base: Path, proc: Path) -> None:
    """Kill and remove cgroups of gateways that are no longer alive."""
    try:
        folders = [entry for entry in base.iterdir() if _OURS.fullmatch(entry.name)]
    except OSError:
        return
    for folder in folders:
        match = _OURS.fullmatch(folder.name)
        if match and start_time(proc, int(match[1])) == int(match[2]):
            continue
        if processes_below(folder):
            log.warning("killing what a dead gateway left in %s", folder)
        if not empty_within(folder, _LEFTOVER_PATIENCE_S):
            log.warning("%s of a dead gateway cannot be removed yet", folder)


def empty_within(folder: Path, patience_s: float) -> bool:
    """Empty and remove a cgroup; killed processes take a moment to leave it. Blocks."""
    deadline = time.monotonic() + patience_s
    while not empty_cgroup(folder):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def processes_below(folder: Path) -> list[int]:
    """Process ids in a cgroup and everything below it."""
    return [pid for path, _, _ in os.walk(folder) for pid in processes(Path(path))]


def start_time(proc: Path, pid: int) -> int | None:
    """Clock ticks after boot at which a process started; None when there is no such process."""
    try:
        return int((proc / str(pid) / "stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def _own_paths(proc: Path) -> dict[str, str]:
    """Our cgroup by controller, from ``/proc/self/cgroup``; key ``""`` is version 2."""
    paths = {}
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return {}
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            paths[controller] = path
    return paths


def _below(mount: Path, path: str) -> Path:
    """Our own cgroup in a mount, or the mount itself where a container shows only its own part."""
    inside = mount / path.lstrip("/")
    return inside if inside.is_dir() else mount
