"""Connections that the kernel has accepted for a listener and the event loop has not.

The kernel resets them once the listener closes, so a server that ends has its loop accept them first. Time alone does
not do that: it also passes while the loop stands still, and uvloop accepts one connection a turn.
"""

from __future__ import annotations

import select
import types
from collections.abc import Generator, Iterable
from typing import Protocol

TURNS = 5
"""Turns of an event loop without a new connection, after which those before are there and what came on them is read.
asyncio takes three, and loses connections whose listener closes before the second; uvloop takes one."""
MOST_TURNS = 4096
"""More than a listener of this project holds connections (2,048): newer ones cannot put off the end for ever."""


class Listener(Protocol):
    """A socket that listens."""

    def fileno(self) -> int: ...


async def take(listeners: Iterable[Listener]) -> None:
    """Have the running loop accept what waits at its listeners, and read what came on all its connections."""
    waiting = select.poll()
    for listener in listeners:
        waiting.register(listener.fileno(), select.POLLIN)
    without = 0
    for _ in range(MOST_TURNS):
        without = 0 if waiting.poll(0) else without + 1
        await _turn()
        if without == TURNS:
            return


@types.coroutine
def _turn() -> Generator[None]:
    yield
