"""Which replicas of a function to start and which to drain. Computes only; ``function.py`` carries it out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gateway.contract import ReplicaState

STARTED: tuple[ReplicaState, ...] = ("ready", "standby")
_RANK: Mapping[ReplicaState, int] = {"ready": 0, "standby": 1}


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
    alive = [replica for replica in replicas if replica.state != "draining"]  # one that stands by is started, too
    new, old = _sorted_out(alive, generation, wanted)
    start = max(0, min(desired - len(new), desired + bool(old) - len(alive)))
    stop = [replica.id for replica in old if replica.state == "starting"]
    old_ready = [replica for replica in old if replica.state in STARTED]
    ready = len(old_ready) + sum(replica.state in STARTED for replica in new)
    stop += [replica.id for replica in old_ready[: max(0, ready - desired)]]
    missing = [
        machine
        for machine, count in wanted.items()
        for _ in range(count - sum(replica.machine == machine for replica in new))
    ]
    return ReplicaChange(start, tuple(stop), tuple(missing[:start]), len(old) > len(stop))


def opened(
    replicas: Iterable[Member], count: int, generation: int, places: Mapping[str, int] | None = None
) -> set[str]:
    """Which ``count`` of the started replicas take calls; the others stand by.

    ``places``: how many of them on each machine, as far as there are so many. Those of the present generation come
    first, then those that take calls already, so that few change.
    """
    started = sorted(
        (member for member in replicas if member.state in STARTED),
        key=lambda member: (member.generation != generation, _RANK[member.state], member.order),
    )
    left = {"": count} if places is None else dict(places)
    placed = []
    for member in started:
        if left.get(member.machine, 0) > 0:
            left[member.machine] -= 1
            placed.append(member.id)
    others = [member.id for member in started if member.id not in placed]
    return set((placed + others)[:count])


def _sorted_out(alive: list[Member], generation: int, wanted: Mapping[str, int]) -> tuple[list[Member], list[Member]]:
    """Replicas to keep, and those to replace or end in the order in which they go.

    Kept on each machine are ready ones before those that stand by and starting ones, older ones before newer ones.
    """
    old = sorted((member for member in alive if member.generation != generation), key=lambda member: member.order)
    left = dict(wanted)
    kept, surplus = [], []
    for member in sorted(alive, key=lambda member: (_RANK.get(member.state, 2), member.order)):
        if member.generation != generation:
            continue
        if left.get(member.machine, 0) > 0:
            left[member.machine] -= 1
            kept.append(member)
        else:
            surplus.append(member)
    # Those still starting serve nobody: they go first, then the newest.
    return kept, old + surplus[::-1]
