"""Which replica serves a call: by a rule, among ready replicas with a free slot.

Rules decide call by call: least calls in flight (``least-loaded``), the same among replicas on the ingress's own node
first (``local-first``; Prism), the one not used for longest (``round-robin``), any (``random``). A caller that decides
a layer as a whole names a node for its call, which then goes before the rule. No rule makes a call wait while any
replica has a free slot.

A replica has as many slots as its function's ``max_inflight``. Calls that find none wait in order of arrival, bounded
in number and by their deadline. A call that fails for a reason of the platform (no connection, broken reply, 5xx marked
by the platform) is repeated on another replica: functions are pure, so a second run gives the same answer. A 429 means
that the work was not begun; the call waits for its turn again. Other 4xx are final.

A replica that could not be reached is set aside, each time for twice as long, until the feed names it again or one call
that tries it comes through.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from functions.dispatch.client import ConnectionPool, RawReply, ReplyTimeoutError, TransportError
from functions.wire.errors import (
    DeadlineError,
    NodeFailedError,
    NodeRefusedError,
    NoReplicaError,
    NotDeployedError,
    OverloadedError,
)
from functions.wire.layout import CONTENT_TYPE
from functions.wire.messages import PLATFORM_FAILED, REQUEST_ID, TIMEOUT_MS, Body
from platform_words.headers import CALLER_KEY

Rule = Literal["least-loaded", "local-first", "round-robin", "random"]

MAX_ATTEMPTS = 5
SUSPEND_S = 0.5
"""How long a replica that could not be reached is set aside the first time."""
MAX_SUSPEND_S = 8.0
ABSENT_S = 0.5
"""How long calls wait for a function that is not among those deployed, which may be about to be."""
BUSY_WAIT_S = 0.005
"""How long a replica that answered 429 is left alone."""


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


@dataclass(slots=True)
class _Waiter:
    """A call that waits for a slot; ``avoid`` are replicas that failed it, ``node`` is where it would rather go."""

    turn: asyncio.Future[Slot]
    avoid: set[str]
    node: str


@dataclass(slots=True)
class _Function:
    name: str
    max_inflight: int = 0
    in_turn: bool = False
    """Equally loaded replicas take turns: it has standbys, and each has a CPU quota of its own to use."""
    busy_s: float = 0.0
    """Replica-seconds with a call, up to the last time that a replica had none."""
    opening: Opening | None = None
    """The last activation that opened a replica of it, until the next call."""
    deployed: bool = True
    """It is in the last table, if only with no ready replica; or there was no table yet."""
    slots: dict[str, Slot] = field(default_factory=dict)
    waiting: deque[_Waiter] = field(default_factory=deque)


@dataclass(slots=True)
class CallRecord:
    """What a finished call cost: seconds waited for a slot, seconds at replicas, repeats by reason; and the node of the
    replica that was asked last."""

    wait_s: float = 0.0
    busy_s: float = 0.0
    status: str = "error"
    repeats: list[str] = field(default_factory=list)
    node: str = ""


class Dispatcher:
    """Calls functions by name through whatever replicas :meth:`update` has named."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        queue_limit: int = 1000,
        rule: Rule = "least-loaded",
        own_node: str = "",
    ) -> None:
        """``own_node``: the machine of this ingress, where ``local-first`` looks first."""
        self._loop = loop
        self._queue_limit = queue_limit
        self._functions: dict[str, _Function] = {}
        self._rule = rule
        self._node = own_node if rule == "local-first" else ""
        self._turn = 0
        self.opening: Opening | None = None
        """An activation under way: replicas that become known meanwhile are its."""
        self.version = 0
        """Counts tables of replicas, so that what is derived from one is made once."""

    def update(self, functions: Mapping[str, FunctionReplicas]) -> None:
        """The full table of ready replicas; replicas no longer named get no new calls."""
        self.version += 1
        for name, function in self._functions.items():
            if name not in functions:
                function.deployed = False
                self._set_replicas(function, ())
                self._expect(function)
        for name, replicas in functions.items():
            function = self._functions.setdefault(name, _Function(name))
            function.deployed = True
            function.max_inflight, function.in_turn = replicas.max_inflight, bool(replicas.burst)
            self._set_replicas(function, replicas.replicas)
            self._grant(function)

    def merge(self, functions: Mapping[str, FunctionReplicas]) -> None:
        """Ready replicas of some functions, the others as they are."""
        self.version += 1
        for name, replicas in functions.items():
            function = self._functions.setdefault(name, _Function(name))
            function.deployed = True
            function.max_inflight, function.in_turn = replicas.max_inflight, bool(replicas.burst)
            self._set_replicas(function, replicas.replicas)
            self._grant(function)

    def busy_s(self, name: str) -> float:
        """Replica-seconds in which replicas of a function had a call from this dispatcher, so far."""
        function = self._functions.get(name)
        if function is None:
            return 0.0
        now_s = self._loop.time()
        return function.busy_s + sum(now_s - slot.busy_from_s for slot in function.slots.values() if slot.in_flight)

    def in_flight(self, name: str) -> int:
        """Calls at replicas of a function now."""
        function = self._functions.get(name)
        return sum(slot.in_flight for slot in function.slots.values()) if function else 0

    def replicas(self, name: str) -> list[ReplicaAddress]:
        """A function's ready replicas."""
        function = self._functions.get(name)
        return [slot.replica for slot in function.slots.values()] if function else []

    def close(self) -> None:
        """Close every connection."""
        for function in self._functions.values():
            self._set_replicas(function, ())

    async def call(
        self,
        name: str,
        path: str,
        chunks: Sequence[Body],
        *,
        deadline_s: float,
        request_id: str,
        record: CallRecord,
        node: str = "",
    ) -> RawReply:
        """One call of ``POST path`` to a replica of ``name``, repeated where that is right; the reply has status 200.

        ``deadline_s`` is on the loop's clock; ``node`` is where it goes if a replica there has a free slot. Raises the
        errors of ``functions.wire.errors``.
        """
        function = self._known(name)
        avoid: set[str] = set()
        last = "it had no ready replica"
        failures = 0
        while failures < MAX_ATTEMPTS:
            begun_s = self._loop.time()
            # Calls that wait already were here first: a new one must not take the slot that becomes free for them.
            slot = None if function.waiting else self._choose(function, avoid, node, begun_s)
            if slot is None:
                waited_from_s = begun_s
                slot = await self._acquire(function, deadline_s, avoid, last, node)
                begun_s = self._loop.time()
                record.wait_s += begun_s - waited_from_s
            record.node = slot.replica.node
            try:
                reply = await _post(slot, path, chunks, deadline_s - begun_s, request_id)
                slot.failures = 0
                if reply.status == 429:
                    self._suspend(function, slot, BUSY_WAIT_S)
            except ReplyTimeoutError:  # all of the request's time was spent here: nothing is left for another replica
                raise DeadlineError(f"{name} did not answer within the request's time") from None
            except TransportError as error:
                failures += 1
                last = str(error)
                record.repeats.append(error.reason)
                self._failed(function, slot, avoid)
                continue
            finally:
                record.busy_s += self._loop.time() - begun_s
                self._release(function, slot)
            record.status = str(reply.status)
            if reply.status == 200:
                if slot.opening is not None:
                    slot.opening.answered(self._loop.time())
                    slot.opening = None
                return reply
            if reply.status == 429:  # not begun, so it counts as no attempt
                record.repeats.append("busy")
                last = "its replicas were busy"
                continue
            if reply.status == 504:
                raise DeadlineError(f"{name}: {_sentence(reply)}")
            if reply.status >= 500 and PLATFORM_FAILED in reply.headers:
                failures += 1
                last = f"it answered {reply.status}: {_sentence(reply)}"
                record.repeats.append("status")
                if not slot.replica.balanced:  # behind a balanced address the next call may reach another replica
                    avoid.add(slot.replica.id)
                continue
            # An error of the function itself. It is pure, so another replica would give the same one.
            if reply.status < 500:
                raise NodeRefusedError(f"{name} answered {reply.status}: {_sentence(reply)}", reply.status)
            raise NodeFailedError(f"{name} answered {reply.status}: {_sentence(reply)}")
        raise NodeFailedError(f"{name} failed {failures} times; the last time {last}")

    def take(self, name: str, node: str = "") -> Slot | None:
        """A slot as a call would get it now, for :meth:`send`; to be given back with :meth:`release`. None: all are
        taken, or others wait for one."""
        function = self._known(name)
        return None if function.waiting else self._choose(function, set(), node, self._loop.time())

    def release(self, name: str, slot: Slot) -> None:
        """Give a slot back that :meth:`take` gave."""
        self._release(self._functions[name], slot)

    async def send(
        self,
        name: str,
        slot: Slot,
        path: str,
        chunks: Sequence[Body],
        *,
        deadline_s: float,
        request_id: str,
        headers: Sequence[tuple[str, str]] = (),
    ) -> RawReply:
        """One message to a taken slot of ``name``; the reply has whatever status. A replica that cannot be reached is
        set aside. Raises TransportError, DeadlineError."""
        try:
            reply = await _post(slot, path, chunks, deadline_s - self._loop.time(), request_id, headers)
        except ReplyTimeoutError:
            raise DeadlineError(f"{name} did not answer within the request's time") from None
        except TransportError:
            self._failed(self._functions[name], slot, set())
            raise
        slot.failures = 0
        return reply

    async def call_replica(
        self,
        name: str,
        replica_id: str,
        path: str,
        chunks: Sequence[Body],
        *,
        deadline_s: float,
        request_id: str,
        record: CallRecord,
        headers: Sequence[tuple[str, str]] = (),
    ) -> RawReply:
        """One call to this very replica of ``name``, as it holds what the call goes on from; while it is busy (429) the
        call waits. The reply has any other status. Raises TransportError, also where the replica is not in the table,
        and DeadlineError."""
        while True:
            begun_s = self._loop.time()
            function = self._functions.get(name)
            slot = function.slots.get(replica_id) if function is not None else None
            if function is None or slot is None:
                raise TransportError(f"{name} has no replica {replica_id} any more", reason="connect")
            if deadline_s <= begun_s:
                raise DeadlineError(f"the request's time was spent waiting for {name}")
            record.node = slot.replica.node
            try:
                reply = await self.send(
                    name,
                    _taken(slot, begun_s),
                    path,
                    chunks,
                    deadline_s=deadline_s,
                    request_id=request_id,
                    headers=headers,
                )
            except TransportError as error:
                record.repeats.append(error.reason)
                raise
            finally:
                record.busy_s += self._loop.time() - begun_s
                self._release(function, slot)
            record.status = str(reply.status)
            if reply.status != 429:
                return reply
            record.repeats.append("busy")
            await asyncio.sleep(BUSY_WAIT_S)

    def absent(self, names: Sequence[str]) -> list[str]:
        """Those of some functions that are not deployed."""
        return [name for name in names if not self._known(name).deployed]

    # slots

    def _known(self, name: str) -> _Function:
        function = self._functions.get(name)
        if function is None:
            function = self._functions[name] = _Function(name, deployed=not self.version)
        return function

    def _expect(self, function: _Function) -> None:
        """Have the calls that wait for a function that is not deployed refused, unless it is deployed soon."""
        if function.waiting:
            self._loop.call_later(ABSENT_S, self._refuse_absent, function)

    def _refuse_absent(self, function: _Function) -> None:
        while function.waiting and not function.deployed:
            waiter = function.waiting.popleft()
            if not waiter.turn.done():
                waiter.turn.set_exception(NotDeployedError(f"{function.name} is not deployed"))

    def _set_replicas(self, function: _Function, replicas: Sequence[ReplicaAddress]) -> None:
        wanted = {replica.id: replica for replica in replicas}
        for replica_id in [key for key in function.slots if key not in wanted]:
            slot = function.slots.pop(replica_id)
            slot.pool.close()
        for replica_id, replica in wanted.items():
            slot_or_none = function.slots.get(replica_id)
            # The same id at another address is a restarted process: its connections and failures are not the old one's.
            if slot_or_none is None or slot_or_none.replica.address != replica.address:
                if slot_or_none is not None:
                    slot_or_none.pool.close()
                function.slots[replica_id] = Slot(replica, ConnectionPool(replica.address), opening=self.opening)
                if self.opening is not None and function.opening is not self.opening:
                    function.opening = self.opening
                    self.opening.opened()
            else:
                slot_or_none.replica = replica

    def _failed(self, function: _Function, slot: Slot, avoid: set[str]) -> None:
        """Set a replica aside that could not be reached or broke off."""
        if slot.suspended_until_s <= self._loop.time():  # calls that fail together count once
            slot.failures += 1
        if slot.replica.balanced:
            self._suspend(function, slot, BUSY_WAIT_S * slot.failures)
        else:
            avoid.add(slot.replica.id)
            self._suspend(function, slot, min(MAX_SUSPEND_S, SUSPEND_S * 2 ** (slot.failures - 1)))

    def _suspend(self, function: _Function, slot: Slot, pause_s: float) -> None:
        until_s = self._loop.time() + pause_s
        if until_s > slot.suspended_until_s:
            slot.suspended_until_s = until_s
            # No call ends at that time to hand the slot on. A little later, as timers may fire a clock tick early.
            self._loop.call_at(until_s + 0.001, self._grant, function)

    def _choose(self, function: _Function, avoid: set[str], node: str, now_s: float) -> Slot | None:
        """Take a free slot: on ``node`` where it can be, then by the rule, then in the feed's order, or in turn where
        the function has standbys.

        Replicas that failed this call only where there is no other.
        """
        limit = function.max_inflight
        if function.opening is not None:
            function.opening.wanted(now_s)
            function.opening = None
        if len(function.slots) == 1:  # the usual case, once for each of a pass' calls: nothing to rank
            (slot,) = function.slots.values()
            if (limit and slot.in_flight >= limit) or slot.suspended_until_s > now_s:
                return None
            if slot.failures and slot.in_flight and not slot.replica.balanced:
                return None
            return _taken(slot, now_s)
        rule = self._rule
        node = node or self._node
        best: Slot | None = None
        best_rank: tuple[bool, bool, float, int] = (True, True, 0, 0)
        others = False
        for slot in function.slots.values():
            avoided = slot.replica.id in avoid
            others |= not avoided
            if (limit and slot.in_flight >= limit) or slot.suspended_until_s > now_s:
                continue
            if (
                slot.failures and slot.in_flight and not slot.replica.balanced
            ):  # one call at a time finds out whether it is back
                continue
            if rule == "round-robin":
                order: float = slot.turn
            else:
                order = random.random() if rule == "random" else slot.in_flight
            rank = (avoided, node != "" and slot.replica.node != node, order, slot.turn if function.in_turn else 0)
            if best is None or rank < best_rank:
                best, best_rank = slot, rank
        # Where only replicas that failed this call are free, it waits for one of the others.
        if best is None or (best_rank[0] and others):
            return None
        self._turn += 1
        best.turn = self._turn
        return _taken(best, now_s)

    async def _acquire(self, function: _Function, deadline_s: float, avoid: set[str], last: str, node: str) -> Slot:
        """Wait in order of arrival for a slot, counted as in flight. Raises OverloadedError and as ``_too_late``."""
        if len(function.waiting) >= self._queue_limit:
            raise OverloadedError(f"{function.name} has {self._queue_limit} calls waiting; try again later")
        if deadline_s <= self._loop.time():
            raise self._too_late(function, last)
        waiter = _Waiter(self._loop.create_future(), avoid, node)
        function.waiting.append(waiter)
        if not function.deployed:
            self._expect(function)
        timer = self._loop.call_at(deadline_s, self._expire, function, waiter, last)
        self._grant(function)
        try:
            return await waiter.turn
        except asyncio.CancelledError:
            # The slot may have been granted in the same turn of the loop: nobody else would give it back.
            if waiter.turn.done() and not waiter.turn.cancelled() and waiter.turn.exception() is None:
                self._release(function, waiter.turn.result())
            raise
        finally:
            timer.cancel()

    def _grant(self, function: _Function) -> None:
        """Hand free slots to those who wait, first come first served."""
        waiting, kept = function.waiting, []
        while waiting:
            waiter = waiting.popleft()
            if waiter.turn.done():
                continue
            slot = self._choose(function, waiter.avoid, waiter.node, self._loop.time())
            if slot is not None:
                waiter.turn.set_result(slot)
                continue
            kept.append(waiter)  # it avoids what is free; those behind it may not
            if not waiter.avoid:  # no slot is free at all
                break
        waiting.extendleft(reversed(kept))

    def _expire(self, function: _Function, waiter: _Waiter, last: str) -> None:
        if not waiter.turn.done():
            waiter.turn.set_exception(self._too_late(function, last))
            function.waiting.remove(waiter)

    def _release(self, function: _Function, slot: Slot) -> None:
        slot.in_flight -= 1
        if not slot.in_flight:
            function.busy_s += self._loop.time() - slot.busy_from_s
        if function.waiting:
            self._grant(function)

    def _too_late(self, function: _Function, last: str) -> Exception:
        if not function.slots:
            return NoReplicaError(f"{function.name} has no ready replica; {last}")
        return DeadlineError(f"the request's time was spent waiting for {function.name}; {last}")


def _taken(slot: Slot, now_s: float) -> Slot:
    if not slot.in_flight:
        slot.busy_from_s = now_s
        if slot.opening is not None:
            slot.opening.called(now_s)
    slot.in_flight += 1
    return slot


def _post(
    slot: Slot,
    path: str,
    chunks: Sequence[Body],
    left_s: float,
    request_id: str,
    headers: Sequence[tuple[str, str]] = (),
) -> Coroutine[Any, Any, RawReply]:
    """One request with ``left_s`` seconds of time. Raises TransportError when awaited."""
    start = slot.heads.get(path)
    if start is None:
        key = f"{CALLER_KEY}: {slot.replica.key}\r\n" if slot.replica.key else ""
        start = slot.heads[path] = (
            f"POST {path} HTTP/1.1\r\nhost: {slot.replica.address}\r\ncontent-type: {CONTENT_TYPE}\r\n{key}"
        )
    more = "".join([f"{name}: {value}\r\n" for name, value in headers]) if headers else ""
    head = (
        f"{start}content-length: {sum(map(len, chunks))}\r\n{REQUEST_ID}: {request_id}\r\n{more}"
        f"{TIMEOUT_MS}: {left_s * 1000:.1f}\r\n\r\n"
    )
    return slot.pool.call(head.encode("latin-1", "replace"), chunks, left_s)


def _sentence(reply: RawReply) -> str:
    return bytes(reply.body[:300]).decode("utf-8", "replace")
