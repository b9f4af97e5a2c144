"""Learnt policies as what decides in the simulator, and runs of ``smoe lab train``."""

from __future__ import annotations

from pathlib import Path

import click

from rl.agent.contract import Batch, State
from rl.agent.ddpg.exploration import decide as decide_by
from rl.agent.export import load
from rl.episodes import Episode
from rl.train.display import line_of
from rl.train.parallel_episodes import Actions, Decide
from rl.train.run import Run
from rl.train.settings import TrainingSettings


def acting(path: Path) -> Decide:
    """A stored actor, without noise."""
    actor = load(path)

    def decide(episodes: list[Episode], states: list[State]) -> list[Actions]:
        return list(decide_by(actor, Batch.of(episodes[0].encoder.space, states)))

    return decide


def trained(settings: TrainingSettings, minutes: float, out: Path, name: str = "") -> Run:
    """A run of ``smoe lab train`` that goes on where it was; its validations are printed, with ``name`` in front."""
    run = Run(settings, out)
    run.go(minutes, on_validation=lambda entry: click.echo(f"{name}{line_of(entry)}", err=True))
    return run
