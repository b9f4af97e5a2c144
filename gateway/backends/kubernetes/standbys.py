"""Standbys of a function: pods that are ready, have an active one's limits, and get no calls until they are activated.

They request next to no CPU after their first minute, in class Guaranteed as much as an active one. A Deployment has the
ordered replicas and the standbys; as many take calls as always run and are activated, on different machines where they
can, then the oldest. All gateways order pods the same way, but each knows only the activations that it was asked for,
and those that last by a note on the pod. Computes only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from gateway.backends.kubernetes.api import Object
from gateway.contract import FunctionSpec, FunctionState, InvalidSpecError, Replica
from gateway.specs import burst_of
from platform_words.bursts import ordered_among, pods_in_all
from platform_words.labels import ACTIVATED

NOTED_S = 600.0
"""How long a note of an activation holds; it is renewed at half of that. Clocks of gateways may differ by minutes."""


@dataclass(frozen=True)
class Note:
    """On a pod (annotation ``smoe.activated``): ``gateway`` has it activated, for ``left_s`` seconds still."""

    gateway: str
    left_s: float

    @staticmethod
    def of(pod: Object, now_s: float) -> Note:
        """``now_s``: Unix time. Without a note, or with one that no gateway writes, nobody's, for no time: the pod of a
        note without end would keep its request for ever."""
        until_s, _, gateway = (pod["metadata"].get("annotations") or {}).get(ACTIVATED, "").partition(" ")
        readable = until_s.isascii() and until_s.isdigit() and len(until_s) < 16  # a superscript two is a digit, too
        left_s = float(until_s) - now_s if readable else 0.0
        return Note(gateway, left_s) if readable and left_s <= 2 * NOTED_S else Note("", 0.0)


@dataclass
class Look:
    """What is to be done about the standbys of one function now."""

    lowered: set[str] = field(default_factory=set)
    """Pods that are to request next to nothing."""
    noted: dict[str, bool] = field(default_factory=dict)
    """Pods that get a note, and those that lose it."""
    again_s: float | None = None
    """Seconds until there may be more to do."""

    def wait(self, left_s: float) -> None:
        self.again_s = left_s if self.again_s is None else min(self.again_s, left_s)


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
    """``replicas``, which come oldest first; of the ready ones ``count`` take calls and the others stand by. The oldest
    of each machine go first, then each one's second: the loss of a machine is to leave one that takes calls."""
    before: Counter[str] = Counter()
    rank: dict[str, int] = {}
    there = list(replicas)
    for replica in there:
        rank[replica.id] = before[replica.machine]
        before[replica.machine] += replica.state == "ready"
    for replica in sorted(there, key=lambda one: rank[one.id]):
        if replica.state == "ready":
            count -= 1
            yield replica if count >= 0 else replace(replica, state="standby")
        else:
            yield replica


class Lowered:
    """Which standbys of one namespace give up their CPU request now, and which pods ``gateway`` notes as activated.

    One that was released waits ``held_s``, to answer the calls that it still has. One that was not activated here waits
    ``others_s``: it is new, or another gateway has it activated. An activated pod that has not been lowered for half of
    that gets a note until it is, and whoever finds another's note there leaves the pod alone: so activations that
    follow each other closely are one to all gateways.
    """

    def __init__(self, gateway: str, held_s: float, others_s: float) -> None:
        self._gateway = gateway
        self._held_s, self._others_s = held_s, others_s
        self._waits_since_s: dict[str, float] = {}
        """Standby → since when it waits with its request and without another gateway's note."""
        self._activated_since_s: dict[str, float] = {}
        """Pod → when it was first activated here since it last requested next to nothing."""
        self._opened: set[str] = set()
        """Pods that took calls since they last requested next to nothing."""

    def look(self, state: FunctionState, raised: Collection[str], notes: Mapping[str, Note], now_s: float) -> Look:
        """What to do about the function in ``state`` at ``now_s``, seconds of a clock that only grows. ``raised``: pods
        with more of a request than next to nothing."""
        look, activated = Look(), {replica.id for replica in state.ready[len(state.ready) - state.activated :]}
        for replica in state.replicas:
            pod, note = replica.id, notes.get(replica.id, Note("", 0.0))
            noted_here = note.gateway == self._gateway
            if replica.state == "ready" and state.standbys:
                self._opened.add(pod)
            if pod in activated:
                self._note(pod, note, now_s, look)
            if replica.state == "standby" and (noted_here or note.left_s <= 0):
                self._lower(pod, pod in raised, now_s, look)
            else:
                self._waits_since_s.pop(pod, None)
            always = replica.state == "ready" and pod not in activated
            if noted_here and (always or pod in look.lowered):
                look.noted[pod] = False
        return look

    def _note(self, pod: str, note: Note, now_s: float, look: Look) -> None:
        since_s = self._activated_since_s.setdefault(pod, now_s)
        left_s = max(since_s + self._others_s / 2 - now_s, note.left_s - NOTED_S / 2)
        if left_s <= 0:
            look.noted[pod], left_s = True, NOTED_S / 2
        look.wait(left_s)

    def _lower(self, pod: str, raised: bool, now_s: float, look: Look) -> None:
        if not raised:
            self._forget(pod)
        held_s = self._held_s if pod in self._opened else self._others_s
        left_s = self._waits_since_s.setdefault(pod, now_s) + held_s - now_s if raised else 0.0
        if left_s <= 0:
            look.lowered.add(pod)
        else:
            look.wait(left_s)

    def keep(self, pods: Iterable[str]) -> None:
        """Only these are there still."""
        for pod in (self._waits_since_s.keys() | self._activated_since_s.keys() | self._opened) - set(pods):
            self._forget(pod)

    def _forget(self, pod: str) -> None:
        self._waits_since_s.pop(pod, None)
        self._activated_since_s.pop(pod, None)
        self._opened.discard(pod)
