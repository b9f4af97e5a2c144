"""Whether the controller's ticks go on, so that one whose tick hangs neither keeps the lease nor passes for alive."""

from __future__ import annotations

import time
from collections.abc import Callable

INTERVALS = 3.0
LEAST_S = 30.0


def stalled_after(stalled_s: float | None, interval_s: float) -> float:
    """Seconds without a sign of progress after which a tick counts as hung: the setting, else three intervals, at
    least 30 s."""
    return max(LEAST_S, INTERVALS * interval_s) if stalled_s is None else stalled_s


class Progress:
    """Ticks go on while the last sign of it is younger than ``limit_s``; ``clock``: seconds that only grow.

    A tick that stood still for longer is lost: what it does when it wakes is no sign any more, only its end is.
    Written by the loop (and threads of one tick), read by others.
    """

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit_s = limit_s
        self._clock = clock
        self._seen_s = clock()

    def turn(self) -> None:
        """A tick has ended, well or not, or the next one is waited for."""
        self._seen_s = self._clock()

    def sign(self) -> None:
        """A tick got a step further: a long one is not a hung one."""
        if self.goes_on():
            self._seen_s = self._clock()

    def goes_on(self) -> bool:
        return self._clock() - self._seen_s < self.limit_s

    def trouble(self) -> str:
        """What is wrong, in a sentence; empty where nothing is."""
        still_s = self._clock() - self._seen_s
        if still_s < self.limit_s:
            return ""
        return f"the tick has stood still for {still_s:.0f} s; {self.limit_s:g} s are allowed"
