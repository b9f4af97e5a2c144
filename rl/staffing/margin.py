"""How far above the work a measured pipeline is staffed, by what its P95 leaves of λ.

How long requests may wait for a replica cannot be planned there: λ may be little above a pass's time or thirty times
it, and a quota stretches both. So the rule starts in the middle, gives the margin up step by step while P95 keeps λ,
and takes steps back where it does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from autoscaler.contract import Observation

STEPS = 8
"""Sizes of the margin between none and all of it: each is a new rule for every function."""
START = STEPS // 2
NUMBERS: Mapping[str, tuple[float, float, float]] = {
    "standbys": (3.0, 3.0, 6.0),
    "headroom": (1.0, 1.0, 1.5),
    "spare": (0.1, 0.7, 1.6),
    "hold_s": (1.0, 3.0, 6.0),
    "look_back_s": (1.0, 0.5, 0.5),
}
"""The rule's numbers without any margin, at the start, and with all of it, by :data:`rl.staffing.action.NAMES`. Longer
look-backs follow chance less and the load later, and a request waits meanwhile. The upper half is for replicas that
are late: calls that wait are computed as one product, so the work that CPU time shows is less than what it takes to
let none wait."""
LATE, BACK = 0.9, 2
"""P95 over λ of a window up to which it counts as one that keeps λ; steps that the margin grows by in a window over λ
after another one. One alone may be chance: P95 of a few requests is the slowest, and known by a histogram's buckets."""
WINDOWS = 30
"""That keep λ one after the other, until the margin is a step smaller."""


@dataclass(frozen=True)
class Margin:
    """``size``: steps, from 0 to :data:`STEPS`; ``kept``: windows since the last step that kept λ; ``over``: whether
    the last one was over it."""

    size: int = START
    kept: int = 0
    over: bool = False

    def after(self, observation: Observation, slo_s: float) -> Margin:
        """With a window more; one in which nothing was answered counts as none."""
        if observation.stale or observation.latency_p95_s is None:
            return self
        now = observation.latency_p95_s / slo_s
        if now > LATE:
            size = self.size + BACK if self.over and now > 1.0 else self.size
            return Margin(min(size, STEPS), over=now > 1.0)
        if self.kept + 1 < WINDOWS:
            return Margin(self.size, self.kept + 1)
        return Margin(max(self.size - 1, 0))

    @property
    def numbers(self) -> dict[str, float]:
        """The rule's numbers, evenly between those of :data:`NUMBERS`."""
        at = (0, START, STEPS)
        return {name: float(np.interp(self.size, at, values)) for name, values in NUMBERS.items()}
