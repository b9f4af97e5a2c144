"""How strongly each change of a decision pulls the actor, from the critic's values of them."""

from __future__ import annotations

import torch
from torch import Tensor

from rl.agent.contract import Batch
from rl.agent.ddpg.exploration_moves import Scope
from rl.agent.ddpg.window_critic import WindowCritic

EAGERNESS = 0.3
"""Temperature η of changes that gain, each weighs exp(gain / η): η over the best one's gain."""
LEAST_GAIN = 1e-6
HOLD = 0.15
NOTABLE: dict[Scope, float] = {"expert": 0.004, "layer": 0.02, "window": 0.06}
"""Gains in C_ref from which on a change counts fully: some hundredths of what a scope costs."""


def judged(
    critic: WindowCritic, scope: Scope, batch: Batch, embedded: Tensor, values: Tensor, tried: Tensor, unit: float
) -> Tensor:
    """[A, B, n or 1, K or 1]: values by ``critic`` of ``tried`` [A, B, n, K, C] in a scope."""
    if scope == "expert":
        return critic.of_experts(batch, embedded, values, tried, unit)
    if scope == "layer":
        return critic.of_layers(batch, embedded, values, tried, unit).unsqueeze(-1)
    return critic.of_windows(batch, embedded, tried, unit)[..., None, None]


def pulls(values: Tensor, notable: float) -> tuple[Tensor, float]:
    """How strongly each of some decisions pulls [1 + A, B, ..], and the mean gain; ``values`` [1 + A, B, ..], the
    actor's own first.

    Changes that gain share a strength of 0 to 1 among them: 1 from a gain of ``notable`` C_ref on, 0 below a tenth of
    that, which is the critic's noise. The actor's own have ``HOLD`` times the rest.
    """
    # Differences of two values of the same window: what the critic gets wrong of the window is in both.
    gains = values[1:] - values[:1]
    best = gains.amax(0, keepdim=True)
    shares = (gains / (EAGERNESS * best).clamp(min=LEAST_GAIN)).masked_fill(gains <= 0, -torch.inf)
    shares = torch.where(best > 0, shares, torch.zeros_like(shares)).softmax(0)
    strength = torch.where(best < notable / 10, torch.zeros_like(best), (best / notable).clamp(0, 1))
    return torch.cat((HOLD * (1 - strength), strength * shares)), float(best.clamp(min=0).mean())
