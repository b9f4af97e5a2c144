"""Which replica gets a call: by a rule, among ready replicas with a free slot.

Rules decide call by call: least calls in flight, equals in turn (``least-loaded``), the same among replicas on the
ingress's own node first (``local-first``; Prism), the one not used for longest (``round-robin``), any (``random``). A
caller that decides a layer as a whole names a node for its call, which then goes before the rule. No rule makes a call
wait while any replica has a free slot.

A replica has as many slots as its function's ``max_inflight``. Calls that find none wait in order of arrival, bounded
in number and by their deadline. A replica that could not be reached is set aside, each time for twice as long, until
it has another address or one call that tries it comes through.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Literal

from functions.dispatch.client import ConnectionPool
from functions.dispatch.replicas import FunctionReplicas, FunctionSlots, Opening, ReplicaAddress, Slot, Waiter
from functions.wire.errors import DeadlineError, NoReplicaError, NotDeployedError, OverloadedError

Rule = Literal["least-loaded", "local-first", "round-robin", "random"]

SUSPEND_S = 0.5
"""How long a replica that could not be reached is set aside the first time."""
MAX_SUSPEND_S = 8.0
ABSENT_S = 0.5
"""How long calls wait for a function that is not among those deployed, which may be about to be."""
BUSY_WAIT_S = 0.005
"""How long a replica that answered 429 is left alone."""


class Slots:
    """The slots of all functions' replicas, and the calls that wait for one."""

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
        self._functions: dict[str, FunctionSlots] = {}
        self._rule = rule
        self._node = own_node if rule == "local-first" else ""
        self._turn = 0
        self.opening: Opening | None = None
        """An activation under way: replicas that become known meanwhile are its."""
        self.version = 0
        """Counts tables of replicas, so that what is derived from one is made once."""

    def update(self, functions: Mapping[str, FunctionReplicas]) -> None:
        """The full table of ready replicas; replicas no longer named get no new calls."""
        for name, function in self._functions.items():
            if name not in functions:
                function.deployed = False
                self._set_replicas(function, ())
                self._expect(function)
        self.merge(functions)

    def merge(self, functions: Mapping[str, FunctionReplicas]) -> None:
        """Ready replicas of some functions, the others as they are."""
        self.version += 1
        for name, replicas in functions.items():
            function = self._functions.setdefault(name, FunctionSlots(name))
            function.deployed = True
            function.max_inflight = replicas.max_inflight
            self._set_replicas(function, replicas.replicas, replicas.draining)
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

    def draining(self, name: str) -> list[ReplicaAddress]:
        """Replicas of a function that were ready and are about to end."""
        function = self._functions.get(name)
        return [slot.replica for slot in function.draining.values()] if function else []

    def close(self) -> None:
        """Close every connection."""
        for function in self._functions.values():
            self._set_replicas(function, ())

    def take(self, name: str, node: str = "") -> Slot | None:
        """A slot as a call would get it now, for :meth:`send`; to be given back with :meth:`release`. None: all are
        taken, or others wait for one."""
        function = self._known(name)
        return None if function.waiting else self._choose(function, set(), node, self._loop.time())

    def release(self, name: str, slot: Slot) -> None:
        """Give a slot back that :meth:`take` gave."""
        self._release(self._functions[name], slot)

    def absent(self, names: Sequence[str]) -> list[str]:
        """Those of some functions that are not deployed."""
        return [name for name in names if not self._known(name).deployed]

    # Slots of one function

    def _known(self, name: str) -> FunctionSlots:
        function = self._functions.get(name)
        if function is None:
            function = self._functions[name] = FunctionSlots(name, deployed=not self.version)
        return function

    def _expect(self, function: FunctionSlots) -> None:
        """Have the calls that wait for a function that is not deployed refused, unless it is deployed soon."""
        if function.waiting:
            self._loop.call_later(ABSENT_S, self._refuse_absent, function)

    def _refuse_absent(self, function: FunctionSlots) -> None:
        while function.waiting and not function.deployed:
            waiter = function.waiting.popleft()
            if not waiter.turn.done():
                waiter.turn.set_exception(NotDeployedError(f"{function.name} is not deployed"))

    def _set_replicas(
        self, function: FunctionSlots, replicas: Sequence[ReplicaAddress], draining: Sequence[ReplicaAddress] = ()
    ) -> None:
        wanted = {replica.id: replica for replica in replicas}
        ending = {replica.id: replica.address for replica in draining}
        for replica_id in [key for key in function.slots if key not in wanted]:
            slot = function.slots.pop(replica_id)
            if ending.get(replica_id) == slot.replica.address:
                function.draining[replica_id] = slot
            else:
                slot.pool.close()
        for replica_id in [key for key in function.draining if key not in ending]:
            function.draining.pop(replica_id).pool.close()
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
        function.slots = {replica_id: function.slots[replica_id] for replica_id in wanted}  # in the feed's order

    def _failed(self, function: FunctionSlots, slot: Slot, avoid: set[str]) -> None:
        """Set a replica aside that could not be reached or broke off."""
        if slot.suspended_until_s <= self._loop.time():  # calls that fail together count once
            slot.failures += 1
        if slot.replica.balanced:
            self._suspend(function, slot, BUSY_WAIT_S * slot.failures)
        else:
            avoid.add(slot.replica.id)
            self._suspend(function, slot, min(MAX_SUSPEND_S, SUSPEND_S * 2 ** min(slot.failures - 1, 10)))

    def _suspend(self, function: FunctionSlots, slot: Slot, pause_s: float) -> None:
        until_s = self._loop.time() + pause_s
        if until_s > slot.suspended_until_s:
            slot.suspended_until_s = until_s
            # No call ends at that time to hand the slot on. A little later, as timers may fire a clock tick early.
            self._loop.call_at(until_s + 0.001, self._grant, function)

    def _choose(self, function: FunctionSlots, avoid: set[str], node: str, now_s: float) -> Slot | None:
        """Take a free slot: on ``node`` where it can be, then by the rule, equals in turn. Least calls in flight does
        not show a CPU quota that is used up, and a replica that rested longest has its own.

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
            return self._taken(slot, now_s)
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
            rank = (avoided, node != "" and slot.replica.node != node, order, slot.turn)
            if best is None or rank < best_rank:
                best, best_rank = slot, rank
        # Where only replicas that failed this call are free, it waits for one of the others.
        if best is None or (best_rank[0] and others):
            return None
        return self._taken(best, now_s)

    def _taken(self, slot: Slot, now_s: float) -> Slot:
        """A free slot with one call more, the latest of all."""
        self._turn += 1
        slot.turn = self._turn
        return taken(slot, now_s)

    async def _acquire(self, function: FunctionSlots, deadline_s: float, avoid: set[str], last: str, node: str) -> Slot:
        """Wait in order of arrival for a slot, counted as in flight. Raises OverloadedError and as ``_too_late``."""
        if len(function.waiting) >= self._queue_limit:
            raise OverloadedError(f"{function.name} has {self._queue_limit} calls waiting; try again later")
        if deadline_s <= self._loop.time():
            raise self._too_late(function, last)
        waiter = Waiter(self._loop.create_future(), avoid, node)
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
            with suppress(ValueError):  # its place counts against the queue's limit
                function.waiting.remove(waiter)
            raise
        finally:
            timer.cancel()

    def _grant(self, function: FunctionSlots) -> None:
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

    def _expire(self, function: FunctionSlots, waiter: Waiter, last: str) -> None:
        if not waiter.turn.done():
            waiter.turn.set_exception(self._too_late(function, last))
            function.waiting.remove(waiter)

    def _release(self, function: FunctionSlots, slot: Slot) -> None:
        slot.in_flight -= 1
        if not slot.in_flight:
            function.busy_s += self._loop.time() - slot.busy_from_s
        if function.waiting:
            self._grant(function)

    def _too_late(self, function: FunctionSlots, last: str) -> Exception:
        if not function.slots:
            return NoReplicaError(f"{function.name} has no ready replica; {last}")
        return DeadlineError(f"the request's time was spent waiting for {function.name}; {last}")


def taken(slot: Slot, now_s: float) -> Slot:
    if not slot.in_flight:
        slot.busy_from_s = now_s
        if slot.opening is not None:
            slot.opening.called(now_s)
    slot.in_flight += 1
    return slot
