"""Which replicas of a function to start and which to drain. Computes only; ``function.py`` carries it out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gateway.contract import ReplicaState


@dataclass(frozen=True)
class Member:
    """A replica as a change of replicas looks at it. ``generation`` grows with each change that needs new processes."""

    id: str
    state: ReplicaState
    generation: int
    order: int
    """Grows with each start, so the newest has the largest."""
    machine: str = ""


@dataclass(frozen=True)
class ReplicaChange:
    """``start`` new replicas of the present generation, one on each of ``machines``; ``stop`` these replicas."""

    start: int
    stop: tuple[str, ...]
    machines: tuple[str, ...] = ()
    exchanging: bool = False
    """Some replicas wait for others to take their place: for a while there are more than desired."""


def next_change(
    replicas: Iterable[Member], desired: int, generation: int, places: Mapping[str, int] | None = None
) -> ReplicaChange:
    """The next change towards ``desired`` replicas of ``generation``; the surge is 1: new ones are ready before old go.

    ``places``: how many of them on each machine; they add up to ``desired``. A replica on a machine that has enough
    counts as old, as one of an earlier generation does. Draining replicas count for nothing. Repeated after every
    change of state, this converges.
    """
    wanted = {"": desired} if places is None else dict(places)
    alive = [replica for replica in replicas if replica.state != "draining"]
    new, old = _sorted_out(alive, generation, wanted)
    start = max(0, min(desired - len(new), desired + bool(old) - len(alive)))
    stop = [replica.id for replica in old if replica.state == "starting"]
    old_ready = [replica for replica in old if replica.state == "ready"]
    ready = len(old_ready) + sum(replica.state == "ready" for replica in new)
    stop += [replica.id for replica in old_ready[: max(0, ready - desired)]]
    missing = [
        machine
        for machine, count in wanted.items()
        for _ in range(count - sum(replica.machine == machine for replica in new))
    ]
    return ReplicaChange(start, tuple(stop), tuple(missing[:start]), len(old) > len(stop))


def _sorted_out(alive: list[Member], generation: int, wanted: Mapping[str, int]) -> tuple[list[Member], list[Member]]:
    """Replicas to keep, and those to replace or end in the order in which they go.

    Kept on each machine are ready ones before starting ones, older ones before newer ones.
    """
    old = sorted((member for member in alive if member.generation != generation), key=lambda member: member.order)
    left = dict(wanted)
    kept, surplus = [], []
    for member in sorted(alive, key=lambda member: (member.state != "ready", member.order)):
        if member.generation != generation:
            continue
        if left.get(member.machine, 0) > 0:
            left[member.machine] -= 1
            kept.append(member)
        else:
            surplus.append(member)
    # Those still starting serve nobody: they go first, then the newest.
    return kept, old + surplus[::-1]
