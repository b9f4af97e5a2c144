"""Kubernetes' HorizontalPodAutoscaler as a policy: replicas from a metric's ratio to its target.

Source: Kubernetes, pkg/controller/podautoscaler/replica_calculator.go and horizontal.go. What a metric asks for is in
``demand``, what time and rate make of it in ``pace``.

- ``cpu``: ``ceil(ready · utilisation / target)``. Replicas that are not ready, or too new to be measured, count as idle
  on the way up and, when ready, as fully busy on the way down; when that turns the direction, the scale stays.
- ``concurrency``: mean calls at replicas and waiting for one, over the target's share of slots.
- The largest metric wins; one without data forbids scaling down. A ratio within ``tolerance`` of 1 changes nothing. A
  function at zero is left alone.
- Up at once, within the rate; down to the largest recommendation of the last ``down_stabilisation_s``, of which the
  scale at the start is one.

Departures: metrics come per function, not per pod; other axes of the configuration stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoscaler.checked import BelowOne, Rule, Share
from autoscaler.contract import Configuration, Memory, NodeKind, NodeObservation, Observation, Proposal
from autoscaler.policy.demand import Metric, by_average_value, by_resource
from autoscaler.policy.pace import NOTHING, History, Pace, limit
from autoscaler.policy.rows import EVERY_KIND, by_function, calls


@dataclass(frozen=True)
class HpaSettings(Pace):
    """Defaults are Kubernetes' own, except that calls in flight count as CPU does. Raises SettingsError."""

    title = "hpa"
    cpu_target: Share = 0.8
    """Desired share of the CPU limit in use, 0 to 1; 0 leaves this metric out."""
    concurrency_target: Share = 0.7
    """Desired share of call slots in use, 0 to 1 (calls that wait for a slot count too); 0 leaves this metric out."""
    tolerance: BelowOne = 0.1
    """A ratio of metric to target this close to 1 changes nothing."""
    kinds: frozenset[NodeKind] = EVERY_KIND

    def rules(self) -> Iterable[Rule]:
        allowed = "above 0 where concurrency_target is 0: hpa needs one metric"
        return (("cpu_target", self.cpu_target + self.concurrency_target > 0, allowed),)

    @property
    def targets(self) -> Mapping[Metric, float]:
        """Metric → desired utilisation, of the metrics that count."""
        targets: dict[Metric, float] = {"cpu": self.cpu_target, "concurrency": self.concurrency_target}
        return {metric: target for metric, target in targets.items() if target}


def hpa_of_windows(window_s: float) -> dict[str, Any]:
    """HPA's settings where an hour goes by in minutes, as in ``smoe run``: Kubernetes' 300 s before it scales down
    would be longer than the run."""
    return {"cpu_target": 0.5, "down_stabilisation_s": 20 * window_s, "period_s": 3 * window_s}


class HpaPolicy:
    """HPA for every function of the chosen kinds."""

    name = "hpa"

    def __init__(self, settings: HpaSettings | None = None) -> None:
        self.settings = settings or HpaSettings()

    def propose(self, observation: Observation, now_s: float, memory: Memory) -> Proposal:
        histories: dict[str, History] = dict(memory) if isinstance(memory, dict) else {}
        desired: dict[str, Configuration] = {}
        reasons: dict[str, str] = {}
        for function, nodes in by_function(observation, self.settings.kinds).items():
            present = nodes[0].configuration
            if present is None:
                reasons[function] = "no data: its configuration is not known"
                continue
            raw, reason = recommend(nodes, self.settings)
            if raw is None:
                reasons[function] = reason
                continue
            history = histories.get(function, NOTHING)
            wanted, histories[function], why = limit(raw, present.replicas, history, now_s, self.settings)
            desired[function] = present if wanted == present.replicas else present.with_replicas(wanted)
            reasons[function] = f"{reason}; {why}" if why else reason
        return Proposal(desired, reasons, histories)


def recommend(nodes: Sequence[NodeObservation], settings: HpaSettings) -> tuple[int | None, str]:
    """Replicas that the metrics of one function ask for, and the sentence that explains them.

    ``nodes``: those the function serves. None: there is no data to judge by.
    """
    first = nodes[0]
    assert first.configuration is not None
    present, ready = first.configuration.replicas, first.ready_replicas
    if present == 0:
        return 0, "scaled to zero: left alone"
    if ready is None:
        return None, "no data: the number of ready replicas is not known"
    asked: dict[str, int] = {}
    without: list[str] = []
    sentences: list[str] = []
    for metric, target in settings.targets.items():
        if metric == "cpu":
            if first.configuration.gpu_share:
                continue
            measured = first.measured_replicas if first.measured_replicas is not None else ready
            utilisation = first.cpu_utilisation
            wanted = (
                None
                if utilisation is None
                else by_resource(utilisation, target, present, ready, measured, settings.tolerance)
            )
        else:
            if not first.configuration.concurrency:
                continue
            utilisation = slots_used(nodes)
            slots = first.configuration.concurrency
            used = None if utilisation is None else utilisation * present * slots
            wanted = None if used is None else by_average_value(used, target * slots, present, settings.tolerance)
        if utilisation is None or wanted is None:
            without.append(metric)
            continue
        asked[metric] = wanted
        sentences.append(f"{metric} {utilisation:.0%} (target {target:.0%}) asks for {wanted}")
    if not asked:
        return None, f"no data of {' and '.join(without) or 'any metric'}"
    best = max(asked.values())
    if without:
        sentences.append(f"no data of {' and '.join(without)}, so no scaling down")
        best = max(best, present)
    return best, ", ".join(sentences)


def slots_used(nodes: Sequence[NodeObservation]) -> float | None:
    """Calls at replicas and calls waiting for one, over all slots of the wanted replicas; None without data."""
    configuration = nodes[0].configuration
    in_calls = calls(nodes)
    if configuration is None or in_calls is None or not configuration.concurrency or not configuration.replicas:
        return None
    return in_calls / (configuration.replicas * configuration.concurrency)
