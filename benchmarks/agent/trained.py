"""A folder of ``smoe lab train`` or ``train-staffing``: its actor, and the validation hours that it is judged on."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from autoscaler.contract import Burst
from autoscaler.prices import Meter
from evaluation.comparison.policies import DEFAULT_BURST
from evaluation.regimes.judged import Work
from evaluation.tuning.constants import Hour
from rl.episodes import Clip, Episode
from rl.staffing.checkpoint import BEST as STAFFING_BEST
from rl.staffing.hours import episode
from rl.staffing.judge import WARM_UP, Judge
from rl.staffing.settings import StaffingSettings
from rl.train.run import BEST
from rl.train.settings import TrainingSettings
from rl.train.validation import Validator


@dataclass(frozen=True, eq=False)
class ValidationHour:
    """One hour: ``begin`` makes its episode, from the run's own start; ``hour`` is what constants are judged on."""

    clip: Clip
    begin: Callable[[], Episode]
    hour: Hour


@dataclass(frozen=True, eq=False)
class Trained:
    """A run's actor and hours."""

    policy: str
    """``smoe`` or ``staffing-learnt``."""
    actor: Path
    hours: Mapping[str, Sequence[ValidationHour]]
    """By workload."""
    warm_up: int
    """Windows of an hour that are not counted."""
    meter: Meter
    burst: Burst | None
    """Standbys of rules that have none of their own; None: the run's experts have none either."""
    seed: int


def read(folder: Path, count: int) -> Trained:
    """The run in ``folder``, with ``count`` hours of each pattern and rate. Raises ClickException for another folder,
    and TrainingError."""
    path = folder / "run.json"
    if not path.is_file():
        raise click.ClickException(f"{folder} has no run.json; name a folder of smoe lab train or train-staffing")
    stored: dict[str, Any] = json.loads(path.read_text())["settings"]
    return _staffing(stored, folder, count) if "train_hours" in stored else _siso(stored, folder, count)


def _siso(stored: Mapping[str, Any], folder: Path, count: int) -> Trained:
    settings = TrainingSettings.from_json(stored)
    settings = replace(settings, validation=replace(settings.validation, seeds=count))
    validator = Validator(settings, folder / "cache")
    hours = {
        name: [
            ValidationHour(clip, partial(validator.episode, clip), replace(validator.hour(clip), meter=settings.meter))
            for clip in clips
        ]
        for name, clips in validator.clips.items()
    }
    warm_up, burst = settings.validation.warm_up, settings.standbys.burst
    return Trained("smoe", folder / BEST, hours, warm_up, settings.meter, burst, settings.seed)


def _staffing(stored: Mapping[str, Any], folder: Path, count: int) -> Trained:
    settings = StaffingSettings.from_json(stored)
    meter = settings.hours.reward.meter
    hours = [
        ValidationHour(
            work.clip,
            partial(episode, settings.hours, work),
            Hour(
                Work(work.workload, work.requests, work.seed),
                work.clip.window_s,
                range(WARM_UP, round(work.seconds / work.clip.window_s)),
                meter,
            ),
        )
        for work in Judge(replace(settings, validation_hours=count), None).hours
    ]
    return Trained(
        "staffing-learnt", folder / STAFFING_BEST, {settings.hours.workload: hours}, WARM_UP, meter, DEFAULT_BURST,
        settings.seed,
    )  # fmt: skip
