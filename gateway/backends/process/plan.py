"""What to start and what to drain: pure decisions on a function's replicas."""

from __future__ import annotations

from collections.abc import Iterable
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


@dataclass(frozen=True)
class Plan:
    """``start`` new replicas of the present generation; ``stop`` these replicas."""

    start: int
    stop: tuple[str, ...]


def plan(replicas: Iterable[Seen], desired: int, generation: int) -> Plan:
    """Next step towards ``desired`` replicas of ``generation``, surge one, a new one ready before an old one drains.

    Draining replicas count for nothing. Repeated after every change of state, this converges.
    """
    alive = [replica for replica in replicas if replica.state != "draining"]
    new = [replica for replica in alive if replica.generation == generation]
    old = [replica for replica in alive if replica.generation != generation]
    surge = 1 if old else 0
    start = max(0, min(desired - len(new), desired + surge - len(new) - len(old)))
    stop = [replica.id for replica in old if replica.state == "starting"]
    old_ready = sorted((replica for replica in old if replica.state == "ready"), key=lambda replica: replica.order)
    ready = len(old_ready) + sum(replica.state == "ready" for replica in new)
    stop += [replica.id for replica in old_ready[: max(0, ready - desired)]]
    # Those still starting serve nobody: they go first, then the newest.
    by_worth = sorted(new, key=lambda replica: (replica.state == "ready", -replica.order))
    stop += [replica.id for replica in by_worth[: max(0, len(new) - desired)]]
    return Plan(start, tuple(stop))
