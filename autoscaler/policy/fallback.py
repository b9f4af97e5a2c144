"""A learnt or otherwise daring policy under watch: where it misbehaves, HPA takes over for a while.

Misbehaving is missing the SLO in several windows in a row *while wanting less* of the pipeline than there is: a policy
that misses the SLO and grows is doing its work, one that shrinks although nothing is met is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from autoscaler.contract import Configuration, Memory, Observation, Policy, Proposal


@dataclass(frozen=True)
class FallbackSettings:
    """``slo_s``: the target of the pipeline's P95."""

    slo_s: float
    windows: int = 3
    """Windows in a row of missed SLO and a desire for less, after which the other policy takes over."""
    calm_windows: int = 12
    """Windows in a row with the SLO kept, after which the chosen policy is tried again."""


@dataclass(frozen=True)
class FallbackMemory:
    """What is remembered between windows; both policies' own memories are inside."""

    chosen: object = None
    other: object = None
    bad: int = 0
    calm: int = 0
    active: bool = False
    """Whether the other policy decides."""


class FallbackPolicy:
    """``chosen`` decides until it misbehaves, then ``other`` until the SLO was kept for a while.

    Both are asked in every window, so that whoever takes over knows the past. Pure, like the policies it holds.
    """

    def __init__(self, chosen: Policy, other: Policy, settings: FallbackSettings) -> None:
        self.name = chosen.name
        self._chosen = chosen
        self._other = other
        self._settings = settings

    def propose(self, observation: Observation, now_s: float, memory: Memory) -> Proposal:
        before = memory if isinstance(memory, FallbackMemory) else FallbackMemory()
        proposal = self._chosen.propose(observation, now_s, before.chosen)
        instead = self._other.propose(observation, now_s, before.other)
        after = replace(
            _judged(before, observation, proposal, self._settings), chosen=proposal.memory, other=instead.memory
        )
        if not after.active:
            return replace(proposal, memory=after)
        why = f"{self._other.name} instead of {self.name}, which wanted less while the SLO was missed"
        reasons = {function: f"{reason} ({why})" for function, reason in instead.reasons.items()}
        return Proposal(instead.desired, reasons, after)


def _judged(
    before: FallbackMemory, observation: Observation, proposal: Proposal, settings: FallbackSettings
) -> FallbackMemory:
    """The next state of the watch. A window without data of the pipeline's latency, or with a number that is none,
    counts for nothing."""
    latency_s = observation.latency_p95_s
    if observation.stale or latency_s is None or not latency_s >= 0:  # NaN is neither
        return before
    missed = latency_s > settings.slo_s
    if before.active:
        calm = 0 if missed else before.calm + 1
        return (
            replace(before, bad=0, calm=0, active=False)
            if calm >= settings.calm_windows
            else replace(before, calm=calm)
        )
    bad = before.bad + 1 if missed and wants_less(observation, proposal.desired) else 0
    return replace(before, bad=bad, calm=0, active=bad >= settings.windows)


def wants_less(observation: Observation, desired: Mapping[str, Configuration]) -> bool:
    """Whether some function is to get less capacity and none more: fewer replicas × cores, GPU shares or call slots."""
    present = {node.function: node.configuration for node in observation.nodes if node.configuration is not None}
    pairs = [
        (capacity(configuration), capacity(present[name])) for name, configuration in desired.items() if name in present
    ]
    less = any(new < old for configuration, now in pairs for new, old in zip(configuration, now, strict=True))
    more = any(new > old for configuration, now in pairs for new, old in zip(configuration, now, strict=True))
    return less and not more


def capacity(configuration: Configuration) -> tuple[float, float, int]:
    """Cores, GPU shares and call slots of all replicas of a function."""
    replicas = configuration.replicas
    return (
        replicas * configuration.cpu_cores,
        replicas * configuration.gpu_share,
        replicas * configuration.concurrency,
    )
