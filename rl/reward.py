"""The reward of Eq. (13), with units: cost over a fixed reference, and the excess over λ in parts of λ.

Of layer i: ``r_i = -cost_weight · C_i / C_ref``; the last layer's also has ``-slo_weight · min(most_excess, excess)``
with ``excess = max(0, P95 / λ - 1)``. The discount is 1 inside a window and γ between windows (the paper discounts
timesteps, not layers). The paper's β is ``cost_weight / slo_weight``: it leaves the units of both terms open.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.checked import Checked, Positive
from autoscaler.prices import DEFAULT_METER, Meter
from simulation.arrays import Floats


@dataclass(frozen=True)
class RewardSettings(Checked):
    """Weights; all above 0."""

    title = "reward"
    meter: Meter = DEFAULT_METER
    """The cost that counts: what a cluster's owner pays, or replicas while they are busy (Eq. (7))."""
    cost_weight: Positive = 1.0
    """Weight of cost over C_ref."""
    slo_weight: Positive = 5.0
    """Weight of an excess of λ by itself (P95 = 2 λ)."""
    most_excess: Positive = 3.0
    """Excess beyond which an overload costs no more, in λ."""


def cost_rewards(cost: Floats, reference: float, settings: RewardSettings) -> Floats:
    """[n] at most 0: of each layer's ``cost [n]``. ``reference``: C_ref, of a whole window, in the same currency."""
    return np.asarray(-settings.cost_weight * cost / reference)


def excess(p95_s: float | None, slo_s: float) -> float:
    """How far P95 is above λ, in λ; 0 where no request was judged."""
    return 0.0 if p95_s is None else max(0.0, p95_s / slo_s - 1.0)


def penalty(p95_s: float | None, slo_s: float, settings: RewardSettings) -> float:
    """At most 0: what the last layer's reward has besides its cost."""
    return -settings.slo_weight * min(settings.most_excess, excess(p95_s, slo_s))
