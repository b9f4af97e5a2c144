"""A KEDA-style scaler as a policy: activation between zero and one replica, Kubernetes' HPA from one to many.

Source: kedacore/keda-docs, "Scaling Deployments" and the ScaledObject specification: triggers are external metrics of
type AverageValue, so the HPA that KEDA generates asks for ``ceil(value / threshold)``, and the largest trigger wins.
Between zero and one KEDA itself decides: every polling interval a function is active where a trigger is above its
activation threshold, and one that has not been active for the cooldown period goes to zero. Departure: Φ starts at one
replica, so the limits turn zero into one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from pydantic import Field

from autoscaler.checked import BelowOne, Checked, NotNegative, Positive, Rule
from autoscaler.contract import Configuration, Memory, NodeKind, NodeObservation, Observation, Proposal
from autoscaler.policy.demand import by_average_value
from autoscaler.policy.pace import History, Pace, limit
from autoscaler.policy.rows import EVERY_KIND, by_function, calls, total

KedaMetric = Literal["in_flight", "rps"]


@dataclass(frozen=True)
class Trigger(Checked):
    """One metric of a function with what a replica should carry of it."""

    title = "keda"
    metric: KedaMetric = "in_flight"
    """``in_flight``: calls at replicas and waiting for one; ``rps``: calls per second."""
    threshold: Positive | None = None
    """A replica's part (KEDA has no default). None, for ``in_flight`` only: 70 % of the calls that it takes at once,
    and 100, the default of KEDA's HTTP add-on, where they have no limit."""
    activation: NotNegative = 0.0
    """The whole function's value above which it is active (strictly)."""

    def rules(self) -> Iterable[Rule]:
        return (("threshold", self.threshold is not None or self.metric == "in_flight", "a number"),)


SLOTS_TARGET = 0.7
"""Share of the call slots where a trigger has no threshold: the same as the other policies'."""
HTTP_ADD_ON_TARGET = 100.0


@dataclass(frozen=True)
class KedaSettings(Pace):
    """Times and tolerance are KEDA's and the HPA's defaults. ``min_replicas`` 0 lets a function without calls go to
    zero."""

    title = "keda"
    triggers: Annotated[tuple[Trigger, ...], Field(min_length=1)] = (Trigger(),)
    polling_interval_s: Positive = 30.0
    """How often triggers are looked at."""
    cooldown_period_s: NotNegative = 300.0
    """Inactive for so long means zero, which the limits turn into one."""
    tolerance: BelowOne = 0.1
    """HPA's, as are the times and rates above."""
    kinds: frozenset[NodeKind] = EVERY_KIND

    def rules(self) -> Iterable[Rule]:
        return (("min_replicas", self.min_replicas <= self.max_replicas, "0 to max_replicas"),)

    @property
    def pace(self) -> Pace:
        """Times and rates of the generated HPA, which never goes below one replica."""
        return self if self.min_replicas else replace(self, min_replicas=1)


@dataclass(frozen=True)
class KedaState:
    """What is remembered of one function."""

    polled_s: float | None = None
    active: bool = False
    """As of the last poll."""
    active_s: float | None = None
    """Last poll that found it active."""
    history: History = field(default_factory=History)


class KedaPolicy:
    """KEDA for every function of the chosen kinds; it changes replicas only."""

    name = "keda"

    def __init__(self, settings: KedaSettings | None = None) -> None:
        self.settings = settings or KedaSettings()

    def propose(self, observation: Observation, now_s: float, memory: Memory) -> Proposal:
        states: dict[str, KedaState] = dict(memory) if isinstance(memory, dict) else {}
        desired: dict[str, Configuration] = {}
        reasons: dict[str, str] = {}
        for function, nodes in by_function(observation, self.settings.kinds).items():
            present = nodes[0].configuration
            if present is None:
                reasons[function] = "no data: its configuration is not known"
                continue
            values = [_value(nodes, trigger) for trigger in self.settings.triggers]
            measured = [value for value in values if value is not None]
            if len(measured) < len(values):
                reasons[function] = "no data: a trigger's metric is not known"
                continue
            state = poll(states.get(function, KedaState()), measured, now_s, self.settings)
            replicas, states[function], reasons[function] = wanted(state, measured, present, now_s, self.settings)
            desired[function] = replace(present, replicas=replicas)
        return Proposal(desired, reasons, states)


def poll(state: KedaState, values: Sequence[float], now_s: float, settings: KedaSettings) -> KedaState:
    """Whether the function is active; asked again only every polling interval."""
    if state.polled_s is not None and now_s - state.polled_s < settings.polling_interval_s:
        return state
    active = any(value > trigger.activation for value, trigger in zip(values, settings.triggers, strict=True))
    return replace(state, polled_s=now_s, active=active, active_s=now_s if active else state.active_s)


def wanted(
    state: KedaState, values: Sequence[float], present: Configuration, now_s: float, settings: KedaSettings
) -> tuple[int, KedaState, str]:
    """Replicas, the state after it, and the reason. ``values``: one per trigger, of the whole function."""
    if present.replicas == 0:
        woken = max(1, settings.min_replicas)
        return (woken, state, "active: woken") if state.active else (settings.min_replicas, state, "not active")
    cooled = state.active_s is None or state.active_s + settings.cooldown_period_s < now_s
    if settings.min_replicas == 0 and not state.active and cooled:
        return 0, replace(state, history=History()), f"not active for {settings.cooldown_period_s:g} s"
    asked: list[int] = []
    sentences: list[str] = []
    for trigger, value in zip(settings.triggers, values, strict=True):
        threshold = trigger.threshold or SLOTS_TARGET * present.concurrency or HTTP_ADD_ON_TARGET
        asked.append(by_average_value(value, threshold, present.replicas, settings.tolerance))
        sentences.append(f"{trigger.metric} {value:.3g} (threshold {threshold:.3g} a replica) asks for {asked[-1]}")
    replicas, history, why = limit(max(asked), present.replicas, state.history, now_s, settings.pace)
    return replicas, replace(state, history=history), ", ".join(sentences) + (f"; {why}" if why else "")


def _value(nodes: Sequence[NodeObservation], trigger: Trigger) -> float | None:
    return calls(nodes) if trigger.metric == "in_flight" else total([node.requests_per_s for node in nodes])
