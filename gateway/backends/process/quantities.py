"""The limits of a function, from the Kubernetes quantities of its spec; values are exact fractions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from gateway.contract import FunctionSpec, InvalidSpecError
from gateway.durations import parse_duration
from platform_words.resources import GPU, GPU_RESOURCES, GPU_TENTHS, RESOURCES, QuantityError, parse_quantity

_LARGEST = Fraction(2**63 - 1)


@dataclass(frozen=True)
class Limits:
    """What a replica may use; ``None`` is no limit."""

    memory_bytes: int | None = None
    cpu_cores: float | None = None
    """Configured cores, before ``cpu_scale``."""


def checked_quantity(text: str, what: str = "quantity") -> Fraction:
    """The exact value of a Kubernetes quantity. Raises InvalidSpecError with a sentence that names ``what``."""
    try:
        value = parse_quantity(text)
    except QuantityError:
        raise InvalidSpecError(
            f"{what} is {text[:40]!r}; it takes a Kubernetes quantity such as 128Mi, 1Gi, 500m, 1.5 or 2e3"
        ) from None
    if abs(value) > _LARGEST:
        raise InvalidSpecError(f"{what} is {text[:40]!r}; the largest allowed value is 2^63 - 1")
    return value


def limits_of(spec: FunctionSpec, gpus: int) -> Limits:
    """Limits of a function; ``gpus`` is how many GPUs this machine has. Requests are checked for form only.

    Raises InvalidSpecError. A CPU or memory limit above what the machine has is allowed.
    """
    for resource, text in spec.requests.items():
        _known(resource, "requests")
        checked_quantity(text, f"requests.{resource}")
    values = {}
    for resource, text in spec.limits.items():
        _known(resource, "limits")
        values[resource] = checked_quantity(text, f"limits.{resource}")
    for resource in ("memory", "cpu"):
        if resource in values and values[resource] <= 0:
            raise InvalidSpecError(
                f"limits.{resource} is {spec.limits[resource]!r}; it must be above 0, or be left out"
            )
    _check_gpus(values, gpus)
    memory = values.get("memory")
    cpu = values.get("cpu")
    return Limits(
        memory_bytes=None if memory is None else max(1, -(-memory.numerator // memory.denominator)),
        cpu_cores=None if cpu is None else float(cpu),
    )


def gpu_tenths(spec: FunctionSpec) -> int:
    """Tenths of a GPU that a replica of a checked spec gets; 0: it computes on the CPU."""
    return int(checked_quantity(spec.limits.get(GPU, "0")))


def whole_number(environment: Mapping[str, str], key: str, default: int) -> int:
    """A whole number of at least 0 from a function's environment. Raises InvalidSpecError."""
    text = environment.get(key, "").strip()
    if not text:
        return default
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII):
        raise InvalidSpecError(f"envVars.{key} is {text[:40]!r}; it takes a whole number of 0 or more")
    return int(text)


def duration_s(environment: Mapping[str, str], key: str, default: float) -> float:
    """Seconds of ``30``, ``30s``, ``1m30s`` or ``500ms`` in a function's environment. Raises InvalidSpecError."""
    text = environment.get(key, "").strip()
    try:
        return parse_duration(text) if text else default
    except ValueError as error:
        raise InvalidSpecError(f"envVars.{key}: {error}") from None


def _known(resource: str, where: str) -> None:
    if resource not in RESOURCES:
        raise InvalidSpecError(f"{where}.{resource[:60]} is not a resource; known are {', '.join(RESOURCES)}")


def _check_gpus(values: Mapping[str, Fraction], gpus: int) -> None:
    for resource in GPU_RESOURCES:
        wanted = values.get(resource, Fraction(0))
        if wanted < 0 or wanted.denominator != 1 or wanted > GPU_TENTHS:
            raise InvalidSpecError(f"limits.{resource} takes a whole number of tenths of one GPU, 0 to {GPU_TENTHS}")
        available = gpus if resource == GPU else 0
        if wanted and not available:
            raise InvalidSpecError(
                f"limits.{resource} asks for {wanted} tenths of a GPU, but this machine has 0 such GPUs that can be "
                "shared; see /system/info"
            )
