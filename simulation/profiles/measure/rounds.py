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

UNDISTURBED_CORES = 0.25
"""Rounds during which others kept more cores busy are disturbed: they make requests wait that nothing else holds up."""
PER_SECOND = 10
"""Bursts, or requests after an idle gap, of a round for each second that a point takes; ``FEWEST`` at least."""
FEWEST = 3


def at_a_point(settings: ProfileSettings) -> int:
    """How many of them a round has of each kind."""
    return max(FEWEST, round(PER_SECOND * settings.seconds_per_point))


class Counters(Protocol):
    """As ``simulation.profiles.measure.counters.ReplicaCounters``."""

    def read(self) -> Counted: ...


class Interference:
    """CPU seconds used on the machine since the object was created, by whom. ``functions``: counters of all that works
    for a request."""

    def __init__(self, functions: Sequence[Counters]) -> None:
        self._functions = functions
        self._machine_s, self._own_s = busy_s(), time.process_time()
        self._before = [counters.read().cpu_s for counters in functions]

    def functions_s(self) -> float | None:
        """CPU seconds of the functions; None where the kernel does not count one of them."""
        after = [counters.read().cpu_s for counters in self._functions]
        used = [None if one is None or now is None else now - one for one, now in zip(self._before, after, strict=True)]
        counted_s = [used_s for used_s in used if used_s is not None]
        return sum(counted_s) if len(counted_s) == len(used) else None

    def others_s(self, functions_s: float | None) -> float:
        """CPU seconds of all processes but the functions and this one."""
        return max(0.0, busy_s() - self._machine_s - (time.process_time() - self._own_s) - (functions_s or 0.0))


def undisturbed(rows: Iterable[Row]) -> list[Row]:
    """Those during which nobody else used the machine; all where somebody did in all."""
    all_rows = list(rows)
    return [row for row in all_rows if (row.others_cores or 0.0) <= UNDISTURBED_CORES] or all_rows
