"""Requests and replies between the HTTP edges (our own server, Flask) and the applications behind them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Protocol, runtime_checkable

from functions.wire.errors import CallError
from platform_words.headers import TIMEOUT_MS

REQUEST_ID = "x-request-id"
CALL_ID = "x-call-id"
PLATFORM_FAILED = "x-openfaas-internal"
ALL_LOGITS = "x-smoe-all-logits"
LIKELIEST = "x-smoe-likeliest"
"""Where it is 1 a language head answers with each text's likeliest next token in place of its logits."""
KV_SOURCE = "x-smoe-kv-source"
"""Address of the worker that a text's keys and values are pulled from."""


def gate_stage(layer: int) -> str:
    """Stage of a function with experts of a layer at which it routes the layer's tokens itself (``smoe_gate``)."""
    return f"gate-{layer}"


KV_MISSING = 410
"""Status of a call that goes on from keys and values which are not at this replica."""
KV_FULL = 507
"""Status of a call that finds too few free pages for its keys and values."""

Body = bytes | bytearray | memoryview
_REASONS = {status.value: status.phrase for status in HTTPStatus}

JOINED_BYTES = 64 * 1024

_USUAL_NAMES = (
    *("host", "content-type", "content-length", "connection", "accept", "user-agent", "retry-after"),
    *(REQUEST_ID, CALL_ID, TIMEOUT_MS, PLATFORM_FAILED, ALL_LOGITS, LIKELIEST),
)
_NAME_OF: Mapping[bytes, str] = {name.encode(): name for name in _USUAL_NAMES}


def pieces(chunks: Sequence[Body]) -> Sequence[Body]:
    """A message's ``chunks`` as they are best written: a small one in one piece, as its copy costs less than to have
    uvloop and the kernel gather many."""
    return chunks if sum(map(len, chunks)) > JOINED_BYTES else (b"".join(chunks),)


def header_name(raw: bytes) -> str:
    """A header's name in lower case; the usual ones without decoding."""
    return _NAME_OF.get(raw) or raw.decode("latin-1").lower()


@dataclass(slots=True)
class Request:
    """One HTTP request, read in full. Header names are lower case; ``deadline_s`` is on the event loop's clock."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytearray
    arrived_s: float
    deadline_s: float | None = None
    request_id: str = ""
    abandoned: bool = False
    """The client's connection is gone: nobody waits for the answer."""
    on_abandoned: Callable[[], object] | None = None
    """Called once when that happens."""

    def abandon(self) -> None:
        """Nobody waits any more."""
        self.abandoned = True
        if self.on_abandoned is not None:
            self.on_abandoned()


def both(first: Callable[[], object], then: Callable[[], object] | None) -> Callable[[], None]:
    """One callback that calls two, the second where there is one."""

    def called() -> None:
        first()
        if then is not None:
            then()

    return called


@dataclass(slots=True)
class Reply:
    """One HTTP reply; ``chunks`` are written one after the other as the body.

    With a ``stream`` the body is what comes out of it, each piece sent at once; ``ended`` is called once, when the last
    piece is out or the client is gone.
    """

    status: int
    chunks: Sequence[Body] = ()
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    stream: AsyncIterator[Body] | None = None
    ended: Callable[[], object] = lambda: None


class Application(Protocol):
    """What a server serves. ``submit`` is called on the event loop and must call ``answer`` once, then or later."""

    def submit(self, request: Request, answer: Callable[[Reply], None]) -> None: ...

    def metrics(self) -> bytes:
        """Prometheus text format."""

    def close(self) -> None:
        """Let go of what it holds; called once, on the event loop, after the last answer."""


@runtime_checkable
class Counting(Protocol):
    """An application that counts requests, also those that its server turns away before ``submit``."""

    def refused(self, status: int) -> None:
        """One was turned away with ``status``; called on the event loop."""


def error_reply(status: int, code: str, message: str, *, platform: bool, retry_after_s: int | None = None) -> Reply:
    """The JSON error of the function contract; ``platform`` adds the header that calls repeating safe."""
    headers = {PLATFORM_FAILED: "smoe"} if platform else {}
    if retry_after_s is not None:
        headers["retry-after"] = str(retry_after_s)
    body = json.dumps({"error": {"code": code, "message": message}}).encode()
    return Reply(status, (body,), headers=headers)


def reply_of(error: CallError) -> Reply:
    """A call's failure as a reply."""
    retry_after_s = 1 if error.status in (429, 503) else None
    return error_reply(error.status, error.code, str(error), platform=error.platform, retry_after_s=retry_after_s)


def no_room_reply() -> Reply:
    """To a call whose body finds no room."""
    message = "bodies and replies of calls under way take the memory that there is for them"
    return error_reply(429, "overloaded", message, platform=True, retry_after_s=1)


def set_deadline(request: Request) -> Reply | None:
    """Fill ``request.deadline_s`` from ``X-Timeout-Ms``; returns the refusal when that is malformed or spent."""
    text = request.headers.get(TIMEOUT_MS)
    if text is None:
        return None
    try:
        left_ms = float(text)
    except ValueError:
        left_ms = float("nan")
    if left_ms != left_ms or left_ms > 86_400_000:
        message = f"X-Timeout-Ms is {text[:40]!r}; it takes the milliseconds left, up to a day"
        return error_reply(400, "bad_timeout", message, platform=False)
    if left_ms <= 0:
        return error_reply(504, "deadline_exceeded", "the request's time was spent before it began", platform=True)
    request.deadline_s = request.arrived_s + left_ms / 1000
    return None


def head_bytes(reply: Reply, request_id: str, keep_alive: bool) -> bytes:
    """Status line and headers of a reply."""
    length = sum(len(chunk) for chunk in reply.chunks)
    lines = [
        f"HTTP/1.1 {reply.status} {_REASONS.get(reply.status, 'Status')}",
        f"content-type: {reply.content_type}",
        "transfer-encoding: chunked" if reply.stream is not None else f"content-length: {length}",
    ]
    if request_id:
        lines.append(f"x-request-id: {_header_safe(request_id)}")
    lines += [f"{name}: {_header_safe(value)}" for name, value in reply.headers.items()]
    if not keep_alive:
        lines.append("connection: close")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")


def _header_safe(value: str) -> str:
    return value.replace("\r", " ").replace("\n", " ")[:256]
