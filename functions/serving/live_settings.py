"""Live settings where nobody sends SIGHUP: in a cluster the platform only changes a file."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from functions.device.file_state import file_state


async def follow(path: Path, period_s: float, reload: Callable[[], None]) -> None:
    """Call ``reload`` now and whenever the file was replaced or changed; looks every ``period_s``. Never returns."""
    content: object = ()
    while True:
        try:
            now: object = file_state(path)
        except OSError:
            now = None
        if now != content:
            content = now
            reload()
        await asyncio.sleep(period_s)
