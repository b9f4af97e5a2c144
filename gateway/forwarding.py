"""Forwarding one call to a replica: choice, repeat, headers. Used by the synchronous and the asynchronous front door.

A call is repeated on another replica when it was not sent (no connection), and, where the function's annotation
``com.openfaas.retry.attempts`` allows it, when the replica died or failed before any byte of its reply went out.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field

from gateway import __version__
from gateway.balancer import Balancer
from gateway.contract import Backend, FunctionState, NotFoundError, Replica
from gateway.metrics import GatewayMetrics
from gateway.scaling import ScaleFromZero
from gateway.upstream import UpstreamConnection, UpstreamError, UpstreamPool, UpstreamTimeoutError

Headers = list[tuple[bytes, bytes]]
RETRY_ATTEMPTS = "com.openfaas.retry.attempts"
MAX_ATTEMPTS = 10
SERVED_BY = f"smoe-gateway/{__version__}".encode()
_HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
_PROXY_FAILED = (b"x-openfaas-internal", b"proxy")


@dataclass
class Call:
    """A call on its way. ``rest`` yields the body after ``body`` when it was too large to hold."""

    method: str
    function: str
    namespace: str
    path: bytes
    """Path and query as the function sees them."""
    headers: Headers
    body: bytes = b""
    rest: AsyncIterator[bytes] | None = None
    client: str = ""
    call_id: str = ""
    generated_id: bool = False
    started_ns: int = field(default_factory=time.time_ns)

    def __post_init__(self) -> None:
        if not self.call_id:
            self.generated_id = True
            self.call_id = str(uuid.uuid4())


@dataclass
class Outcome:
    """Status and headers of the reply, and its body: whole, or a stream that must be read to the end or closed."""

    status: int
    headers: Headers
    body: bytes = b""
    stream: AsyncIterator[bytes] | None = None
    release: Callable[[], None] = lambda: None


class Forwarder:
    """Forwards calls to ready replicas of the backend's functions."""

    def __init__(self, backend: Backend, metrics: GatewayMetrics, scaler: ScaleFromZero, timeout_s: float) -> None:
        self._backend = backend
        self._metrics = metrics
        self._scaler = scaler
        self._timeout_s = timeout_s
        self._pool = UpstreamPool()
        self._balancer = Balancer()

    async def forward(self, call: Call) -> Outcome:
        """The reply of a replica, or the platform's own error reply. Counts the call."""
        key = f"{call.function}.{call.namespace}"
        try:
            state = self._backend.get(call.function, call.namespace)
            if not state.ready:
                state = await self._scaler.ready_state(state)
        except NotFoundError:
            return _refusal(call, 404, f"error finding function {key}: not found")
        self._metrics.begin(key)
        begun_s = time.perf_counter()
        outcome: Outcome | None = None
        try:
            outcome = await self._attempts(call, state)
            return outcome
        finally:
            if outcome is None or outcome.stream is None:
                self._metrics.end(key, outcome.status if outcome else 499, time.perf_counter() - begun_s)
            else:
                outcome.release = self._ending(outcome, key, begun_s)

    def _ending(self, outcome: Outcome, key: str, begun_s: float) -> Callable[[], None]:
        inner = outcome.release

        def release() -> None:
            inner()
            self._metrics.end(key, outcome.status, time.perf_counter() - begun_s)

        return release

    async def _attempts(self, call: Call, state: FunctionState) -> Outcome:
        spec = state.spec
        allowed = _retries(spec.annotations.get(RETRY_ATTEMPTS, "0"))
        head = _request_head(call)
        avoid: set[str] = set()
        repeats = 0
        reason = ""
        for _ in range(MAX_ATTEMPTS):
            replica = self._balancer.choose(state, avoid) or self._balancer.choose(state, set())
            if replica is None:
                return _refusal(call, 503, f"No endpoints available for: {call.function}.")
            try:
                outcome = await self._attempt(call, head, replica)
                if not (outcome.status in (500, 502, 503) and _failed_by_platform(outcome) and repeats < allowed):
                    return outcome
                outcome.release()
                reason = f"the function answered {outcome.status}"
                repeats += 1
            except UpstreamTimeoutError as error:
                return _refusal(call, 504, f"{call.function}: {error}")
            except UpstreamError as error:
                reason = str(error)
                self._backend.report_failure(spec.name, spec.namespace, replica.id)
                if error.sent:
                    repeats += 1
                if call.rest is not None or repeats > allowed:
                    break
            avoid.add(replica.id)
            state = await self._next_state(state, avoid)
        return _refusal(call, 502, f"Can't reach service for: {call.function}. ({reason})")

    async def _next_state(self, state: FunctionState, avoid: set[str]) -> FunctionState:
        """The function now; when every ready replica has failed this call already, wait a little for another."""
        spec = state.spec
        state = self._backend.get(spec.name, spec.namespace)
        if any(replica.id not in avoid for replica in state.ready):
            return state
        await self._backend.wait_change(self._backend.version(), 0.2)
        state = self._backend.get(spec.name, spec.namespace)
        return state if state.ready else await self._scaler.ready_state(state)

    async def _attempt(self, call: Call, head: bytes, replica: Replica) -> Outcome:
        self._balancer.begin(replica.id)
        connection: UpstreamConnection | None = None
        done = False
        try:
            connection = await self._exchange(call, head, replica.address)
            whole = connection.take_whole()
            headers = _reply_headers(call, connection.headers)
            if whole is not None:
                outcome = Outcome(connection.status, headers, whole)
                self._pool.give(replica.address, connection)
                return outcome
            done = True
            return Outcome(
                connection.status,
                headers,
                stream=connection.body(),
                release=self._stream_end(connection, replica),
            )
        except BaseException:
            if connection is not None:
                connection.abort("the call was given up")
            raise
        finally:
            if not done:
                self._balancer.end(replica.id)

    def _stream_end(self, connection: UpstreamConnection, replica: Replica) -> Callable[[], None]:
        def release() -> None:
            self._pool.give(replica.address, connection)
            self._balancer.end(replica.id)

        return release

    async def _exchange(self, call: Call, head: bytes, address: str) -> UpstreamConnection:
        """Send the call and wait for the reply's head. A kept connection that had died is replaced once."""
        for attempt in (0, 1):
            connection, kept = await self._pool.take(address, fresh=attempt == 1)
            try:
                body = call.body if call.rest is None else b""
                connection.begin(head, body, head_request=call.method == "HEAD")
                if call.rest is not None:
                    await connection.write(b"%x\r\n%b\r\n" % (len(call.body), call.body))
                    await self._send_rest(connection, call.rest)
                await connection.head(self._timeout_s)
                return connection
            except UpstreamError as error:
                # A kept connection may have been closed by a replica that was idle: nothing was processed when
                # it ended before it could be written to.
                if error.sent or not kept or call.rest is not None:
                    raise
            except asyncio.CancelledError:
                connection.abort("the client went away")
                raise
        raise AssertionError("unreachable")

    @staticmethod
    async def _send_rest(connection: UpstreamConnection, rest: AsyncIterator[bytes]) -> None:
        async for data in rest:
            await connection.write(b"%x\r\n%b\r\n" % (len(data), data))
        await connection.write(b"0\r\n\r\n")

    def forget_gone(self, addresses: Iterable[str]) -> None:
        """Close connections to replicas that are no longer there."""
        self._pool.forget(set(addresses))

    def close(self) -> None:
        self._pool.close()


def _retries(text: str) -> int:
    return min(int(text), MAX_ATTEMPTS) if text.isascii() and text.isdigit() and len(text) < 6 else 0


def _failed_by_platform(outcome: Outcome) -> bool:
    return any(name == b"x-openfaas-internal" for name, _ in outcome.headers)


def _request_head(call: Call) -> bytes:
    lines = [b"%b %b HTTP/1.1" % (call.method.encode(), call.path)]
    given = set()
    host = b""
    for name, value in call.headers:
        given.add(name)
        if name == b"host":
            host = value
            lines.append(b"host: " + value)
        elif name not in _HOP_BY_HOP and name not in (b"content-length", b"expect", b"x-call-id", b"x-start-time"):
            lines.append(name + b": " + value)
    if b"host" not in given:
        lines.append(b"host: function")
    lines.append(b"x-call-id: " + call.call_id.encode("latin-1", "replace"))
    lines.append(b"x-start-time: %d" % call.started_ns)
    if b"x-forwarded-host" not in given and host:
        lines.append(b"x-forwarded-host: " + host)
    if b"x-forwarded-for" not in given and call.client:
        lines.append(b"x-forwarded-for: " + call.client.encode())
    if call.rest is not None:
        lines.append(b"transfer-encoding: chunked")
    elif call.body or call.method in ("POST", "PUT", "PATCH"):
        lines.append(b"content-length: %d" % len(call.body))
    return b"\r\n".join(lines) + b"\r\n\r\n"


def _reply_headers(call: Call, headers: Headers) -> Headers:
    kept = [(name, value) for name, value in headers if name not in _HOP_BY_HOP]
    if not any(name == b"content-type" for name, _ in kept):
        asked = next((value for name, value in call.headers if name == b"content-type"), b"text/plain")
        kept.append((b"content-type", asked))
    return kept + _own_headers(call)


def _own_headers(call: Call) -> Headers:
    own = [(b"x-start-time", b"%d" % call.started_ns), (b"x-served-by", SERVED_BY)]
    if call.generated_id:
        own.append((b"x-call-id", call.call_id.encode()))
    return own


def _refusal(call: Call, status: int, message: str) -> Outcome:
    body = message.encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(body)), _PROXY_FAILED]
    if status == 503:
        headers.append((b"retry-after", b"1"))
    return Outcome(status, headers + _own_headers(call), body)
