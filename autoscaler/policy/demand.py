"""How many replicas a metric asks for: the formulas of Kubernetes' replica_calculator.go."""

from __future__ import annotations

import math
from typing import Literal

Metric = Literal["cpu", "concurrency"]


def by_resource(
    utilisation: float, target: float, present: int, ready: int, measured: int, tolerance: float
) -> int | None:
    """A resource metric (``GetResourceReplicas``): ``ceil(ready · utilisation / target)``.

    ``utilisation`` is the mean of the measured replicas and ``target`` its goal, both 0 to 1; ``present`` replicas are
    wanted, ``ready`` of them serve, ``measured`` of those have the metric. Unready replicas count as idle on the way up
    and not at all on the way down; ready ones without the metric as idle on the way up and as fully busy on the way
    down. When that turns the direction, or inside the tolerance, ``present`` stays. None: nothing was measured.
    """
    judged = min(ready, measured)
    if judged == 0:
        return None
    ratio = utilisation / target
    unready = max(0, present - ready) if ratio > 1 else 0
    missing = ready - judged
    if not unready and not missing:
        return present if within(ratio, tolerance) else ceiling(ratio * judged)
    load = utilisation * judged + (missing * max(1.0, target) if ratio < 1 else 0.0)
    count = judged + missing + unready
    filled = load / (count * target)
    if within(filled, tolerance) or (ratio < 1 < filled) or (filled < 1 < ratio):
        return present
    wanted = ceiling(filled * count)
    if (filled < 1 and wanted > present) or (filled > 1 and wanted < present):
        return present
    return wanted


def by_average_value(total: float, target: float, present: int, tolerance: float) -> int:
    """A metric of the whole function with a target per replica (``GetExternalPerPodMetricReplicas``):
    ``ceil(total / target)``, or ``present`` inside the tolerance."""
    if within(total / (target * present), tolerance):
        return present
    return ceiling(total / target)


def within(ratio: float, tolerance: float) -> bool:
    """Forgives rounding in the last bits."""
    return abs(ratio - 1.0) <= tolerance + 1e-9


def ceiling(value: float) -> int:
    """Ceiling that forgives rounding in the last bits."""
    return math.ceil(value - 1e-9)
