"""How much memory this gateway may use, and which part of it bodies may take."""

from __future__ import annotations

import os
from pathlib import Path

MOST_HELD_BYTES = 512 << 20
"""Bodies held at a time on a machine with memory to spare."""
SHARE, UNTAKEN_SHARE = 2, 8
"""Half of the memory is for bodies, an eighth for replies that clients do not take, the rest for the process and its
connections."""
_FILES = {"": ("", "memory.max"), "memory": ("memory", "memory.limit_in_bytes")}


def held_bytes_of(memory_bytes: int) -> int:
    """Bytes of bodies that a gateway with so much memory holds at a time."""
    return min(MOST_HELD_BYTES, memory_bytes // SHARE)


def untaken_bytes_of(memory_bytes: int) -> int:
    """Bytes of replies that wait for their clients."""
    return min(MOST_HELD_BYTES, memory_bytes // UNTAKEN_SHARE)


def memory_bytes(root: Path = Path("/sys/fs/cgroup"), listing: Path = Path("/proc/self/cgroup")) -> int:
    """The machine's memory in bytes, or the least limit of this process's cgroup and those above it, version 1 or 2."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        lines = [line.split(":", 2) for line in listing.read_text().splitlines()]
    except OSError:
        return machine
    limits = [machine]
    for _, controllers, path in lines:
        for controller in controllers.split(","):
            if controller in _FILES:
                mount, name = _FILES[controller]
                leaf = root / mount / path.lstrip("/")
                limits += [_limit(folder / name) for folder in (leaf, *leaf.parents) if folder.is_relative_to(root)]
    return min(limit for limit in limits if limit)


def _limit(file: Path) -> int:
    """0 where there is none: the file is missing where a container shows its own part alone."""
    try:
        text = file.read_text().strip()
        return int(text) if text.isdigit() else 0
    except OSError:
        return 0
