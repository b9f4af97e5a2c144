"""How long a training run may go on: a limit of processor time, looked at in every phase, and a request to stop."""

from __future__ import annotations

import time
from collections.abc import Callable


class StoppedError(Exception):
    """The limit is reached, or somebody asked to stop, in a phase that is done again by a run that goes on."""


class Limit:
    """Processor time against its limit, and where the run is."""

    def __init__(
        self,
        minutes: float = float("inf"),
        stopped: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.process_time,
    ) -> None:
        """``minutes`` of processor time, counted from now and with :attr:`earlier_s`; ``clock`` gives seconds of it."""
        self.minutes, self.stopped, self._clock, self._begun_s = minutes, stopped, clock, clock()
        self.earlier_s = 0.0
        """What the parts of the run before this one took."""
        self.phase = "choosing hours to validate on"
        self.windows = 0
        """Windows that are simulated."""

    @property
    def spent_s(self) -> float:
        return self.earlier_s + self._clock() - self._begun_s

    def over(self, reserved_s: float = 0.0) -> bool:
        """Whether to stop now; ``reserved_s``: what is to be left for what comes after."""
        return self.stopped() or self.spent_s + reserved_s >= 60 * self.minutes

    def look(self) -> None:
        """Raises StoppedError where it is time."""
        if self.over():
            raise StoppedError
