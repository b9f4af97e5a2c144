"""The cheapest way from what nodes hold to what they are to hold (ElasticMoE, sections 4.4 and 5.2). Pure.

Reuse in place first, then a copy from a peer, then disk, and each region is read from disk at most once: the first node
that needs a region nobody holds reads it, the others copy it from there. Lines out of a node, into a node and from a
disk carry one region at a time; regions are planned largest first, each from the holder whose copy would end first.
Regions that are no longer wanted go last, once traffic has moved, so a node must have room for both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from functions.memory.regions import RegionError

Source = Literal["reuse", "peer", "disk"]


@dataclass(frozen=True)
class NodeMemory:
    """One node as the plan sees it; rates in bytes a second."""

    held: frozenset[str]
    link_bytes_per_s: float
    disk_bytes_per_s: float
    limit_bytes: int = 0
    """0: no limit."""
    unfinished: Mapping[str, int] = field(default_factory=dict)
    """Bytes that are there already of regions whose coming was broken off."""


@dataclass(frozen=True)
class Step:
    """One region on one node."""

    node: str
    region: str
    source: Source
    peer: str
    """Node copied from; empty for the other sources."""
    nbytes: int
    """Bytes to be moved; 0 for reuse."""
    begin_s: float
    end_s: float
    """Predicted, from the beginning of the move."""


@dataclass(frozen=True)
class MovePlan:
    """Steps in the order in which they are taken, then regions to give back by node."""

    steps: tuple[Step, ...]
    release: Mapping[str, tuple[str, ...]]

    @property
    def predicted_s(self) -> float:
        """Time until the last region is in place."""
        return max((step.end_s for step in self.steps), default=0.0)

    def nbytes(self, source: Source) -> int:
        """Bytes moved from this source."""
        return sum(step.nbytes for step in self.steps if step.source == source)

    def regions(self, source: Source) -> int:
        """Regions had from this source."""
        return sum(step.source == source for step in self.steps)


def plan_move(
    nodes: Mapping[str, NodeMemory],
    target: Mapping[str, frozenset[str]],
    sizes: Mapping[str, int],
    *,
    peers: bool = True,
) -> MovePlan:
    """The plan; ``peers`` False reads everything from disk (the paper's ablation without peer copies).

    ``target``: regions by node. Raises RegionError that names the node which has no room, or the region nobody knows.
    """
    _check(nodes, target, sizes)
    reuse = [
        Step(node, region, "reuse", "", 0, 0.0, 0.0)
        for node, wanted in target.items()
        for region in sorted(wanted & nodes[node].held)
    ]
    lines = _Lines(nodes)
    held_at_s: dict[str, dict[str, float]] = {}
    """Region → node → second from which on it is there."""
    for node, memory in nodes.items():
        for region in memory.held:
            held_at_s.setdefault(region, {})[node] = 0.0
    moves = []
    for region, wanting in _largest_first(nodes, target, sizes):
        for node in wanting:
            step = lines.take(node, region, sizes[region], held_at_s.get(region, {}) if peers else {})
            held_at_s.setdefault(region, {})[node] = step.end_s
            moves.append(step)
    release = {
        node: tuple(sorted(gone))
        for node, memory in nodes.items()
        if (gone := (memory.held | memory.unfinished.keys()) - target.get(node, frozenset()))
    }
    return MovePlan((*reuse, *sorted(moves, key=lambda step: (step.begin_s, step.node))), release)


def _largest_first(
    nodes: Mapping[str, NodeMemory], target: Mapping[str, frozenset[str]], sizes: Mapping[str, int]
) -> Sequence[tuple[str, list[str]]]:
    """Regions that have to move, with the nodes that lack them, those with the faster disk first."""
    lacking: dict[str, list[str]] = {}
    for node, wanted in target.items():
        for region in wanted - nodes[node].held:
            lacking.setdefault(region, []).append(node)
    for wanting in lacking.values():
        wanting.sort(key=lambda node: (-nodes[node].disk_bytes_per_s, node))
    return sorted(lacking.items(), key=lambda entry: (-sizes[entry[0]], entry[0]))


class _Lines:
    """When the line out of, into, and from the disk of each node is free again."""

    def __init__(self, nodes: Mapping[str, NodeMemory]) -> None:
        self._nodes = nodes
        self._out = dict.fromkeys(nodes, 0.0)
        self._in = dict.fromkeys(nodes, 0.0)

    def take(self, node: str, region: str, nbytes: int, holders: Mapping[str, float]) -> Step:
        """Plan one region for one node from the holder whose copy ends first, else from disk."""
        memory = self._nodes[node]
        left = nbytes - memory.unfinished.get(region, 0)
        best: tuple[float, float, str] | None = None
        for peer, there_s in holders.items():
            begin_s = max(self._in[node], self._out[peer], there_s)
            end_s = begin_s + left / min(memory.link_bytes_per_s, self._nodes[peer].link_bytes_per_s)
            if best is None or (end_s, begin_s, peer) < best:
                best = (end_s, begin_s, peer)
        if best is None:
            begin_s = self._in[node]
            end_s = begin_s + left / memory.disk_bytes_per_s
            self._in[node] = end_s
            return Step(node, region, "disk", "", left, begin_s, end_s)
        end_s, begin_s, peer = best
        self._in[node] = self._out[peer] = end_s
        return Step(node, region, "peer", peer, left, begin_s, end_s)


def _check(nodes: Mapping[str, NodeMemory], target: Mapping[str, frozenset[str]], sizes: Mapping[str, int]) -> None:
    for node, wanted in target.items():
        if node not in nodes:
            raise RegionError(f"node {node!r} is not known; known are {', '.join(sorted(nodes))}")
        unknown = sorted(wanted - sizes.keys())
        if unknown:
            raise RegionError(f"region {unknown[0]!r} is in no pipeline")
        memory = nodes[node]
        need = sum(sizes[region] for region in wanted | (memory.held & sizes.keys()))
        if memory.limit_bytes and need > memory.limit_bytes:
            raise RegionError(
                f"node {node} would hold {need} bytes while moving, of {memory.limit_bytes} allowed; move less at once"
            )
