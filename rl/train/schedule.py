"""The teacher for loads at which calls wait: for every rate of requests the cheapest configuration of each expert.

For some rates between the least and the most of an episode's windows, requests with the episode's popularity of experts
arrive as a Poisson process for ``SECONDS``, and a constant for each expert is searched with which every window of them
keeps ``keep`` · λ (:mod:`evaluation.tuning.constants`). The search of each rate begins with what the next higher one
needs, so that plans for less load are never larger. The plan for the coming window is that of the highest rate of the
last ``look_back`` windows. The simulator is asked and not a queueing model: that one was found to ask for twice as much
as the best constants. The teacher knows the popularity of experts and the latency model, which a policy in production
does not; what it cannot know is the coming window.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from autoscaler.contract import Configuration, Observation
from evaluation.regimes.judged import Work
from evaluation.regimes.search import Found, descended
from evaluation.tuning.constants import Hour, Hours, search_constants, steps_down
from rl.episodes import Episode
from rl.train.errors import TrainingError
from rl.train.teacher import PLANS, TeacherSettings
from simulation.engine.requests import draw_requests
from simulation.workloads.workload import Workload

SECONDS, WINDOW_S = 90.0, 30.0
"""What a plan is judged on: windows after the first of this length."""
RATES = 4
MARGIN = 1.25
"""Highest rate of a schedule over that of the busiest window."""
LEAST_RPS = 0.2
TRIALS = 60
"""Deployments judged for a rate."""
STEP = 0.75
"""Step of boldness, for the plan of the next lower rate."""


@dataclass(frozen=True)
class Plan:
    """Enough up to a rate of requests per second."""

    rate_rps: float
    configurations: PLANS


class ScheduleTeacher:
    """One episode's. Raises TrainingError where nothing serves the busiest window."""

    def __init__(self, episode: Episode, settings: TeacherSettings) -> None:
        self.settings, self._episode = settings, episode
        arrivals, window_s = episode.requests.arrival_s, episode.window_s
        edges = np.arange(episode.windows + 1) * window_s
        self._rates = np.histogram(arrivals, edges)[0] / window_s
        busy = self._rates[self._rates > 0]
        if not busy.size:
            raise TrainingError(f"{episode.requests.source}: no request to plan for")
        slo_s = settings.keep * episode.workload.slo_s
        self.plans = schedule(
            replace(episode.workload, slo_s=slo_s), max(LEAST_RPS, float(busy.min())), MARGIN * float(busy.max()),
            episode.seed,
        )  # fmt: skip

    def plan(self, observation: Observation, boldness: float = 1.0) -> tuple[PLANS, PLANS]:
        """As of :class:`rl.train.teacher.Teacher`; the second is that of a lower rate, one for each ``STEP`` that
        ``boldness`` is above 1."""
        ended = round(observation.end_s / self._episode.window_s)
        rate = float(self._rates[max(0, ended - self.settings.look_back) : ended].max())
        place = next((at for at, plan in enumerate(self.plans) if plan.rate_rps >= rate), len(self.plans) - 1)
        lower = max(0, place - int(np.ceil((boldness - 1) / STEP)))
        return self.plans[place].configurations, self.plans[lower].configurations


def schedule(workload: Workload, least_rps: float, most_rps: float, seed: int) -> tuple[Plan, ...]:
    """Plans for rates from ``least_rps`` to ``most_rps``, rising; those for which nothing was found are left out.
    Raises TrainingError where there is none for the highest."""
    plans = list(_falling(workload, np.geomspace(most_rps, least_rps, RATES), seed))
    if not plans:
        raise TrainingError(f"{workload.name}: no constants of experts serve {most_rps:.1f} requests/s")
    return tuple(reversed(plans))


def _falling(workload: Workload, rates: np.ndarray, seed: int) -> Iterator[Plan]:
    present: dict[str, Configuration] | None = None
    for number, rate in enumerate(rates.tolist()):
        hour = _poisson(workload, rate, seed + number)
        if present is None:
            chosen = search_constants("constant-per-expert", [hour], TRIALS)
            if not chosen.best.meets:
                continue
            present = hour.deployment(chosen.configurations)
        else:
            present = _descended(hour, present)
        yield Plan(rate, present)


def _descended(hour: Hour, start: dict[str, Configuration]) -> dict[str, Configuration]:
    """The cheapest plan found from ``start`` downwards; ``start`` where it breaks λ in this draw of requests."""
    judged = Hours([hour], TRIALS, lambda trial: None)
    cost = judged.cost(start)
    if cost is None:
        return start
    best, steps = Found(start, cost), steps_down(hour.work.workload)
    while not judged.spent:
        lower = descended(judged, best, [[name] for name in start], steps)
        if lower.cost >= best.cost:
            break
        best = lower
    return dict(best.deployment)


def _poisson(workload: Workload, rate_rps: float, seed: int) -> Hour:
    rng = np.random.default_rng(seed)
    arrival_s = np.sort(rng.uniform(0.0, SECONDS, rng.poisson(rate_rps * SECONDS)))
    requests = draw_requests(workload, arrival_s, seed=seed, source=f"Poisson process of {rate_rps:.3g} requests/s")
    return Hour(Work(workload, requests, seed), WINDOW_S, range(1, round(SECONDS / WINDOW_S)))
