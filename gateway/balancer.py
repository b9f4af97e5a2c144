"""Which replica of a function gets a call: least calls in flight, replicas with a free slot first."""

from __future__ import annotations

from collections import Counter

from gateway.contract import FunctionState, Replica


class Balancer:
    """Counts calls in flight by replica id."""

    def __init__(self) -> None:
        self._in_flight: Counter[str] = Counter()

    def choose(self, state: FunctionState, avoid: set[str]) -> Replica | None:
        """The best ready replica not in ``avoid``, or None. A full replica is chosen only where all are full."""
        best: Replica | None = None
        best_rank = (True, 0)
        for replica in state.replicas:
            if replica.state != "ready" or replica.id in avoid:
                continue
            count = self._in_flight[replica.id]
            rank = (0 < state.max_inflight <= count, count)
            if best is None or rank < best_rank:
                best, best_rank = replica, rank
        return best

    def begin(self, replica_id: str) -> None:
        self._in_flight[replica_id] += 1

    def end(self, replica_id: str) -> None:
        self._in_flight[replica_id] -= 1
        if self._in_flight[replica_id] <= 0:
            del self._in_flight[replica_id]
