"""Kubernetes' VerticalPodAutoscaler as a policy: cores of a replica from a decaying histogram of what it used.

Source: kubernetes/autoscaler, vertical-pod-autoscaler/pkg: recommender/logic (percentiles, margin, confidence),
updater/priority (when a replica is changed), defaults of both programs' flags.

- Cores that are asked for: the target percentile of use plus the margin. Bounds are other percentiles plus the margin,
  the wider the shorter the history: after 12 hours the upper one is three times as high, after 5 minutes the lower one
  0.6 as high.
- A size changes where it lies outside the bounds, or has stood for ``settled_s`` and is off by ``least_change``; then
  to the smallest of the space that has what is asked for, or its largest.

Departures: one sample a window, the mean of a function's replicas with the weight of all; limits are what is asked for,
so use never exceeds it. Memory and GPU shares stay as they are, and replicas, unless ``with_hpa`` leaves these to HPA.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from autoscaler.checked import Checked, NotNegative, Positive, PositiveShare, Rule
from autoscaler.contract import (
    Configuration,
    ConfigurationSpace,
    Memory,
    NodeKind,
    NodeObservation,
    Observation,
    Proposal,
)
from autoscaler.policy.hpa import HpaPolicy, HpaSettings
from autoscaler.policy.rows import EVERY_KIND, by_function
from autoscaler.policy.usage import Usage

DAY_S = 86400.0


@dataclass(frozen=True)
class VpaSettings(Checked):
    """Defaults are those of the recommender and the updater."""

    title = "vpa"
    target_percentile: PositiveShare = 0.9
    """Quantile of use that is asked for."""
    lower_percentile: PositiveShare = 0.5
    """Quantile below which a size is too small."""
    upper_percentile: PositiveShare = 0.95
    """Quantile above which a size is too large."""
    margin: NotNegative = 0.15
    """Share on top of all three."""
    half_life_s: Positive = DAY_S
    """Seconds in which a sample loses half of its weight."""
    confidence_s: Positive = DAY_S
    """Seconds of history with which the upper bound is twice as high as it would be with an endless one."""
    settled_s: NotNegative = DAY_S / 2
    """Seconds after which a size may change within the bounds."""
    least_change: NotNegative = 0.1
    """Share of the present size by which what is asked for is then to differ."""
    least_cores: Positive = 0.025
    """Fewest cores that are asked for."""
    with_hpa: bool = False
    """Replicas are HPA's (its settings in ``[hpa]``, best without ``cpu_target``: both would follow CPU), else they
    stay."""
    kinds: frozenset[NodeKind] = EVERY_KIND

    def rules(self) -> Iterable[Rule]:
        ordered = self.lower_percentile <= self.target_percentile <= self.upper_percentile
        return (("target_percentile", ordered, "lower_percentile to upper_percentile"),)


class Recommended(NamedTuple):
    """Cores of a replica."""

    target: float
    lower: float
    upper: float


def recommended(usage: Usage, settings: VpaSettings) -> Recommended:
    """What ``usage`` asks for, and within which bounds a size may stay."""
    s, confidence = settings, usage.confidence(settings.confidence_s)
    target, lower, upper = (
        (1 + s.margin) * usage.quantile(share)
        for share in (s.target_percentile, s.lower_percentile, s.upper_percentile)
    )
    wider = (0.0, math.inf) if confidence <= 0 else ((1 + 0.001 / confidence) ** -2, 1 + 1 / confidence)
    return Recommended(*(max(s.least_cores, one) for one in (target, wider[0] * lower, wider[1] * upper)))


@dataclass(frozen=True)
class VpaMemory:
    """Use of every function, and HPA's own memory."""

    usages: Mapping[str, Usage] = field(default_factory=dict)
    hpa: Memory = None


class VpaPolicy:
    """VPA for every function of the chosen kinds that has cores."""

    name = "vpa"

    def __init__(
        self,
        settings: VpaSettings | None = None,
        space: ConfigurationSpace | None = None,
        hpa: HpaSettings | None = None,
    ) -> None:
        """``hpa``: HPA's settings where it scales replicas."""
        self.settings = settings or VpaSettings()
        self._sizes = sorted((space or ConfigurationSpace()).cpu_cores)
        self._hpa = None if hpa is None else HpaPolicy(hpa)

    def propose(self, observation: Observation, now_s: float, memory: Memory) -> Proposal:
        before = memory if isinstance(memory, VpaMemory) else VpaMemory()
        scaled = Proposal({}, {}) if self._hpa is None else self._hpa.propose(observation, now_s, before.hpa)
        usages, desired, reasons = dict(before.usages), dict(scaled.desired), dict(scaled.reasons)
        for function, nodes in by_function(observation, self.settings.kinds).items():
            present = nodes[0].configuration
            if present is None or not present.cpu_cores or not self._sizes:
                why = "no data: its configuration is not known" if present is None else "no cores to choose from"
                reasons.setdefault(function, why)
                continue
            sampled = _sampled(usages.get(function, Usage()), nodes[0], present, now_s, self.settings.half_life_s)
            if sampled is None:
                reasons.setdefault(function, "no data of cpu")
                continue
            usages[function] = sampled
            cores, why = self._size(sampled, now_s)
            desired[function] = replace(desired.get(function, present), cpu_cores=cores)
            reasons[function] = f"{why}; {reasons[function]}" if function in reasons else why
        return Proposal(desired, reasons, VpaMemory(usages, scaled.memory))

    def _size(self, usage: Usage, now_s: float) -> tuple[float, str]:
        """Cores of a replica from now on, and why."""
        s, asked = self.settings, recommended(usage, self.settings)
        size = next((one for one in self._sizes if one >= asked.target), self._sizes[-1])
        outside = not asked.lower <= usage.cores <= asked.upper
        settled = now_s - usage.since_s >= s.settled_s
        off = abs(usage.cores - asked.target) >= s.least_change * usage.cores
        held = "" if outside or (settled and off) else f", {usage.cores:g} held"
        reason = f"use asks for {asked.target:.3g} cores ({asked.lower:.3g} to {asked.upper:.3g}){held}"
        return usage.cores if held else size, reason


def _sampled(
    usage: Usage, node: NodeObservation, present: Configuration, now_s: float, half_life_s: float
) -> Usage | None:
    """With the cores that a replica used in the window; None where that is not known."""
    replicas = node.ready_replicas if node.measured_replicas is None else node.measured_replicas
    if node.cpu_utilisation is None or not replicas:
        return None
    used = node.cpu_utilisation * present.cpu_cores
    return usage.with_sample(used, present.cpu_cores, replicas, now_s, half_life_s)
