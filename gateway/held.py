"""A bound on the bodies that a gateway holds in memory at a time, over all connections."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class TooMuchHeldError(Exception):
    """Bodies of other calls take the memory there is for them."""


class HeldBytes:
    """``most`` bytes for all bodies together; a single one has its own bound elsewhere."""

    def __init__(self, most: int) -> None:
        self.most, self.taken = most, 0

    @contextmanager
    def room(self) -> Iterator[Room]:
        """Room for a body, given back at the end of the block."""
        room = Room(self)
        try:
            yield room
        finally:
            self.taken -= room.size


class Room:
    """What one call holds."""

    def __init__(self, held: HeldBytes) -> None:
        self._held, self.size = held, 0

    def take(self, size: int) -> None:
        """``size`` bytes more. Raises TooMuchHeldError."""
        if self._held.taken + size > self._held.most:
            raise TooMuchHeldError(
                f"the gateway holds bodies of {self._held.taken} bytes, {self._held.most} at most; try again"
            )
        self._held.taken += size
        self.size += size
