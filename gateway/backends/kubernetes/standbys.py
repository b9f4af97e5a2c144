"""Standbys of a function: pods that are ready, have an active one's limits and next to no CPU request, and get no calls
until they are activated.

A Deployment has the ordered replicas and the standbys. Which pods take calls follows from the pods alone, so that all
gateways come to the same: the oldest ones, as many as always run and are activated. Computes only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from gateway.backends.kubernetes.api import Object
from gateway.contract import FunctionSpec, FunctionState, InvalidSpecError, Replica
from gateway.specs import burst_of
from platform_words.bursts import ordered_among, pods_in_all


def standbys_of(spec: FunctionSpec) -> tuple[int, bool]:
    """As :func:`gateway.specs.burst_of`; a rule that cannot be read, which somebody else wrote, is none."""
    try:
        return burst_of(spec)
    except InvalidSpecError:
        return 0, False


def pods_for(ordered: int, spec: FunctionSpec) -> int:
    """Replicas of the Deployment of a function with ``ordered`` ones."""
    return pods_in_all(ordered, standbys_of(spec)[0])


def ordered_of(document: Object, spec: FunctionSpec) -> int:
    """Replicas of a function that were ordered, those of its Deployment without standbys."""
    return ordered_among(document["spec"].get("replicas", 1), standbys_of(spec)[0])


def waiting(ordered: int, spec: FunctionSpec) -> int:
    """Replicas that take no calls until they are activated; a function that was scaled to zero has none."""
    standbys, sleeps = standbys_of(spec)
    return (standbys + ordered if sleeps else standbys) if ordered else 0


def opened(replicas: Iterable[Replica], count: int) -> Iterator[Replica]:
    """``replicas``, oldest first; of the ready ones ``count`` take calls and the others stand by."""
    for replica in replicas:
        if replica.state == "ready":
            count -= 1
            yield replica if count >= 0 else replace(replica, state="standby")
        else:
            yield replica


class Lowered:
    """Which standbys of one namespace give up their CPU request now. Times are seconds of one clock that only grows.

    One that was released waits ``held_s``, to answer the calls that it still has. One that was not activated here waits
    ``others_s``: it is new, or another gateway has it activated and asks for its request again at once.
    """

    def __init__(self, held_s: float, others_s: float) -> None:
        self._held_s, self._others_s = held_s, others_s
        self._since_s: dict[str, tuple[float, float]] = {}
        """Standby → since when it waits with its request, and how long it keeps that."""
        self._activated: set[str] = set()

    def look(self, state: FunctionState, raised: Collection[str], now_s: float) -> tuple[set[str], float | None]:
        """(pods, seconds) of the function in ``state``: standbys that are to request next to nothing, and when there
        may be more. ``raised``: pods with more of a request than that."""
        lowered, next_s = set(), None
        for replica in state.replicas:
            if replica.state != "standby":
                self._since_s.pop(replica.id, None)
                if replica.state == "ready" and state.standbys:
                    self._activated.add(replica.id)
                continue
            if replica.id not in raised:
                self._forget(replica.id)
                lowered.add(replica.id)
                continue
            held_s = self._held_s if replica.id in self._activated else self._others_s
            since_s, held_s = self._since_s.setdefault(replica.id, (now_s, held_s))
            left_s = since_s + held_s - now_s
            if left_s <= 0:
                lowered.add(replica.id)
            else:
                next_s = left_s if next_s is None else min(next_s, left_s)
        return lowered, next_s

    def keep(self, pods: Iterable[str]) -> None:
        """Only these are there still."""
        present = set(pods)
        for pod in (self._since_s.keys() | self._activated) - present:
            self._forget(pod)

    def _forget(self, pod: str) -> None:
        self._since_s.pop(pod, None)
        self._activated.discard(pod)
