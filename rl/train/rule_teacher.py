"""The teacher that is a rule: the optimum for the last window's load (:mod:`evaluation.bound.last_window`).

With standbys it is the best that was found on hours where load decides (docs/results/compare). It sees what the actor
sees, no coming window and no request's routing, so all it does can be cloned; what is left to learn is what it cannot
do: look further back, pay for what load repeats, and know where its queueing model errs.
"""

from __future__ import annotations

from autoscaler.contract import Observation
from evaluation.bound.last_window import LastWindowPolicy, LastWindowSettings
from rl.train.teacher import PLANS, TeacherSettings
from simulation.workloads.workload import Workload


class RuleTeacher:
    """One episode's. ``settings.headroom`` is the rule's own."""

    def __init__(self, workload: Workload, settings: TeacherSettings) -> None:
        self._workload, self._settings = workload, settings
        self._careful = self._with(settings.headroom)

    def plan(self, observation: Observation, boldness: float = 1.0) -> tuple[PLANS, PLANS]:
        """As of :class:`rl.train.teacher.Teacher`; the second has ``boldness`` times the headroom, 1 at most."""
        careful = self._planned(self._careful, observation)
        if boldness == 1.0:
            return careful, careful
        return careful, self._planned(self._with(min(1.0, boldness * self._settings.headroom)), observation)

    def _with(self, headroom: float) -> LastWindowPolicy:
        return LastWindowPolicy(self._workload, LastWindowSettings(meter=self._settings.meter, headroom=headroom))

    @staticmethod
    def _planned(policy: LastWindowPolicy, observation: Observation) -> PLANS:
        return policy.propose(observation, observation.end_s, None).desired
