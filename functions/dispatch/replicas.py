"""What a dispatcher knows of replicas: their table as the feed gives it, their slots, and who waits for one."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

from functions.dispatch.client import ConnectionPool


@dataclass(frozen=True)
class ReplicaAddress:
    """A ready replica: ``id`` is unique, ``address`` is host:port.

    ``balanced``: a service's address with any number of replicas behind it; one failure predicts little about the next
    call. ``node``: the machine it runs on, empty where that is not known. ``key``: what it takes calls with, empty
    where anybody may call.
    """

    id: str
    address: str
    balanced: bool = False
    node: str = ""
    key: str = field(default="", repr=False)


@dataclass(frozen=True)
class FunctionReplicas:
    """Ready replicas of a function and how many calls each takes at once (0 = no limit)."""

    max_inflight: int
    replicas: tuple[ReplicaAddress, ...]
    desired: int = 0
    """How many of them always run, where the function has standbys."""
    burst: str = ""
    """Its standbys and their rule (:mod:`platform_words.bursts`); empty without any."""
    standbys: tuple[ReplicaAddress, ...] = ()
    """Those that wait, in the order in which they are activated."""
    draining: tuple[ReplicaAddress, ...] = ()
    """Those that get no new calls and are about to end."""


@dataclass(slots=True)
class Opening:
    """An activation of standbys: when a request found too few replicas, and seconds from then until those of all
    functions could be called, until the next call was for one of these functions, whichever replica got it, until the
    first call began at one of the standbys, and until the first one was answered."""

    begun_s: float
    functions: int = 0
    """How many got one or more."""
    open_s: float | None = None
    next_call_s: float | None = None
    first_call_s: float | None = None
    first_answer_s: float | None = None

    def opened(self) -> None:
        """Another function has a standby of this activation."""
        self.functions += 1

    def wanted(self, now_s: float) -> None:
        """A call is for a function of this activation."""
        if self.next_call_s is None:
            self.next_call_s = now_s - self.begun_s

    def called(self, now_s: float) -> None:
        """A call begins at a replica of this activation."""
        if self.first_call_s is None:
            self.first_call_s = now_s - self.begun_s

    def answered(self, now_s: float) -> None:
        """A call was answered by a replica of this activation."""
        if self.first_answer_s is None:
            self.first_answer_s = now_s - self.begun_s


@dataclass(slots=True)
class Slot:
    """A replica as the dispatcher sees it."""

    replica: ReplicaAddress
    pool: ConnectionPool
    in_flight: int = 0
    turn: int = 0
    """When it was last chosen, in choices of this dispatcher."""
    suspended_until_s: float = 0.0
    failures: int = 0
    """Calls in a row that could not reach it."""
    busy_from_s: float = 0.0
    """Since when it has had a call, where it has one."""
    opening: Opening | None = None
    """The activation that opened it, until it has answered a call."""
    heads: dict[str, str] = field(default_factory=dict)
    """Path → the part of a request's head that is the same in each."""


@dataclass(slots=True, eq=False)
class Waiter:
    """A call that waits for a slot; ``avoid`` are replicas that failed it, ``node`` is where it would rather go."""

    turn: asyncio.Future[Slot]
    avoid: set[str]
    node: str


@dataclass(slots=True)
class FunctionSlots:
    name: str
    max_inflight: int = 0
    busy_s: float = 0.0
    """Replica-seconds with a call, up to the last time that a replica had none."""
    opening: Opening | None = None
    """The last activation that opened a replica of it, until the next call."""
    deployed: bool = True
    """It is in the last table, if only with no ready replica; or there was no table yet."""
    slots: dict[str, Slot] = field(default_factory=dict)
    draining: dict[str, Slot] = field(default_factory=dict)
    """Replicas that end, for those who go on from what they hold."""
    waiting: deque[Waiter] = field(default_factory=deque)
