"""Heads of requests and replies on their way through the gateway: what is dropped, kept and added.

Source of names and rules: OpenFaaS's gateway and provider proxy (X-Call-Id, X-Start-Time, X-Served-By,
X-Forwarded-*, X-OpenFaaS-Internal); hop-by-hop headers: RFC 9110 section 7.6.1.
"""

from __future__ import annotations

import math

from gateway import __version__
from gateway.calls import Call, Headers, Outcome
from platform_words.headers import CALLER_KEY, START_TIME, TIMEOUT_MS

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
_CALLER_KEY, _START_TIME, _TIMEOUT = CALLER_KEY.encode(), START_TIME.encode(), TIMEOUT_MS.encode()
_REPLACED = _HOP_BY_HOP | {b"content-length", b"expect", b"x-call-id", _START_TIME, _CALLER_KEY}
_PROXY_FAILED = (b"x-openfaas-internal", b"proxy")


def stated_s(call: Call) -> float | None:
    """The time that the caller leaves to a pipeline's function; None where it states none that a function would take:
    that is the function's to refuse."""
    text = next((value for name, value in call.headers if name == _TIMEOUT), b"")
    try:
        left_s = float(text) / 1000
    except ValueError:
        return None
    return left_s if 0 < left_s < math.inf else None


def request_head(call: Call, caller_key: str = "", left_s: float | None = None) -> bytes:
    """Request line and headers for the replica, with the empty line. ``caller_key``: what the replica asks to see;
    ``left_s``: of the time that the caller stated, None: what it sent goes on as it is."""
    lines = [b"%b %b HTTP/1.1" % (call.method.encode(), call.path)]
    given = set()
    host = b""
    dropped = _REPLACED | _named_by_connection(call.headers)
    if left_s is not None:
        dropped |= {_TIMEOUT}
        lines.append(_TIMEOUT + b": %.1f" % (left_s * 1000))
    for name, value in call.headers:
        given.add(name)
        if name == b"host":
            host = value
        if name not in dropped:
            lines.append(name + b": " + value)
    if caller_key:
        lines.append(_CALLER_KEY + b": " + caller_key.encode())
    if b"host" not in given:
        lines.append(b"host: function")
    lines.append(b"x-call-id: " + call.call_id.encode("latin-1", "replace"))
    lines.append(_START_TIME + b": %d" % call.started_ns)
    if b"x-forwarded-host" not in given and host:
        lines.append(b"x-forwarded-host: " + host)
    if b"x-forwarded-for" not in given and call.client:
        lines.append(b"x-forwarded-for: " + call.client.encode())
    if call.rest is not None:
        length = call.length
        lines.append(b"transfer-encoding: chunked" if length is None else b"content-length: %d" % length)
    elif call.body or call.method in ("POST", "PUT", "PATCH"):
        lines.append(b"content-length: %d" % len(call.body))
    return b"\r\n".join(lines) + b"\r\n\r\n"


def reply_headers(call: Call, headers: Headers) -> Headers:
    """A replica's headers for the client. Without a Content-Type the request's is taken, else text/plain."""
    dropped = _HOP_BY_HOP | _named_by_connection(headers)
    kept = [(name, value) for name, value in headers if name not in dropped]
    if not any(name == b"content-type" for name, _ in kept):
        asked = next((value for name, value in call.headers if name == b"content-type"), b"text/plain")
        kept.append((b"content-type", asked))
    return kept + _added(call)


def refusal(call: Call, status: int, message: str) -> Outcome:
    """The platform's own error reply; X-OpenFaaS-Internal marks for clients that the function did not answer."""
    body = message.encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(body)), _PROXY_FAILED]
    if status == 503:
        headers.append((b"retry-after", b"1"))
    return Outcome(status, headers + _added(call), body)


def failed_by_platform(outcome: Outcome) -> bool:
    """True when a watchdog, not the function, made this reply."""
    return any(name == b"x-openfaas-internal" for name, _ in outcome.headers)


def _added(call: Call) -> Headers:
    added = [(b"x-start-time", b"%d" % call.started_ns), (b"x-served-by", SERVED_BY)]
    if call.generated_id:
        added.append((b"x-call-id", call.call_id.encode()))
    return added


def _named_by_connection(headers: Headers) -> frozenset[bytes]:
    """Names listed in Connection headers: they are hop-by-hop too."""
    listed = [value for name, value in headers if name == b"connection"]
    if not listed:
        return frozenset()
    return frozenset(token.strip().lower() for token in b",".join(listed).split(b","))
