"""Knative's pod autoscaler (KPA) as a policy: stable and panic windows over calls in flight or calls per second.

Source: knative/serving, pkg/autoscaler/scaling/autoscaler.go (``Scale``) and config/core/configmaps/autoscaler.yaml.
Departures: the scale-to-zero path (grace period, activator, burst capacity) is left out, for Φ starts at one replica;
averages are weighted by time over the controller's windows instead of one-second buckets, so where windows are longer
than the panic window, the panic average is that of the last window.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from autoscaler.checked import AboveOne, Checked, NotNegative, Positive, PositiveShare, Rule
from autoscaler.contract import Configuration, Memory, NodeKind, NodeObservation, Observation, Proposal
from autoscaler.policy.demand import ceiling
from autoscaler.policy.pace import Entry
from autoscaler.policy.rows import EVERY_KIND, by_function, calls, total

KpaMetric = Literal["concurrency", "rps"]


@dataclass(frozen=True)
class KpaSettings(Checked):
    """Defaults are Knative's (configmap ``config-autoscaler``), except the replica bounds, which are the paper's."""

    title = "kpa"
    metric: KpaMetric = "concurrency"
    """Or ``rps``."""
    target_utilisation: PositiveShare = 0.7
    """Share of the target below that a replica should really see."""
    default_concurrency: Positive = 100.0
    """Target of calls a replica where the configuration has no limit of them; else its concurrency is the target."""
    default_rps: Positive = 200.0
    """Target of calls per second a replica, for ``rps``."""
    stable_window_s: Positive = 60.0
    """Seconds of the stable mean."""
    panic_window_share: PositiveShare = 0.1
    """Length of the panic window as a share of the stable one."""
    panic_threshold: AboveOne = 2.0
    """Panic begins where the panic window asks for this many times the ready replicas."""
    max_scale_up_rate: AboveOne = 1000.0
    """Most times the ready replicas."""
    max_scale_down_rate: AboveOne = 2.0
    """At least the ready replicas divided by this."""
    scale_down_delay_s: NotNegative = 0.0
    """Replicas go only when fewer were wanted for this long."""
    min_replicas: int = 1
    max_replicas: int = 8
    kinds: frozenset[NodeKind] = EVERY_KIND

    def rules(self) -> Iterable[Rule]:
        return (("min_replicas", 1 <= self.min_replicas <= self.max_replicas, "1 to max_replicas"),)


@dataclass(frozen=True, slots=True)
class Sample:
    """Mean of the metric over a stretch of time, whole function."""

    start_s: float
    end_s: float
    value: float


@dataclass(frozen=True)
class KpaState:
    """What is remembered of one function."""

    samples: tuple[Sample, ...] = ()
    """Samples of the stable window, oldest first, not overlapping."""
    panic_s: float | None = None
    """When the panic threshold was last exceeded; None: not in panic."""
    panic_replicas: int = 0
    """Most replicas wanted during this panic."""
    wanted: tuple[Entry, ...] = ()
    """Replicas wanted during the scale-down delay, with their times."""


class KpaPolicy:
    """KPA for every function of the chosen kinds; it changes replicas only."""

    name = "kpa"

    def __init__(self, settings: KpaSettings | None = None) -> None:
        self.settings = settings or KpaSettings()

    def propose(self, observation: Observation, now_s: float, memory: Memory) -> Proposal:
        states: dict[str, KpaState] = dict(memory) if isinstance(memory, dict) else {}
        desired: dict[str, Configuration] = {}
        reasons: dict[str, str] = {}
        for function, nodes in by_function(observation, self.settings.kinds).items():
            present, ready = nodes[0].configuration, nodes[0].ready_replicas
            value = _metric(nodes, self.settings)
            if present is None or ready is None or value is None:
                missing = (
                    "configuration is" if present is None else "ready replicas are" if ready is None else "calls are"
                )
                reasons[function] = f"no data: its {missing} not known"
                continue
            before = states.get(function) or _first(ready, now_s)
            with_sample = replace(
                before, samples=_add(before.samples, observation, value, self.settings.stable_window_s)
            )
            wanted, states[function], why = scale(
                with_sample, ready, target(present, self.settings), now_s, self.settings
            )
            bounded = min(max(wanted, self.settings.min_replicas), self.settings.max_replicas)
            if present.replicas == 0 and wanted == 0:
                bounded, why = 0, "scaled to zero and without calls: left alone"
            desired[function], reasons[function] = replace(present, replicas=bounded), why
        return Proposal(desired, reasons, states)


def target(configuration: Configuration, settings: KpaSettings) -> float:
    """What one replica should see: calls in flight, or calls per second."""
    if settings.metric == "rps":
        return settings.default_rps * settings.target_utilisation
    return (configuration.concurrency or settings.default_concurrency) * settings.target_utilisation


def scale(
    state: KpaState, ready: int, target_value: float, now_s: float, settings: KpaSettings
) -> tuple[int, KpaState, str]:
    """One call of ``Scale``: replicas wanted, the state after it, and the reason. ``state`` holds the newest sample."""
    # Without ready replicas a rate would bound everything to 0; Knative counts at least one.
    count = max(1, ready)
    # Rates are relative to what is ready, not to what was desired: starting replicas do not raise the next bound.
    highest = math.ceil(settings.max_scale_up_rate * count)
    # Rounded down, so that one replica may become none: half of one is 0.
    lowest = math.floor(count / settings.max_scale_down_rate)
    stable_value = average(state.samples, settings.stable_window_s)
    panic_value = average(state.samples, settings.stable_window_s * settings.panic_window_share)
    raw_stable, raw_panic = ceiling(stable_value / target_value), ceiling(panic_value / target_value)
    stable, panic = (min(max(raw, lowest), highest) for raw in (raw_stable, raw_panic))
    panic_s, most = state.panic_s, state.panic_replicas
    # Judged by the unbounded number: a burst that the rate would cut off is still a panic. Every window at or above the
    # threshold renews it; it ends one stable window after the last such window, when that burst has left the mean.
    if raw_panic / count >= settings.panic_threshold:
        panic_s = now_s
    elif panic_s is not None and panic_s + settings.stable_window_s < now_s:
        panic_s, most = None, 0
    wanted = stable
    reason = (
        f"{settings.metric} {stable_value:.3g} in {settings.stable_window_s:g} s, {panic_value:.3g} in the panic "
        f"window (target {target_value:.3g} a replica) ask for {raw_stable} and {raw_panic}"
    )
    if panic_s is not None:
        # In panic the scale never falls: the short mean drops as soon as a burst pauses, the long one lags behind it.
        most = wanted = max(most, stable, panic)
        reason += "; in panic, so never fewer"
    elif stable != raw_stable:
        reason += f"; held by the scale-{'down' if stable > raw_stable else 'up'} rate"
    entries: tuple[Entry, ...] = ()
    if settings.scale_down_delay_s > 0:
        # The delay keeps the largest number of its time, also one of a panic that has ended meanwhile.
        young = (entry for entry in state.wanted if entry[0] > now_s - settings.scale_down_delay_s)
        entries = (*young, (now_s, wanted))
        delayed = max(replicas for _, replicas in entries)
        reason += "; held by the scale-down delay" if delayed > wanted else ""
        wanted = delayed
    return wanted, KpaState(state.samples, panic_s, most, entries), reason


def average(samples: Sequence[Sample], window_s: float) -> float:
    """Mean over the last ``window_s`` of what the samples cover, weighted by time; the newest sample ends the window.

    A window that holds no time of any sample (all are empty stretches) takes the newest value.
    """
    begin_s = samples[-1].end_s - window_s
    parts = [(min(s.end_s - begin_s, s.end_s - s.start_s), s.value) for s in samples if s.end_s > begin_s]
    weight = math.fsum(length for length, _ in parts)
    if weight <= 0:
        return samples[-1].value
    return math.fsum(length * value for length, value in parts) / weight


def _add(samples: tuple[Sample, ...], observation: Observation, value: float, window_s: float) -> tuple[Sample, ...]:
    """With the newest window, of which only what is new since the last one counts."""
    start_s = observation.start_s
    if samples:
        start_s = min(max(start_s, samples[-1].end_s), observation.end_s)
    begin_s = observation.end_s - window_s
    young = (sample for sample in samples if sample.end_s > begin_s)
    return (*young, Sample(start_s, observation.end_s, value))


def _first(ready: int, now_s: float) -> KpaState:
    """Where more than one replica serves, a new autoscaler begins in panic: its averages are not yet worth anything."""
    return KpaState(panic_s=now_s, panic_replicas=ready) if ready > 1 else KpaState()


def _metric(nodes: Sequence[NodeObservation], settings: KpaSettings) -> float | None:
    return calls(nodes) if settings.metric == "concurrency" else total([node.requests_per_s for node in nodes])
