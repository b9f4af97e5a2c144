"""What a cluster refused, and until when it is not asked for that again.

A hold ends by itself, so what was refused is tried again; each time that it is refused once more the next hold is twice
as long. While it lasts the plan goes without (``autoscaler.contract.Bound``), and it is shown as a condition.
Refusals (:class:`Refusals`) are neither remembered nor planned with: each tick tries again, each scrape sees them.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from autoscaler.contract import Bound, Configuration
from autoscaler.errors import PlatformError
from autoscaler.platforms.kubernetes.client import RefusedError
from autoscaler.platforms.kubernetes.conditions import Condition, ConditionKind, kind_of

log = logging.getLogger("smoe.autoscaler.kubernetes")

FIRST_S = 60.0
"""How long the first hold lasts."""
MOST_S = 480.0
"""No hold lasts longer. One that follows another after more than this is a first one again."""
LEAST_S = 10.0
"""Once something was given back, a hold may end after this time: there may be room now."""
RIGHTS_S = 600.0
"""A missing right is looked for again after this time."""

What = Literal["replicas", "limits", "right"]
_OF_FUNCTIONS: tuple[What, ...] = ("replicas", "limits")


@dataclass(frozen=True)
class Hold:
    """One refusal that is remembered."""

    condition: Condition
    bound: Bound
    begun_s: float
    until_s: float
    times: int
    """Holds before it, one after the other."""


class Holds:
    """The holds of one pipeline's functions; orders come from several threads. ``clock`` gives Unix time.

    ``counts``: (function, kind of condition) → orders that were taken back or refused for it.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._held: dict[tuple[str, What], Hold] = {}
        self._lock = threading.Lock()
        self.counts: Counter[tuple[str, str]] = Counter()

    def replicas(self, function: str, kind: ConditionKind, most: int, said: str) -> None:
        """No more than ``most`` replicas of a function can be brought about."""
        self._hold("replicas", Condition(function, kind, "", said), Bound(kind, most))

    def limits(self, function: str, kind: ConditionKind, bound: Bound, said: str) -> None:
        """Limits at or above ``bound`` were refused; tighter bounds of a hold that lasts stay."""
        hold = self._lasting(function, "limits")
        if hold is not None:
            bound = bound.and_also(hold.bound)
        self._hold("limits", Condition(function, kind, "", said), bound)

    def right(self, name: str, said: str) -> None:
        """A right is missing; ``name`` is what it is for."""
        self._hold("right", Condition(name, "forbidden", "", said), Bound("forbidden"), RIGHTS_S)

    def _hold(self, what: What, condition: Condition, bound: Bound, first_s: float = FIRST_S) -> None:
        """Begin a hold; one that lasts is only corrected."""
        now_s, key = self._clock(), (condition.function, what)
        with self._lock:
            before = self._held.get(key)
            if before is not None and now_s < before.until_s:
                if before.bound == bound:
                    return
                begun_s, until_s, times = before.begun_s, before.until_s, before.times
            else:
                times = 0 if before is None or now_s - before.until_s > MOST_S else before.times + 1
                longest_s = max(first_s, MOST_S)
                begun_s, until_s = now_s, now_s + min(first_s * 2.0 ** min(times, 16), longest_s)
            self._held[key] = Hold(replace(condition, since_s=begun_s), bound, begun_s, until_s, times)
            self.counts[condition.function, condition.kind] += 1
        log.warning("%s; not asked for again for %.0f s", condition, until_s - now_s)

    def bound(self, function: str) -> Bound | None:
        """What a function cannot be given now."""
        holds = [hold for what in _OF_FUNCTIONS if (hold := self._lasting(function, what)) is not None]
        return None if not holds else holds[0].bound if len(holds) == 1 else holds[0].bound.and_also(holds[1].bound)

    def check(self, function: str, configured: Configuration | None, target: Configuration) -> Configuration | None:
        """What of the present configuration runs. Raises PlatformError for a target that is not asked for again yet."""
        bound = self.bound(function)
        if bound is None or configured is None:
            return configured
        if bound.possible(configured, target) != target:
            what = f"function {function}: {bound.why}"
            raise PlatformError(f"{what}: that much was refused and is not asked for again yet")
        return bound.brought_about(configured, 0)

    def refuses(self, function: str, present: Configuration) -> bool:
        """Whether replicas are not to be given the limits of this configuration, which is theirs."""
        hold = self._lasting(function, "limits")
        return hold is not None and hold.bound.refuses(present)

    def bounded(self) -> set[str]:
        """Functions that cannot be given something now."""
        now_s = self._clock()
        with self._lock:
            return {name for (name, what), hold in self._held.items() if what != "right" and now_s < hold.until_s}

    def lacks_right(self, name: str) -> bool:
        """Whether the right of this name was found missing and is not looked for again yet."""
        return self._lasting(name, "right") is not None

    def conditions(self) -> list[Condition]:
        """The conditions of all holds that last, in order."""
        now_s = self._clock()
        with self._lock:
            lasting = [(key, hold.condition) for key, hold in self._held.items() if now_s < hold.until_s]
        return [condition for _, condition in sorted(lasting, key=lambda item: item[0])]

    def given_back(self) -> None:
        """A function became smaller: what was refused may be had a little later."""
        with self._lock:
            for key, hold in self._held.items():
                if key[1] != "right":
                    self._held[key] = replace(hold, until_s=min(hold.until_s, hold.begun_s + LEAST_S))

    def came_about(self, function: str, present: Configuration) -> None:
        """Nothing stands in the function's way: what it has now is not refused any more."""
        with self._lock:
            for what in _OF_FUNCTIONS:
                hold = self._held.get((function, what))
                if hold is not None and hold.bound.refuses(present):
                    del self._held[function, what]

    def forget(self, functions: set[str]) -> None:
        """These functions are gone."""
        with self._lock:
            for key in [key for key in self._held if key[0] in functions and key[1] != "right"]:
                del self._held[key]

    def _lasting(self, function: str, what: What) -> Hold | None:
        with self._lock:
            hold = self._held.get((function, what))
        return None if hold is None or self._clock() >= hold.until_s else hold


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
