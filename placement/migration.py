"""When a new plan is worth its move: Prism, Eq. (3) and (4).

Eq. (3) sums expert size over the GPU's loading speed for every z that changes. Two readings: ``arrivals`` (the default)
counts a GPU that gains an expert, since dropping one takes no time; ``published`` counts both, so an expert that moves
counts twice. Eq. (4) adds those seconds to a number of calls. Here both sides are seconds: a remote call costs
``remote_call_s`` more than a local one, and calls are those expected until ``horizon_s`` from now, at the rate seen in
the statistics' ``window_s``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from placement.cluster import Cluster, PlanArray, check_frequency, check_plan_shape, remote_calls
from placement.errors import PlacementError
from placement.layout import Floats

Reading = Literal["arrivals", "published"]


@dataclass(frozen=True)
class Scale:
    """What makes seconds of a number of calls."""

    remote_call_s: float
    """Seconds a call takes longer when it leaves its node (measured)."""
    window_s: float
    """Time over which the frequencies were counted."""
    horizon_s: float
    """How long the new plan is expected to hold: the time until the next decision."""
    reading: Reading = "arrivals"


@dataclass(frozen=True)
class Migration:
    """Both sides of Eq. (4)."""

    worth: bool
    now_s: float
    """C(P): seconds that remote calls cost in the horizon under the present plan."""
    then_s: float
    """C(P') under the new plan."""
    move_s: float
    """T_mig(P, P')."""
    copied: int
    """Experts that reach a GPU that did not hold them."""


def migration_s(
    before: PlanArray, after: PlanArray, cluster: Cluster, expert_bytes: int, reading: Reading = "arrivals"
) -> float:
    """Eq. (3) in seconds, from and to [gpus, layers, experts]. Raises PlacementError."""
    check_plan_shape(before, "before", cluster, after)
    check_plan_shape(after, "after", cluster, before)
    if expert_bytes < 1:
        raise PlacementError(f"expert_bytes must be at least 1, got {expert_bytes}")
    if reading not in get_args(Reading):
        raise PlacementError(f"reading must be one of {', '.join(get_args(Reading))}, got {reading!r}")
    changed = (after & ~before) if reading == "arrivals" else (after != before)
    return float((changed.sum(axis=(1, 2)) * expert_bytes / cluster.load_bytes_per_s).sum())


def decide(
    before: PlanArray, after: PlanArray, cluster: Cluster, frequency: Floats, expert_bytes: int, scale: Scale
) -> Migration:
    """Eq. (4) for ``frequency`` [nodes, layers, experts] counted over the scale's window. Raises PlacementError."""
    if not all(0 < seconds < math.inf for seconds in (scale.window_s, scale.horizon_s, scale.remote_call_s)):
        raise PlacementError(f"seconds of a remote call, window and horizon must be finite and above 0, got {scale}")
    frequency = check_frequency(frequency, cluster)
    check_plan_shape(before, "before", cluster, frequency)
    check_plan_shape(after, "after", cluster, frequency)
    call_s = scale.remote_call_s * scale.horizon_s / scale.window_s
    now_s, then_s = (float(remote_calls(plan, cluster, frequency).sum()) * call_s for plan in (before, after))
    move_s = migration_s(before, after, cluster, expert_bytes, scale.reading)
    return Migration(then_s + move_s < now_s, now_s, then_s, move_s, int((after & ~before).sum()))
