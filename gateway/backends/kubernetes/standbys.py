"""Standbys of a function: pods that are ready, have an active one's limits, and get no calls until they are activated.

They request next to no CPU after their first minute, in class Guaranteed as much as an active one. A Deployment has the
ordered replicas and the standbys; those that take calls are the oldest, as many as always run and are activated. All
gateways order pods the same way, but each knows only the activations that it was asked for. Computes only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from gateway.backends.kubernetes.api import Object
from gateway.contract import FunctionSpec, FunctionState, InvalidSpecError, Replica
from gateway.specs import burst_of
from platform_words.bursts import ordered_among, pods_in_all

MOST_DOUBLINGS = 4
"""How often the wait doubles for a pod that another gateway has activated: a minute becomes 16."""


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
    ``others_s``: it is new, or another gateway has it activated and asks for its request again at once. Lowered
    once more for that, it waits twice as long the next time, up to 2**``MOST_DOUBLINGS`` times, until it is activated
    here.
    """

    def __init__(self, held_s: float, others_s: float) -> None:
        self._held_s, self._others_s = held_s, others_s
        self._since_s: dict[str, tuple[float, float]] = {}
        """Standby → since when it waits with its request, and how long it keeps that."""
        self._activated: set[str] = set()
        self._doublings: dict[str, int] = {}
        """Pod → how often its wait doubled. The first time that it is lowered it may just have been new."""

    def look(self, state: FunctionState, raised: Collection[str], now_s: float) -> tuple[set[str], float | None]:
        """(pods, seconds) of the function in ``state``: standbys that are to request next to nothing, and when there
        may be more. ``raised``: pods with more of a request than that."""
        lowered, next_s = set(), None
        for replica in state.replicas:
            if replica.state != "standby":
                self._since_s.pop(replica.id, None)
                self._doublings.pop(replica.id, None)
                if replica.state == "ready" and state.standbys:
                    self._activated.add(replica.id)
                continue
            if replica.id not in raised:
                if self._since_s.pop(replica.id, None) is not None:
                    self._doublings[replica.id] = min(MOST_DOUBLINGS, self._doublings.get(replica.id, -1) + 1)
                self._activated.discard(replica.id)
                lowered.add(replica.id)
                continue
            others_s = self._others_s * 2 ** self._doublings.get(replica.id, 0)
            held_s = self._held_s if replica.id in self._activated else others_s
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
        for pod in (self._since_s.keys() | self._activated | self._doublings.keys()) - present:
            self._forget(pod)

    def _forget(self, pod: str) -> None:
        self._doublings.pop(pod, None)
        self._since_s.pop(pod, None)
        self._activated.discard(pod)
