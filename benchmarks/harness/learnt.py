"""Learnt policies and their teacher as what decides in the simulator, and runs of ``smoe lab train``."""

from __future__ import annotations

from pathlib import Path

import click

from rl.agent.contract import Batch, State
from rl.agent.ddpg.exploration import decide as decide_by
from rl.agent.export import load
from rl.episodes import Episode
from rl.train.display import line_of
from rl.train.limit import Limit
from rl.train.parallel_episodes import Actions, Decide
from rl.train.run import Run
from rl.train.settings import TrainingSettings
from rl.train.teacher import TeacherSettings
from rl.train.warm_start import Teaching, teacher_of, to_indices


def acting(path: Path) -> Decide:
    """A stored actor, without noise."""
    actor = load(path)

    def decide(episodes: list[Episode], states: list[State]) -> list[Actions]:
        return list(decide_by(actor, Batch.of(episodes[0].encoder.space, states)))

    return decide


def teaching(settings: TeacherSettings) -> Decide:
    """The teacher of the warm start as a policy, made once for each episode."""
    teachers: dict[int, tuple[Episode, Teaching]] = {}

    def decide(episodes: list[Episode], states: list[State]) -> list[Actions]:
        actions = []
        for episode, state in zip(episodes, states, strict=True):
            if id(episode) not in teachers:
                teachers[id(episode)] = episode, teacher_of(episode, settings)
            plan = teachers[id(episode)][1].plan(episode.observation)[0]
            actions.append(to_indices(plan, episode, state))
        return actions

    return decide


def trained(settings: TrainingSettings, minutes: float, out: Path, name: str = "") -> Run:
    """A run of ``smoe lab train`` that goes on where it was; its validations are printed, with ``name`` in front."""
    run = Run(settings, out, limit=Limit(minutes))
    run.go(lambda entry: click.echo(f"{name}{line_of(entry)}", err=True))
    return run
