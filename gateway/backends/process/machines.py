"""Machines emulated on this one: where a function's replicas go, and the memory folder that each machine has.

A machine is a name and a folder in memory (tmpfs where there is one), in which a weights manager keeps what replicas on
that machine map. The folders belong to the gateway: they outlive workers and managers, and end with the gateway.
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
from gateway.placement import parse_placement
from platform_words.labels import PLACEMENT

NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?")
MACHINE_VARIABLE = "smoe_machine"
PREFIX = "smoe-nodes-"
LOCK = "lock"
ATTEMPTS = 100


def placement_of(spec: FunctionSpec, machines: tuple[str, ...]) -> dict[str, int] | None:
    """Proportions of a function's replicas by machine; None where no machines are emulated. Raises InvalidSpecError."""
    places = parse_placement(spec)
    if not machines:
        if places:
            text = spec.annotations[PLACEMENT]
            raise InvalidSpecError(f"annotation {PLACEMENT} is {text[:80]!r}, but this gateway was given no machines")
        return None
    for name in places:
        if name not in machines:
            raise InvalidSpecError(
                f"annotation {PLACEMENT} names machine {name[:40]!r}; known are {', '.join(machines)}"
            )
    return places or {machines[0]: 1}


def check_machines(machines: tuple[str, ...]) -> None:
    """Raises BackendError for names that cannot be used."""
    for name in machines:
        if NAME.fullmatch(name) is None or name == LOCK or machines.count(name) > 1:
            raise BackendError(
                f"machine {name[:40]!r}: a name is of lower-case letters, digits and hyphens, given once, not {LOCK!r}"
            )


class LockedFolder:
    """A folder of this gateway that a lock marks as in use: it ends with the gateway, however that ends."""

    def __init__(self, root: Path, prefix: str) -> None:
        """Makes it; those that a gateway left behind which is gone are removed. Raises OSError."""
        remove_abandoned(root, prefix)
        self.folder, self._lock = _locked(root, prefix)

    def close(self) -> None:
        """Give the memory back; pages that a worker still maps go with that worker."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.close()


def _locked(root: Path, prefix: str) -> tuple[Path, IO[str]]:
    """A new folder and the open file that holds its lock. Another gateway that starts at the same time takes a folder
    for abandoned until its lock is held, and removes it; then the next one is made. Raises OSError."""
    for _ in range(ATTEMPTS):
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=root))
        try:
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(lock).st_nlink:
                return folder, os.fdopen(lock, "w")  # which may be closed twice, a descriptor may not
        except BlockingIOError:
            pass  # whoever holds it removes the folder
        except OSError:
            os.close(lock)
            raise
        os.close(lock)
    raise OSError(f"other gateways removed {ATTEMPTS} folders in {root} that were made one after the other")


class MachineFolders(LockedFolder):
    """One memory folder for each machine."""

    def __init__(self, machines: Iterable[str], root: Path) -> None:
        super().__init__(root, PREFIX)
        self._by_machine = {machine: self.folder / machine for machine in machines}
        for folder in self._by_machine.values():
            folder.mkdir(mode=0o700)

    def of(self, machine: str) -> Path:
        return self._by_machine[machine]


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


def remove_abandoned(root: Path, prefix: str = PREFIX) -> None:
    """Remove what gateways left behind that were killed."""
    with contextlib.suppress(OSError):
        for folder in root.glob(f"{prefix}*"):
            remove_if_abandoned(folder)


def memory_root(otherwise: Path) -> Path:
    """Shared memory of the machine where a process may write there, else ``otherwise`` (files in the page cache)."""
    shared = Path("/dev/shm")  # noqa: S108 (a fixed place of the kernel's; folders in it have names of their own)
    return shared if shared.is_dir() and os.access(shared, os.W_OK) else otherwise
