"""What clients of the control API send: JSON bodies, names, and parameters of the query. Bad input raises
InvalidSpecError with a sentence; a body that is too large raises HTTPException 413.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn

from starlette.exceptions import HTTPException
from starlette.requests import Request

from gateway.contract import DEFAULT_NAMESPACE, Activation, InvalidSpecError
from gateway.specs import MAX_REPLICAS, split_name
from platform_words.bursts import MAX_STANDBYS

_TRUE = ("1", "t", "true")
_FALSE = ("", "0", "f", "false")
MAX_SENDER = 100
MAX_LEASE_S = 600
_SECRET = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_WHOLE = re.compile(r"-?\d{1,18}", re.ASCII)


async def read_json(request: Request, max_bytes: int) -> Any:
    """The body as JSON in UTF-8, of at most ``max_bytes``."""
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > max_bytes:
            raise HTTPException(413, f"the body is larger than {max_bytes} bytes")
        parts.append(part)
    body = b"".join(parts)
    try:
        document = json.loads(body.decode(), parse_constant=_no_constant)
        if b"\\u" in body:  # half of a surrogate pair is JSON, but no text: nothing could store or show it
            json.dumps(document, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise InvalidSpecError(f"the body is not JSON: {error}") from error
    return document


async def read_object(request: Request, max_bytes: int) -> dict[str, Any]:
    """The body as a JSON object."""
    document = await read_json(request, max_bytes)
    if not isinstance(document, dict):
        raise InvalidSpecError("the body must be a JSON object")
    return document


def named(name: Any, namespace: Any, request: Request) -> tuple[str, str]:
    """Name and namespace from the body, the namespace else from the query (clients do either)."""
    if name is None or name == "":
        raise InvalidSpecError("the name is missing")
    for value, what in ((name, "the name"), (namespace, "namespace")):
        if value is not None and not isinstance(value, str):
            raise InvalidSpecError(f"{what} must be a string")
    return split_name(name, namespace or request.query_params.get("namespace"))


@dataclass(frozen=True)
class ReplicaOrder:
    """Replicas and annotations ordered for one function of many."""

    name: str
    namespace: str
    replicas: int
    annotations: Mapping[str, str]


def replica_orders(document: Mapping[str, Any]) -> list[ReplicaOrder]:
    """``{"functions": {"NAME": {"replicas": 2, "annotations": {…}}}}``; annotations may be left out."""
    functions = document.get("functions")
    if not isinstance(functions, dict) or not functions:
        raise InvalidSpecError("functions must be an object with a function's name to each order")
    orders = []
    for key, order in functions.items():
        name, namespace = split_name(key)
        replicas = replica_count(order, f"{key[:80]}: ")
        annotations = order.get("annotations", {})
        if not isinstance(annotations, dict) or not all(isinstance(value, str) for value in annotations.values()):
            raise InvalidSpecError(f"{key[:80]}: annotations must be an object of strings")
        orders.append(ReplicaOrder(name, namespace, replicas, annotations))
    return orders


def activation(document: Mapping[str, Any]) -> Activation:
    """``{"sender": "ID", "lease_s": 30, "functions": {"NAME": 2}}``."""
    sender, lease_s, functions = (document.get(key) for key in ("sender", "lease_s", "functions"))
    if not isinstance(sender, str) or not 0 < len(sender) <= MAX_SENDER:
        raise InvalidSpecError(f"sender must be a string of 1 to {MAX_SENDER} characters")
    if isinstance(lease_s, bool) or not isinstance(lease_s, int | float) or not 0 < lease_s <= MAX_LEASE_S:
        raise InvalidSpecError(f"lease_s must be a number of seconds above 0, at most {MAX_LEASE_S}")
    if not isinstance(functions, dict):
        raise InvalidSpecError("functions must be an object with the activated standbys to each function's name")
    for name, count in functions.items():
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MAX_STANDBYS:
            raise InvalidSpecError(f"{name[:80]}: activated standbys must be a whole number from 0 to {MAX_STANDBYS}")
    return Activation(sender, {split_name(name): count for name, count in functions.items()}, float(lease_s))


def replica_count(order: Any, where: str = "") -> int:
    """``replicas`` of an order; ``where`` begins the error's sentence."""
    replicas = order.get("replicas") if isinstance(order, dict) else None
    if not isinstance(replicas, int) or isinstance(replicas, bool) or not 0 <= replicas <= MAX_REPLICAS:
        raise InvalidSpecError(f"{where}replicas must be a whole number from 0 to {MAX_REPLICAS}")
    return replicas


def secret_name(document: Mapping[str, Any], request: Request) -> tuple[str, str]:
    """A secret's name, which may have dots as Kubernetes' may, and its namespace."""
    name, namespace = document.get("name"), document.get("namespace")
    if not isinstance(name, str):
        raise InvalidSpecError("the name must be a string")
    if not _SECRET.fullmatch(name):
        raise InvalidSpecError(
            f"the secret's name {name[:80]!r} is not allowed: 1 to 253 of a-z, 0-9, - and ., the first and last "
            "of a-z and 0-9"
        )
    if namespace is not None and not isinstance(namespace, str):
        raise InvalidSpecError("namespace must be a string")
    return name, namespace or request.query_params.get("namespace") or DEFAULT_NAMESPACE


def secret_value(document: Mapping[str, Any]) -> bytes:
    """Content of a secret: ``rawValue`` (base64) where given, else ``value``. Never repeats it in an error."""
    value, raw = document.get("value"), document.get("rawValue")
    for given, what in ((value, "value"), (raw, "rawValue")):
        if given is not None and not isinstance(given, str):
            raise InvalidSpecError(f"{what} of the secret must be a string")
    if raw:
        try:
            return base64.b64decode(raw, validate=True)
        except (binascii.Error, ValueError):
            raise InvalidSpecError("rawValue of the secret must be base64") from None
    if value is None:
        raise InvalidSpecError("a secret takes value (text) or rawValue (base64)")
    return str(value).encode()


def flag(query: Mapping[str, str], key: str) -> bool:
    """``true`` or ``false`` in the forms that Go's clients send; absent is false."""
    text = query.get(key, "")
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise InvalidSpecError(f"{key} is {text[:40]!r}; it takes true or false")


def whole(query: Mapping[str, str], key: str) -> int:
    """A whole number; absent is 0."""
    text = query.get(key, "")
    if not text:
        return 0
    if not _WHOLE.fullmatch(text):
        raise InvalidSpecError(f"{key} is {text[:40]!r}; it takes a whole number")
    return int(text)


def moment(query: Mapping[str, str], key: str) -> float | None:
    """A time in RFC 3339 as Unix time; absent is None."""
    text = query.get(key, "")
    if not text:
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise InvalidSpecError(f"{key} is {text[:40]!r}; it takes a time such as 2026-01-31T12:00:00Z") from None


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON number")
