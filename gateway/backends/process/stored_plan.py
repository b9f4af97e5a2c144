"""What to start and what to drain: pure decisions on a function's replicas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gateway.contract import ReplicaState


@dataclass(frozen=True)
class Seen:
    """A replica as the plan sees it. ``generation`` grows with each change that needs new processes."""

    id: str
    state: ReplicaState
    generation: int
    order: int
    """Grows with each start, so the newest has the largest."""
    node: str = ""


@dataclass(frozen=True)
class Plan:
    """``start`` new replicas of the present generation, one on each of ``nodes``; ``stop`` these replicas."""

    start: int
    stop: tuple[str, ...]
    nodes: tuple[str, ...] = ()
    exchanging: bool = False
    """Replicas wait for others to take their place: for a while there are more than wished."""


def plan(replicas: Iterable[Seen], desired: int, generation: int, places: Mapping[str, int] | None = None) -> Plan:
    """Next step towards ``desired`` replicas of ``generation``, surge one, a new one ready before an old one drains.

    ``places``: how many of them on each node; they add up to ``desired``. A replica on a node that has enough is old,
    like one of an earlier generation. Draining replicas count for nothing. Repeated after every change of state, this
    converges.
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
        node for node, count in wanted.items() for _ in range(count - sum(replica.node == node for replica in new))
    ]
    return Plan(start, tuple(stop), tuple(missing[:start]), len(old) > len(stop))


def _sorted_out(alive: list[Seen], generation: int, wanted: Mapping[str, int]) -> tuple[list[Seen], list[Seen]]:
    """Replicas to keep, and those to replace or end in the order in which they go.

    Kept on each node are ready ones before starting ones, older ones before newer ones.
    """
    old = sorted((one for one in alive if one.generation != generation), key=lambda one: one.order)
    left = dict(wanted)
    kept, surplus = [], []
    for one in sorted(alive, key=lambda one: (one.state != "ready", one.order)):
        if one.generation != generation:
            continue
        if left.get(one.node, 0) > 0:
            left[one.node] -= 1
            kept.append(one)
        else:
            surplus.append(one)
    # Those still starting serve nobody: they go first, then the newest.
    return kept, old + surplus[::-1]


def spread(places: Mapping[str, int], desired: int) -> dict[str, int]:
    """``desired`` replicas over nodes in the proportions of ``places``: exact where they add up to it.

    Largest remainders; equal ones in the order of ``places``. Worked example: {a: 2, b: 1} and 4 → {a: 3, b: 1}.
    """
    total = sum(places.values())
    whole = {node: count * desired // total for node, count in places.items()}
    by_remainder = sorted(places, key=lambda node: -(places[node] * desired % total))
    for node in by_remainder[: desired - sum(whole.values())]:
        whole[node] += 1
    return whole
