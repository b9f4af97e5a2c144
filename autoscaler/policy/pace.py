"""How fast replicas follow what a metric asks for: Kubernetes' stabilisation windows and scaling policies.

Source: pkg/controller/podautoscaler/horizontal.go, ``stabilizeRecommendationWithBehaviors`` and
``convertDesiredReplicasWithBehaviorRate``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from pydantic import Field

from autoscaler.checked import Checked, FromOne, FromZero, NotNegative, Positive

Entry = tuple[float, int]
"""(Unix time, number of replicas)."""


@dataclass(frozen=True, kw_only=True)
class Pace(Checked):
    """Times and rates are the HPA's defaults, bounds of replicas the paper's."""

    up_stabilisation_s: NotNegative = 0.0
    """Window whose least recommendation bounds scaling up."""
    down_stabilisation_s: NotNegative = 300.0
    """Window whose largest recommendation bounds scaling down."""
    up_pods: FromZero = 4
    """Most replicas added in ``period_s``, or ``up_percent`` of the present ones, whichever is more."""
    up_percent: NotNegative = 100.0
    """Percent of the present replicas."""
    down_pods: FromZero = 0
    """Most replicas taken away in ``period_s``, or ``down_percent`` of the present ones, whichever is more."""
    down_percent: Annotated[float, Field(ge=0, le=100)] = 100.0
    """Percent of the present replicas."""
    period_s: Positive = 15.0
    """Period of the scaling rate."""
    min_replicas: FromZero = 1
    max_replicas: FromOne = 8


class History(NamedTuple):
    """What is remembered of one function, oldest first."""

    recommendations: tuple[Entry, ...] = ()
    """Equal recommendations in a row are kept as the last of them: it is the last to leave every window, so the others
    never matter."""
    changes: tuple[Entry, ...] = ()
    """Replicas really added (or, negative, taken away) and when that was decided."""
    last: Entry | None = None
    """When this function was judged last, and how many replicas it had then."""


NOTHING = History()
"""What is remembered of a function that was never judged."""


def limit(raw: int, present: int, history: History, now_s: float, pace: Pace) -> tuple[int, History, str]:
    """Stabilisation, then rate and bounds, on a recommendation; what held it back is named in words."""
    if present == 0:
        return 0, history, ""
    if raw == present and pace.min_replicas <= raw <= pace.max_replicas and _always(raw, history):
        return raw, History(((now_s, raw),), (), (now_s, raw)), ""
    # At the first look HPA takes the scale it finds as a recommendation, so a restart does not shrink anything at once.
    before = history.recommendations if history.last is not None else ((now_s, present),)
    recommendations = _young(before, now_s, max(pace.up_stabilisation_s, pace.down_stabilisation_s))
    changes = _young(_with_last_change(history, present), now_s, pace.period_s)
    wanted = stabilise(raw, present, recommendations, now_s, pace)
    why = ""
    if wanted != raw:
        why = "held by the scale-down window" if raw < wanted else "held by the scale-up window"
    rated = rate(wanted, present, changes, pace)
    if rated != wanted:
        why = "held by the scale-up rate" if rated < wanted else "held by the scale-down rate"
    bounded = min(max(rated, pace.min_replicas), pace.max_replicas)
    if bounded != rated:
        why = f"bounds are {pace.min_replicas} to {pace.max_replicas}"
    kept = recommendations[:-1] if recommendations and recommendations[-1][1] == raw else recommendations
    return bounded, History((*kept, (now_s, raw)), changes, (now_s, present)), why


def _always(replicas: int, history: History) -> bool:
    """Whether a function was never seen with another number, nor was another asked for: nothing holds it back then."""
    if history.last is None or history.last[1] != replicas or history.changes:
        return False
    return len(history.recommendations) == 1 and history.recommendations[0][1] == replicas


def stabilise(raw: int, present: int, recommendations: tuple[Entry, ...], now_s: float, pace: Pace) -> int:
    """Up only as far as the least, down only as far as the largest recommendation of the window."""
    up = min([raw, *[n for time_s, n in recommendations if time_s > now_s - pace.up_stabilisation_s]])
    down = max([raw, *[n for time_s, n in recommendations if time_s > now_s - pace.down_stabilisation_s]])
    return min(max(present, up), down)


def rate(wanted: int, present: int, changes: tuple[Entry, ...], pace: Pace) -> int:
    """At most so many replicas more or less than at the begin of the period; the more generous policy counts."""
    begin = present - sum(change for _, change in changes)
    if wanted > present:
        highest = max(begin + pace.up_pods, math.ceil(begin * (1 + pace.up_percent / 100)))
        return min(wanted, max(highest, present))
    if wanted < present:
        lowest = min(begin - pace.down_pods, math.trunc(begin * (1 - pace.down_percent / 100)))
        return max(wanted, min(lowest, present))
    return wanted


def _with_last_change(history: History, present: int) -> tuple[Entry, ...]:
    """The change since the last look, dated by the decision that made it."""
    if history.last is None or history.last[1] == present:
        return history.changes
    return (*history.changes, (history.last[0], present - history.last[1]))


def _young(entries: tuple[Entry, ...], now_s: float, age_s: float) -> tuple[Entry, ...]:
    return tuple([entry for entry in entries if entry[0] > now_s - age_s])
