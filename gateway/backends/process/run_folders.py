"""What a function's processes read while they run: secrets, live settings and the key that their callers show, in a
folder that only they enter.

The folders are in memory, next to the state folder and not below it, since a function that is a command has a user of
its own, who may not enter the state folder. They end with the gateway.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from secrets import token_hex

from gateway.backends.process.machines import LockedFolder

PREFIX = "smoe-run-"
SECRETS = "secrets"
LIVE_SETTINGS = "live.json"
CALLER_KEY = "caller-key"


class RunFolders(LockedFolder):
    """``NAME.NAMESPACE/`` of each function."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, PREFIX)
        self.folder.chmod(0o711)  # to pass through, not to list
        self._shared_key = token_hex(16)
        self._caller_keys: dict[str, str] = {}

    def make(self, key: str, user: int | None) -> Path:
        """The folder of a function, which its processes' ``user`` may enter; None: the gateway's own."""
        self._caller_keys.setdefault(key, self._shared_key if user is None else token_hex(16))
        folder = self.of(key)
        for path in (folder, folder / SECRETS):
            path.mkdir(exist_ok=True, mode=0o700)
            if user is not None:
                os.chown(path, -1, user)
            path.chmod(0o700 if user is None else 0o750)
        (folder / CALLER_KEY).write_text(self._caller_keys[key])
        (folder / CALLER_KEY).chmod(0o644)  # within a folder that only they enter
        return folder

    def caller_key(self, key: str) -> str:
        """What replicas of a function that was made take calls with: one for all that are the gateway's user, whose
        workers call each other, and one of its own for a command."""
        return self._caller_keys[key]

    def of(self, key: str) -> Path:
        """Where :meth:`make` puts it."""
        return self.folder / key

    def remove(self, key: str) -> None:
        shutil.rmtree(self.of(key), ignore_errors=True)
        self._caller_keys.pop(key, None)
