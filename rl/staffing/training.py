"""Training of the staffing policy: hours, rounds of the library's DDPG, and the actor that did best on validation.

A run ends with its windows, at a limit of processor time or where somebody asks it to stop. What it has is stored by
then, and with every validation; it goes on from there, with new hours (:mod:`rl.staffing.checkpoint`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger, TensorBoardOutputFormat
from stable_baselines3.common.noise import VectorizedActionNoise
from stable_baselines3.common.vec_env import DummyVecEnv

from evaluation.provenance import code_sha256
from rl.agent.doubts import RANGES
from rl.episodes import Work
from rl.staffing.action import action_of
from rl.staffing.checkpoint import BEST, Progress, claim, put, read, store
from rl.staffing.ddpg import ActorOfPolicy, OutcomeBuffer, SharedNoise, StaffingDDPG, StaffingPolicy, networks_of
from rl.staffing.env import StaffingEnv
from rl.staffing.export import save
from rl.staffing.hours import in_turn, works
from rl.staffing.judge import Judge
from rl.staffing.settings import StaffingSettings
from rl.staffing.warm_start import clone, fill, labels
from rl.train.errors import TrainingError
from rl.train.limit import Limit, StoppedError
from rl.train.run import traces_sha256
from rl.train.validation import SYNTHETIC
from traces.traffic import has_sources

Report = Callable[[str], object]


class Learning(BaseCallback):
    """Lowers the noise as the run goes on, validates, stores, and keeps the best actor."""

    def __init__(
        self, model: StaffingDDPG, judge: Judge, out: Path, report: Report, limit: Limit, progress: Progress
    ) -> None:
        super().__init__()
        self.init_callback(model)
        self.settings, self.judge, self.out, self.report = judge.settings, judge, out, report
        self.limit, self.progress = limit, progress
        limit.earlier_s, limit.windows = progress.processor_s, progress.windows

    def _on_step(self) -> bool:
        assert isinstance(self.model, StaffingDDPG) and isinstance(self.model.action_noise, VectorizedActionNoise)
        self.limit.phase, self.limit.windows = "training", self.num_timesteps
        for noise in self.model.action_noise.noises:
            assert isinstance(noise, SharedNoise)
            noise.share = 1 - (1 - self.settings.final_noise) * self.part
        if self.num_timesteps >= self.progress.next_validation:
            self.validate()
            self.progress.next_validation += self.settings.validate_every
            self.store()
        return not self.ends(self.progress.validation_s)

    def ends(self, reserved_s: float = 0.0) -> bool:
        """Whether it is time; minutes end nothing before the first validation, without which no actor is kept."""
        return self.limit.stopped() or (bool(self.curve) and self.limit.over(reserved_s))

    @property
    def part(self) -> float:
        """Part of the run that is over, by its windows or its minutes, whichever is more: 0 to 1."""
        by_windows = self.num_timesteps / self.settings.windows
        return min(1.0, max(by_windows, self.limit.spent_s / (60 * self.limit.minutes)))

    @property
    def curve(self) -> list[dict[str, Any]]:
        """All validations."""
        return self.progress.curve

    def _on_training_end(self) -> None:
        if self.progress.validated != self._updates and not self.ends():
            self.validate()

    @property
    def _updates(self) -> int:
        assert isinstance(self.model, StaffingDDPG)
        return self.model._n_updates

    def _decide(self, rows: dict[str, Any]) -> np.ndarray[Any, Any]:
        """The actor without noise. Raises StoppedError where it is time."""
        if self.ends():
            raise StoppedError
        return self.model.predict(rows, deterministic=True)[0]

    def validate(self) -> None:
        """Judge the actor, keep it where it is the best so far, and add to the curve. Raises StoppedError, with nothing
        changed."""
        self.limit.phase, begun_s = "validation", self.limit.spent_s
        results = self.judge.judge(self._decide)
        progress, minutes = self.progress, round(self.limit.spent_s / 60, 2)
        progress.validation_s, progress.validated = self.limit.spent_s - begun_s, self._updates
        score, share = self.judge.score(results)
        better = progress.best is None or score < progress.best
        entry = {
            "windows": self.num_timesteps,
            "minutes": minutes,
            "score": round(score, 4),
            "cost": round(float(np.mean([one.cost for one in results])), 4),
            "violated": round(share, 4),
            "best": better,
            "hours": [asdict(one) for one in results],
        }
        self.curve.append(entry)
        (self.out / "curve.json").write_text(json.dumps(self.curve, indent=1))
        for name in ("score", "cost", "violated"):
            self.logger.record(f"validation/{name}", entry[name])
        self.logger.dump(self.num_timesteps)
        if better:
            progress.best = score
            self._export(entry)
        self.report(
            f"{entry['windows']} windows, {minutes} min: cost {entry['cost']}, over λ {100 * share:.1f} %"
            + (", the best so far" if better else "")
        )

    def _export(self, entry: dict[str, Any]) -> None:
        assert isinstance(self.model, StaffingDDPG)
        actor, buffer = self.model.actor, self.model.replay_buffer
        assert isinstance(actor, ActorOfPolicy) and isinstance(buffer, OutcomeBuffer)
        made = {"settings": asdict(self.settings), "code_sha256": code_sha256(__name__), "validation": entry}
        save(self.out / BEST, actor.network, made | {RANGES: buffer.ranges().as_json()})

    def store(self) -> None:
        """What the run goes on from."""
        assert isinstance(self.model, StaffingDDPG)
        progress = self.progress
        progress.windows, progress.updates = self.model.num_timesteps, self._updates
        progress.processor_s = self.limit.spent_s
        store(self.out, self.model, progress)


def _env(settings: StaffingSettings, hours: Sequence[Work], seed: int | tuple[int, ...]) -> StaffingEnv:
    return StaffingEnv(in_turn(settings.hours, hours, seed), settings.risks)


def warm_start(
    model: StaffingDDPG, settings: StaffingSettings, hours: Sequence[Work], report: Report, limit: Limit
) -> None:
    """Rules on the first hours, the critics, and the actor's clone of what they think best. Raises StoppedError."""
    limit.phase = "warm start"
    warm, look = hours[: settings.warm_hours], limit.look
    fill(model, settings.hours, settings.risks, warm, settings.warm_runs, settings.seed, look)
    losses = model.learn_outcomes(settings.critic_updates, settings.batch, look)
    report(f"critics: mean square error {losses['risk']:.2f} of the risk, {losses['cost']:.4f} of the cost")
    distance = clone(model, labels(model, look), settings.clone_updates, settings.batch, look)
    report(f"cloned: {distance:.3f} from the rules thought best, mean square of numbers within -1 and 1")


def train(
    settings: StaffingSettings,
    out: Path,
    data: Path | None,
    report: Report = lambda line: None,
    limit: Limit | None = None,
) -> Learning:
    """Train into the folder ``out``; a run that is there goes on. ``limit``: of all that is done.

    Raises TrainingError for a folder with another run, and where it is to stop before anything can be stored.
    """
    out.mkdir(parents=True, exist_ok=True)
    made_of = {"settings": asdict(settings), "code_sha256": code_sha256(__name__), "traces_sha256": traces_sha256(data)}
    claim(out, made_of)
    torch.set_num_threads(1)
    if not has_sources(data):
        report(SYNTHETIC)
    limit = limit or Limit()
    try:
        source = works(settings.hours, "train", settings.seed, data, limit.look)
        hours = [next(source) for _ in range(settings.train_hours)]
        report(f"{len(hours)} hours of training")
        judge = Judge(settings, data, look=limit.look)
        report(f"{len(judge.hours)} hours of validation")
        if settings.minutes is not None:
            limit = Limit(settings.minutes)
        learning = _begin(hours, judge, out, report, limit)
    except StoppedError:
        raise TrainingError(
            f"stopped after {limit.spent_s / 60:.1f} minutes ({limit.phase}), before anything was stored; the same "
            "command begins again, and needs more --minutes where they ended it"
        ) from None
    _learn(learning)
    return learning


def _begin(hours: Sequence[Work], judge: Judge, out: Path, report: Report, limit: Limit) -> Learning:
    """What is stored in ``out``, else a warm start. Raises StoppedError, and TrainingError for a file that cannot be
    read."""
    settings, stored = judge.settings, read(out)
    progress = Progress() if stored is None else stored.progress

    def seed(first: int) -> tuple[int, ...] | int:
        """Another one where a run goes on, whose hours and noise are not those that it has seen."""
        return (first, progress.windows) if progress.windows else first

    envs = DummyVecEnv(
        [partial(_env, settings, hours, seed(1000 * settings.seed + place)) for place in range(settings.envs)]
    )
    model = _model(settings, envs, seed(settings.seed))
    model.set_logger(Logger(None, [TensorBoardOutputFormat(str(out / "tensorboard"))]))
    learning = Learning(model, judge, out, report, limit, progress)
    if stored is not None:
        put(stored, model)
        report(f"goes on after {progress.windows} windows, {progress.processor_s / 60:.1f} min")
        return learning
    if settings.warm_hours:
        warm_start(model, settings, hours, report, limit)
    model.anchored()
    learning.store()
    return learning


def _learn(learning: Learning) -> None:
    """Until the windows are simulated or it is time, and store."""
    model = learning.model
    assert isinstance(model, StaffingDDPG)
    left = max(0, learning.settings.windows - model.num_timesteps)
    if learning.ends(learning.progress.validation_s):
        return
    with suppress(StoppedError):  # within a validation
        model.learn(left, callback=learning, reset_num_timesteps=False, progress_bar=False, log_interval=50)
    learning.limit.phase = "storing"
    learning.store()


def _model(settings: StaffingSettings, envs: DummyVecEnv, noise_seed: int | tuple[int, ...]) -> StaffingDDPG:
    """Untrained networks and an empty replay for the pipeline of ``envs``."""
    first = envs.envs[0].unwrapped
    assert isinstance(first, StaffingEnv)
    space = first.episode.encoder.space
    layers, width = space.mask.shape
    model = StaffingDDPG(
        StaffingPolicy,
        envs,
        learning_rate=settings.critic_rate,  # of both optimizers; the actor's own is set below
        buffer_size=settings.buffer,
        learning_starts=0,  # the warm start fills the replay before
        batch_size=settings.batch,
        gamma=0.0,  # a window's outcome is all that its action is judged by (decision 18)
        train_freq=1,
        gradient_steps=settings.updates,
        action_noise=SharedNoise(layers, width, settings.noise, noise_seed),
        replay_buffer_class=OutcomeBuffer,
        replay_buffer_kwargs={"experts": (layers, width), "risks": settings.risks},
        policy_kwargs={
            "space": space,
            "networks": networks_of(width=settings.width, hidden=settings.hidden),
            "start": action_of(settings.start),
        },
        seed=settings.seed,
        device="cpu",
    )
    for group in model.actor.optimizer.param_groups:
        group["lr"] = settings.actor_rate
    return model
