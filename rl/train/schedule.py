"""The teacher for loads at which calls wait: for windows of every load the cheapest configuration of each expert.

Windows of an episode are put in order of their requests. For some loads a constant for each expert is searched
(:mod:`evaluation.tuning.constants`) with which the busiest windows of at most this load, each simulated by itself with
its own requests, keep ``keep`` · λ. The search of each load begins with what the next higher one needs, so that plans
for less load are never larger. The plan for the coming window is that of the highest load of the last ``look_back``
windows. The simulator is asked and not a queueing model: that one was found to ask for twice as much as the best
constants; and with the hour's own requests, as plans that serve a Poisson process of twice the rate broke λ in most
windows of a normal hour. Where experts have standbys, so have the plans. The teacher knows all requests of the episode
and the latency model, which a policy in production does not; what it does not look at is which window comes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autoscaler.contract import Burst, Configuration, Observation
from evaluation.regimes.judged import Deployment, Work
from evaluation.regimes.search import Found, cheapest_uniform
from evaluation.tuning.constants import Hour, Hours, Steps, lowest, search_constants, steps_down
from rl.episodes import Episode
from rl.train.errors import TrainingError
from rl.train.teacher import PLANS, TeacherSettings, bolder
from simulation.arrays import Ints
from simulation.engine.requests import Requests

LOADS = (1.0, 0.75, 0.5, 0.25)
"""Shares of the windows that a plan is for, those with fewest requests first."""
BUSIEST = 5
"""Windows that a plan is judged on."""
TRIALS = 60
"""Deployments judged for a load."""


@dataclass(frozen=True)
class Plan:
    """Enough up to a number of requests in a window."""

    requests: int
    configurations: PLANS


class ScheduleTeacher:
    """One episode's. Raises TrainingError where it has no request, or nothing serves its busiest windows."""

    def __init__(self, episode: Episode, settings: TeacherSettings) -> None:
        self.settings, self._episode = settings, episode
        edges = np.arange(episode.windows + 1) * episode.window_s
        self._counts: Ints = np.histogram(episode.requests.arrival_s, edges)[0]
        if not self._counts.any():
            raise TrainingError(f"{episode.requests.source}: no request to plan for")
        self.plans = tuple(reversed(list(self._falling())))
        if not self.plans:
            raise TrainingError(f"{episode.requests.source}: no constants of experts serve its busiest windows")

    def plan(self, observation: Observation, boldness: float = 1.0) -> tuple[PLANS, PLANS]:
        """As of :class:`rl.train.teacher.Teacher`; the second is :func:`rl.train.teacher.bolder`."""
        ended = round(observation.end_s / self._episode.window_s)
        most = int(self._counts[max(0, ended - self.settings.look_back) : ended].max())
        place = next((at for at, plan in enumerate(self.plans) if plan.requests >= most), len(self.plans) - 1)
        lower = bolder(place, boldness, len(self.plans))
        return self.plans[place].configurations, self.plans[lower].configurations

    def _falling(self) -> Iterator[Plan]:
        busy = np.flatnonzero(self._counts)
        busy = busy[np.argsort(self._counts[busy], kind="stable")]
        present: dict[str, Configuration] | None = None
        for share in LOADS:
            chosen = busy[: max(1, round(share * len(busy)))]
            hours = [self._window(int(number)) for number in chosen[-BUSIEST:]]
            present = _cheapest(hours, self._episode.burst) if present is None else _descended(hours, present)
            if present is None:
                continue
            yield Plan(int(self._counts[chosen[-1]]), present)

    def _window(self, number: int) -> Hour:
        episode = self._episode
        workload = replace(episode.workload, slo_s=self.settings.keep * episode.workload.slo_s)
        requests = between(episode.requests, number * episode.window_s, (number + 1) * episode.window_s)
        return RankedHour(Work(workload, requests, episode.seed), episode.window_s, range(1))


class RankedHour(Hour):
    """A window whose experts are in the order of the topology, the same for all windows of an episode."""

    @property
    def ranked(self) -> tuple[str, ...]:
        return tuple(node.function for node in self.work.workload.experts)


def between(requests: Requests, begin_s: float, end_s: float) -> Requests:
    """Those that arrive from ``begin_s`` until ``end_s``, on a clock that begins then."""
    first, last = np.searchsorted(requests.arrival_s, (begin_s, end_s), side="left")
    return Requests(requests.arrival_s[first:last] - begin_s, requests.counts[:, first:last].copy(), requests.source)


def _cheapest(hours: Sequence[Hour], burst: Burst | None) -> dict[str, Configuration] | None:
    """The cheapest plan of a search; None where none keeps λ in these windows."""
    if burst is None:
        constants = search_constants("constant-per-expert", hours, TRIALS)
        return hours[0].deployment(constants.configurations) if constants.best.meets else None
    uniform = cheapest_uniform(Hours(hours, TRIALS), burst)
    return None if uniform is None else _descended(hours, dict(uniform.deployment))


def _descended(hours: Sequence[Hour], start: dict[str, Configuration]) -> dict[str, Configuration]:
    """The cheapest plan of a search from ``start`` downwards; ``start`` where it breaks λ in these windows."""
    judged = Hours(hours, TRIALS)
    cost = judged.cost(start)
    if cost is None:
        return start
    steps = _keeping_standbys(steps_down(hours[0].work.workload))
    return dict(lowest(judged, Found(start, cost), [[name] for name in start], steps).deployment)


def _keeping_standbys(steps: Steps) -> Steps:
    """An episode has the same standbys whatever is planned."""

    def near(functions: Sequence[str], deployment: Deployment) -> Iterator[Configuration]:
        burst = deployment[functions[0]].burst
        return (one for one in steps(functions, deployment) if one.burst == burst)

    return near
