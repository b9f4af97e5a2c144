"""What a window over λ costs, for learning: from a part of λ on it rises steeply, and then goes on slowly.

The agent is judged by the share of windows over λ, so a window just above it counts nearly as much as one far above.
Eq. (13)'s slope alone pays for few deep overloads with many slight ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field

from autoscaler.checked import Checked, Positive, PositiveShare


@dataclass(frozen=True)
class RiskSettings(Checked):
    """All in the unit of C_ref, the cost of a window."""

    title = "risk"
    weight: Positive = 8.0
    """Cost of a window over λ."""
    begin: PositiveShare = 0.85
    """Part of λ from which it rises; ``weight`` is reached as far above λ."""
    slope: Annotated[float, Field(ge=0, lt=1e3)] = 2.0
    """Slope of the cost of an excess beyond that, in λ."""
    most: Positive = 3.0
    """Excess beyond which it costs no more, in λ."""


def risk(p95_over_slo: float | None, settings: RiskSettings) -> float:
    """At least 0; None, no request was judged: 0.

    Worked example: at a weight of 6 P95 = λ costs 3, 1.15 λ costs 6 and 2 λ costs 7.7.
    """
    if p95_over_slo is None:
        return 0.0
    width = 2 * (1 - settings.begin)
    end = 2 - settings.begin
    steep = float(np.clip((p95_over_slo - settings.begin) / width, 0.0, 1.0))
    return settings.weight * steep + settings.slope * float(np.clip(p95_over_slo - end, 0.0, settings.most))
