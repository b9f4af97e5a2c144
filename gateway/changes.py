"""The number that a backend raises with every change, and those who wait for the next one."""

from __future__ import annotations

import asyncio
import contextlib


class Changes:
    """What :class:`gateway.contract.Backend` promises of ``version`` and ``wait_change``."""

    def __init__(self) -> None:
        self._version = 0
        self._change = asyncio.Event()

    def version(self) -> int:
        return self._version

    async def wait_change(self, seen_version: int, timeout_s: float) -> int:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._version == seen_version:
                    await self._change.wait()
        return self._version

    def _changed(self) -> None:
        self._version += 1
        # An event of its own for each change: one that is set and cleared may pass by those who only begin to wait.
        waiting, self._change = self._change, asyncio.Event()
        waiting.set()


async def within(timeout_s: float, event: asyncio.Event) -> None:
    """Until ``event`` is set, at most for so long."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()
