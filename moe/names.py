"""Names in a pipeline: its manifest's file, its nodes (segments 0…n, experts by layer), and how these are joined."""

from __future__ import annotations

from collections.abc import Iterable

MANIFEST_FILE = "pipeline.json"
INGRESS = "ingress"


def segment_id(layer: int) -> str:
    return f"segment-{layer}"


def expert_id(layer: int, expert: int) -> str:
    return f"expert-{layer}-{expert}"


def expected_edges(segments: int, experts: Iterable[int]) -> list[tuple[str, str]]:
    """Edges that the numbering implies: segment i → its experts → segment i+1; ``experts`` counts them by
    layer.
    """
    edges: list[tuple[str, str]] = []
    for layer, count in zip(range(segments - 1), experts, strict=True):
        edges += [(segment_id(layer), expert_id(layer, expert)) for expert in range(count)]
        edges += [(expert_id(layer, expert), segment_id(layer + 1)) for expert in range(count)]
    return edges
