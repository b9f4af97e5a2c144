"""The teacher on a shared machine: one configuration for all experts, the cheapest that serves a clip as it is
simulated.

The queueing model behind the other teacher (:mod:`rl.train.teacher`) gives every replica its cores to itself; it knows
nothing of CPU quotas, which let a short call through at full speed and stop a long one, nor of what else runs on the
machine. So here the simulator itself is asked, once for a clip: resources in order of price, and of those that break λ
in hardly more windows than the best of them the cheapest. It knows the clip's own requests, which a policy in
production does not; what an actor can clone of it is how much load asks for how much.
"""

from __future__ import annotations

from autoscaler.contract import SLO_QUANTILE, Configuration, Observation
from evaluation.uniform import cheapest_within, for_all_experts, uniform_configurations
from rl.episodes import Episode
from rl.train.teacher import PLANS, bolder
from simulation.engine.simulation import Simulation

CONCURRENCY = 4
"""Concurrency of every expert: calls at once cost nothing here, and share what the quota leaves."""
TOLERATED = 0.02
"""Share of windows more than with the best resource that may be above λ."""


class SteadyTeacher:
    """One episode's. :meth:`plan` as of :class:`rl.train.teacher.Teacher`."""

    def __init__(self, episode: Episode) -> None:
        self._workload = episode.workload
        space, prices = episode.workload.space, episode.workload.prices
        self._choices = uniform_configurations(space, (space.replicas_min,), CONCURRENCY, order=prices.unit_per_s)
        violated = [violated_share(episode, choice) for choice in self._choices]
        self._chosen = cheapest_within(range(len(violated)), violated, min(violated) + TOLERATED)

    def plan(self, observation: Observation, boldness: float = 1.0) -> tuple[PLANS, PLANS]:
        """Function → configuration; and the same bolder (:func:`rl.train.teacher.bolder`)."""
        bold = bolder(self._chosen, boldness, len(self._choices))
        return self._named(self._choices[self._chosen]), self._named(self._choices[bold])

    def _named(self, choice: Configuration) -> PLANS:
        return for_all_experts(self._workload, choice)


def violated_share(episode: Episode, choice: Configuration) -> float:
    """Share of the judged windows whose P95 is above λ when every expert has ``choice`` from beginning to end."""
    workload, over, judged = episode.workload, 0, 0
    simulation = Simulation(workload, episode.requests, workload.initial(choice), seed=episode.seed)
    for number in range(1, episode.windows + 1):
        p95_s = simulation.advance(number * episode.window_s).judged_s(SLO_QUANTILE)
        if p95_s is not None:
            judged += 1
            over += p95_s > workload.slo_s
    return over / max(1, judged)
