"""Forwarding one call to a replica: choice and repeats. Used by the synchronous and the asynchronous front door.

A call is repeated on another replica when it was not sent (no connection), and, where the function's annotation
``com.openfaas.retry.attempts`` allows it, when the replica died or failed before any byte of its reply went out.
``com.openfaas.retry.codes`` (``503,429``) names statuses of replies that are repeated too; without it, only 500, 502
and 503 of the platform (those with X-OpenFaaS-Internal) are.

A pipeline's functions end what takes longer than its caller's ``X-Timeout-Ms``: each try is sent what is left of it,
waiting for a replica included.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from urllib.parse import unquote

from gateway.calls import BodyTooLargeError, Call, Outcome
from gateway.contract import Backend, FunctionSpec, FunctionState, GatewayError, NotFoundError, Replica
from gateway.headers import failed_by_platform, refusal, reply_headers, request_head, stated_s
from gateway.metrics import GatewayMetrics
from gateway.scaling import ScaleFromZero
from gateway.upstream import UpstreamConnection, UpstreamError, UpstreamPool, UpstreamTimeoutError
from platform_words.labels import PIPELINE_LABEL, RETRY_ATTEMPTS, RETRY_CODES


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


MAX_ATTEMPTS = 10
SPENT = "the request's time was spent before a replica answered"
_INTERNAL = frozenset(("metrics", "statistics", "relay", "kv"))
_PLATFORM_CODES = frozenset((500, 502, 503))
CLIENT_CLOSED = 499
"""Code under which a call is counted whose client went away before the reply."""


class Forwarder:
    """Forwards calls to ready replicas of the backend's functions."""

    def __init__(
        self, backend: Backend, metrics: GatewayMetrics, scaler: ScaleFromZero, timeout_s: float, silence_s: float = 0.0
    ) -> None:
        """``timeout_s``, ``silence_s``: as of GatewaySettings."""
        self._backend = backend
        self._metrics = metrics
        self._scaler = scaler
        self._timeout_s, self._silence_s = timeout_s, silence_s
        self.pool = UpstreamPool()
        self._balancer = Balancer()

    async def forward(self, call: Call) -> Outcome:
        """The reply of a replica, or the platform's own error reply. Counts the call once a replica is there, or where
        none came in time.

        Raises ClientGoneError when the client went away within its body.
        """
        came_s = time.perf_counter()
        try:
            state = self._backend.get(call.function, call.namespace)
            stated = stated_s(call) if PIPELINE_LABEL in state.spec.labels else None
            limit_s = None if stated is None else time.monotonic() + stated
            if not state.ready:
                state = await self._ready_state(state, limit_s)
        except NotFoundError:
            return _not_found(call)
        except TimeoutError:
            self._metrics.begin(call.key)
            self._metrics.end(call.key, 504, time.perf_counter() - came_s)
            return refusal(call, 504, SPENT)
        except GatewayError as error:
            return refusal(call, 500, f"{call.function} could not be scaled up: {error}")
        if len(call.path) > 1 and PIPELINE_LABEL in state.spec.labels and _is_internal(call.path):
            return refusal(call, 404, "this path of a function is for its controller and its siblings only")
        self._metrics.begin(call.key)
        begun_s = time.perf_counter()
        outcome: Outcome | None = None
        try:
            outcome = await self._attempts(call, state, limit_s)
            return outcome
        finally:
            if outcome is None or outcome.stream is None:
                code = outcome.status if outcome else CLIENT_CLOSED
                self._metrics.end(call.key, code, time.perf_counter() - begun_s)
            else:
                outcome.release = self._ending(outcome, call.key, begun_s)

    def _ending(self, outcome: Outcome, key: str, begun_s: float) -> Callable[[], None]:
        inner = outcome.release

        def release() -> None:
            inner()
            self._metrics.end(key, outcome.status, time.perf_counter() - begun_s)

        return release

    async def _ready_state(self, state: FunctionState, limit_s: float | None) -> FunctionState:
        """Raises TimeoutError at ``limit_s`` on the loop's clock, and as :meth:`ScaleFromZero.ready_state`."""
        async with asyncio.timeout_at(limit_s):
            return await self._scaler.ready_state(state)

    async def _attempts(self, call: Call, state: FunctionState, limit_s: float | None) -> Outcome:
        rule = RepeatRule.of(state.spec)
        head = request_head(call, state.caller_key)
        avoid: set[str] = set()
        repeats = 0
        reason = ""
        for _ in range(MAX_ATTEMPTS):
            # A replica that failed this call before may have recovered: it is better than none.
            replica = self._balancer.choose(state, avoid) or self._balancer.choose(state, set())
            if replica is None:
                return refusal(call, 503, f"No endpoints available for: {call.function}.")
            if limit_s is not None:
                if (left_s := limit_s - time.monotonic()) <= 0:
                    return refusal(call, 504, SPENT)
                head = request_head(call, state.caller_key, left_s)
            try:
                # Where the call could not go on elsewhere, waiting until the network is back is better than failing.
                elsewhere = len(state.ready) > 1 and repeats < rule.attempts and call.rest is None
                outcome = await self._attempt(call, head, replica, self._silence_s if elsewhere else 0.0)
                if call.rest is not None or repeats >= rule.attempts or not rule.repeats(outcome):
                    return outcome
                outcome.release()
                repeats += 1
                self._metrics.repeated(call.key, "failed")
            except BodyTooLargeError as error:
                return refusal(call, 413, str(error))
            except UpstreamTimeoutError as error:
                return refusal(call, 502, f"Can't reach service for: {call.function}. ({error})")
            except UpstreamError as error:
                reason = str(error)
                self._backend.report_failure(state.spec.name, state.spec.namespace, replica.id)
                # What was not sent cannot have been processed, so it may be tried elsewhere beyond the rule's number. A
                # streamed body that was begun is gone and cannot be sent again.
                repeats += error.sent
                if repeats > rule.attempts or (call.rest is not None and error.sent):
                    break
                self._metrics.repeated(call.key, "failed" if error.sent else "connect")
            avoid.add(replica.id)
            try:
                state = await self._next_state(state, avoid, limit_s)
            except NotFoundError:
                return _not_found(call)
            except TimeoutError:
                return refusal(call, 504, SPENT)
            except GatewayError as error:
                return refusal(call, 500, f"{call.function} could not be scaled up: {error}")
        return refusal(call, 502, f"Can't reach service for: {call.function}. ({reason})")

    async def _next_state(self, state: FunctionState, avoid: set[str], limit_s: float | None) -> FunctionState:
        """The function now; when every ready replica has failed this call already, wait a little for another."""
        spec = state.spec
        version = self._backend.version()
        state = self._backend.get(spec.name, spec.namespace)
        if any(replica.id not in avoid for replica in state.ready):
            return state
        await self._backend.wait_change(version, 0.2)
        state = self._backend.get(spec.name, spec.namespace)
        return state if state.ready else await self._ready_state(state, limit_s)

    async def _attempt(self, call: Call, head: bytes, replica: Replica, silence_s: float) -> Outcome:
        self._balancer.begin(replica.id)
        streaming = False
        try:
            connection = await self._exchange(call, head, replica.address, silence_s)
            whole = connection.take_whole()
            headers = reply_headers(call, connection.headers)
            if whole is not None:
                outcome = Outcome(connection.status, headers, whole)
                self.pool.give(replica.address, connection)
                return outcome
            streaming = True
            release = self._stream_end(connection, replica)
            return Outcome(connection.status, headers, stream=connection.body(), release=release)
        finally:
            if not streaming:
                self._balancer.end(replica.id)

    def _stream_end(self, connection: UpstreamConnection, replica: Replica) -> Callable[[], None]:
        def release() -> None:
            self.pool.give(replica.address, connection)
            self._balancer.end(replica.id)

        return release

    async def _exchange(self, call: Call, head: bytes, address: str, silence_s: float) -> UpstreamConnection:
        """Send the call and wait for the reply's head. A kept connection that had died is replaced once."""
        connection, kept = await self.pool.take(address)
        try:
            return await self._ask(connection, call, head, silence_s)
        except UpstreamError as error:
            # A kept connection may have been closed by an idle replica: it ended before it could be written to.
            if error.sent or not kept:
                raise
        connection, _ = await self.pool.take(address, fresh=True)
        return await self._ask(connection, call, head, silence_s)

    async def _ask(
        self, connection: UpstreamConnection, call: Call, head: bytes, silence_s: float
    ) -> UpstreamConnection:
        chunked = call.rest is not None and call.length is None
        body = b"%x\r\n%b\r\n" % (len(call.body), call.body) if chunked else call.body
        try:
            is_head = call.method == "HEAD"
            connection.begin(head, body, head_request=is_head, timeout_s=self._timeout_s, silence_s=silence_s)
            if call.rest is not None:
                connection.send_rest(call.rest, chunked=chunked)
            await connection.head()
        except BaseException:
            connection.abort("the call was given up")
            raise
        return connection

    def forget_gone(self, addresses: Iterable[str]) -> None:
        """Close connections to replicas that are no longer there."""
        self.pool.forget(set(addresses))

    def close(self) -> None:
        self.pool.close()


@dataclass(frozen=True)
class RepeatRule:
    """How often a call that may have been processed is repeated, and for which replies."""

    attempts: int
    codes: frozenset[int] | None
    """None: failures of the platform only."""

    @classmethod
    def of(cls, spec: FunctionSpec) -> RepeatRule:
        """Read from the annotations; what is not a number counts as none."""
        attempts = spec.annotations.get(RETRY_ATTEMPTS)
        if attempts is None:
            return _NEVER
        codes = spec.annotations.get(RETRY_CODES)
        listed = None if codes is None else frozenset(_number(code.strip()) for code in codes.split(","))
        return cls(min(_number(attempts), MAX_ATTEMPTS), listed)

    def repeats(self, outcome: Outcome) -> bool:
        if self.codes is not None:
            return outcome.status in self.codes
        return outcome.status in _PLATFORM_CODES and failed_by_platform(outcome)


_NEVER = RepeatRule(0, None)


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0


def _is_internal(path: bytes) -> bool:
    """A pipeline's functions: what callers at the front door have no business with. Some servers decode a path."""
    return unquote(path.partition(b"?")[0].decode("latin-1")).strip("/").partition("/")[0] in _INTERNAL


def _not_found(call: Call) -> Outcome:
    return refusal(call, 404, f"error finding function {call.key}: not found")
