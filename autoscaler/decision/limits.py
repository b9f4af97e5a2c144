"""From what a policy desires to decisions: hold on missing data, cool-down, space, rate of change, what the platform
cannot give, memory of Eq. (2), budget, capacity."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

from autoscaler.contract import (
    MIB,
    Bound,
    Capacity,
    Configuration,
    ConfigurationSpace,
    Decision,
    MemoryNeed,
    NodeInfo,
    NodeObservation,
    Observation,
    Proposal,
    Topology,
)
from autoscaler.decision.budget import no_worse, within_budget
from autoscaler.decision.capacity import within_capacity
from autoscaler.prices import PriceSheet
from platform_words.memory import FORKED, RuntimeMemory


@dataclass(frozen=True)
class LimitSettings:
    """Bounds on decisions; 0 or None switches one off."""

    space: ConfigurationSpace = field(default_factory=ConfigurationSpace)
    alpha: float = 0.9
    """Loss factor of Eq. (2)."""
    runtime: RuntimeMemory = FORKED
    """Part of M_e that is not weights: the worker's own memory."""
    max_step_replicas: int = 8
    """Most replicas that one decision adds or removes."""
    max_step_factor: float = 0.0
    """Memory, CPU cores and GPU share become at most so many times larger or smaller in one decision; 0 = no limit."""
    cooldown_s: float = 0.0
    """Least time between two changes of one function."""
    budget_per_hour: float | None = None
    """Most that all functions may cost provisioned, in the price sheet's currency."""
    capacity: Capacity | None = None
    """What all functions may take together."""


@dataclass(frozen=True)
class LimitState:
    """When each function was last changed (Unix time)."""

    changed_s: Mapping[str, float] = field(default_factory=dict)

    def after(self, changed: Iterable[str], now_s: float) -> LimitState:
        """The state for the next tick, once the platform has taken the changes of these functions."""
        return LimitState({**self.changed_s, **dict.fromkeys(changed, now_s)})


def decide(
    topology: Topology,
    observation: Observation,
    proposal: Proposal,
    present: Mapping[str, Configuration],
    now_s: float,
    state: LimitState,
    settings: LimitSettings,
    prices: PriceSheet,
    bounds: Mapping[str, Bound] = MappingProxyType({}),
    floors: Mapping[str, int] = MappingProxyType({}),
) -> tuple[Decision, ...]:
    """One decision for each deployed function that the policy manages (configuration or reason); see ``Proposal``.

    ``present``: function → configuration as the platform has it now. What runs now is never forced to change: limits
    are on changes. ``bounds``: function → what the platform cannot give it now; replicas that were asked for and cannot
    run are taken back. ``floors``: function → fewest replicas: one on each node where a placement wants it, which is
    not the policy's to take away.
    """
    decisions: list[Decision] = []
    needs: dict[str, MemoryNeed | None] = {}
    for function, nodes in topology.functions().items():
        now = present.get(function)
        desired = proposal.desired.get(function)
        reason = proposal.reasons.get(function, "")
        if now is None or (desired is None and not reason):  # not deployed, or not the policy's to manage
            continue
        name = "_".join(node.id for node in nodes)
        why = _held(observation, desired, reason)
        if desired is None or why:
            decisions.append(Decision(function, name, now, desired or now, now, why, ("no or old data",), valid=False))
            continue
        bound = bounds.get(function)
        # Replicas that wait in vain for room are taken back even where the policy wants no change.
        if desired == now and (bound is None or now.replicas <= bound.replicas):
            decisions.append(Decision(function, name, now, desired, now, reason))
            continue
        observed = [observation.node(node.id) for node in nodes]
        needs[function] = memory_need(nodes, observed, settings)
        # A segment's memory was sized with the pages of keys and values, which only the deployment knows the number of.
        keeps = topology.generates and any(node.kind == "segment" for node in nodes)
        least = _Least(floors.get(function, 0), now.memory_mb if keeps else _used_mb(now, observed))
        target, hits = _limited(function, now, desired, needs[function], now_s, state, settings, bound, least)
        decisions.append(Decision(function, name, now, desired, target, reason, tuple(hits)))
    return tuple(_within_all(decisions, present, needs, settings, prices))


def _within_all(
    decisions: list[Decision],
    present: Mapping[str, Configuration],
    needs: Mapping[str, MemoryNeed | None],
    settings: LimitSettings,
    prices: PriceSheet,
) -> list[Decision]:
    """Within the limits on all functions together. They come last, as they weigh functions against each other: by what
    the limits of each one left of its growth."""
    if settings.budget_per_hour is not None:
        decisions = within_budget(decisions, present, needs, settings.budget_per_hour, prices)
    if settings.capacity is not None:
        decisions = within_capacity(decisions, present, needs, settings.capacity)
    return decisions


def memory_need(
    nodes: Sequence[NodeInfo], observed: Sequence[NodeObservation | None], settings: LimitSettings
) -> MemoryNeed | None:
    """Eq. (2)'s numbers of one function; None where the peak of tokens is not known. The ingress holds no expert."""
    runtime_bytes = settings.runtime.of(frozenset(node.kind for node in nodes)) * MIB
    if any(node.kind == "ingress" for node in nodes):
        return MemoryNeed(runtime_bytes, 0, 0.0, settings.alpha)
    peaks = [None if node is None else node.peak_tokens for node in observed]
    measured = [peak for peak in peaks if peak is not None]
    if len(measured) < len(peaks):
        return None
    runtime_bytes += sum(node.weights_bytes for node in nodes)
    return MemoryNeed(runtime_bytes, max(node.bytes_per_token for node in nodes), sum(measured), settings.alpha)


class _Least(NamedTuple):
    """What no policy may take away from one function."""

    replicas: int
    memory_mb: float
    """MiB that a replica uses now, 0 where that is not known; all of a replica that keeps keys and values, which fill
    their pages later."""


def _used_mb(now: Configuration, observed: Sequence[NodeObservation | None]) -> float:
    used = (None if node is None else node.memory_utilisation for node in observed)
    return max((share * now.memory_mb for share in used if share is not None), default=0.0)


def _held(observation: Observation, desired: Configuration | None, reason: str) -> str:
    """Why the present scale is held; empty when it need not be."""
    if observation.stale:
        return f"present scale held: {observation.problems[0] if observation.problems else 'no data of this window'}"
    return f"present scale held: {reason}" if desired is None else ""


def _limited(
    function: str,
    now: Configuration,
    desired: Configuration,
    need: MemoryNeed | None,
    now_s: float,
    state: LimitState,
    settings: LimitSettings,
    bound: Bound | None,
    least: _Least,
) -> tuple[Configuration, list[str]]:
    last_s = state.changed_s.get(function)
    if last_s is not None and 0 <= now_s - last_s < settings.cooldown_s:  # not where the clock was set back
        return now, [f"cool-down of {settings.cooldown_s:g} s"]
    hits: list[str] = []
    target = _in_space(now, desired, settings.space, hits)
    target = _in_step(now, target, settings, hits)
    target = _on_its_nodes(target, least.replicas, settings.space, hits)
    target = _not_below_use(now, target, least.memory_mb, settings.space, hits)
    if bound is None:
        return _with_memory(now, target, need, settings.space, hits), hits
    runs = bound.brought_about(now, settings.space.replicas_min)
    possible = bound.possible(runs, target)
    if possible != target:
        hits.append(f"platform: {bound.why}")
    target = _with_memory(runs, possible, need, settings.space, hits)
    return (target if target == bound.possible(runs, target) else runs), hits


def _in_space(now: Configuration, desired: Configuration, space: ConfigurationSpace, hits: list[str]) -> Configuration:
    """Axes that the policy changes must lie in the space; those it leaves alone may stay as deployed."""
    nearest = space.nearest(desired)
    same_resource = (desired.cpu_cores, desired.gpu_share) == (now.cpu_cores, now.gpu_share)
    resource = now if same_resource else nearest
    target = Configuration(
        now.memory_mb if desired.memory_mb == now.memory_mb else nearest.memory_mb,
        resource.cpu_cores,
        resource.gpu_share,
        now.replicas if desired.replicas == now.replicas else nearest.replicas,
        now.concurrency if desired.concurrency == now.concurrency else nearest.concurrency,
        desired.burst,
    )
    if target != desired:
        hits.append("configuration space")
    return target


def _in_step(now: Configuration, target: Configuration, settings: LimitSettings, hits: list[str]) -> Configuration:
    most, factor = settings.max_step_replicas, settings.max_step_factor
    replicas = replicas_in_step(now, target, most)
    if replicas != target:
        hits.append(f"at most {most} replicas a step")
    limits = limits_in_step(now, replicas, factor, settings.space)
    if limits != replicas:
        hits.append(f"limits at most {factor:g} times a step")
    return limits


def _on_its_nodes(target: Configuration, floor: int, space: ConfigurationSpace, hits: list[str]) -> Configuration:
    """At least a replica on each node that the function was placed on, as far as there may be so many."""
    least = min(floor, space.replicas_max)
    if target.replicas >= least:
        return target
    hits.append(f"placement: a replica on each of {floor} nodes")
    return replace(target, replicas=least)


def _not_below_use(
    now: Configuration, target: Configuration, used_mb: float, space: ConfigurationSpace, hits: list[str]
) -> Configuration:
    """No memory limit below what replicas use now: kernel and kubelet would not take it, or end the replica."""
    if target.memory_mb >= now.memory_mb or target.memory_mb >= used_mb:
        return target
    hits.append("memory in use")
    return replace(target, memory_mb=min(now.memory_mb, space.memory_at_least_mb(used_mb) or now.memory_mb))


def _with_memory(
    now: Configuration,
    target: Configuration,
    need: MemoryNeed | None,
    space: ConfigurationSpace,
    hits: list[str],
) -> Configuration:
    """Eq. (2): raise the memory; where the space ends, stay. Without data of the peak neither memory nor replicas
    shrink."""
    if no_worse(now, target):
        return target
    if need is None:
        hits.append("peak of tokens not known, so memory and replicas do not shrink")
        return replace(
            target, memory_mb=max(now.memory_mb, target.memory_mb), replicas=max(now.replicas, target.replicas)
        )
    if need.holds(target):
        return target
    hits.append("memory of Eq. (2)")
    memory_mb = space.least_memory_mb(need, target.replicas)
    return now if memory_mb is None else replace(target, memory_mb=memory_mb)


_TOUCH = 1 + 1e-9
"""0.3 of a GPU is three times 0.1, though not in binary numbers."""


def replicas_in_step(now: Configuration, target: Configuration, most: int) -> Configuration:
    """``target`` with at most ``most`` replicas more or fewer than ``now``; 0 = no limit."""
    if not most or abs(target.replicas - now.replicas) <= most:
        return target
    return target.with_replicas(now.replicas + most if target.replicas > now.replicas else now.replicas - most)


def limits_in_step(
    now: Configuration, target: Configuration, factor: float, space: ConfigurationSpace
) -> Configuration:
    """``target`` with memory, CPU cores and GPU share at most ``factor`` times those of ``now``, or a ``factor``-th.

    The next value of the space is always in reach. From CPU to GPU and back is no step but a change of resource.
    Configurations are in the space on the axes where they differ; 0 = no limit.
    """
    if not factor:
        return target
    return replace(
        target,
        memory_mb=int(_axis_in_step(now.memory_mb, target.memory_mb, factor, space.memory_sizes_mb)),
        cpu_cores=_axis_in_step(now.cpu_cores, target.cpu_cores, factor, space.cpu_cores),
        gpu_share=_axis_in_step(now.gpu_share, target.gpu_share, factor, space.gpu_shares),
    )


def _axis_in_step(before: float, after: float, factor: float, values: Sequence[float]) -> float:
    if before == after or not before or not after:
        return after
    low, high = min(before, after), max(before, after)
    between = sorted((value for value in values if low <= value <= high and value != before), reverse=before > after)
    reach = [value for value in between if value <= before * factor * _TOUCH and value * factor * _TOUCH >= before]
    return reach[-1] if reach else between[0]
