"""What a function's processes read while they run: secrets and live settings, in a folder that only they enter.

The folders are in memory, beside the state folder and not below it, since a function that is a command has a user of
its own, who may not enter the state folder. They end with the gateway.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from gateway.backends.process.machines import LockedFolder

PREFIX = "smoe-run-"
SECRETS = "secrets"
LIVE_SETTINGS = "live.json"


class RunFolders(LockedFolder):
    """``NAME.NAMESPACE/secrets/`` and ``NAME.NAMESPACE/live.json`` of each function."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, PREFIX)
        self.folder.chmod(0o711)  # to pass through, not to list

    def make(self, key: str, user: int | None) -> Path:
        """The folder of a function, which its processes' ``user`` may enter; None: the gateway's own."""
        folder = self.of(key)
        for path in (folder, folder / SECRETS):
            path.mkdir(exist_ok=True, mode=0o700)
            if user is not None:
                os.chown(path, -1, user)
            path.chmod(0o700 if user is None else 0o750)
        return folder

    def of(self, key: str) -> Path:
        """Where :meth:`make` puts it."""
        return self.folder / key

    def remove(self, key: str) -> None:
        shutil.rmtree(self.of(key), ignore_errors=True)
