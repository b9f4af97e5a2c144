"""A bound on the bodies that a gateway holds in memory at a time: of calls under way, calls that wait, and replies that
are collected for callbacks or wait in one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class TooMuchHeldError(Exception):
    """Other bodies take the memory there is for them."""


class HeldBytes:
    """``most`` bytes for all bodies together, and part of what is ``within`` another bound; a single body has its own
    bound elsewhere."""

    def __init__(self, most: int, within: HeldBytes | None = None) -> None:
        self.most, self.taken, self._within = most, 0, within

    def take(self, size: int) -> None:
        """``size`` bytes more. Raises TooMuchHeldError, and takes nothing then."""
        if self.taken + size > self.most:
            raise TooMuchHeldError(f"the gateway holds bodies of {self.taken} bytes, {self.most} at most; try again")
        if self._within is not None:
            self._within.take(size)
        self.taken += size

    def give(self, size: int) -> None:
        """Give ``size`` bytes back."""
        self.taken -= size
        if self._within is not None:
            self._within.give(size)

    @contextmanager
    def room(self) -> Iterator[Room]:
        """Room for a body, given back at the end of the block."""
        room = Room(self)
        try:
            yield room
        finally:
            self.give(room.size)


class Room:
    """What one call holds."""

    def __init__(self, held: HeldBytes) -> None:
        self._held, self.size = held, 0

    def take(self, size: int) -> None:
        """``size`` bytes more. Raises TooMuchHeldError."""
        self._held.take(size)
        self.size += size
