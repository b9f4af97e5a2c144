"""A cluster with walls: what all functions desire together is granted as far as it fits, each the same part of it.

Growth is granted in steps, a replica at a time, always to the function that has the smallest part of what it desires of
the resource that it lacks most; of equals the first in order of the pass. A layer waits for its slowest expert, so
equal parts serve a pass better than one function with all that it desires next to one with nothing.

What runs now is never taken away, and what a function gives up itself is free at once. A step without room is left out
with all later ones of its function, and smaller ones of others may still fit. So the outcome does not depend on
functions' names, and with larger totals the first step that comes out differently is one more that is granted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from autoscaler.capacity import needs, total_needs
from autoscaler.contract import Capacity, Configuration, Decision, MemoryNeed, Resources
from autoscaler.decision.budget import no_worse


class _Step(NamedTuple):
    """One step of one decision's growth; ordered as steps are granted."""

    satisfied: float
    """Part of what the function desires that it has before this step, of the resource that it lacks most."""
    place: int
    rung: int
    before: Configuration
    after: Configuration


def within_capacity(
    decisions: Sequence[Decision],
    present: Mapping[str, Configuration],
    memory_needs: Mapping[str, MemoryNeed | None],
    capacity: Capacity,
) -> list[Decision]:
    """Decisions whose targets, with all that is not decided, fit ``capacity``; none grows where the present does not.

    ``present``: every function's configuration. ``memory_needs``: Eq. (2) of each, which a part of a growth must
    satisfy too. What was cut has the reason in ``limits_hit``.
    """
    targets = {**present, **{decision.function: decision.target for decision in decisions}}
    if capacity.fits(targets.values()):
        return list(decisions)
    steps: list[_Step] = []
    for place, decision in enumerate(decisions):
        if decision.changes and not needs(decision.target).within(needs(decision.present)):
            targets[decision.function] = decision.present
            steps += _steps(place, decision, memory_needs.get(decision.function))
    used, refused = total_needs(targets.values()), dict[int, str]()
    for step in sorted(steps):
        if step.place in refused:
            continue
        more = used.minus(needs(step.before)).plus(needs(step.after))
        granted = {**targets, decisions[step.place].function: step.after}
        if why := _beyond(used, more, granted, capacity):
            refused[step.place] = f"capacity: {', '.join(why)}"
        else:
            targets, used = granted, more
    result = list(decisions)
    for place, sentence in refused.items():
        cut = decisions[place]
        result[place] = cut._replace(target=targets[cut.function], limits_hit=(*cut.limits_hit, sentence))
    return result


def _beyond(
    used: Resources, more: Resources, targets: Mapping[str, Configuration], capacity: Capacity
) -> tuple[str, ...]:
    """What ``more`` takes more of than is used and than there is; ``machines`` where only their places are short."""
    grown = Resources(*(after if after > before else 0.0 for before, after in zip(used, more, strict=True)))
    names = grown.beyond(capacity.total)
    return names if names or not capacity.machines or capacity.fits(targets.values()) else ("machines",)


def _steps(place: int, decision: Decision, need: MemoryNeed | None) -> Iterator[_Step]:
    """From the present configuration to the target: first its limits, then replica after replica; what could not hold
    its tokens is passed over."""
    now, target = decision.present, decision.target
    before, rung, satisfied = now, 0, 0.0
    for replicas in range(min(max(1, now.replicas), target.replicas), target.replicas + 1):
        after = target.with_replicas(replicas)
        holds = no_worse(now, after) or (need is not None and need.holds(after)) or replicas == target.replicas
        if after != before and holds:
            satisfied = max(satisfied, _satisfied(before, target))  # a function's steps stay in their order
            yield _Step(satisfied, place, rung, before, after)
            before, rung = after, rung + 1


def _satisfied(before: Configuration, target: Configuration) -> float:
    pairs = zip(needs(before), needs(target), strict=True)
    return min((have / desired for have, desired in pairs if have < desired), default=1.0)
