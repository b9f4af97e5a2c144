"""Before anything is explored: rules on training hours fill the replay, and the actor clones the critics' choice.

A gradient alone does not lead from one rule to another that differs in all eight numbers, such as from few replicas and
many standbys to replicas for the whole load and none. So rules of all kinds are simulated, changed at random from
window to window: what follows a state is then seen for many of them. The critic learns from all of these windows, and
the actor from the critic: in each state the rule that it expects to cost least, risk included. Which rule did best in a
single window of a single hour would be a label of chance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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

NAMES = ("load", "budget", "standbys", "headroom", "spare", "hold_s", "look_back_s", "sleep_s")
RULES: tuple[Mapping[str, float], ...] = tuple(
    dict(zip(NAMES, values, strict=True))
    for values in (
        (0.5, 0.80, 8, 1.0, 0.10, 0.05, 0.50, 60),
        (0.5, 0.80, 8, 1.0, 0.25, 0.05, 0.50, 60),
        (0.5, 0.80, 8, 1.0, 0.25, 0.20, 0.50, 60),
        (0.5, 0.80, 8, 1.0, 0.25, 0.20, 0.25, 60),
        (0.5, 0.80, 8, 1.0, 0.25, 0.50, 0.25, 60),
        (0.5, 0.80, 8, 1.0, 0.50, 0.20, 0.50, 60),
        (0.5, 0.80, 8, 1.0, 0.50, 0.50, 0.25, 60),
        (0.5, 0.80, 8, 1.2, 0.75, 0.50, 0.10, 60),
        (0.5, 0.80, 12, 1.0, 0.50, 1.50, 0.25, 60),
        (0.5, 0.80, 12, 1.0, 0.75, 3.00, 0.25, 60),
        (0.5, 0.80, 12, 1.0, 1.00, 5.00, 0.25, 60),
        (1.0, 0.25, 0, 1.0, 0.10, 0.05, 0.50, 60),
        (1.0, 0.25, 8, 1.0, 0.10, 0.05, 0.50, 60),
        (1.0, 0.25, 8, 1.0, 0.25, 0.20, 0.25, 60),
        (1.0, 0.25, 8, 1.0, 0.50, 0.50, 0.25, 60),
        (1.0, 0.25, 12, 1.0, 0.75, 3.00, 0.25, 60),
        (1.5, 0.25, 2, 1.0, 0.25, 0.50, 0.25, 60),
        (1.5, 0.25, 8, 1.0, 0.75, 1.50, 0.25, 60),
        (0.1, 1.00, 4, 1.0, 0.25, 0.50, 0.25, 2),
        (0.1, 1.00, 8, 1.0, 0.50, 0.50, 0.25, 4),
    )
)
"""From the leanest to the most ample on smooth, diurnal, bursty and thin traffic: those on the front of cost and
windows over λ of single hours, in searches of 118 and 28 settings."""
CHANGE = 0.35
"""Chance that a window begins another rule."""
SPREAD = 0.1
"""Deviation of each expert's numbers from the rule's, so that the critic sees experts differ."""
MOST = 0.9
"""Largest number of a label: at the ends tanh has no gradient that could lead away again."""
JUDGED_AT_ONCE = 128
"""States of which the critic judges all rules in one pass."""


def fill(
    model: StaffingDDPG,
    settings: HourSettings,
    risks: RiskSettings,
    hours: Sequence[Work],
    runs: int,
    seed: int,
    look: Callable[[], object] = lambda: None,
) -> None:
    """Simulate every hour ``runs`` times into the model's replay, under rules that change at random. ``look``, here
    and below, is called again and again; what it raises ends the work."""
    buffer = model.replay_buffer
    assert isinstance(buffer, OutcomeBuffer)
    rng = np.random.default_rng((seed, 7))
    order = [hour for _ in range(runs) for hour in rng.permutation(len(hours))]
    for begin in range(0, len(order) - len(order) % buffer.n_envs, buffer.n_envs):
        taken = order[begin : begin + buffer.n_envs]
        envs = [StaffingEnv(iter([episode(settings, hours[hour])]), risks) for hour in taken]
        rules = [_changing(rng) for _ in envs]
        rows = [env.reset()[0] for env in envs]
        done = False
        while not done:
            look()
            steps = []
            for env, rule in zip(envs, rules, strict=True):
                action = _spread(action_of(next(rule)), env.mask.size, rng)
                steps.append((action, *env.step(action)))
            following = [step[1] for step in steps]
            done = any(step[4] for step in steps)
            _add(buffer, rows, following, steps)
            rows = following


def labels(model: StaffingDDPG, look: Callable[[], object] = lambda: None) -> Actions:
    """[windows in the replay · environments, 8]: of each state, the rule that the critic expects to cost least."""
    buffer = model.replay_buffer
    assert isinstance(buffer, OutcomeBuffer)
    actions = torch.from_numpy(np.stack([action_of(rule) for rule in RULES]))
    best = []
    with torch.inference_mode():
        for begin in range(0, buffer.size(), JUDGED_AT_ONCE):
            look()
            rows = {
                name: torch.from_numpy(values[begin : min(begin + JUDGED_AT_ONCE, buffer.size())]).flatten(0, 1)
                for name, values in buffer.observations.items()
            }
            batch = batch_of(model.judges.space, rows)
            shape = (len(batch.experts), *batch.experts.shape[1:3], NUMBERS)
            expected = [model.expected(batch, action.expand(*shape)) for action in actions]
            best.append(torch.stack(expected).argmin(0))
    return np.asarray(actions[torch.cat(best)].clamp(-MOST, MOST).numpy())


def clone(
    model: StaffingDDPG, wanted: Actions, updates: int, batch_size: int, look: Callable[[], object] = lambda: None
) -> float:
    """Draw the actor to ``wanted``, the labels; returns the mean squared distance of the last tenth of the updates."""
    buffer, actor = model.replay_buffer, model.actor
    assert isinstance(buffer, OutcomeBuffer) and isinstance(actor, ActorOfPolicy)
    rng = np.random.default_rng((model.seed or 0, 11))
    optimizer = torch.optim.AdamW(actor.network.parameters(), lr=1e-3)
    losses = []
    for _ in range(updates):
        look()
        places = rng.integers(0, len(wanted), batch_size)
        rows, envs = np.divmod(places, buffer.n_envs)
        observed = {name: torch.from_numpy(values[rows, envs]) for name, values in buffer.observations.items()}
        actions = actor.network(batch_of(actor.space, observed)).actions
        loss = functional.mse_loss(actions, torch.from_numpy(wanted[places])[:, None, None].expand_as(actions))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    return float(np.mean(losses[-max(1, updates // 10) :]))


def _changing(rng: np.random.Generator) -> Iterator[Mapping[str, float]]:
    """A rule for every window."""
    place = int(rng.integers(len(RULES)))
    while True:
        yield RULES[place]
        if rng.random() < CHANGE:
            place = int(rng.integers(len(RULES)))


def _spread(action: Actions, experts: int, rng: np.random.Generator) -> Actions:
    """[experts · 9]: the rule's numbers of every expert, and even priorities."""
    numbers = action + rng.normal(0, SPREAD, NUMBERS) + rng.normal(0, SPREAD, (experts, NUMBERS))
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
