"""Training of the staffing policy: hours, rounds of the library's DDPG, and the actor that did best on validation."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.noise import VectorizedActionNoise
from stable_baselines3.common.vec_env import DummyVecEnv

from evaluation.provenance import code_sha256
from rl.agent.doubts import RANGES
from rl.episodes import Work
from rl.staffing.action import Actions, action_of
from rl.staffing.ddpg import ActorOfPolicy, OutcomeBuffer, SharedNoise, StaffingDDPG, StaffingPolicy, networks_of
from rl.staffing.env import StaffingEnv
from rl.staffing.export import save
from rl.staffing.features import NODES
from rl.staffing.hours import HourSettings, episode, in_turn, works
from rl.staffing.networks import StaffingActor
from rl.staffing.policy import RuleSettings
from rl.staffing.risk import RiskSettings
from rl.staffing.warm_start import clone, fill, labels
from rl.train.validation import SYNTHETIC
from traces.splits import Split
from traces.traffic import has_sources

START = RuleSettings().values() | {"sleep_s": 20.0}
"""What is decided before anything was learnt: the rule's, with a number of seconds that can still be learnt."""
BEST = "actor.safetensors"
WARM_UP = 4
"""Windows of an hour that are not judged."""


@dataclass(frozen=True)
class StaffingSettings:
    """One run."""

    hours: HourSettings = field(default_factory=HourSettings)
    risks: RiskSettings = field(default_factory=RiskSettings)
    start: dict[str, float] = field(default_factory=lambda: dict(START))
    seed: int = 0
    train_hours: int = 80
    validation_rates: tuple[float, ...] = (20.0, 80.0)
    validation_hours: int = 2
    """Hours of every pattern at every rate."""
    warm_hours: int = 48
    """Training hours on which rules fill the replay first; 0: no warm start."""
    warm_runs: int = 12
    """Times that each of them is simulated."""
    clone_updates: int = 1000
    critic_updates: int = 4000
    """Updates of the warm start."""
    envs: int = 8
    windows: int = 20_000
    minutes: float | None = None
    """Minutes of CPU after which learning ends, validations and the warm start included; None: with ``windows``."""
    buffer: int = 30_000
    batch: int = 64
    updates: int = 4
    """For each window of all environments."""
    critic_rate: float = 1e-3
    actor_rate: float = 1e-4
    """Learning rates."""
    noise: tuple[float, float, float] = (0.25, 0.1, 0.15)
    """Deviations that all experts share, those of a layer, and each one's own."""
    final_noise: float = 0.4
    """Part of the noise at the end."""
    validate_every: int = 2000
    width: int = 32
    hidden: int = 48
    most_violated: float = 0.03
    """Share of windows over λ on validation hours from which an actor is not taken."""
    price: float = 20.0
    """Cost, in C_ref, of a share of all windows beyond that."""


@dataclass(frozen=True)
class Judged:
    """One validation hour under the actor."""

    pattern: str
    rate: float
    cost: float
    """Experts', in C_ref a window."""
    judged: int
    violated: int


class Judge:
    """Hours of ``split``, and an actor's results on them."""

    def __init__(self, settings: StaffingSettings, data: Path | None, split: Split = "validation") -> None:
        self.settings = settings
        self.hours = [
            work
            for rate, pattern in product(settings.validation_rates, settings.hours.patterns)
            if pattern != "slow" or rate == settings.validation_rates[0]  # slow hours are as busy as they are
            for work in islice(
                works(replace(settings.hours, patterns=(pattern,), mean_rps=(rate, rate)), split, 1, data),
                settings.validation_hours,
            )
        ]

    def judge(self, decide: Callable[[dict[str, Any]], np.ndarray[Any, Any]]) -> list[Judged]:
        """All hours side by side, without noise. ``decide``: observations [hours, ..] → actions [hours, ..]."""
        envs = [StaffingEnv(iter([episode(self.settings.hours, work)] * 2)) for work in self.hours]
        rows = [env.reset()[0] for env in envs]
        costs, over = [list[float]() for _ in envs], [list[bool]() for _ in envs]
        going = list(range(len(envs)))
        step = 1
        while going:
            stacked = {name: np.stack([rows[place][name] for place in going]) for name in rows[0]}
            actions = decide(stacked)
            ended = []
            for place, action in zip(going, actions, strict=True):
                rows[place], _, _, done, info = envs[place].step(action)
                if step >= WARM_UP:
                    costs[place].append(float(info["costs"].sum()))
                    over[place] += [] if info["answered_p95"] is None else [info["answered_p95"] > 1]
                if done:
                    ended.append(place)
            going = [place for place in going if place not in ended]
            step += 1
        return [
            Judged(work.clip.pattern, work.clip.mean_rps, float(np.mean(cost)), len(broken), sum(broken))
            for work, cost, broken in zip(self.hours, costs, over, strict=True)
        ]

    def score(self, results: Sequence[Judged]) -> tuple[float, float]:
        """(score, share of windows over λ): mean cost, and the price of windows over λ beyond the allowed share."""
        share = sum(one.violated for one in results) / max(1, sum(one.judged for one in results))
        cost = float(np.mean([one.cost for one in results]))
        return cost + self.settings.price * max(0.0, share - self.settings.most_violated), share


def everywhere(rows: Mapping[str, np.ndarray[Any, Any]], action: Actions) -> np.ndarray[Any, Any]:
    """[hours, experts · 9]: ``action`` [8] for every expert of the observations ``rows``, even priorities."""
    experts = rows["experts"].shape[1] // len(NODES)
    return np.tile(np.append(action, np.float32(0.0)), (len(rows["pipeline"]), experts))


class Learning(BaseCallback):
    """Lowers the noise as the run goes on, validates, and keeps the best actor."""

    def __init__(self, settings: StaffingSettings, judge: Judge, out: Path, report: Callable[[str], object]) -> None:
        super().__init__()
        self.settings, self.judge, self.out, self.report = settings, judge, out, report
        self.curve: list[dict[str, Any]] = []
        self.best = np.inf
        self._next = 0
        self._begun_s = time.process_time()

    def _on_step(self) -> bool:
        part = self.num_timesteps / self.settings.windows
        assert isinstance(self.model, StaffingDDPG) and isinstance(self.model.action_noise, VectorizedActionNoise)
        share = 1 - (1 - self.settings.final_noise) * min(1.0, part)
        for noise in self.model.action_noise.noises:
            assert isinstance(noise, SharedNoise)
            noise.share = share
        if self.num_timesteps >= self._next:
            self._next += self.settings.validate_every
            self.validate()
        return self.settings.minutes is None or self.minutes < self.settings.minutes

    @property
    def minutes(self) -> float:
        """Minutes of CPU since this was made."""
        return (time.process_time() - self._begun_s) / 60

    def _on_training_end(self) -> None:
        self.validate()

    def validate(self) -> None:
        results = self.judge.judge(lambda rows: self.model.predict(rows, deterministic=True)[0])
        score, share = self.judge.score(results)
        better = score < self.best
        entry = {
            "windows": self.num_timesteps,
            "minutes": round(self.minutes, 2),
            "score": round(score, 4),
            "cost": round(float(np.mean([one.cost for one in results])), 4),
            "violated": round(share, 4),
            "best": better,
            "hours": [asdict(one) for one in results],
        }
        self.curve.append(entry)
        (self.out / "curve.json").write_text(json.dumps(self.curve, indent=1))
        if better:
            self.best = score
            actor = self.model.policy.actor
            assert isinstance(actor, ActorOfPolicy)
            self._export(actor.network, entry)
        self.report(
            f"{entry['windows']} windows, {entry['minutes']} min: cost {entry['cost']}, over λ {100 * share:.1f} %"
            + (", the best so far" if better else "")
        )

    def _export(self, actor: StaffingActor, entry: dict[str, Any]) -> None:
        made = {"settings": asdict(self.settings), "code_sha256": code_sha256(__name__), "validation": entry}
        buffer = self.model.replay_buffer  # type: ignore[attr-defined]
        assert isinstance(buffer, OutcomeBuffer)
        save(self.out / BEST, actor, made | {RANGES: buffer.ranges().as_json()})


def _env(settings: StaffingSettings, hours: Sequence[Work], seed: int) -> StaffingEnv:
    return StaffingEnv(in_turn(settings.hours, hours, seed), settings.risks)


def warm_start(
    model: StaffingDDPG, settings: StaffingSettings, hours: Sequence[Work], report: Callable[[str], object]
) -> None:
    """Rules on the first hours, the critics, and the actor's clone of what they think best."""
    model.set_logger(Logger(None, []))
    warm = hours[: settings.warm_hours]
    fill(model, settings.hours, settings.risks, warm, settings.warm_runs, settings.seed)
    losses = model.learn_outcomes(settings.critic_updates, settings.batch)
    report(f"critics: mean square error {losses['risk']:.2f} of the risk, {losses['cost']:.4f} of the cost")
    distance = clone(model, labels(model), settings.clone_updates, settings.batch)
    report(f"cloned: {distance:.3f} from the rules thought best, mean square of numbers within -1 and 1")


def train(
    settings: StaffingSettings, out: Path, data: Path | None, report: Callable[[str], object] = lambda line: None
) -> Learning:
    """Train into the folder ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "settings.json").write_text(json.dumps(asdict(settings), indent=1))
    torch.set_num_threads(1)
    if not has_sources(data):
        report(SYNTHETIC)
    source = works(settings.hours, "train", settings.seed, data)
    hours = [next(source) for _ in range(settings.train_hours)]
    report(f"{len(hours)} hours of training")
    judge = Judge(settings, data)
    report(f"{len(judge.hours)} hours of validation")
    envs = DummyVecEnv([partial(_env, settings, hours, 1000 * settings.seed + place) for place in range(settings.envs)])
    model = _model(settings, envs, out)
    learning = Learning(settings, judge, out, report)
    if settings.warm_hours:
        warm_start(model, settings, hours, report)
    model.anchored()
    model.learn(settings.windows, callback=learning, progress_bar=False, log_interval=50)
    return learning


def _model(settings: StaffingSettings, envs: DummyVecEnv, out: Path) -> StaffingDDPG:
    """Untrained networks and an empty replay for the pipeline of ``envs``; curves go to ``out``."""
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
        action_noise=SharedNoise(layers, width, settings.noise, settings.seed),
        replay_buffer_class=OutcomeBuffer,
        replay_buffer_kwargs={"experts": (layers, width), "risks": settings.risks},
        policy_kwargs={
            "space": space,
            "networks": networks_of(width=settings.width, hidden=settings.hidden),
            "start": action_of(settings.start),
        },
        seed=settings.seed,
        tensorboard_log=str(out / "tensorboard"),
        device="cpu",
    )
    for group in model.actor.optimizer.param_groups:
        group["lr"] = settings.actor_rate
    return model
