"""Calls of functions by name, on whatever replica :mod:`functions.dispatch.slots` gives.

A call that fails for a reason of the platform (no connection, broken reply, 5xx marked by the platform) is repeated on
another replica: functions are pure, so a second run gives the same answer. A 429 means that the work was not begun; the
call waits for its turn again. Other 4xx are final.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from functions.dispatch.client import RawReply, ReplyTimeoutError, TransportError
from functions.dispatch.replicas import FunctionSlots, Slot
from functions.dispatch.slots import BUSY_WAIT_S, Slots, taken
from functions.wire.errors import DeadlineError, NodeFailedError, NodeRefusedError
from functions.wire.layout import CONTENT_TYPE
from functions.wire.messages import PLATFORM_FAILED, REQUEST_ID, Body
from platform_words import liveness
from platform_words.headers import CALLER_KEY, TIMEOUT_MS

MAX_ATTEMPTS = 5


@dataclass(slots=True)
class CallRecord:
    """What a finished call cost: seconds waited for a slot, seconds at replicas, repeats by reason; and the node of the
    replica that was asked last."""

    wait_s: float = 0.0
    busy_s: float = 0.0
    status: str = "error"
    repeats: list[str] = field(default_factory=list)
    node: str = ""


class Dispatcher(Slots):
    """Calls functions by name through whatever replicas :meth:`update` has named."""

    silence_s = liveness.DEFAULT_S
    """A call goes on to another replica once the machine of this one has been silent for so long; 0: never."""

    async def call(
        self, name: str, path: str, chunks: Sequence[Body], *, deadline_s: float, request_id: str, record: CallRecord,
        node: str = "",
    ) -> RawReply:  # fmt: skip
        """One call of ``POST path`` to a replica of ``name``, repeated where that is right; the reply has status 200.

        ``deadline_s`` is on the loop's clock; ``node`` is where it goes if a replica there has a free slot. Raises the
        errors of ``functions.wire.errors``.
        """
        function = self._known(name)
        avoid: set[str] = set()
        last = "it had no ready replica"
        failures = 0
        while failures < MAX_ATTEMPTS:
            slot, begun_s = await self._slot_of(function, deadline_s, avoid, last, node, record)
            try:
                silence_s = self._silence_of(function)
                reply = await _post(slot, path, chunks, deadline_s - begun_s, request_id, silence_s=silence_s)
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
                self._answered(slot)
                return reply
            reason, last = _why_again(name, reply)
            record.repeats.append(reason)
            if reason == "status":
                failures += 1
                if not slot.replica.balanced:  # behind a balanced address the next call may reach another replica
                    avoid.add(slot.replica.id)
        raise NodeFailedError(f"{name} failed {failures} times; the last time {last}")

    def _silence_of(self, function: FunctionSlots) -> float:
        """Where there is no other replica, waiting until the network is back is better than failing."""
        return self.silence_s if len(function.slots) > 1 else 0.0

    async def _slot_of(
        self, function: FunctionSlots, deadline_s: float, avoid: set[str], last: str, node: str, record: CallRecord
    ) -> tuple[Slot, float]:
        """A taken slot and since when it is, on the loop's clock. Time waited for it is the record's. Raises the errors
        of ``functions.wire.errors``; ``last``: why it was not to be had before."""
        begun_s = self._loop.time()
        # Calls that wait already were here first: a new one must not take the slot that becomes free for them.
        slot = None if function.waiting else self._choose(function, avoid, node, begun_s)
        if slot is None:
            waited_from_s = begun_s
            slot = await self._acquire(function, deadline_s, avoid, last, node)
            begun_s = self._loop.time()
            record.wait_s += begun_s - waited_from_s
        record.node = slot.replica.node
        return slot, begun_s

    def _answered(self, slot: Slot) -> None:
        """Whoever opened the replica is to know when it answered its first call."""
        if slot.opening is not None:
            slot.opening.answered(self._loop.time())
            slot.opening = None

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
            left_s, silence_s = deadline_s - self._loop.time(), self._silence_of(self._functions[name])
            reply = await _post(slot, path, chunks, left_s, request_id, headers, silence_s)
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
        """One call to this very replica of ``name``, as it holds what the call goes on from, also while it drains;
        while it is busy (429) the call waits. The reply has any other status. Raises DeadlineError, and TransportError,
        also where the replica is not in the table."""
        while True:
            begun_s = self._loop.time()
            function = self._functions.get(name)
            slot = None if function is None else function.slots.get(replica_id) or function.draining.get(replica_id)
            if function is None or slot is None:
                raise TransportError(f"{name} has no replica {replica_id} any more", reason="connect")
            if deadline_s <= begun_s:
                raise DeadlineError(f"the request's time was spent waiting for {name}")
            record.node = slot.replica.node
            try:
                reply = await self.send(
                    name,
                    taken(slot, begun_s),
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


def _post(
    slot: Slot,
    path: str,
    chunks: Sequence[Body],
    left_s: float,
    request_id: str,
    headers: Sequence[tuple[str, str]] = (),
    silence_s: float = 0.0,
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
    return slot.pool.call(head.encode("latin-1", "replace"), chunks, left_s, silence_s)


def _why_again(name: str, reply: RawReply) -> tuple[str, str]:
    """Why a call with this reply, which is not 200, is repeated: in a word and in words. Raises where it is final."""
    if reply.status == 429:  # not begun, so it counts as no attempt
        return "busy", "its replicas were busy"
    if reply.status == 504:
        raise DeadlineError(f"{name}: {_sentence(reply)}")
    if reply.status >= 500 and PLATFORM_FAILED in reply.headers:
        return "status", f"it answered {reply.status}: {_sentence(reply)}"
    # An error of the function itself. It is pure, so another replica would give the same one.
    if reply.status < 500:
        raise NodeRefusedError(f"{name} answered {reply.status}: {_sentence(reply)}", reply.status)
    raise NodeFailedError(f"{name} answered {reply.status}: {_sentence(reply)}")


def _sentence(reply: RawReply) -> str:
    return bytes(reply.body[:300]).decode("utf-8", "replace")
