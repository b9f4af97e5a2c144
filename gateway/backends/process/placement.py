"""Nodes played on this machine: where a function's replicas go, and the memory folder that each node has.

A node is a name and a folder in memory (tmpfs where there is one), in which a weights manager keeps what replicas on
that node map. The folders belong to the gateway: they outlive workers and managers, and end with the gateway.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from gateway.contract import BackendError, FunctionSpec, InvalidSpecError
from platform_words.labels import PLACEMENT

NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?")
PREFIX = "smoe-nodes-"
LOCK = "lock"


def placement_of(spec: FunctionSpec, nodes: tuple[str, ...]) -> dict[str, int] | None:
    """Proportions of a function's replicas by node; None where no nodes are played. Raises InvalidSpecError."""
    places = parse_placement(spec)
    if not nodes:
        if places:
            text = spec.annotations[PLACEMENT]
            raise InvalidSpecError(f"annotation {PLACEMENT} is {text[:80]!r}, but this gateway was given no nodes")
        return None
    for name in places:
        if name not in nodes:
            raise InvalidSpecError(f"annotation {PLACEMENT} names node {name[:40]!r}; known are {', '.join(nodes)}")
    return places or {nodes[0]: 1}


def parse_placement(spec: FunctionSpec) -> dict[str, int]:
    """Replicas by node as the annotation says, those with none left out; empty without it. Raises InvalidSpecError."""
    text = spec.annotations.get(PLACEMENT, "").strip()
    places: dict[str, int] = {}
    if not text:
        return places
    for part in text.split(","):
        name, equals, count = (piece.strip() for piece in part.partition("="))
        if not name or not equals or not re.fullmatch(r"\d{1,4}", count, re.ASCII) or name in places:
            raise InvalidSpecError(f"annotation {PLACEMENT} is {text[:80]!r}; it takes NODE=REPLICAS, such as a=2,b=1")
        places[name] = int(count)
    if not any(places.values()):
        raise InvalidSpecError(f"annotation {PLACEMENT} is {text[:80]!r}; one node or more must get a replica")
    return {name: count for name, count in places.items() if count}


def check_nodes(nodes: tuple[str, ...]) -> None:
    """Raises BackendError for names that cannot be used."""
    for name in nodes:
        if NAME.fullmatch(name) is None or name == LOCK or nodes.count(name) > 1:
            raise BackendError(
                f"node {name[:40]!r}: names are lower-case letters, digits and hyphens, each given once, not {LOCK!r}"
            )


class NodeFolders:
    """One memory folder for each node, below a folder of this gateway that a lock marks as in use."""

    def __init__(self, nodes: Iterable[str], root: Path) -> None:
        """Makes the folders; those that a gateway left behind which is gone are removed. Raises OSError."""
        remove_abandoned(root)
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))
        self._lock: IO[str] = (self.folder / LOCK).open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._by_node = {node: self.folder / node for node in nodes}
        for folder in self._by_node.values():
            folder.mkdir(mode=0o700)

    def of(self, node: str) -> Path:
        return self._by_node[node]

    def close(self) -> None:
        """Give the memory back; pages that a worker still maps go with that worker."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.close()


def remove_if_abandoned(folder: Path) -> bool:
    """Remove a gateway's folder when no live gateway holds its lock."""
    try:
        descriptor = os.open(folder / LOCK, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def remove_abandoned(root: Path) -> None:
    """Remove what gateways left behind that were killed."""
    with contextlib.suppress(OSError):
        for folder in root.glob(f"{PREFIX}*"):
            remove_if_abandoned(folder)


def memory_root(state: Path) -> Path:
    """Shared memory of the machine where a process may write there, else the state folder (files in the page cache)."""
    shared = Path("/dev/shm")  # noqa: S108 (a fixed place of the kernel's; folders in it have names of their own)
    return shared if shared.is_dir() and os.access(shared, os.W_OK) else state
