"""Orders that cross: one gateway's is stopped before one of its calls while another's is carried out whole."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from gateway.backends.kubernetes.backend import KubernetesBackend
from platform_words.labels import FOLLOWS

Order = Callable[[KubernetesBackend], Awaitable[None]]


class Held:
    """A gateway that stops before its ``nth`` write (from 0) until it is let go; what it does by itself to keep pods
    and templates in line is no part of an order."""

    def __init__(self, backend: KubernetesBackend, nth: int) -> None:
        self.reached, self._go = asyncio.Event(), asyncio.Event()
        self._left, self._call = nth, backend.api.call
        backend.api.call = self._held  # type: ignore[method-assign, assignment]

    async def _held(self, method: Any, path: str, *rest: Any, **more: Any) -> Any:
        keeping = "/pods/" in path or "/replicasets/" in path or FOLLOWS in str(rest)
        if method != "GET" and not keeping:
            self._left -= 1
            if self._left == -1:
                self.reached.set()
                await self._go.wait()
        return await self._call(method, path, *rest, **more)

    def go(self) -> None:
        self._go.set()


async def crossed(one: KubernetesBackend, two: KubernetesBackend, nth: int, first: Order, second: Order) -> list[Any]:
    """What both orders ended with, ``second`` done while ``one`` stood before its ``nth`` write; [] where it made no
    such write."""
    held = Held(one, nth)
    running = asyncio.ensure_future(first(one))
    reaching = asyncio.ensure_future(held.reached.wait())
    await asyncio.wait((running, reaching), return_when=asyncio.FIRST_COMPLETED)
    reaching.cancel()
    if not held.reached.is_set():
        running.result()
        return []
    ended = await asyncio.gather(second(two), return_exceptions=True)
    held.go()
    return [*await asyncio.gather(running, return_exceptions=True), *ended]
