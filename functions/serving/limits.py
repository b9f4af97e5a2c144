"""Memory and CPU that the kernel lets this process have: those of its cgroup, version 1 or 2."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from platform_words.memory import MIB

UNLIMITED = 1 << 60
ROOT, LISTING = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def memory_limit(root: Path = ROOT, listing: Path = LISTING) -> Callable[[], int | None]:
    """What reads the memory limit in bytes, again each time; None without one."""
    path = _file(root, listing, "memory.max", "memory", "memory.limit_in_bytes")

    def read() -> int | None:
        text = _text(path)
        limit = UNLIMITED if text in ("", "max") else int(text)
        return None if limit >= UNLIMITED else limit

    return read


def cpu_limit(root: Path = ROOT, listing: Path = LISTING) -> float | None:
    """CPU cores; None without a limit."""
    path = _file(root, listing, "cpu.max", "cpu", "cpu.cfs_quota_us")
    quota, _, period = _text(path).partition(" ")
    if path is not None and path.name == "cpu.cfs_quota_us":
        period = _text(path.with_name("cpu.cfs_period_us"))
    return int(quota) / int(period) if quota not in ("", "max", "-1") and period else None


def in_words(root: Path = ROOT, listing: Path = LISTING) -> str:
    """Both limits now, for a log line."""
    memory_bytes, cores = memory_limit(root, listing)(), cpu_limit(root, listing)
    memory = "no limit of memory" if memory_bytes is None else f"{memory_bytes / MIB:g} MiB of memory"
    return f"{memory}, {'no limit of CPU' if cores is None else f'{cores:g} CPU cores'}"


def _text(path: Path | None) -> str:
    """What a file holds; nothing where there is none, or none any more."""
    try:
        return "" if path is None else path.read_text().strip()
    except OSError:
        return ""


def _file(root: Path, listing: Path, unified: str, controller: str, name: str) -> Path | None:
    """This process's file: ``unified`` of version 2, ``name`` of the controller of version 1."""
    try:
        lines = [line.split(":", 2) for line in listing.read_text().splitlines()]
    except OSError:
        return None
    files = {"": (root, unified), controller: (root / controller, name)}
    for _, controllers, path in lines:
        for one in controllers.split(","):
            mount, file = files.get(one, (root, ""))
            inside = mount / path.lstrip("/")
            folder = inside if inside.is_dir() else mount  # a container shows its own part alone
            if file and (folder / file).is_file():
                return folder / file
    return None
