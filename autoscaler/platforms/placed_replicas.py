"""Functions that a placement puts on several nodes, by their annotation ``smoe.placement`` (``node-a=2,node-b=1``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from platform_words.labels import PLACEMENT


def nodes_of(annotations: Mapping[str, Any] | None) -> int:
    """Nodes that a placement gives a function; 0 without one, or where it is none that can be read."""
    text = str((annotations or {}).get(PLACEMENT, ""))
    parts = [part.partition("=") for part in text.split(",") if part]
    return sum(count.strip().isdecimal() and int(count) > 0 for _, _, count in parts)


def floors_of(nodes: Mapping[str, int]) -> dict[str, int]:
    """Function → fewest replicas, from function → nodes: one for each where a placement names several."""
    return {function: count for function, count in nodes.items() if count > 1}
