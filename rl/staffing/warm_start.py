"""Before anything is explored: rules on training hours fill the replay, and the actor clones the best of each hour.

A gradient alone does not lead from one rule to another that differs in all seven numbers, such as from few replicas and
many standbys to replicas for the whole load and none. The critic learns from all of these windows, the actor from the
label: the rule with the highest reward over the hour, which has to follow from the history of load in a state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from rl.episodes import Work
from rl.staffing.action import Actions, action_of
from rl.staffing.ddpg import ActorOfPolicy, OutcomeBuffer, StaffingDDPG, batch_of
from rl.staffing.env import StaffingEnv
from rl.staffing.hours import HourSettings, episode
from rl.staffing.networks import NUMBERS
from rl.staffing.risk import RiskSettings

NAMES = ("load", "budget", "standbys", "headroom", "spare", "hold_s", "sleep_s")
RULES: tuple[Mapping[str, float], ...] = tuple(
    dict(zip(NAMES, values, strict=True))
    for values in (
        (1.0, 0.25, 0.0, 1.0, 0.75, 1.0, 60.0),
        (1.5, 0.25, 0.0, 1.0, 0.75, 1.0, 60.0),
        (1.0, 0.25, 2.0, 0.8, 0.25, 0.5, 60.0),
        (1.0, 0.25, 2.0, 0.6, 0.75, 0.5, 60.0),
        (1.0, 0.5, 6.0, 0.8, 0.25, 2.0, 60.0),
        (0.5, 0.25, 4.0, 0.6, 0.75, 0.3, 60.0),
        (0.5, 1.0, 4.0, 1.0, 0.75, 4.0, 60.0),
        (0.5, 1.0, 4.0, 1.0, 1.0, 4.0, 60.0),
        (0.5, 1.0, 6.0, 1.0, 0.5, 3.0, 60.0),
        (0.1, 1.0, 2.0, 0.8, 0.25, 1.0, 60.0),
        (0.1, 1.0, 2.0, 0.6, 0.25, 0.5, 60.0),
        (0.1, 1.0, 1.0, 1.0, 1.0, 0.5, 60.0),
        (0.1, 1.0, 2.0, 0.8, 0.25, 0.5, 1.0),
        (0.1, 1.0, 4.0, 0.8, 0.25, 3.0, 4.0),
        (0.1, 0.5, 4.0, 1.0, 0.75, 0.5, 2.0),
    )
)
"""The cheapest that kept λ on single hours of smooth, diurnal, bursty and thin traffic in a search of 118 settings."""
SPREAD = 0.08
"""Deviation of each expert's numbers from the rule's, so that the critic sees experts differ."""
MOST = 0.85
"""Largest number of a label: at the ends tanh has no gradient that could lead away again."""
Pair = tuple[int, int]


def fill(
    model: StaffingDDPG,
    settings: HourSettings,
    risks: RiskSettings,
    hours: Sequence[Work],
    seed: int,
    on_episodes: Callable[[int, int], object] = lambda done, total: None,
) -> Actions:
    """Simulate every rule on every hour into the model's replay; returns [windows in the replay, environments, 7]: the
    label of each, the best rule of its hour."""
    buffer = model.replay_buffer
    assert isinstance(buffer, OutcomeBuffer)
    rng = np.random.default_rng((seed, 7))
    pairs: list[Pair] = [(hour, rule) for hour in range(len(hours)) for rule in range(len(RULES))]
    rewards = np.zeros((len(hours), len(RULES)))
    hour_of = np.zeros((buffer.buffer_size, buffer.n_envs), dtype=np.int64)
    width = buffer.n_envs
    for begin in range(0, len(pairs) - len(pairs) % width, width):
        taken = pairs[begin : begin + width]
        envs = [StaffingEnv(iter([episode(settings, hours[hour])]), risks) for hour, _ in taken]
        rows = [env.reset()[0] for env in envs]
        done = False
        while not done:
            steps = []
            for env, (_, rule) in zip(envs, taken, strict=True):
                action = _spread(action_of(RULES[rule]), env.mask.size, rng)
                steps.append((action, *env.step(action)))
            hour_of[buffer.pos] = [hour for hour, _ in taken]
            for place, (hour, rule) in enumerate(taken):
                rewards[hour, rule] += steps[place][2]
            following = [step[1] for step in steps]
            done = any(step[4] for step in steps)
            _add(buffer, rows, following, steps)
            rows = following
        on_episodes(begin + width, len(pairs))
    labels = np.stack([action_of(RULES[int(best)]) for best in rewards.argmax(1)]).clip(-MOST, MOST)
    return np.asarray(labels[hour_of[: buffer.pos]])


def clone(model: StaffingDDPG, labels: Actions, updates: int, batch_size: int) -> float:
    """Draw the actor to the labels; returns the mean squared distance over the last tenth of the updates."""
    buffer, actor = model.replay_buffer, model.actor
    assert isinstance(buffer, OutcomeBuffer) and isinstance(actor, ActorOfPolicy)
    rng = np.random.default_rng((model.seed or 0, 11))
    optimizer = torch.optim.Adam(actor.network.parameters(), lr=1e-3)
    losses = []
    for _ in range(updates):
        rows = rng.integers(0, len(labels), batch_size)
        envs = rng.integers(0, buffer.n_envs, batch_size)
        observed = {name: torch.from_numpy(values[rows, envs]) for name, values in buffer.observations.items()}
        wanted = torch.from_numpy(labels[rows, envs])[:, None, None]
        actions = actor.network(batch_of(actor.space, observed)).actions
        loss = functional.mse_loss(actions, wanted.expand_as(actions))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    return float(np.mean(losses[-max(1, updates // 10) :]))


def _spread(action: Actions, experts: int, rng: np.random.Generator) -> Actions:
    """[experts · 7]: the rule's numbers of every expert, and even priorities."""
    numbers = action + rng.normal(0, SPREAD, (experts, NUMBERS))
    whole = np.concatenate([np.clip(numbers, -1, 1), np.zeros((experts, 1))], 1)
    return whole.astype(np.float32).ravel()


def _add(
    buffer: OutcomeBuffer,
    rows: Sequence[Mapping[str, Any]],
    following: Sequence[Mapping[str, Any]],
    steps: Sequence[tuple[Any, ...]],
) -> None:
    """One window of all environments."""
    buffer.add(
        {name: np.stack([row[name] for row in rows]) for name in rows[0]},
        {name: np.stack([row[name] for row in following]) for name in following[0]},
        np.stack([step[0] for step in steps]),
        np.array([step[2] for step in steps]),
        np.array([step[4] for step in steps]),
        [step[5] for step in steps],
    )
