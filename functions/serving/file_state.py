"""Whether a file is still the one that was looked at, without reading it again."""

from __future__ import annotations

import os
from pathlib import Path

FileState = tuple[int, int, int]
"""Inode, time of the content's last change in ns, bytes."""


def file_state(file: Path | int) -> FileState:
    """The state of a file, by its path or an open descriptor. Raises OSError."""
    status = os.stat(file)  # noqa: PTH116 (a path's own method takes no descriptor)
    return status.st_ino, status.st_mtime_ns, status.st_size
