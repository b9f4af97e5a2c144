"""Refusals that are neither remembered nor planned with: each tick tries again, and each scrape sees them."""

from __future__ import annotations

import logging
from collections.abc import Callable

from autoscaler.platforms.kubernetes.client import RefusedError
from autoscaler.platforms.kubernetes.conditions import Condition, kind_of

log = logging.getLogger("smoe.autoscaler.kubernetes")

REFUSED_S = 60.0
"""A refusal is shown for this long after it was last met, so that every scrape sees it."""


class Refusals:
    """What was refused of functions; ``clock`` gives Unix time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._met: dict[str, tuple[Condition, float]] = {}
        """Function → what was refused of it, and when that was met last."""

    def met(self, function: str, error: RefusedError) -> None:
        """Something was refused; logged where it is news."""
        now_s, before = self._clock(), self._met.get(function)
        condition = Condition(function, kind_of(error), "", error.answer, now_s)
        if before is not None and before[0].message == condition.message and now_s - before[1] < REFUSED_S:
            condition = before[0]
        else:
            log.warning("%s", condition)
        self._met[function] = condition, now_s

    def over(self, function: str) -> None:
        """The function's orders are taken again."""
        self._met.pop(function, None)

    def conditions(self) -> list[Condition]:
        """What was met within the last minute."""
        now_s = self._clock()
        return [condition for _, (condition, met_s) in sorted(self._met.items()) if now_s - met_s < REFUSED_S]
