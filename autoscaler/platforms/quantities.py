"""What platforms report of a function, as the numbers that configurations and floors hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from autoscaler.contract import MIB, Burst, Configuration
from functions.dispatch.activation import burst_from as burst_from_text
from platform_words.bursts import burst_text
from platform_words.labels import BURST, PLACEMENT
from platform_words.resources import GPU, GPU_TENTHS, QuantityError, parse_quantity


@lru_cache(maxsize=4096)
def float_quantity(text: str) -> float:
    """``128Mi`` → bytes, ``500m`` → 0.5. Raises QuantityError, also for what is too large for a float."""
    try:
        return float(parse_quantity(str(text)))
    except OverflowError as error:
        raise QuantityError(f"{text!r} is too large for a Kubernetes quantity") from error


def configuration_from(limits: Mapping[str, Any], replicas: int, concurrency: int) -> Configuration | None:
    """The configuration with these Kubernetes quantities as limits; None without memory, or without CPU and GPU."""
    try:
        memory_mb = round(float_quantity(limits["memory"]) / MIB)
        share = round(float_quantity(limits[GPU]) / GPU_TENTHS, 6) if GPU in limits else 0.0
        cores = 0.0 if share else float_quantity(limits["cpu"])
        return Configuration(memory_mb, cores, share, replicas, concurrency)
    except (KeyError, TypeError, ValueError):  # QuantityError and ConfigurationError are ValueErrors
        return None


def burst_from(annotations: Mapping[str, Any] | None) -> Burst | None:
    """The standbys of the annotation ``smoe.burst``; None without any, or where it cannot be read."""
    try:
        return burst_from_text(str((annotations or {})[BURST]))
    except (KeyError, ValueError):
        return None


def annotations_with(annotations: Mapping[str, Any] | None, burst: Burst | None) -> dict[str, Any]:
    """``annotations`` with these standbys instead of those that they have."""
    others = {key: value for key, value in (annotations or {}).items() if key != BURST}
    if burst is None:
        return others
    numbers = {name: value for name, value in asdict(burst).items() if name != "standbys" and value is not None}
    return {**others, BURST: burst_text(burst.standbys, numbers)}


def nodes_of(annotations: Mapping[str, Any] | None) -> int:
    """Nodes that a placement gives a function; 0 without one, or where it is none that can be read."""
    text = str((annotations or {}).get(PLACEMENT, ""))
    parts = [part.partition("=") for part in text.split(",") if part]
    return sum(count.strip().isdecimal() and int(count) > 0 for _, _, count in parts)


def floors_of(nodes: Mapping[str, int]) -> dict[str, int]:
    """Function → fewest replicas, from function → nodes: one for each where a placement names several."""
    return {function: count for function, count in nodes.items() if count > 1}
