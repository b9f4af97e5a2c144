"""When an overloaded server may be asked again: its ``Retry-After`` (RFC 9110, section 10.2.3), within bounds."""

from __future__ import annotations

import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime

WAITED_S = 5.0
"""Up to this long a call waits for its turn; where it would have to wait longer it fails, and the next tick tries."""
LONGEST_S = 60.0
"""A server that asks for more is asked again after this."""
OVERLOADED = (429, 503)


def seconds_of(header: str | None, now_s: float) -> float:
    """Seconds that a header asks for, at ``now_s`` (Unix time); 0 where it is none or nonsense or past."""
    text = (header or "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now_s)
    except (ValueError, OverflowError):
        return 0.0


class RetryAfter:
    """When one server may be asked again. ``clock``: seconds that only grow; ``wall``: Unix time, for headers that name
    a date."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._wall = wall
        self._until_s = float("-inf")

    def heard(self, status: int, header: str | None) -> None:
        """An answer came, with that ``Retry-After``."""
        if status in OVERLOADED:
            asked_s = min(seconds_of(header, self._wall()), LONGEST_S)
            self._until_s = max(self._until_s, self._clock() + asked_s)

    def left_s(self) -> float:
        """Seconds until it may be asked again."""
        return max(0.0, self._until_s - self._clock())
