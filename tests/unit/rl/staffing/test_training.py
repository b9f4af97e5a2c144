"""The learner: what it takes from a window, what keeps it from running away, and a run from start to file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import DummyVecEnv

from rl.staffing.action import action_of
from rl.staffing.ddpg import ActorOfPolicy, OutcomeBuffer, SharedNoise, StaffingDDPG, StaffingPolicy, networks_of
from rl.staffing.env import StaffingEnv
from rl.staffing.export import load
from rl.staffing.hours import HourSettings
from rl.staffing.risk import RiskSettings, risk
from rl.staffing.training import BEST, StaffingSettings, train
from rl.staffing.warm_start import clone
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


@pytest.mark.slow
def test_a_run_ends_with_an_actor_that_a_policy_loads(tmp_path: Path) -> None:
    settings = StaffingSettings(
        hours=HourSettings(mean_rps=(5.0, 10.0), seconds=180.0),
        train_hours=2, warm_hours=1, warm_runs=2, clone_updates=4, critic_updates=4, validation_rates=(5.0,),
        validation_hours=1,
        envs=2, windows=8, validate_every=4, buffer=200, batch=4, updates=1, width=16, hidden=16,
    )  # fmt: skip
    lines: list[str] = []
    (tmp_path / "no-traces").mkdir()
    train(settings, tmp_path, tmp_path / "no-traces", lines.append)
    curve = json.loads((tmp_path / "curve.json").read_text())
    assert [entry["windows"] for entry in curve][-1] == 8 and any(entry["best"] for entry in curve)
    _, made = load(tmp_path / BEST)
    assert made["validation"]["windows"] in [entry["windows"] for entry in curve] and made["ranges"]["pipeline"]
    assert any("the best so far" in line for line in lines) and lines[0].startswith("no public traces here")
