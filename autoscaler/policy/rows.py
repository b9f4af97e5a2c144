"""Rows of an observation by function, and what several policies read from them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from autoscaler.contract import NodeKind, NodeObservation, Observation

EVERY_KIND: frozenset[NodeKind] = frozenset(("segment", "expert", "ingress"))
MODULES: frozenset[NodeKind] = frozenset(("segment", "expert"))


def by_function(observation: Observation, kinds: Collection[NodeKind]) -> dict[str, list[NodeObservation]]:
    """Function → rows of its nodes of these kinds, in order of the observation."""
    rows: dict[str, list[NodeObservation]] = {}
    for node in observation.nodes:
        if node.kind in kinds:
            rows.setdefault(node.function, []).append(node)
    return rows


def calls(nodes: Sequence[NodeObservation]) -> float | None:
    """Mean calls of one function in the window: at replicas and waiting for one; None where a part is not known."""
    return total(
        [None if node.in_flight is None or node.waiting is None else node.in_flight + node.waiting for node in nodes]
    )


def total(values: Sequence[float | None]) -> float | None:
    """Sum, or None where one is not known: a part is no sum."""
    measured = [value for value in values if value is not None]
    return sum(measured) if len(measured) == len(values) else None
