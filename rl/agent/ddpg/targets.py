"""The SLO penalty as the learner sees it."""

from __future__ import annotations

from torch import Tensor

from rl.agent.ddpg.settings import LearnerSettings

SATURATION = 3
"""k of :func:`penalties`."""


def penalties(p95: Tensor, settings: LearnerSettings) -> Tensor:
    """The SLO's part of a window's reward; ``p95`` [..] over λ (NaN: nothing was judged, so 0). 0 or less.

    As :func:`rl.reward.penalty` near λ, where its slope is the same; beyond, w (1 - (1 + e)^-k) / k for an excess e: a
    window that is lost costs at most w / k, and little more where it is lost by more. What counts in the end is how
    many windows break the SLO, and a penalty that keeps growing makes a rare burst, which no decision of a window
    before can serve, outweigh what is saved in all the others. ``guard``: part of λ from which on an excess counts.
    """
    over = (p95.nan_to_num(0.0) / settings.guard).clamp(min=1.0)
    return -settings.slo_weight * (1 - over**-SATURATION) / SATURATION
