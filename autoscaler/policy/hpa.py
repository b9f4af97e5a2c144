"""Kubernetes' HorizontalPodAutoscaler as a policy: replicas from a metric's ratio to its target.

Source: Kubernetes, "Horizontal Pod Autoscaling", algorithm details, and pkg/controller/podautoscaler
(replica_calculator.go, horizontal.go): ``desired = ceil(ready · metric / target)``, no change inside the tolerance,
several metrics take the largest, scale-up limited per period, scale-down stabilised by the largest wish of the window.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from autoscaler.contract import NodeKind, NodeObservation, Observation, Proposal

Metric = Literal["cpu", "concurrency"]


@dataclass(frozen=True)
class HpaSettings:
    """Defaults are Kubernetes' own, except that scaling by calls in flight stands beside CPU.

    Targets are utilisations, 0 to 1: of CPU limits, and of replicas × concurrency.
    """

    targets: Mapping[Metric, float] = field(default_factory=lambda: {"cpu": 0.8, "concurrency": 0.7})
    tolerance: float = 0.1
    min_replicas: int = 1
    max_replicas: int = 8
    up_stabilisation_s: float = 0.0
    down_stabilisation_s: float = 300.0
    up_pods: int = 4
    """Most replicas added in ``period_s``, or ``up_percent`` of the present ones, whichever is more."""
    up_percent: float = 100.0
    down_percent: float = 100.0
    period_s: float = 15.0
    kinds: frozenset[NodeKind] = frozenset(("segment", "expert", "ingress"))


@dataclass(frozen=True)
class History:
    """What HPA remembers of one function: (time, recommendation) and (time, change of replicas), oldest first."""

    recommendations: tuple[tuple[float, int], ...] = ()
    changes: tuple[tuple[float, int], ...] = ()


class HpaPolicy:
    """HPA for every function of the chosen kinds; other axes of the configuration stay as they are."""

    name = "hpa"

    def __init__(self, settings: HpaSettings | None = None) -> None:
        self.settings = settings or HpaSettings()

    def propose(self, observation: Observation, now_s: float, memory: object) -> Proposal:
        histories: dict[str, History] = dict(memory) if isinstance(memory, dict) else {}
        wishes, reasons = {}, {}
        for node in observation.nodes:
            if node.configuration is None or node.kind not in self.settings.kinds:
                continue
            raw, reason = recommend(node, self.settings)
            history = histories.get(node.function, History())
            present = node.configuration.replicas
            wanted, history, why = limit(raw, present, history, now_s, self.settings)
            histories[node.function] = history
            wishes[node.function] = node.configuration.with_replicas(wanted)
            reasons[node.function] = reason + (f"; {why}" if why else "")
        return Proposal(wishes, reasons, histories)


def recommend(node: NodeObservation, settings: HpaSettings) -> tuple[int, str]:
    """Replicas by the formula alone, and the sentence that explains them.

    A metric without data is left out; with none at all the present number stays. While replicas are missing their load
    is taken as zero for scaling up and as the target for scaling down, as HPA does, so they never turn the direction.
    """
    assert node.configuration is not None
    present = node.configuration.replicas
    ready = node.ready_replicas
    if ready is None:
        return present, "no data of ready replicas"
    measured = {"cpu": node.cpu_utilisation, "concurrency": _concurrency(node)}
    best, sentence = None, "no data of any metric"
    for metric, target in settings.targets.items():
        utilisation = measured[metric]
        if utilisation is None or not ready:
            continue
        wanted = desired(utilisation, target, present, ready, settings.tolerance)
        if best is None or wanted > best:
            best, sentence = wanted, f"{metric} at {utilisation:.0%} of {target:.0%} wanted"
    return (present if best is None else best), sentence


def desired(utilisation: float, target: float, present: int, ready: int, tolerance: float) -> int:
    """``ceil(ready · utilisation / target)``, or ``present`` inside the tolerance."""
    ratio = utilisation / target
    if abs(ratio - 1.0) <= tolerance:
        return present
    missing = max(0, present - ready)
    if missing:
        # Missing replicas count as idle on the way up and as exactly busy on the way down.
        filled = ratio * ready / present if ratio > 1 else (ratio * ready + missing) / present
        if abs(filled - 1.0) <= tolerance or (filled > 1) != (ratio > 1):
            return present
        return _ceil(filled * present)
    return _ceil(ratio * ready)


def limit(raw: int, present: int, history: History, now_s: float, settings: HpaSettings) -> tuple[int, History, str]:
    """Stabilisation, rate and bounds on a recommendation; returns replicas, the new history, and what held it back."""
    longest_s = max(settings.down_stabilisation_s, settings.up_stabilisation_s)
    kept = tuple(entry for entry in history.recommendations if entry[0] > now_s - longest_s)
    recommendations = (*kept, (now_s, raw))
    up = min(value for time_s, value in recommendations if time_s >= now_s - settings.up_stabilisation_s)
    down = max(value for time_s, value in recommendations if time_s >= now_s - settings.down_stabilisation_s)
    wanted = present
    if wanted < up:
        wanted = up
    if wanted > down:
        wanted = down
    why = "held by the scale-down window" if raw < wanted else ""
    changes = tuple(entry for entry in history.changes if entry[0] > now_s - settings.period_s)
    rated = _rate(wanted, present, changes, settings)
    if rated != wanted:
        why = "held by the scale-up rate" if rated < wanted else "held by the scale-down rate"
    bounded = min(max(rated, settings.min_replicas), settings.max_replicas)
    if bounded != rated:
        why = f"bounds are {settings.min_replicas} to {settings.max_replicas}"
    if bounded != present:
        changes = (*changes, (now_s, bounded - present))
    return bounded, History(recommendations, changes), why


def _rate(wanted: int, present: int, changes: tuple[tuple[float, int], ...], settings: HpaSettings) -> int:
    added = sum(change for _, change in changes if change > 0)
    removed = -sum(change for _, change in changes if change < 0)
    start_up, start_down = present - added, present + removed
    highest = max(start_up + settings.up_pods, math.ceil(start_up * (1 + settings.up_percent / 100)))
    lowest = math.floor(start_down * (1 - settings.down_percent / 100))
    return max(min(wanted, max(highest, present)), min(lowest, present))


def _concurrency(node: NodeObservation) -> float | None:
    """Utilisation of slots by calls at replicas and calls that wait for one."""
    if node.concurrency_utilisation is None or not node.in_flight or node.waiting is None:
        return node.concurrency_utilisation
    return node.concurrency_utilisation * (node.in_flight + node.waiting) / node.in_flight


def _ceil(value: float) -> int:
    """Ceiling that forgives rounding in the last bits."""
    return math.ceil(value - 1e-9)
