"""Which replica of a function gets a call: least calls in flight, replicas with a free slot first."""

from __future__ import annotations

from collections import Counter

from gateway.contract import FunctionState, Replica


class Balancer:
    """Counts calls in flight by replica id."""

    def __init__(self) -> None:
        self.in_flight: Counter[str] = Counter()
        self._turn = 0

    def choose(self, state: FunctionState, avoid: set[str]) -> Replica | None:
        """The best ready replica not in ``avoid``, or None. A full replica is chosen only where all are full.

        Replicas that are equal take turns.
        """
        replicas = [replica for replica in state.replicas if replica.state == "ready" and replica.id not in avoid]
        if len(replicas) < 2:
            return replicas[0] if replicas else None
        self._turn += 1
        start = self._turn % len(replicas)
        limit = state.max_inflight

        def rank(replica: Replica) -> tuple[bool, int]:
            count = self.in_flight[replica.id]
            return 0 < limit <= count, count

        return min(replicas[start:] + replicas[:start], key=rank)

    def begin(self, replica_id: str) -> None:
        self.in_flight[replica_id] += 1

    def end(self, replica_id: str) -> None:
        self.in_flight[replica_id] -= 1
        if self.in_flight[replica_id] <= 0:
            del self.in_flight[replica_id]
