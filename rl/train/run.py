"""One training run: warm start, rounds, validation in between; stored so that it can go on where it was.

A checkpoint is written between rounds: ``checkpoint.zip`` (the library's format), ``windows.npz`` (replay) and
``state.json`` (rounds simulated, processor time, the best so far). ``run.json`` states what the run is made from; a
folder with another one is refused. Whatever is drawn depends on seed and counters, so a run that goes on makes what it
would have made: only ``--minutes``, a limit of processor time, can cut two runs at different places.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from stable_baselines3.common.logger import Logger, TensorBoardOutputFormat

from evaluation.provenance import code_sha256
from rl.agent.contract import Batch, State
from rl.agent.ddpg.algorithm import PipelineDDPG
from rl.agent.ddpg.checkpoint import load_windows, save_windows
from rl.agent.ddpg.exploration import decide as decide_by
from rl.agent.doubts import RANGES
from rl.agent.export import save as export
from rl.agent.settings import NetworkSettings
from rl.episodes import Episode
from rl.features import NODE_FEATURES, PIPELINE_FEATURES
from rl.features.ranges import Ranges
from rl.train import online
from rl.train.errors import TrainingError
from rl.train.limit import Limit, StoppedError
from rl.train.parallel_episodes import Actions
from rl.train.rounds import Rounds, Tally
from rl.train.settings import TrainingSettings
from rl.train.validation import Validation, Validator, by_name
from traces import catalog
from traces.provenance import path_sha256
from traces.traffic import DATA_SETS

BEST = "actor.safetensors"
CHUNK = 20
"""Updates between two looks at the limits, about a second."""
PACKAGES = ("smoe", "torch", "stable-baselines3", "gymnasium", "numpy", "numba")
"""Their versions are stored with a run."""


@dataclass
class Progress:
    """Where a run is."""

    rounds: int = 0
    processor_s: float = 0.0
    """Processor time of everything, the choice of hours and validation too."""
    validation_s: float = 0.0
    """That of the last validation."""
    cloned: int = 0
    """Updates of the warm start that cloned the teacher."""
    warmed: int = 0
    """Updates of the warm start after those."""
    warm: bool = False
    validated: int = -1
    """Windows at the last validation."""
    best: float | None = None
    """Score of the best actor."""
    curve: list[dict[str, Any]] = field(default_factory=list)

    @property
    def minutes(self) -> float:
        return self.processor_s / 60


class Run:
    """A run in the folder ``out``. Raises TrainingError for a folder that holds another run."""

    def __init__(
        self,
        settings: TrainingSettings,
        out: Path,
        data: Path | None = None,
        log: Path | None = None,
        on_workload: Callable[[str, int], object] = lambda workload, clips: None,
        limit: Limit | None = None,
        manifest: Path | None = None,
    ) -> None:
        """``log``: of a controller; its windows are in the replay before anything is simulated; ``manifest``: as of
        :func:`rl.agent.windows.making_of_log`. ``on_workload`` hears of each workload's number of validation clips.
        ``limit``: of all that is done; None: there is none. Raises TrainingError, also where the limit is reached
        before the validation clips are chosen, and LogError."""
        self.settings, self.out, self.data, self.limit = settings, out, data, limit or Limit()
        self.logged = None
        if log is not None:
            burst = settings.standbys.burst
            self.logged = online.read(log, manifest=manifest, burst=burst, pipelines=settings.pipelines)
        out.mkdir(parents=True, exist_ok=True)
        self.record = record(settings, data) | ({} if log is None else {"log_sha256": path_sha256(log)})
        self._claim()
        self.progress, self.agent = self._begin()
        self.agent.set_logger(Logger(None, [TensorBoardOutputFormat(str(out / "tensorboard"))]))
        try:
            self.validator = Validator(settings, out / "cache", data, on_workload, self.limit.look)
        except StoppedError:
            raise TrainingError(
                f"stopped after {self.limit.spent_s / 60:.1f} minutes, while choosing hours to validate on; the same "
                f"command goes on there, by what is kept in {out / 'cache'}"
            ) from None
        self.rounds = Rounds(settings, self.agent, data, self.validator.trained)
        self.limit.earlier_s, self.limit.windows = self.progress.processor_s, self.agent.num_timesteps

    def _claim(self) -> None:
        path = self.out / "run.json"
        if not path.is_file():
            path.write_text(json.dumps(self.record, indent=1))
            return
        stored = json.loads(path.read_text())
        made_of = ("settings", "code_sha256", "traces_sha256", "log_sha256")
        changed = [key for key in made_of if stored.get(key) != self.record.get(key)]
        if changed:
            raise TrainingError(
                f"{self.out} holds a run with other {', '.join(changed)}; it goes on only with the same, so take "
                f"another --out or remove it"
            )

    def _begin(self) -> tuple[Progress, PipelineDDPG]:
        state = self.out / "state.json"
        if state.is_file():
            agent = PipelineDDPG.load(self.out / "checkpoint.zip")
            return Progress(**json.loads(state.read_text())), agent
        settings = self.settings
        networks = NetworkSettings(
            len(NODE_FEATURES), len(PIPELINE_FEATURES), arm=settings.arm,
            width=settings.width, hidden=settings.hidden, rank=settings.rank,
            layers=MOST_LAYERS if settings.arm == "ddpg-only" else 0,
            experts=MOST_EXPERTS if settings.arm == "ddpg-only" else 0,
        )  # fmt: skip
        return Progress(), PipelineDDPG(networks, settings.learnt_by, seed=settings.seed)

    def go(self, on_validation: Callable[[dict[str, Any]], object] = lambda entry: None) -> None:
        """Until the planned windows are simulated or the limit is reached, looked at after each round, and within
        the warm start's updates and validation; of the limit as much is left for a last validation as the one before
        took. What was learnt by then is stored, and a later run goes on."""
        torch.set_num_threads(1)
        for kind in self.rounds.kinds:  # all before the first window: each has its part of the replay from then on
            self.rounds.register(kind)
        if self.progress.rounds:
            self._restore_windows()
        elif self.logged is not None:
            online.fill(self.agent, self.logged, self._log_reference(self.logged))
        with suppress(StoppedError):  # within a validation
            self._learn(on_validation)
        self.limit.phase = "storing"
        if self.agent.num_timesteps and not (self.out / BEST).is_file():
            self._export({"windows": self.agent.num_timesteps, "minutes": self._minutes})
        self.store()

    def _learn(self, on_validation: Callable[[dict[str, Any]], object]) -> None:
        """Warm start and rounds, and the validations between. Raises StoppedError within one of them."""
        if self.settings.warm_start and not self.progress.warm:
            self._warm_start()
        while self.agent.num_timesteps < self.settings.windows and not self.limit.over(self.progress.validation_s):
            if self.agent.num_timesteps - self.progress.validated >= self.settings.validation.every:
                on_validation(self.validate())
                self.store()
            self.limit.phase = "training"
            self._round(teach=False)
        if self.progress.validated < self.agent.num_timesteps:
            on_validation(self.validate())

    def _warm_start(self) -> None:
        self.limit.phase = "warm start"
        while self.agent.num_timesteps < self.settings.warm_start:
            if self.limit.over():
                return
            self._round(teach=True)
        progress, clones, updates = self.progress, self.settings.clone_updates, self.settings.learner.actor_from
        while progress.cloned < clones or progress.warmed < updates:
            if self.limit.over():
                return
            self._warm_updates()
        progress.warm = True

    def _warm_updates(self) -> None:
        """The next few of the warm start: clones of the teacher, after them the critic's."""
        progress, clones = self.progress, self.settings.clone_updates
        if count := min(CHUNK, clones - progress.cloned):
            self.agent.clone(count, progress.cloned, clones)
            progress.cloned += count
            return
        count = min(CHUNK, self.settings.learner.actor_from - progress.warmed)
        self.agent.train(count)
        progress.warmed += count

    def _round(self, *, teach: bool) -> None:
        def count(windows: int) -> None:
            self.limit.windows += windows

        tally = self.rounds.run(self.progress.rounds, teach=teach, on_window=count)
        self.progress.rounds += 1
        self._log(tally)

    @property
    def _minutes(self) -> float:
        return round(self.limit.spent_s / 60, 2)

    def _log(self, tally: Tally) -> None:
        logger, windows = self.agent.logger, max(1, tally.windows)
        logger.record("round/reward", tally.reward / windows)
        logger.record("round/cost", tally.cost / windows)
        logger.record("round/violated", tally.violated / max(1, tally.judged))
        logger.record("round/minutes", self._minutes)
        logger.dump(self.agent.num_timesteps)
        with (self.out / "clips.jsonl").open("a") as file:
            for clip, digest in tally.clips:
                clip_fields = {
                    "workload": clip.workload,
                    "pattern": clip.pattern,
                    "seed": clip.seed,
                    "mean_rps": clip.mean_rps,
                }
                file.write(
                    json.dumps({"round": self.progress.rounds - 1, **clip_fields, "requests_sha256": digest}) + "\n"
                )

    def decide(self, episodes: list[Episode], states: list[State]) -> list[Actions]:
        """The actor as it is, without noise."""
        return list(decide_by(self.agent.actor.network, Batch.of(episodes[0].encoder.space, states)))

    def _decide_in_time(self, episodes: list[Episode], states: list[State]) -> list[Actions]:
        self.limit.look()
        return self.decide(episodes, states)

    def validate(self) -> dict[str, Any]:
        """Judge the actor, keep it where it is the best so far, and add to the curve. Raises StoppedError, with nothing
        changed."""
        self.limit.look()
        self.limit.phase, begun_s = "validation", self.limit.spent_s
        validation: Validation = self.validator.judge(self._decide_in_time)
        self.progress.validation_s = self.limit.spent_s - begun_s
        score = validation.score(self.settings.validation)
        better = self.progress.best is None or score < self.progress.best
        if better:
            self.progress.best = score
            self._export({"windows": self.agent.num_timesteps, "minutes": self._minutes, **validation.as_json()})
        windows = self.agent.num_timesteps
        entry = {"windows": windows, "minutes": self._minutes, "best": better, **validation.as_json()}
        self.progress.curve.append(entry)
        self.progress.validated = windows
        for name, value in by_name(validation):
            self.agent.logger.record(name, value)
        self.agent.logger.dump(windows)
        return entry

    def _export(self, judged: dict[str, Any]) -> None:
        """Store the actor, with how it was judged; without that where it was not yet."""
        rings = self.agent.replay_buffer.rings.values()
        ranges = Ranges.of(step.state for ring in rings for step in ring)
        about = {**self.record, "validation": judged, RANGES: ranges.as_json()}
        export(self.out / BEST, self.agent.actor.network, about)

    def store(self) -> None:
        """Checkpoint between two rounds; the state's file last, so that a half-written one is never gone on from."""
        self.progress.processor_s = self.limit.spent_s
        self.agent.save(self.out / "checkpoint.part.zip")
        save_windows(self.out / "windows.part.npz", self.agent.replay_buffer)
        (self.out / "state.part.json").write_text(json.dumps(vars(self.progress)))
        for name in ("checkpoint.zip", "windows.npz", "state.json"):
            stem, _, kind = name.partition(".")
            (self.out / f"{stem}.part.{kind}").replace(self.out / name)

    def _restore_windows(self) -> None:
        if self.logged is not None:
            online.register(self.agent, self.logged, self._log_reference(self.logged))
        load_windows(self.out / "windows.npz", self.agent.replay_buffer)

    def _log_reference(self, logged: online.Logged) -> float:
        """C_ref of the log's windows: its kind's where the run trains on that pipeline, so that both have one
        scale of rewards."""
        for kind in self.settings.kinds:
            if kind.name == logged.pipeline:
                return self.rounds.register(kind) * logged.window_s / kind.window_s
        return online.mean_cost(logged, self.agent.learner.busy_meter)


MOST_LAYERS, MOST_EXPERTS = 24, 8
"""Largest sizes of the paper's workloads: the flat arm's input has a fixed size."""


def traces_sha256(data: Path | None) -> dict[str, str]:
    """Data set → hash of its file, for all that clips are taken from; empty where arrivals are synthetic."""
    data_sets = catalog.datasets(catalog.data_folder(data))
    return {dataset.name: path_sha256(dataset.path) for dataset in data_sets if dataset.name in DATA_SETS}


def record(settings: TrainingSettings, data: Path | None) -> dict[str, Any]:
    """JSON of all that a run is made from."""
    return {
        "settings": settings.as_json(),
        "code_sha256": code_sha256("rl.train.run"),
        "traces_sha256": traces_sha256(data),
        "pipelines_sha256": {pipeline.name: pipeline.sha256 for pipeline in settings.pipelines},
        "versions": {name: version(name) for name in PACKAGES} | {"python": platform.python_version()},
    }
