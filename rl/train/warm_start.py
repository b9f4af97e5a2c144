"""Warm start: a teacher simulates, each window it meets is labelled with its plan, and the actor clones that.

The teacher that simulates is more or less careful from episode to episode, so that the critic sees windows on both
sides of λ; the label is always the careful one's. Off with ``warm_start = 0``: then the actor starts from nothing.
"""

from __future__ import annotations

import logging
from typing import Protocol

import numpy as np

from autoscaler.contract import Observation
from rl.agent.contract import State
from rl.agent.ddpg.exploration_moves import resources_by_price
from rl.episodes import Episode
from rl.train.errors import TrainingError
from rl.train.parallel_episodes import Actions
from rl.train.rule_teacher import RuleTeacher
from rl.train.schedule import ScheduleTeacher
from rl.train.steady import SteadyTeacher
from rl.train.teacher import PLANS, Teacher, TeacherSettings

log = logging.getLogger("smoe.train")
SCATTERED = 0.25
"""Share of episodes in which each layer gets a resource at random: the critic has to see what no teacher does."""
CHEAP = 0.3
"""How likely it is then the cheapest, else the next one, and so on."""


class Teachers:
    """Teachers of a round: for each episode a teacher, whose plan is the label, and how boldly its plans are
    simulated."""

    def __init__(self, episodes: list[Episode], settings: TeacherSettings, rng: np.random.Generator) -> None:
        self._rng = rng
        self._teachers = {id(one): teacher_of(one, settings) for one in episodes}
        self._boldness = {
            id(one): None if rng.random() < SCATTERED else rng.uniform(*settings.boldness) for one in episodes
        }

    def plan(self, episode: Episode, state: State) -> tuple[Actions, Actions]:
        """[n, K, 4] each: the careful plan for the coming window, and what is simulated."""
        boldness = self._boldness[id(episode)]
        careful, bold = self._teachers[id(episode)].plan(episode.observation, boldness or 1.0)
        bold_indices = to_indices(bold, episode, state) if boldness is not None else self._scattered(episode, state)
        return to_indices(careful, episode, state), bold_indices

    def _scattered(self, episode: Episode, state: State) -> Actions:
        configuration_index = episode.encoder.configuration_index
        positions, counts = state.present.copy(), configuration_index.sizes[2]
        efficient = resources_by_price(episode.encoder.space)[0].numpy()
        place = np.minimum(self._rng.geometric(CHEAP, size=(len(positions), 1)), len(efficient)) - 1
        positions[..., 1] = efficient[place]
        positions[..., 2] = np.minimum(self._rng.geometric(0.6, size=(len(positions), 1)), counts) - 1
        return configuration_index.within(positions, state.least_memory)


class Teaching(Protocol):
    """One episode's teacher; see :meth:`rl.train.teacher.Teacher.plan`."""

    def plan(self, observation: Observation, boldness: float = 1.0) -> tuple[PLANS, PLANS]: ...


def teacher_of(episode: Episode, settings: TeacherSettings) -> Teaching:
    """The one that knows the machine of the episode, or that the settings ask for."""
    if episode.workload.host is not None:
        return SteadyTeacher(episode)
    if settings.kind == "last-window":
        return RuleTeacher(episode.workload, settings)
    if settings.kind == "schedule":
        try:
            return ScheduleTeacher(episode, settings)
        except TrainingError as error:
            log.info("the queueing teacher takes over: %s", error)
    return Teacher(episode.workload, episode.requests, settings)


def to_indices(desired: PLANS, episode: Episode, state: State) -> Actions:
    """[n, K, 4] made to satisfy Eq. (2); what is in force where there is no plan."""
    if not desired:
        return state.present
    configuration_index = episode.encoder.configuration_index
    return configuration_index.within(configuration_index.actions(desired), state.least_memory)
