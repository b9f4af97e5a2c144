"""Whole requests in rounds: how many, and who used the machine meanwhile, the functions themselves and others."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from simulation.profiles.fit.rows import Row
from simulation.profiles.measure.machine import busy_s
from simulation.profiles.measure.measurement_plan import ProfileSettings

if TYPE_CHECKING:
    from simulation.profiles.measure.counters import Counted

QUIET_CORES = 0.25
"""Rounds during which others kept more cores busy are disturbed: they make requests wait that nothing else holds up."""
PER_SECOND = 10
"""Volleys, or requests after a pause, of a round for each second that a point takes; ``FEWEST`` at least."""
FEWEST = 3


def at_a_point(settings: ProfileSettings) -> int:
    """How many of them a round has of each kind."""
    return max(FEWEST, round(PER_SECOND * settings.seconds_per_point))


class Counters(Protocol):
    """As ``simulation.profiles.measure.counters.ReplicaCounters``."""

    def read(self) -> Counted: ...


class Company:
    """CPU seconds since it was made. ``functions``: counters of all that works for a request."""

    def __init__(self, functions: Sequence[Counters]) -> None:
        self._functions = functions
        self._machine_s, self._own_s = busy_s(), time.process_time()
        self._before = [counters.read().cpu_s for counters in functions]

    def functions_s(self) -> float | None:
        """Of the functions; None where the kernel does not count one of them."""
        after = [counters.read().cpu_s for counters in self._functions]
        used = [None if one is None or now is None else now - one for one, now in zip(self._before, after, strict=True)]
        known = [used_s for used_s in used if used_s is not None]
        return sum(known) if len(known) == len(used) else None

    def others_s(self, functions_s: float | None) -> float:
        """Of everybody but the functions and this process."""
        return max(0.0, busy_s() - self._machine_s - (time.process_time() - self._own_s) - (functions_s or 0.0))


def quiet(rows: Iterable[Row]) -> list[Row]:
    """Those during which nobody else used the machine; all where somebody did in all."""
    known = list(rows)
    return [row for row in known if (row.others_cores or 0.0) <= QUIET_CORES] or known
