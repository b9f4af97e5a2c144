"""How far above the work a measured pipeline is staffed, by what its P95 leaves of λ.

How long requests may wait for a replica cannot be planned there: λ may be little above a pass's time or thirty times
it, and a quota stretches both. So the rule starts in the middle, gives the margin up step by step while P95 keeps λ,
and takes steps back where it does not. It learns this for each level of the load by itself: where two requests a second
leave a replica idle, twenty keep three of them busy, and a margin that both share is too much for the one or too little
for the other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isclose, log2

import numpy as np

from autoscaler.contract import Burst, Observation, reached

STEPS = 8
"""Sizes of the margin between none and all of it: each is a new rule for every function."""
START = STEPS // 2
NUMBERS: Mapping[str, tuple[float, float, float]] = {
    "load": (0.7, 1.0, 1.0),
    "standbys": (3.0, 3.0, 6.0),
    "headroom": (0.7, 1.0, 1.5),
    "spare": (0.3, 0.7, 1.6),
    "hold_s": (1.0, 3.0, 6.0),
    "look_back_s": (1.0, 0.5, 0.5),
    "sleep_s": (0.5, 0.5, 14.0),
}
"""The rule's numbers without any margin, at the start, and with all of it, by :data:`rl.staffing.action.NAMES`. Longer
look-backs follow chance less and the load later, and a request waits meanwhile. Calls that wait are computed as one
product: fewer replicas than for the work that CPU time shows are enough where λ leaves calls time to wait, down to
where one replica does the work of more than one (half of the work broke λ, and its queue took a minute to go). The
upper half is for replicas that are late, which takes more than the work where none is to wait. Replicas sleep at every
size, at the largest after a pause that hardly occurs: whether they do makes them standbys, and a level of the load that
changes from window to window would replace them all."""
RULE = ("headroom", "spare", "hold_s", "look_back_s")
"""Those of them that a function has as they were ordered: how many standbys, the room decides."""
ROUNDED = 1e-3
"""How far a function's number may be from what was ordered."""
LATE, BACK, IN_A_ROW = 0.9, 2, 2
"""P95 over λ of a window up to which it counts as one that keeps λ; steps that the margin grows by in the second window
over λ in a row, and in the fourth. One alone may be chance: P95 of a few requests is the slowest, and known by a
histogram's buckets."""
WINDOWS = 30
"""That keep λ, until the margin is a step smaller."""
QUICK = 2.0
"""Windows that one counts as whose P95 is half of λ or less; one at P95 counts as λ over it."""
NEAR = 1
"""Levels, each twice the tokens of the one below, that share what was too small: arrivals of a window vary by half."""
AGAIN, LONGEST = 300.0, 8
"""Windows that keep λ, counted in the same way, until a size that was too small is tried again; each further time that
a level breaks λ it waits twice as long, so many times at most."""


@dataclass(frozen=True)
class Floor:
    """What a level of the load is known to need."""

    size: int = 0
    kept: float = 0.0
    """Windows that kept λ since it became that."""
    times: int = 1
    """:data:`AGAIN` that pass until a smaller one is tried."""

    def after(self, windows: float) -> Floor:
        """With so many more windows that kept λ."""
        kept = self.kept + windows
        if not reached(kept, self.times * AGAIN):
            return replace(self, kept=kept)
        return replace(self, size=max(self.size - 1, 0), kept=0.0)

    def raised(self, size: int) -> Floor:
        """After the level broke λ once more."""
        return Floor(size, 0.0, min(2 * self.times, LONGEST))


@dataclass(frozen=True)
class Margin:
    """Quick to give up what nobody needs, slow to try again what was too little at a level of the load."""

    common: int = START
    """Size at levels where none is known to be too small, from 0 to :data:`STEPS`."""
    kept: float = 0.0
    """Windows that kept λ since it became that."""
    floors: Mapping[int, Floor] = field(default_factory=dict)
    """By level: the power of two that tokens a second are nearest to."""
    level: int | None = None
    """That of the last window that had tokens."""
    over: int | None = None
    """The level whose size was in force in the last window with answers, where that was over λ and nothing grew."""
    late: float = 0.0
    """Windows in a row that were over λ there since something grew."""

    @staticmethod
    def ordered(bursts: Collection[Burst], following: Collection[str]) -> Margin:
        """That by which functions have their rules, as of a controller before this one: every size of all levels is
        then the one that was in force. ``following``: names of numbers that the margin sets. Where no rule is one of
        its sizes, or none of its numbers is among those, the first margin."""
        names = [name for name in RULE if name in following]
        sizes = [size for size in range(STEPS + 1) if names and any(_is_of(size, burst, names) for burst in bursts)]
        return Margin(min(sizes, key=lambda size: abs(size - START), default=START))

    def after(self, observation: Observation, slo_s: float) -> Margin:
        """With a window more, which is due to the size that was in force: that of the level before it. One in which
        nothing was answered counts as none, as does one in which another policy's order was in force."""
        if observation.stale or observation.latency_p95_s is None or not observation.tokens_per_s:
            return self
        level = round(log2(observation.tokens_per_s))
        if observation.decided_by:
            return replace(self, level=level, over=None, late=0.0)
        force = level if self.level is None else self.level
        now, news = observation.latency_p95_s / slo_s, observation.news
        if now <= LATE:
            return replace(self._kept(force, news / max(now, 1 / QUICK)), level=level, over=None, late=0.0)
        near = self.over is not None and abs(self.over - force) <= NEAR
        late = news + self.late if now > 1.0 and near else news
        again = now > 1.0 and reached(late, IN_A_ROW)
        floors = {**self.floors, **{near: replace(self.floors[near], kept=0.0) for near in self._near(force)}}
        if again:
            size = min(self.at(force) + BACK, STEPS)
            floors[force] = floors[force].raised(size) if force in floors else Floor(size)
        over = force if now > 1.0 and not again else None
        return Margin(self.common, 0.0, floors, level, over, late if over is not None else 0.0)

    def _kept(self, force: int, windows: float) -> Margin:
        """Also of the floors of neighbours, as the largest was in force; of the common size where it was."""
        floors = {**self.floors, **{near: self.floors[near].after(windows) for near in self._near(force)}}
        kept = self.kept + (windows if self.at(force) == self.common else 0.0)
        if not reached(kept, WINDOWS):
            return replace(self, kept=kept, floors=floors)
        return replace(self, common=max(self.common - 1, 0), kept=0.0, floors=floors)

    def _near(self, level: int) -> list[int]:
        return [other for other in self.floors if abs(other - level) <= NEAR]

    def at(self, level: int) -> int:
        """Its size."""
        return max([self.common, *(self.floors[near].size for near in self._near(level))])

    @property
    def size(self) -> int:
        """That of the last window's level."""
        return self.common if self.level is None else self.at(self.level)

    @property
    def numbers(self) -> dict[str, float]:
        """The rule's numbers, evenly between those of :data:`NUMBERS`."""
        return _numbers(self.size)


def _numbers(size: int) -> dict[str, float]:
    return {name: float(np.interp(size, (0, START, STEPS), values)) for name, values in NUMBERS.items()}


def _is_of(size: int, burst: Burst, names: Sequence[str]) -> bool:
    """A function has its numbers to three places."""
    numbers = _numbers(size)
    return all(isclose(getattr(burst, name), numbers[name], abs_tol=ROUNDED) for name in names)
