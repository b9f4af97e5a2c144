"""Requests to a whole pipeline through its ingress, their rows, and who used the machine meanwhile."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from functions.dispatch.client import request_head
from simulation.profiles.fit.rows import Row
from simulation.profiles.measure.load import Target
from simulation.profiles.measure.machine import busy_s
from simulation.profiles.measure.measurement_plan import ProfileSettings

if TYPE_CHECKING:
    from simulation.profiles.measure.counters import Counted

INGRESS = "ingress"
WORDS = """
the people of this small town went down to the river early in the morning and found an old boat that had been left
there by two young men who wanted to see where the water goes when winter is over and the snow has gone
""".split()  # noqa: SIM905
"""One token each in most vocabularies; cut off or repeated they make texts of about any length."""


def request_to(address: str, tokens: int, first: int = 0) -> Target:
    """Requests of a text of about ``tokens`` tokens to the ingress; ``first``: the word that it begins with."""
    text = " ".join(WORDS[(first + place) % len(WORDS)] for place in range(tokens - 2))
    body = json.dumps({"inputs": text}).encode()
    return Target(address, request_head("/", "profile", "application/json", len(body), ()), body)


def blank(tokens: int, repeat: int, settings: ProfileSettings) -> Row:
    """The row of a pass that is still to be measured, and what rows of other points are made from."""
    return Row(
        node=INGRESS,
        family="pass",
        loop="closed",
        tokens=tokens,
        texts=1,
        cpu_cores=1.0 / settings.cpu_scale,
        share=1.0,
        period_s=None,
        memory_mib=settings.ample_mib,
        concurrency=1,
        rate_rps=0.0,
        seed=0,
        repeat=repeat,
        feasible=True,
        note="",
        n=0,
        errors=0,
        seconds=0.0,
        load1=os.getloadavg()[0],
    )


async def close_all(targets: Iterable[Target]) -> None:
    """On the loop that their connections belong to."""
    for target in targets:
        target.close()


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
