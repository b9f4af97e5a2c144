"""From wishes to decisions: space, memory of Eq. (2), rate of change, cool-down, budget, and hold on stale data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from autoscaler.contract import (
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
from autoscaler.prices import PriceSheet

HOUR_S = 3600.0


@dataclass(frozen=True)
class LimitSettings:
    """Bounds on decisions; 0 or None switches one off."""

    space: ConfigurationSpace = field(default_factory=ConfigurationSpace)
    alpha: float = 0.9
    """Loss factor of Eq. (2)."""
    runtime_mb: int = 64
    """Part of M_e that is not weights: the worker's own memory."""
    max_step_replicas: int = 8
    """Most replicas that one decision adds or removes."""
    cooldown_s: float = 0.0
    """Least time between two changes of one function."""
    budget_per_hour: float | None = None
    """Most that all functions may cost provisioned, in the price sheet's currency."""


@dataclass(frozen=True)
class LimitState:
    """When each function was last changed (Unix time)."""

    changed_s: Mapping[str, float] = field(default_factory=dict)


def decide(
    topology: Topology,
    observation: Observation,
    proposal: Proposal,
    present: Mapping[str, Configuration],
    now_s: float,
    state: LimitState,
    settings: LimitSettings,
    prices: PriceSheet,
) -> tuple[tuple[Decision, ...], LimitState]:
    """One decision for each function that is deployed and wished for; the state for the next call."""
    decisions = []
    for node in topology.nodes:
        now = present.get(node.function)
        wish = proposal.wishes.get(node.function)
        if now is None or wish is None:
            continue
        reason = proposal.reasons.get(node.function, "")
        if observation.stale:
            why = ("stale data",)
            decisions.append(Decision(node.function, node.id, now, wish, now, reason, why, valid=False))
            continue
        target, hits = _limited(node, now, wish, observation.node(node.id), now_s, state, settings)
        decisions.append(Decision(node.function, node.id, now, wish, target, reason, tuple(hits)))
    decisions = _within_budget(decisions, present, settings, prices)
    changed = dict(state.changed_s) | {decision.function: now_s for decision in decisions if decision.changes}
    return tuple(decisions), LimitState(changed)


def _limited(
    node: NodeInfo,
    now: Configuration,
    wish: Configuration,
    observed: NodeObservation | None,
    now_s: float,
    state: LimitState,
    settings: LimitSettings,
) -> tuple[Configuration, list[str]]:
    if wish == now:
        return now, []
    hits: list[str] = []
    last_s = state.changed_s.get(node.function)
    if settings.cooldown_s and last_s is not None and now_s - last_s < settings.cooldown_s:
        return now, [f"cool-down of {settings.cooldown_s:.0f} s"]
    target = _on_lattice(now, wish, settings.space, hits)
    target = _step(now, target, settings.max_step_replicas, hits)
    return _with_memory(node, now, target, observed, settings, hits), hits


def _on_lattice(now: Configuration, wish: Configuration, space: ConfigurationSpace, hits: list[str]) -> Configuration:
    """Axes that the wish changes must lie on the lattice; those it leaves alone may stay as deployed."""
    nearest = space.nearest(wish)
    target = Configuration(
        now.memory_mb if wish.memory_mb == now.memory_mb else nearest.memory_mb,
        *((now.cpu_cores, now.gpu_share) if _same_resource(wish, now) else (nearest.cpu_cores, nearest.gpu_share)),
        nearest.replicas,
        now.concurrency if wish.concurrency == now.concurrency else nearest.concurrency,
    )
    if target != wish:
        hits.append("configuration space")
    return target


def _same_resource(one: Configuration, other: Configuration) -> bool:
    return (one.cpu_cores, one.gpu_share) == (other.cpu_cores, other.gpu_share)


def _step(now: Configuration, target: Configuration, most: int, hits: list[str]) -> Configuration:
    low, high = now.replicas - most, now.replicas + most
    replicas = min(max(target.replicas, low), high) if most else target.replicas
    if replicas != target.replicas:
        hits.append(f"at most {most} replicas a step")
    return target.with_replicas(replicas)


def _with_memory(
    node: NodeInfo,
    now: Configuration,
    target: Configuration,
    observed: NodeObservation | None,
    settings: LimitSettings,
    hits: list[str],
) -> Configuration:
    """Eq. (2): raise the memory, or where the lattice ends, keep more replicas; else stay."""
    need = memory_need(node, observed, settings)
    if target.memory_mb >= need.required_mb(target.replicas) or node.kind == "ingress":
        return target
    if target.memory_mb == now.memory_mb and target.replicas >= now.replicas:
        return target  # no worse than what runs now
    memory_mb = settings.space.least_memory_mb(need, target.replicas)
    hits.append("memory of Eq. (2)")
    if memory_mb is None:
        return now
    return replace(target, memory_mb=memory_mb)


def memory_need(node: NodeInfo, observed: NodeObservation | None, settings: LimitSettings) -> MemoryNeed:
    """Eq. (2)'s numbers of one function; without data of peak tokens P is taken as 0."""
    peak = observed.peak_tokens if observed is not None and observed.peak_tokens is not None else 0.0
    runtime_bytes = node.weights_bytes + settings.runtime_mb * 1024 * 1024
    return MemoryNeed(runtime_bytes, node.bytes_per_token, peak, settings.alpha)


def _within_budget(
    decisions: list[Decision],
    present: Mapping[str, Configuration],
    settings: LimitSettings,
    prices: PriceSheet,
) -> list[Decision]:
    """Give up growth, dearest first, until all functions together fit the budget. What runs now is never taken away."""
    if settings.budget_per_hour is None:
        return decisions
    targets = dict(present) | {decision.function: decision.target for decision in decisions}
    cost = sum(_per_hour(configuration, prices) for configuration in targets.values())
    result = list(decisions)
    growth = sorted(
        range(len(result)),
        key=lambda i: _per_hour(result[i].target, prices) - _per_hour(result[i].present, prices),
        reverse=True,
    )
    for i in growth:
        decision = result[i]
        saved = _per_hour(decision.target, prices) - _per_hour(decision.present, prices)
        if cost <= settings.budget_per_hour or saved <= 0:
            break
        result[i] = replace(decision, target=decision.present, limits_hit=(*decision.limits_hit, "budget"))
        cost -= saved
    return result


def _per_hour(configuration: Configuration, prices: PriceSheet) -> float:
    return configuration.replicas * prices.unit_per_s(configuration) * HOUR_S
