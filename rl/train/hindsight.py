"""The teacher for heavy loads: what recent windows would have needed, found out with their own requests.

Each window's requests are simulated by themselves, every expert with the same configuration: the cheapest one with
which their P95 would have been ``keep`` · λ is what the window needed. The plan for the coming window is the most that
any of the last ``look_back`` windows needed. The simulator is asked and not a queueing model, because what breaks an
SLO on the P95 are seconds within a window in which ten times the mean come, and long requests, which are long at every
layer at once; no mean knows of either. A window that nothing would have served is left out, and one without requests
needs the cheapest. The teacher knows each request and the latency model, which a policy in production does not; what it
cannot know is the coming window.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autoscaler.contract import SLO_QUANTILE, Configuration, ConfigurationSpace, Observation
from autoscaler.prices import PriceSheet
from evaluation.uniform import by_price, first_keeping, for_all_experts
from rl.episodes import Episode
from rl.train.teacher import PLANS, TeacherSettings
from simulation.engine.requests import Requests
from simulation.engine.simulation import Simulation
from simulation.workloads.workload import Workload

CONCURRENCY = 8
"""Calls at once of every expert: they cost nothing."""
REPLICAS = (2, 4)
"""Replicas of the largest resource, after one replica of each."""
CHOICES = 8
"""So many, from the cheapest on: what serves the worst second of an hour costs twenty times what serves its windows."""
STEP = 0.75
"""Step of boldness, for the next cheaper choice."""


class HindsightTeacher:
    """One episode's. ``choices``: what all experts may get, in order of price."""

    def __init__(self, episode: Episode, settings: TeacherSettings) -> None:
        self.settings, self._episode = settings, episode
        workload = episode.workload
        self.choices = choices_of(workload.space, workload.prices)
        self._needed: list[int] = []

    def plan(self, observation: Observation, boldness: float = 1.0) -> tuple[PLANS, PLANS]:
        """As of :class:`rl.train.teacher.Teacher`; the second is cheaper by a choice for each ``STEP`` that
        ``boldness`` is above 1, or more expensive by as many below."""
        self._look(observation)
        level = max(self._needed[-self.settings.look_back :])
        return self._named(level), self._named(bolder(level, boldness, len(self.choices)))

    def _look(self, observation: Observation) -> None:
        """Find out about the windows that have ended since the last call."""
        episode = self._episode
        while len(self._needed) < round(observation.end_s / episode.window_s):
            begin_s = len(self._needed) * episode.window_s
            self._needed.append(self._need(between(episode.requests, begin_s, begin_s + episode.window_s)))

    def _need(self, requests: Requests) -> int:
        """The first choice that serves them, by bisection; 0 where none does."""
        episode = self._episode
        slo_s = self.settings.keep * episode.workload.slo_s
        choice = needed(episode.workload, requests, self.choices, slo_s, episode.window_s, episode.seed)
        return choice % len(self.choices)

    def _named(self, level: int) -> PLANS:
        return for_all_experts(self._episode.workload, self.choices[level])


def needed(
    workload: Workload, requests: Requests, choices: Sequence[Configuration], slo_s: float, window_s: float, seed: int
) -> int:
    """Place of the first of ``choices``, each the configuration of every expert, with which the P95 of a window's
    ``requests`` is within ``slo_s``, by bisection; their number where it is so with none."""
    return first_keeping(len(choices), lambda level: _serves(workload, requests, choices[level], slo_s, window_s, seed))


def _serves(
    workload: Workload, requests: Requests, choice: Configuration, slo_s: float, window_s: float, seed: int
) -> bool:
    if not requests.arrival_s.size:
        return True
    latency_s = Simulation(workload, requests, workload.initial(choice), seed=seed).advance(2 * window_s).latency_s
    answered = latency_s.size / requests.arrival_s.size
    return answered >= SLO_QUANTILE and float(np.quantile(latency_s, SLO_QUANTILE / answered)) <= slo_s


def choices_of(space: ConfigurationSpace, prices: PriceSheet) -> Sequence[Configuration]:
    """The first :data:`CHOICES` of :func:`evaluation.uniform.by_price`."""
    return by_price(space, prices, CONCURRENCY, REPLICAS)[:CHOICES]


def bolder(level: int, boldness: float, choices: int) -> int:
    """The choice cheaper than ``level`` by one for each ``STEP`` that ``boldness`` is above 1, or more expensive by as
    many below; of ``choices``, in order of price."""
    return min(max(0, level - int(np.ceil((boldness - 1) / STEP))), choices - 1)


def between(requests: Requests, begin_s: float, end_s: float) -> Requests:
    """Those that arrive from ``begin_s`` until ``end_s``, on a clock that begins then."""
    first, last = np.searchsorted(requests.arrival_s, (begin_s, end_s), side="left")
    return Requests(requests.arrival_s[first:last] - begin_s, requests.counts[:, first:last].copy(), requests.source)
