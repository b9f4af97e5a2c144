"""OpenFaaS's FunctionDeployment and FunctionStatus: JSON to :class:`FunctionSpec` and back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from gateway.contract import DEFAULT_NAMESPACE, FunctionSpec, FunctionState, InvalidSpecError, Usage
from platform_words.bursts import parse_burst
from platform_words.labels import BURST, FUNCTION_LABEL, SCALE_MAX, SCALE_MIN, SCALE_ZERO
from platform_words.resources import GPU_RESOURCES

NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
MAX_REPLICAS = 5000
"""Upper limit on replicas of one function."""


def split_name(text: str, namespace: str | None = None) -> tuple[str, str]:
    """``NAME`` or ``NAME.NAMESPACE`` (split at the last dot) to both parts; ``namespace`` is the default.

    Raises InvalidSpecError where both are given and differ.
    """
    name, dot, after = text.rpartition(".")
    if dot and name:
        if namespace and namespace != after:
            raise InvalidSpecError(
                f"{text[:80]!r} names the namespace {after[:80]!r}, but namespace is {namespace[:80]!r}"
            )
        return name, after
    return text, namespace or DEFAULT_NAMESPACE


def check_name(name: str, what: str = "service") -> str:
    """Raises InvalidSpecError unless ``name`` is a DNS label."""
    if not NAME.fullmatch(name):
        raise InvalidSpecError(
            f"{what} {name[:80]!r} is not allowed: 1 to 63 of a-z, 0-9 and -, the first and last no -"
        )
    return name


def check_namespace(namespace: str) -> None:
    """The check of backends with one namespace. Raises InvalidSpecError for any other."""
    if namespace != DEFAULT_NAMESPACE:
        raise InvalidSpecError(f"namespace {namespace[:80]!r} does not exist; there is {DEFAULT_NAMESPACE}")


def parse_deployment(document: Any) -> FunctionSpec:
    """A FunctionDeployment body. Raises InvalidSpecError with the first broken rule.

    Fields that are not known are ignored, as OpenFaaS ignores them: newer clients send newer fields.
    """
    if not isinstance(document, dict):
        raise InvalidSpecError("the body must be a JSON object with at least service and image")
    name, namespace = split_name(_text(document, "service"), _text(document, "namespace") or None)
    if not name:
        raise InvalidSpecError("service is missing: the function needs a name")
    image = _text(document, "image")
    if not image:
        raise InvalidSpecError("image is missing")
    spec = FunctionSpec(
        name=check_name(name),
        image=image,
        namespace=check_name(namespace, "namespace"),
        env_process=_text(document, "envProcess"),
        env_vars=_texts_by_name(document, "envVars"),
        constraints=_text_list(document, "constraints"),
        secrets=_text_list(document, "secrets"),
        labels=_texts_by_name(document, "labels"),
        annotations=_texts_by_name(document, "annotations"),
        limits=_texts_by_name(document, "limits"),
        requests=_texts_by_name(document, "requests"),
        read_only_root_filesystem=_flag(document, "readOnlyRootFilesystem"),
    )
    if spec.labels.get(SCALE_ZERO, "").lower() in ("true", "1", "t"):
        raise InvalidSpecError(
            f"label {SCALE_ZERO}: this gateway stops no idle functions; leave the label out, and have a controller or "
            "POST /system/scale-function set replicas to 0 (a call starts the function again)"
        )
    low, high = scale_bounds(spec)
    if high is not None and low > high:
        raise InvalidSpecError(f"label {SCALE_MIN} is {low}, above {SCALE_MAX}, which is {high}")
    return spec


def scale_bounds(spec: FunctionSpec) -> tuple[int, int | None]:
    """Least and most replicas of the labels (1, no limit). Raises InvalidSpecError."""
    return label_number(spec, SCALE_MIN, 1) or 0, label_number(spec, SCALE_MAX, None)


def label_number(spec: FunctionSpec, key: str, default: int | None) -> int | None:
    """A label that counts replicas or percent. Raises InvalidSpecError."""
    text = spec.labels.get(key)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 4 or int(text) > MAX_REPLICAS:
        raise InvalidSpecError(f"label {key} is {text[:40]!r}; it takes a whole number up to {MAX_REPLICAS}")
    return int(text)


def burst_of(spec: FunctionSpec) -> tuple[int, bool]:
    """Standbys of the annotation ``smoe.burst``, 0 without it, and whether the desired replicas wait, too.
    Raises InvalidSpecError."""
    if BURST not in spec.annotations:
        return 0, False
    try:
        standbys, numbers = parse_burst(spec.annotations[BURST])
    except ValueError as error:
        raise InvalidSpecError(f"annotation {BURST}: {error}") from None
    sleeps = "sleep_s" in numbers
    if (standbys or sleeps) and any(resource in GPU_RESOURCES for resource in spec.limits):
        raise InvalidSpecError(
            f"annotation {BURST}: a function with a GPU share has no standbys, since a process keeps the share that it "
            "was started with"
        )
    return standbys, sleeps


def max_inflight(spec: FunctionSpec) -> int:
    """``max_inflight`` of the environment, 0 = no limit. Raises InvalidSpecError."""
    text = spec.env_vars.get("max_inflight", "0") or "0"
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise InvalidSpecError(f"envVars max_inflight is {text[:40]!r}; it takes a whole number, 0 for no limit")
    return int(text)


def deployment_of(spec: FunctionSpec) -> dict[str, Any]:
    """The FunctionDeployment that :func:`parse_deployment` reads back to the same spec."""
    document: dict[str, Any] = {"service": spec.name, "image": spec.image, "namespace": spec.namespace}
    optional = {
        "envProcess": spec.env_process,
        "envVars": dict(spec.env_vars),
        "constraints": list(spec.constraints),
        "secrets": list(spec.secrets),
        "labels": dict(spec.labels),
        "annotations": dict(spec.annotations),
        "limits": dict(spec.limits),
        "requests": dict(spec.requests),
        "readOnlyRootFilesystem": spec.read_only_root_filesystem,
    }
    return document | {key: value for key, value in optional.items() if value}


def status_of(state: FunctionState, invocations: float, usage: Mapping[str, Usage] | None = None) -> dict[str, Any]:
    """FunctionStatus, with Go's ``omitempty``: numbers that are 0 are left out; labels and annotations never."""
    spec = state.spec
    created = datetime.fromtimestamp(state.created_at_s, UTC).isoformat().replace("+00:00", "Z")
    document = deployment_of(spec)
    document["name"] = document.pop("service")
    document["labels"] = {**spec.labels, FUNCTION_LABEL: spec.name}
    document["annotations"] = dict(spec.annotations)
    document["createdAt"] = created
    numbers = {
        "invocationCount": invocations,
        "replicas": state.desired_replicas,
        "availableReplicas": state.available,
    }
    document |= {key: value for key, value in numbers.items() if value}
    if state.problems:
        document["problems"] = list(state.problems)
    if usage:
        document["usage"] = {
            "cpu": sum(replica.cpu_millicores or 0.0 for replica in usage.values()),
            "totalMemoryBytes": sum(replica.memory_bytes or 0 for replica in usage.values()),
        }
    return document


def _text(document: Mapping[str, Any], key: str) -> str:
    value = document.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidSpecError(f"{key} must be a string")
    return value


def _flag(document: Mapping[str, Any], key: str) -> bool:
    value = document.get(key)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise InvalidSpecError(f"{key} must be true or false")
    return value


def _text_list(document: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = document.get(key)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise InvalidSpecError(f"{key} must be a list of strings")
    return tuple(value)


def _texts_by_name(document: Mapping[str, Any], key: str) -> dict[str, str]:
    value = document.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise InvalidSpecError(f"{key} must be an object whose values are strings")
    return dict(value)
