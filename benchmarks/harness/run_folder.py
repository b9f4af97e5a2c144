"""A temporary folder that goes with its run, and with the next run where this one is killed."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LOCK = "run.lock"
"""Held for as long as the run lives: the kernel lets go of it however that ends."""


@contextmanager
def run_folder(prefix: str) -> Iterator[Path]:
    """A folder ``PREFIX…`` under the temporary directory, removed at the end; first those that dead runs left."""
    remove_leftovers(prefix)
    with tempfile.TemporaryDirectory(prefix=prefix) as name, (Path(name) / _LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield Path(name)


def remove_leftovers(prefix: str) -> list[Path]:
    """Remove what runs left that are no longer alive; a folder without a lock file is nobody's of ours and stays."""
    gone = []
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        try:
            with (folder / _LOCK).open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
                gone.append(folder)
        except OSError:  # none of ours, or in use
            continue
    return gone
