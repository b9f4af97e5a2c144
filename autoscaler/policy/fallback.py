"""A learnt or otherwise daring policy under guard: where it is not to be trusted, HPA takes over for a while.

Three things count against a policy, each in several windows in a row:

- it misses the SLO *while wanting less* of the pipeline than there is: one that misses the SLO and grows does its work,
  one that shrinks although nothing is met does not;
- its prediction misses: whatever is decided for a target expects that a load which was seen before keeps it, and P95 is
  far above λ at no more load than in one of the last windows;
- it doubts itself (``Proposal.doubt``): a learnt policy outside of what it was trained on, or with call times that do
  not hold.

Who takes over may change replicas only, as HPA does. So the sizes that functions had before the chosen policy first
decided about them come back with it: else it would keep for ever what was not to be trusted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from autoscaler.contract import Configuration, Memory, Observation, Policy, Proposal
from autoscaler.state.targets import Targets


@dataclass(frozen=True)
class FallbackSettings:
    """``targets``: λ, of the pipeline's P95 or of a decoder's tokens."""

    targets: Targets
    windows: int = 3
    """Windows in a row of missed SLO and a desire for less, or of a missed prediction, after which the other policy
    takes over."""
    doubt_windows: int = 2
    """Windows in a row in which the chosen policy doubts itself, after which the other one takes over."""
    calm_windows: int = 12
    """Windows in a row with the SLO kept and without doubt, after which the chosen policy is tried again."""
    far: float = 2.0
    """P95 over its target above which a prediction has missed."""
    look_back: int = 5
    """Windows whose loads were seen before."""


@dataclass(frozen=True)
class FallbackMemory:
    """What is remembered between windows; both policies' own memories are inside."""

    chosen: object = None
    other: object = None
    bad: int = 0
    doubted: int = 0
    calm: int = 0
    why: str = ""
    """Why the other policy decides; empty where it does not."""
    loads: tuple[float, ...] = ()
    """Requests per second of the last windows, the newest at the end."""
    sizes: Mapping[str, Configuration] = field(default_factory=dict)
    """Function → what it had when the chosen policy was first asked about it."""


class FallbackPolicy:
    """``chosen`` decides until it is not to be trusted, then ``other`` until all was well for a while.

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
        present = _present(observation, proposal.reasons)
        after = replace(
            _judged(before, observation, proposal, self._settings),
            chosen=proposal.memory,
            other=instead.memory,
            sizes={**present, **before.sizes},
        )
        if not after.why:
            return replace(proposal, memory=after)
        why = f"{self._other.name} instead of {self.name}: {after.why}"
        reasons = {function: f"{reason} ({why})" for function, reason in instead.reasons.items()}
        return Proposal(_sized(instead.desired, present, after.sizes), reasons, after, by=self._other.name)


def _present(observation: Observation, functions: Collection[str]) -> dict[str, Configuration]:
    """What those of ``functions`` have whose configuration is known."""
    return {
        node.function: node.configuration
        for node in observation.nodes
        if node.configuration is not None and node.function in functions
    }


def _sized(
    desired: Mapping[str, Configuration], present: Mapping[str, Configuration], sizes: Mapping[str, Configuration]
) -> dict[str, Configuration]:
    """``desired``, and what is ``present`` where nothing is desired, in ``sizes``; replicas as they are."""
    return {**desired} | {
        name: sizes[name].with_replicas(desired.get(name, now).replicas)
        for name, now in present.items()
        if name in desired or sizes[name].with_replicas(now.replicas) != now
    }


def _judged(
    before: FallbackMemory, observation: Observation, proposal: Proposal, settings: FallbackSettings
) -> FallbackMemory:
    """The next state of the guard. Stale windows count for nothing, those without the pipeline's latency, or with a
    number that is none, only for the policy's doubt."""
    if observation.stale:
        return before
    excess = settings.targets.excess(observation)
    judged = excess is not None
    missed = excess is not None and excess > 1.0
    after = replace(before, loads=_loads(before, observation, settings))
    doubted = before.doubted + 1 if proposal.doubt else 0
    if before.why:
        calm = 0 if missed or proposal.doubt else before.calm + judged
        if calm >= settings.calm_windows:
            return replace(after, bad=0, doubted=0, calm=0, why="")
        return replace(after, doubted=doubted, calm=calm)
    fault = _fault(before, observation, proposal, settings) if missed else ""
    bad = before.bad if not judged else before.bad + 1 if fault else 0
    why = fault if bad >= settings.windows else proposal.doubt if doubted >= settings.doubt_windows else ""
    return replace(after, bad=bad, doubted=doubted, calm=0, why=why)


def _fault(before: FallbackMemory, observation: Observation, proposal: Proposal, settings: FallbackSettings) -> str:
    """What the policy did wrong in a window that misses the SLO; empty: nothing."""
    if wants_less(observation, proposal.desired):
        return "it wanted less while the SLO was missed"
    load, excess = observation.requests_per_s, settings.targets.excess(observation) or 0.0
    is_known = load is not None and load <= max(before.loads, default=0.0)
    if is_known and excess > settings.far:
        return f"P95 is above {settings.far:g} times the target at a load that it had seen"
    return ""


def _loads(before: FallbackMemory, observation: Observation, settings: FallbackSettings) -> tuple[float, ...]:
    load = observation.requests_per_s
    return before.loads if load is None or not load >= 0 else (*before.loads, load)[-settings.look_back :]


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
