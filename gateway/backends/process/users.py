"""Users for functions that are a command: each function has one of its own, which nobody else on the machine has.

A user that is nobody's owns no file, so a command reads what all may read and writes where all may write: not the state
folder with the gateway's password, not another function's secrets or processes. It takes CAP_SETUID, CAP_SETGID and
CAP_CHOWN, as root has them; without them commands are the gateway's user.
"""

from __future__ import annotations

import zlib
from pathlib import Path

FIRST, LAST = 61184, 65519
"""Range of user and group ids, the one that systemd keeps for users made for one service (DynamicUser)."""
_CAPABILITIES = (0, 6, 7)
"""CAP_CHOWN, CAP_SETGID, CAP_SETUID."""


class CommandUsers:
    """A user id for each function's key, the same again while it is free; the group has the same number."""

    def __init__(self, *, possible: bool) -> None:
        self.possible = possible
        self._by_key: dict[str, int] = {}

    def of(self, key: str) -> int | None:
        """None where commands cannot have users of their own. Raises ValueError where all are taken."""
        if not self.possible:
            return None
        if key not in self._by_key:
            taken, size = set(self._by_key.values()), LAST - FIRST + 1
            start = zlib.crc32(key.encode())
            free = (FIRST + (start + step) % size for step in range(size))
            user = next((user for user in free if user not in taken), None)
            if user is None:
                raise ValueError(f"all {size} users for commands are taken")
            self._by_key[key] = user
        return self._by_key[key]

    def forget(self, key: str) -> None:
        self._by_key.pop(key, None)


def possible(process: Path = Path("/proc/self")) -> bool:
    """Whether this process may become any user of the range."""
    try:
        lines = (process / "status").read_text().splitlines()
        effective = int(next(line for line in lines if line.startswith("CapEff:")).split()[1], 16)
        mapped = all(_mapped(process / name) for name in ("uid_map", "gid_map"))
    except (OSError, StopIteration, IndexError, ValueError):
        return False
    return mapped and all(effective >> capability & 1 for capability in _CAPABILITIES)


def _mapped(path: Path) -> bool:
    """Whether one entry of a user namespace's map covers the range."""
    entries = [tuple(map(int, line.split())) for line in path.read_text().splitlines()]
    return any(first <= FIRST and first + count > LAST for first, _, count in entries)
