"""What the critic learns: returns to a window's end; only the window's last layer looks beyond it."""

from __future__ import annotations

import torch
from torch import Tensor

from rl.agent.ddpg.settings import LearnerSettings

SATURATION = 3
"""k of :func:`penalties`."""


def discounts(layers: int, gamma: float) -> Tensor:
    """[n] float32: 1 between the layers of a window, γ after its last (the sum after Eq. (13) discounts by t)."""
    factors = torch.ones(layers)
    factors[-1] = gamma
    return factors


def returns(rewards: Tensor, following: Tensor, gamma: float) -> Tensor:
    """[B, n] G_i = r_i + G_{i+1}, G_n = r_n + γ · following; ``rewards`` [B, n], ``following`` [B] (0 at an end).

    Example: rewards (-1, -2, -3), following -10, γ = 0.5 gives (-11, -10, -8).
    """
    by_layer = discounts(rewards.shape[1], gamma)
    sums = [following]
    for layer in reversed(range(rewards.shape[1])):
        sums.append(rewards[:, layer] + by_layer[layer] * sums[-1])
    return torch.stack(sums[:0:-1], dim=1)


def own_returns(rewards: Tensor, penalties: Tensor, following: Tensor, gamma: float) -> Tensor:
    """[B, n] the same without the other layers' costs: r_i + penalty + γ · following.

    What others cost does not depend on this layer's decision once they are decided, so leaving it out takes its
    noise out of the targets and no gradient (a difference reward).
    """
    return rewards + (penalties + gamma * following)[:, None]


def penalties(p95: Tensor, settings: LearnerSettings) -> Tensor:
    """The SLO's part of a window's reward; ``p95`` [..] over λ (NaN: nothing was judged, so 0). 0 or less.

    As :func:`rl.reward.penalty` near λ, where its slope is the same; beyond, w (1 - (1 + e)^-k) / k for an excess e: a
    window that is lost costs at most w / k, and little more where it is lost by more. What counts in the end is how
    many windows break the SLO, and a penalty that keeps growing makes a rare burst, which no decision of a window
    before can serve, outweigh what is saved in all the others. ``guard``: part of λ from which on an excess counts.
    """
    over = (p95.nan_to_num(0.0) / settings.guard).clamp(min=1.0)
    return -settings.slo_weight * (1 - over**-SATURATION) / SATURATION
