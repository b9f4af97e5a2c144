"""Requests and replies between the HTTP edges (our own server, Flask) and the applications behind them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from functions.wire.errors import CallError

REQUEST_ID = "x-request-id"
CALL_ID = "x-call-id"
TIMEOUT_MS = "x-timeout-ms"
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

_USUAL_NAMES = (
    *("host", "content-type", "content-length", "connection", "accept", "user-agent", "retry-after"),
    *(REQUEST_ID, CALL_ID, TIMEOUT_MS, PLATFORM_FAILED, ALL_LOGITS, LIKELIEST),
)
_NAME_OF: Mapping[bytes, str] = {name.encode(): name for name in _USUAL_NAMES}


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
