"""AIBrix's APA (application-specific pod autoscaler) as a policy.

Source: vllm-project/aibrix, pkg/controller/podautoscaler/algorithm/apa.go and context/context.go (defaults). A metric
per replica over its target scales the replicas by that ratio where it leaves a band; one step multiplies or divides
them by at most a rate. Scaling down waits for the largest recommendation of the cool-down window. Departure: the metric
is the use of call slots or of the CPU limit, in place of a serving engine's cache or queue.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from autoscaler.checked import BelowOne, Checked, FromOne, FromZero, NotNegative, PositiveShare
from autoscaler.contract import Configuration, Memory, NodeKind, NodeObservation, Observation, Proposal
from autoscaler.policy.demand import Metric
from autoscaler.policy.hpa import slots_used
from autoscaler.policy.pace import Entry, Pace, stabilise
from autoscaler.policy.rows import EVERY_KIND, by_function

FromOneRate = Annotated[float, Field(ge=1)]


@dataclass(frozen=True)
class ApaSettings(Checked):
    """Rates, tolerances and windows are AIBrix's defaults."""

    title = "apa"
    metric: Metric = "concurrency"
    """Or ``cpu``."""
    target: PositiveShare = 0.7
    """Desired share of a replica's call slots, or of its CPU limit; AIBrix has no default."""
    up_tolerance: NotNegative = 0.1
    """Band above the target that changes nothing."""
    down_tolerance: BelowOne = 0.1
    """Band below it."""
    max_scale_up_rate: FromOneRate = 2.0
    """One step multiplies the replicas by at most this."""
    max_scale_down_rate: FromOneRate = 2.0
    """One step divides the replicas by at most this."""
    up_cooldown_s: NotNegative = 0.0
    """Window whose least recommendation bounds scaling up."""
    down_cooldown_s: NotNegative = 300.0
    """Window whose largest recommendation bounds scaling down."""
    min_replicas: FromZero = 1
    max_replicas: FromOne = 8
    kinds: frozenset[NodeKind] = EVERY_KIND


class ApaPolicy:
    """APA for every function of the chosen kinds; it changes replicas only."""

    name = "apa"

    def __init__(self, settings: ApaSettings | None = None) -> None:
        self.settings = settings or ApaSettings()
        s = self.settings
        self._pace = Pace(up_stabilisation_s=s.up_cooldown_s, down_stabilisation_s=s.down_cooldown_s)

    def propose(self, observation: Observation, now_s: float, memory: Memory) -> Proposal:
        past: dict[str, tuple[Entry, ...]] = dict(memory) if isinstance(memory, dict) else {}
        desired: dict[str, Configuration] = {}
        reasons: dict[str, str] = {}
        s, span_s = self.settings, max(self.settings.up_cooldown_s, self.settings.down_cooldown_s)
        for function, nodes in by_function(observation, s.kinds).items():
            present, used = nodes[0].configuration, _used(nodes, s.metric)
            if present is None or used is None:
                reasons[function] = f"no data of {s.metric}"
                continue
            raw = target_replicas(present.replicas, used / s.target, s)
            # Without a past the scale that is found counts as a recommendation, so a restart shrinks nothing at once.
            recommended = past.get(function) or ((now_s, present.replicas),)
            recommended = tuple(entry for entry in recommended if entry[0] > now_s - span_s)
            wanted = stabilise(raw, present.replicas, recommended, now_s, self._pace)
            past[function] = (*recommended, (now_s, raw))
            desired[function] = present.with_replicas(min(max(wanted, s.min_replicas), s.max_replicas))
            held = "" if wanted == raw else "; held by the cool-down"
            reasons[function] = f"{s.metric} {used:.0%} (target {s.target:.0%}) asks for {raw}{held}"
        return Proposal(desired, reasons, past)


def target_replicas(present: int, ratio: float, settings: ApaSettings) -> int:
    """``computeTargetReplicas``: ``ceil(present · ratio)`` outside the band, no further than the rates allow.

    ``ratio``: the metric per replica over its target. Worked example: 2 replicas at 1.5 times their target become 3.
    """
    if ratio > 1 + settings.up_tolerance:
        return min(math.ceil(present * ratio), math.ceil(settings.max_scale_up_rate * present))
    if ratio < 1 - settings.down_tolerance:
        return max(math.ceil(present * ratio), math.floor(present / settings.max_scale_down_rate))
    return present


def _used(nodes: list[NodeObservation], metric: Metric) -> float | None:
    """Share in use of call slots, or of the CPU limit, mean of a function's replicas; ``nodes``: those it serves."""
    return nodes[0].cpu_utilisation if metric == "cpu" else slots_used(nodes)
