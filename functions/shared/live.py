"""Live settings where nobody sends SIGHUP: in a cluster the platform only changes a file."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path


async def follow(path: Path, period_s: float, reload: Callable[[], None]) -> None:
    """Call ``reload`` now and whenever the file was replaced or changed; looks every ``period_s``. Never returns."""
    seen: object = ()
    while True:
        try:
            found = path.stat()
            now: object = (found.st_ino, found.st_mtime_ns, found.st_size)
        except OSError:
            now = None
        if now != seen:
            seen = now
            reload()
        await asyncio.sleep(period_s)
