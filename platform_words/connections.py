"""How many connections a server keeps open, and which one ends for a newcomer.

A client that sends a request byte by byte, or none at all, holds a connection and a file. At the limit the connection
that has been without a whole request for longest ends, as nginx does with ``worker_connections``: idle ones and slow
ones give way, calls under way never do.
"""

from __future__ import annotations

import logging
import resource
from typing import Generic, Protocol, TypeVar

SPARE = 32
"""Connections without a call that there is always room for, where the limit is no less: who asks whether the server
lives has to get through while all others have calls under way."""
KEEP_ALIVE_S = 75.0
"""A connection that is idle for so long is closed, as nginx does by default."""
SLOWEST_BYTES_S = 16 * 1024
"""What a body or a reply that takes longer than its time has to bring: so large ones may go on, and trickling ones do
not."""
_LOG_EVERY_S = 10.0


def goes_on(size: int, seconds: float) -> bool:
    """Whether ``size`` bytes in so many seconds are enough for a body or a reply to have as long again."""
    return size >= SLOWEST_BYTES_S * seconds


log = logging.getLogger(__name__)


class Evictable(Protocol):
    """A connection that can end at any moment in which it has no call under way."""

    def make_room(self) -> None:
        """Close: there are too many."""


C = TypeVar("C", bound=Evictable)


def allowed(most: int) -> int:
    """``most`` (0: no limit), but a third of the files that this process may have open: calls that go on to another
    server take a second one, and other ports and files need some."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    third = 1 << 30 if files == resource.RLIM_INFINITY else max(1, files // 3)
    return min(most, third) if most else third


class OpenConnections(Generic[C]):
    """The open connections of one server; times are on whatever clock the caller has."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.open: set[C] = set()
        self.waiting: dict[C, float] = {}
        """Those without a whole request, and since when they are idle or receive one; the longest first."""
        self._closed, self._logged_s = 0, -_LOG_EVERY_S

    @property
    def working(self) -> int:
        """Those with calls under way."""
        return len(self.open) - len(self.waiting)

    def made(self, connection: C, now_s: float) -> None:
        """A new one; the one that has waited longest ends where there are too many."""
        self.open.add(connection)
        self.waiting[connection] = now_s
        if len(self.waiting) > max(self.most - self.working, min(SPARE, self.most)):
            oldest = next(iter(self.waiting))
            self.closed(oldest)
            self._count(now_s)
            oldest.make_room()

    def waits(self, connection: C, now_s: float) -> None:
        """Its last call is answered, or the first byte of the next one has come."""
        if connection in self.open:
            self.waiting.pop(connection, None)
            self.waiting[connection] = now_s

    def works(self, connection: C) -> None:
        """A whole request has come."""
        self.waiting.pop(connection, None)

    def closed(self, connection: C) -> None:
        """It has ended, or is about to."""
        self.open.discard(connection)
        self.waiting.pop(connection, None)

    def _count(self, now_s: float) -> None:
        """A line in the log at the first, then at most one in ten seconds."""
        self._closed += 1
        if now_s >= self._logged_s + _LOG_EVERY_S:
            log.warning("%d idle or slow connections were closed for newer ones: %d are open, as many as allowed",
                        self._closed, self.most)  # fmt: skip
            self._closed, self._logged_s = 0, now_s
