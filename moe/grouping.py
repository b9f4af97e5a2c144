"""Which nodes share a function, when an installation limits the number of functions (OpenFaaS editions: 15,
500).

One node a function while there is room. Otherwise segments share with segments (a request visits them one
after another, so they never compete within a request) and experts share with experts of *other* layers first,
for the same reason; only when even that does not fit do experts of one layer share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from moe.errors import GroupingError
from moe.manifest import Manifest, Node
from moe.names import INGRESS

__all__ = ["FunctionGroup", "Grouping", "GroupingError", "group"]


@dataclass(frozen=True)
class FunctionGroup:
    """One function and the ids of the nodes it hosts (``("ingress",)`` for the ingress)."""

    name: str
    nodes: tuple[str, ...]

    @property
    def is_ingress(self) -> bool:
        return self.nodes == (INGRESS,)

    def path(self, node_id: str) -> str:
        """HTTP path of a hosted node: ``/`` when alone, else ``/stage/NODEID``."""
        if node_id not in self.nodes:
            raise KeyError(f"Function {self.name} does not host node {node_id!r}.")
        return "/" if len(self.nodes) == 1 else f"/stage/{node_id}"


@dataclass(frozen=True)
class Grouping:
    """All functions of a pipeline, the ingress first."""

    functions: tuple[FunctionGroup, ...]

    @cached_property
    def _by_node(self) -> Mapping[str, FunctionGroup]:
        return {node: function for function in self.functions for node in function.nodes}

    def function_of(self, node_id: str) -> FunctionGroup:
        """Raises KeyError for an unknown node."""
        try:
            return self._by_node[node_id]
        except KeyError:
            raise KeyError(f"No function hosts node {node_id!r}.") from None


def group(manifest: Manifest, max_functions: int = 0) -> Grouping:
    """Map nodes to at most ``max_functions`` functions, ingress included; 0 means no limit.

    Deterministic. Raises GroupingError when the limit is below 2 (the ingress and one more).
    """
    if max_functions < 0 or max_functions == 1:
        raise GroupingError(
            f"A pipeline needs at least 2 functions, the ingress and one more; the limit is {max_functions} (0: none)."
        )
    ingress = FunctionGroup(manifest.function_name(INGRESS), (INGRESS,))
    segments = list(manifest.segments)
    experts = [node for layer in range(manifest.layers) for node in manifest.experts(layer)]
    room = max_functions - 1 if max_functions else len(segments) + len(experts)
    if room >= len(segments) + len(experts):
        parts = [[node] for node in segments + experts]
        return Grouping((ingress, *(_function(manifest, part, "", 0) for part in parts)))
    if room == 1:
        return Grouping((ingress, _function(manifest, segments + experts, "stages", 0)))
    widest = max(len(manifest.experts(layer)) for layer in range(manifest.layers))
    for_segments = _share_of_segments(room, len(segments), len(experts), widest)
    by_index = sorted(experts, key=lambda node: (node.expert or 0, node.layer))
    segment_parts = _balanced(segments, for_segments)
    expert_parts = _balanced(by_index, room - for_segments)
    functions = [_function(manifest, part, "segments", i) for i, part in enumerate(segment_parts)]
    functions += [_function(manifest, part, "experts", i) for i, part in enumerate(expert_parts)]
    return Grouping((ingress, *functions))


def _share_of_segments(room: int, segments: int, experts: int, widest: int) -> int:
    """Functions for segments: first one for each expert index (they run in parallel), then in proportion."""
    share = round(room * segments / (segments + experts))
    share = min(share, room - min(widest, room - 1))
    return max(1, min(share, segments), room - experts)


def _balanced(nodes: Sequence[Node], parts: int) -> list[list[Node]]:
    """Cut ``nodes`` into ``parts`` runs whose lengths differ by at most one."""
    base, extra = divmod(len(nodes), parts)
    result, start = [], 0
    for index in range(parts):
        end = start + base + (index < extra)
        result.append(list(nodes[start:end]))
        start = end
    return result


def _function(manifest: Manifest, nodes: Sequence[Node], word: str, index: int) -> FunctionGroup:
    ids = tuple(node.id for node in nodes)
    if len(ids) == 1:
        return FunctionGroup(manifest.function_name(ids[0]), ids)
    suffix = word if word == "stages" else f"{word}-{index}"
    return FunctionGroup(f"{manifest.name}-{suffix}", ids)
