"""The learner: what it takes from a window, what keeps it from running away, and a run from start to file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import DummyVecEnv

from rl.staffing.action import action_of
from rl.staffing.checkpoint import BEST, CHECKPOINT, RUN, Progress, put, read, store
from rl.staffing.ddpg import ActorOfPolicy, OutcomeBuffer, SharedNoise, StaffingDDPG, StaffingPolicy, networks_of
from rl.staffing.env import StaffingEnv
from rl.staffing.export import load
from rl.staffing.hours import HourSettings
from rl.staffing.risk import RiskSettings, risk
from rl.staffing.settings import StaffingSettings
from rl.staffing.training import Learning, train
from rl.staffing.warm_start import clone
from rl.train.errors import TrainingError
from rl.train.limit import Limit
from tests.unit.rl.staffing.test_env import VALUES, episodes


def learner(seed: int = 0) -> StaffingDDPG:
    envs = DummyVecEnv([lambda: StaffingEnv(episodes()), lambda: StaffingEnv(episodes(60.0))])
    space = next(episodes()).encoder.space
    model = StaffingDDPG(
        StaffingPolicy,
        envs,
        buffer_size=64,
        learning_starts=1000,
        gamma=0.0,
        action_noise=SharedNoise(*space.mask.shape, (0.3, 0.1, 0.2), seed),
        replay_buffer_class=OutcomeBuffer,
        replay_buffer_kwargs={"experts": tuple(space.mask.shape), "risks": RiskSettings()},
        policy_kwargs={"space": space, "networks": networks_of(16, 16), "start": action_of(VALUES)},
        seed=seed,
        device="cpu",
    )
    model.set_logger(Logger(None, []))
    return model


def stepped(count: int = 6) -> StaffingDDPG:
    model = learner()
    model.learning_starts = 0
    model.learn(2 * count)
    return model


@pytest.mark.slow
def test_the_replay_holds_what_every_window_cost_and_risked() -> None:
    buffer = stepped().replay_buffer
    assert isinstance(buffer, OutcomeBuffer)
    drawn = buffer.drawn(50, np.random.default_rng(1))
    rewards = buffer.rewards[: buffer.pos]
    assert -rewards == pytest.approx(buffer.costs[: buffer.pos].sum((2, 3)) + buffer.risks[: buffer.pos], rel=1e-5)
    assert drawn.actions.shape == (50, 2, 2, 8) and drawn.costs.shape == (50, 2, 2) and drawn.risks.shape == (50,)
    assert bool((drawn.costs > 0).all()) and float(drawn.risks.min()) >= risk(None, RiskSettings())


@pytest.mark.slow
def test_a_clone_comes_to_its_labels() -> None:
    model = stepped()
    buffer = model.replay_buffer
    labels = np.broadcast_to(action_of(VALUES | {"standbys": 6.0}), (2 * buffer.pos, 8))
    first = clone(model, labels, 10, 8)
    assert clone(model, labels, 200, 8) < 0.1 * first


@pytest.mark.slow
def test_an_anchored_actor_stays_where_the_critic_knows_nothing() -> None:
    moved = []
    for trust in (1000.0, 0.0):
        model = stepped()
        model.actor_after, model.trust = 0, trust
        model.anchored()
        before = torch.cat([value.flatten() for value in model.actor.network.head.parameters()]).detach().clone()
        model.train(30, 8)
        after = torch.cat([value.flatten() for value in model.actor.network.head.parameters()]).detach()
        moved.append(float((after - before).abs().mean()))
    assert moved[0] < moved[1]


def test_actions_of_the_policy_are_within_bounds() -> None:
    model = learner()
    assert isinstance(model.actor, ActorOfPolicy)
    actions, _ = model.predict(model.get_env().reset(), deterministic=True)
    assert actions.shape == (2, 2 * 2 * 9) and np.abs(actions).max() <= 1.0


def test_the_noise_falls_by_the_run_s_minutes_where_they_end_it_before_its_windows() -> None:
    judge = SimpleNamespace(settings=StaffingSettings(windows=10_000_000))
    clock = iter((0.0, 300.0, 900.0))
    limit = Limit(10, clock=lambda: next(clock))
    learning = Learning(learner(), judge, Path(), lambda line: None, limit, Progress())  # type: ignore[arg-type]
    assert learning.part == 0.5 and learning.part == 1.0


@pytest.mark.slow
def test_a_checkpoint_brings_back_networks_optimizers_and_replay(tmp_path: Path) -> None:
    model, other = stepped(), learner()
    model.anchored()
    model.actor_after = 0
    model.train(2, 8)
    store(tmp_path, model, Progress(windows=12, updates=model._n_updates, best=1.5, curve=[{"windows": 12}]))
    stored = read(tmp_path)
    assert stored is not None and stored.progress.best == 1.5 and stored.progress.curve == [{"windows": 12}]
    put(stored, other)
    assert other.num_timesteps == 12 and other._n_updates == model._n_updates
    before, after = model.replay_buffer, other.replay_buffer
    assert isinstance(before, OutcomeBuffer) and isinstance(after, OutcomeBuffer) and after.pos == before.pos
    for name, rows in before.held().items():
        assert torch.equal(rows, after.held()[name])
    for one, another in ((model.actor, other.actor), (model.critic, other.critic), (model.anchor, other.anchor)):
        assert one is not None and another is not None
        for parameter, restored in zip(one.parameters(), another.parameters(), strict=True):
            assert torch.equal(parameter, restored)
    model.train(1, 8)
    other.actor_after = 0
    other.train(1, 8)
    assert torch.equal(model.actor.network.head[-1].bias, other.actor.network.head[-1].bias)


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    assert read(tmp_path) is None
    for content in (b"", b"PK\x03\x04 cut short"):
        (tmp_path / CHECKPOINT).write_bytes(content)
        with pytest.raises(TrainingError, match="no checkpoint of this run"):
            read(tmp_path)


def tiny() -> StaffingSettings:
    return StaffingSettings(
        hours=HourSettings(mean_rps=(5.0, 10.0), patterns=("normal",), seconds=180.0),
        train_hours=2, warm_hours=1, warm_runs=2, clone_updates=4, critic_updates=4, validation_rates=(5.0,),
        validation_hours=1,
        envs=2, windows=8, validate_every=4, buffer=200, batch=4, updates=1, width=16, hidden=16,
    )  # fmt: skip


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_and_no_other_takes_its_folder(tmp_path: Path) -> None:
    data, lines, asked = tmp_path / "no-traces", list[str](), list[str]()
    data.mkdir()

    def hear(line: str) -> None:
        lines.append(line)
        asked.extend([line] if "the best so far" in line else [])

    first = train(tiny(), tmp_path, data, hear, Limit(stopped=lambda: bool(asked)))
    assert first.progress.windows == 2 and [entry["windows"] for entry in first.curve] == [2]
    assert b"validation/cost" in b"".join(path.read_bytes() for path in (tmp_path / "tensorboard").iterdir())
    second = train(tiny(), tmp_path, data, lines.append)
    assert second.curve[0] == first.curve[0] and second.curve[-1]["windows"] == second.progress.windows == 8
    assert sum(line.startswith("cloned") for line in lines) == 1
    with pytest.raises(TrainingError, match="holds a run with other settings"):
        train(replace(tiny(), seed=1), tmp_path, data)
    (tmp_path / RUN).unlink()
    with pytest.raises(TrainingError, match=r"holds an actor and no run\.json"):
        train(tiny(), tmp_path, data)


@pytest.mark.slow
def test_a_run_can_be_stopped_in_its_warm_start(tmp_path: Path) -> None:
    asked = list[str]()

    def hear(line: str) -> None:
        asked.extend([line] if "hours of validation" in line else [])

    with pytest.raises(TrainingError, match=r"\(warm start\), before anything was stored"):
        train(tiny(), tmp_path / "out", tmp_path, hear, Limit(stopped=lambda: bool(asked)))
    assert not (tmp_path / "out" / BEST).exists()


@pytest.mark.slow
def test_a_run_ends_with_an_actor_that_a_policy_loads(tmp_path: Path) -> None:
    lines: list[str] = []
    (tmp_path / "no-traces").mkdir()
    train(tiny(), tmp_path, tmp_path / "no-traces", lines.append)
    curve = json.loads((tmp_path / "curve.json").read_text())
    assert [entry["windows"] for entry in curve][-1] == 8 and any(entry["best"] for entry in curve)
    _, made = load(tmp_path / BEST)
    assert made["validation"]["windows"] in [entry["windows"] for entry in curve] and made["ranges"]["pipeline"]
    assert any("the best so far" in line for line in lines) and lines[0].startswith("no public traces here")
