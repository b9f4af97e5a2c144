"""Where results go, looked at before what takes minutes to make them."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def make_writable(folder: Path) -> None:
    """Make ``folder`` where it is not there. Raises OSError where that fails, or where nothing can be written in it."""
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
