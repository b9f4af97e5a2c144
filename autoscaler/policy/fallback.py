"""A learnt or otherwise daring policy under guard: where it is not to be trusted, HPA takes over for a while.

Three things count against a policy:

- it misses the SLO *while wanting less* of the pipeline than there is: one that misses the SLO and grows does its work,
  one that shrinks although nothing is met does not;
- its prediction misses: whatever is decided for a target expects that a load which was seen before keeps it, and P95 is
  above λ at less than twice the load of all of the last windows;
- it doubts itself (``Proposal.doubt``): a learnt policy outside of what it was trained on, call times that do not hold,
  numbers that cannot be true; and nobody else can trust it where requests are answered and their latency is not known,
  or where it ends with an exception.

Missed windows add up, and only many that are kept make up for one: a policy that misses λ now and then breaks it, too.
One that comes back and misses λ again goes at once, and for longer each time. While a policy doubts itself, and in a
first window in which nothing was answered, it may order more and not less.

Who takes over may change replicas only, as HPA does. So the sizes that functions had before the chosen policy first
decided about them, or that somebody else deployed since, come back with it: else it would keep for ever what was not to
be trusted. Meanwhile it was asked as if they had been there, and comes with the replicas that it would have by then.
They come alone, for whose room standbys have; from the next window on those of the chosen policy are asked for again.
"""

from __future__ import annotations

import traceback
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from autoscaler.contract import Burst, Configuration, Memory, NodeObservation, Observation, Policy, Proposal, reached
from autoscaler.errors import in_words
from autoscaler.state.targets import Targets

UNSEEN = "requests were answered, and how fast is not known"
MOST_DOUBLED = 6
"""Times that the wait for the chosen policy is doubled at most."""


@dataclass(frozen=True)
class FallbackSettings:
    """``targets``: λ, of the pipeline's P95 or of a decoder's tokens."""

    targets: Targets
    windows: int = 3
    """Windows of missed SLO and a desire for less, or of a missed prediction, after which the other policy takes
    over."""
    forgiving: int = 28
    """Windows with the SLO kept that make up for one that was missed: 3.6 % may be missed for ever."""
    doubt_windows: int = 2
    """Windows in a row in which the chosen policy doubts itself, after which the other one takes over."""
    calm_windows: int = 12
    """Windows in a row with the SLO kept and without doubt, after which the chosen policy is tried again; twice as many
    each further time."""
    ready_for: float = 2.0
    """Times the largest load of the last windows up to which a policy should have been ready for it."""
    look_back: int = 5
    """Windows whose loads were seen before."""


@dataclass(frozen=True)
class FallbackMemory:
    """What is remembered between windows; both policies' own memories are inside."""

    chosen: object = None
    other: object = None
    bad: float = 0.0
    """Windows that count against the chosen policy, less what was made up for."""
    doubted: float = 0.0
    calm: float = 0.0
    silent_since_s: float | None = None
    """End of the first of the last windows in which requests were in flight and none was answered, Unix time."""
    takeovers: int = 0
    """How often the other policy took over."""
    why: str = ""
    """Why the other policy decides; empty where it does not."""
    loads: tuple[float, ...] = ()
    """Requests per second of the last windows, the newest at the end."""
    sizes: Mapping[str, Configuration] = field(default_factory=dict)
    """Function → what it had when the chosen policy was first asked about it, or somebody else deployed since."""
    alone: Mapping[str, Configuration] = field(default_factory=dict)
    """Function → what it would have by now if the other policy had decided all along."""


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
        by = self._other.name if before.why else ""
        proposal = self._asked(replace(observation, decided_by=by), now_s, before)
        present = _present(observation, proposal.reasons)
        sizes, alone = (_before(present, one, observation.redeployed) for one in (before.sizes, before.alone))
        instead = self._other.propose(observation if before.why else _as_with(alone, observation), now_s, before.other)
        alone = {
            name: instead.desired.get(name, present.get(name, one) if before.why else one)
            for name, one in alone.items()
        }
        after = replace(
            _judged(before, observation, proposal, self._settings),
            chosen=proposal.memory,
            other=instead.memory,
            sizes=sizes,
            alone=alone,
        )
        if not after.why:
            kept = _without_less(proposal.desired, present) if _is_glimpse(before, observation, proposal) else {}
            return replace(proposal, desired={**proposal.desired, **kept}, memory=after)
        why = f"{self._other.name} instead of {self.name}: {after.why}"
        reasons = {function: f"{reason} ({why})" for function, reason in instead.reasons.items()}
        if not before.why:
            taken_over = {**instead.desired, **{name: alone[name] for name in present}}
            sized = _sized(taken_over, present, sizes)
            return Proposal(sized, reasons, after, by=self._other.name, failure=proposal.failure)
        sized = _sized(instead.desired, present, sizes)
        sized |= _with_standbys({**present, **sized}, instead.desired, proposal.desired)
        return Proposal(sized, reasons, after, by=self._other.name, failure=proposal.failure)

    def _asked(self, observation: Observation, now_s: float, before: FallbackMemory) -> Proposal:
        """What the chosen policy proposes; where it fails, nothing and a doubt, and its memory stays."""
        try:
            return self._chosen.propose(observation, now_s, before.chosen)
        except Exception as error:
            failure = f"{in_words(error)} ({_where(error)})"
            doubt = f"it failed ({type(error).__name__})"
            functions = before.sizes or [node.function for node in observation.nodes]
            reasons = dict.fromkeys(functions, f"policy {self.name} failed ({type(error).__name__})")
            return Proposal({}, reasons, before.chosen, doubt, failure=failure)


def _where(error: Exception) -> str:
    """The innermost calls that led to it."""
    calls = traceback.extract_tb(error.__traceback__)[-4:]
    return " < ".join(f"{frame.filename.rpartition('/')[2]}, line {frame.lineno}" for frame in reversed(calls))


def _present(observation: Observation, functions: Collection[str]) -> dict[str, Configuration]:
    """What those of ``functions`` have whose configuration is known."""
    return {
        node.function: node.configuration
        for node in observation.nodes
        if node.configuration is not None and node.function in functions
    }


def _before(
    present: Mapping[str, Configuration], earlier: Mapping[str, Configuration], redeployed: Collection[str]
) -> dict[str, Configuration]:
    """``earlier``, and what is ``present`` of functions that are new or that somebody else has deployed since."""
    return {**present, **{name: one for name, one in earlier.items() if name not in redeployed}}


def _as_with(alone: Mapping[str, Configuration], observation: Observation) -> Observation:
    """``observation`` about as it would be with ``alone`` instead of what there is. A metric of the chosen policy's
    sizes is none of replicas in others: HPA would ask for as many of the large ones as it has small ones."""
    return replace(observation, nodes=tuple(_seen_with(alone.get(node.function), node) for node in observation.nodes))


def _seen_with(then: Configuration | None, node: NodeObservation) -> NodeObservation:
    """``node`` with the same work on ``then``: a call's time goes by cores; from cores to GPU and back, their use is
    not known and the time stays."""
    now, ready = node.configuration, node.ready_replicas
    if now is None or then is None or ready is None or now == then:
        return node
    on_cores = bool(now.cpu_cores and then.cpu_cores)
    times = now.cpu_cores / then.cpu_cores if on_cores else 1.0
    use, in_flight = node.cpu_utilisation, node.in_flight
    return node._replace(
        configuration=then,
        ready_replicas=then.replicas,
        measured_replicas=then.replicas,
        cpu_utilisation=None if use is None or not on_cores else use * times * ready / max(1, then.replicas),
        in_flight=None if in_flight is None else in_flight * times,
    )


def _sized(
    desired: Mapping[str, Configuration], present: Mapping[str, Configuration], sizes: Mapping[str, Configuration]
) -> dict[str, Configuration]:
    """``desired``, and what is ``present`` where nothing is desired, in ``sizes``; replicas as they are."""
    return {**desired} | {
        name: sizes[name].with_replicas(desired.get(name, now).replicas)
        for name, now in present.items()
        if name in desired or sizes[name].with_replicas(now.replicas) != now
    }


def _with_standbys(
    sized: Mapping[str, Configuration], other: Mapping[str, Configuration], chosen: Mapping[str, Configuration]
) -> dict[str, Configuration]:
    """Those of ``sized`` with standbys: ``other``'s, else ``chosen``'s, for all as many as it desires of any. What it
    left out for want of room it did for sizes of its own; the limits know the room."""
    desired = [one.burst for one in chosen.values() if one.burst is not None]
    bursts: dict[str, Burst] = {}
    if desired:
        fullest = max(desired, key=lambda burst: burst.standbys)
        bursts = {name: replace(one.burst or fullest, standbys=fullest.standbys) for name, one in chosen.items()}
    bursts |= {name: one.burst for name, one in other.items() if one.burst is not None}
    return {name: replace(sized[name], burst=burst) for name, burst in bursts.items() if name in sized}


def _is_glimpse(before: FallbackMemory, observation: Observation, proposal: Proposal) -> bool:
    """Whether the window is no reason to order less: the policy doubts it, or it is the first in which nothing was
    answered, as one after an ingress has started again is."""
    is_first = observation.requests_per_s == 0 and bool(before.loads) and before.loads[-1] > 0
    return bool(proposal.doubt) or is_first


def _without_less(
    desired: Mapping[str, Configuration], present: Mapping[str, Configuration]
) -> dict[str, Configuration]:
    """What is ``present`` of functions of which less is ``desired``, of replicas × cores, GPU shares or standbys."""
    return {
        name: now
        for name, now in present.items()
        if name in desired and any(new < old for new, old in zip(_strength(desired[name]), _strength(now), strict=True))
    }


def _strength(configuration: Configuration) -> tuple[float, float, int]:
    cores, share, _ = capacity(configuration)
    return cores, share, configuration.standbys


def _judged(
    before: FallbackMemory, observation: Observation, proposal: Proposal, settings: FallbackSettings
) -> FallbackMemory:
    """The next state of the guard. Stale windows count for nothing; those with requests and no latency, or with one
    that is no number, count as doubted; those in which requests waited for longer than λ and none was answered missed
    it."""
    if observation.stale:
        return before
    news, since_s, slo_s = observation.news, _silent_since_s(before, observation), settings.targets.slo_s
    excess = settings.targets.excess(observation)
    overdue = since_s is not None and slo_s is not None and observation.end_s - since_s > slo_s
    judged = excess is not None or overdue
    missed = overdue or (excess is not None and excess > 1.0)
    after = replace(before, loads=_loads(before, observation, settings), silent_since_s=since_s)
    doubt = proposal.doubt or (UNSEEN if not judged and (observation.requests or 0) > 0 else "")
    doubted = before.doubted + news if doubt else 0.0
    if before.why:
        calm = 0.0 if missed or doubt else before.calm + judged * news
        if reached(calm, settings.calm_windows * 2 ** min(before.takeovers - 1, MOST_DOUBLED)):
            return replace(after, bad=settings.windows - 1.0, doubted=0.0, calm=0.0, why="")
        return replace(after, doubted=doubted, calm=calm)
    fault = _fault(before, observation, proposal, settings) if missed else ""
    kept = judged and not missed
    bad = before.bad + news if fault else max(0.0, before.bad - kept * news / settings.forgiving)
    why = fault if fault and reached(bad, settings.windows) else ""
    why = why or (doubt if reached(doubted, settings.doubt_windows) else "")
    return replace(after, bad=bad, doubted=doubted, calm=0.0, why=why, takeovers=before.takeovers + bool(why))


def _silent_since_s(before: FallbackMemory, observation: Observation) -> float | None:
    """What is in flight at a window's end has waited since then at least, until one is answered."""
    if observation.requests or not observation.in_flight:
        return None
    return observation.end_s if before.silent_since_s is None else before.silent_since_s


def _fault(before: FallbackMemory, observation: Observation, proposal: Proposal, settings: FallbackSettings) -> str:
    """What the policy did wrong in a window that misses the SLO; empty: nothing."""
    if wants_less(observation, proposal.desired):
        return "it wanted less while the SLO was missed"
    load = observation.requests_per_s
    if load is not None and load <= settings.ready_for * max(before.loads, default=0.0):
        return "P95 is above the target at a load that it should have been ready for"
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
