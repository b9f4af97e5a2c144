"""Where the search on co-activation begins: EPLB's flat mode for one layer, without second copies on a node. Compiled.

Second copies of an expert on a node help nobody and are given up; its tokens are shared by the nodes that hold it. Then
exchanges bring the nodes back within EPLB's fullest, or as near to it as they can.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placement.layer_state import Experts, Floats, Ints, fullest, inner

RELATIVE = 1e-7
"""Improvements smaller than this part of the load count as none (rounding)."""


class Layout(NamedTuple):
    """One layer's replicas while they are searched."""

    held: NDArray[np.int32]
    """[nodes, slots]: expert in each slot, -1 free."""
    counts: NDArray[np.int32]
    """[experts]: replicas."""
    share: NDArray[np.float64]
    """[experts]: tokens of one replica."""
    load: NDArray[np.float64]
    """[nodes]: tokens."""
    bears: NDArray[np.float64]
    """[nodes, slots]: co-activation of the replica in the slot with all others on its node."""
    pairs: NDArray[np.float64]
    """[nodes]: Eq. (1), co-activation over pairs on the node."""


@inner
def sort_falling(order: Ints, share: Floats, falling: Ints) -> None:
    """``falling`` [experts]: by falling share, equal ones as in ``order`` [experts], which is nearly that already."""
    falling[:] = order
    for at in range(1, len(order)):
        expert, to = falling[at], at
        while to > 0 and share[falling[to - 1]] < share[expert]:
            falling[to] = falling[to - 1]
            to -= 1
        falling[to] = expert


@inner
def spread(falling: Ints, counts: Experts, share: Floats, held: Experts, load: Floats) -> float:
    """EPLB's layout, into ``held`` [nodes, slots] and ``load`` [nodes]: each replica to the node with fewest tokens and
    a free slot. Tokens of the fullest node."""
    nodes, slots = held.shape
    heap, size = np.arange(nodes), nodes  # by load, then number
    used = np.zeros(nodes, dtype=np.int64)
    load[:] = 0.0
    for expert in falling:
        for _ in range(counts[expert]):
            node = heap[0]
            held[node, used[node]] = expert
            used[node] += 1
            load[node] += share[expert]
            if used[node] == slots:
                size -= 1
                node = heap[size]
            at = 0  # the root: its node has more tokens now, or is replaced by the heap's last, and sinks
            while True:
                child = 2 * at + 1
                if child >= size:
                    break
                lower, upper = heap[child], heap[min(child + 1, size - 1)]
                if load[upper] < load[lower] or (load[upper] == load[lower] and upper < lower):
                    child, lower = child + 1, upper
                if load[node] < load[lower] or (load[node] == load[lower] and node < lower):
                    break
                heap[at] = lower
                at = child
            heap[at] = node
    most: float = load.max()
    return most


@inner
def give_up_doubles(layout: Layout, tokens: Floats) -> float:
    """Every copy of an expert on a node but the first becomes a free slot; ``tokens`` [experts]. Tokens of the fullest
    node then."""
    nodes, slots = layout.held.shape
    any_given_up = False
    for node in range(nodes):
        for slot in range(slots - 1, 0, -1):
            expert = layout.held[node, slot]
            if expert == layout.held[node, slot - 1]:  # copies of an expert stand side by side
                layout.held[node, slot] = -1
                layout.counts[expert] -= 1
                any_given_up = True
    if any_given_up:
        weigh(layout, tokens)
    most: float = layout.load.max()
    return most


@inner
def _shift(layout: Layout, node: int, slot: int, below: float) -> bool:
    """The exchange of a slot that leaves the fuller of both nodes least tokens, if they are fewer than ``below``."""
    held, share, load = layout.held, layout.share, layout.load
    nodes, slots = held.shape
    leaving, to_node, to_slot = held[node, slot], -1, -1
    for other in range(nodes):
        twice = other == node
        for at in range(slots):
            twice = twice or held[other, at] == leaving
        if twice:
            continue
        for at in range(slots):  # a free slot takes the expert and gives nothing back
            coming = held[other, at]
            given = share[leaving] - (share[coming] if coming >= 0 else 0.0)
            larger = max(load[node] - given, load[other] + given)
            if larger < below:
                twice = False
                for mine in range(slots):
                    twice = twice or (coming >= 0 and held[node, mine] == coming)
                if not twice:
                    below, to_node, to_slot = larger, other, at
    if to_node < 0:
        return False
    coming = held[to_node, to_slot]
    given = share[leaving] - (share[coming] if coming >= 0 else 0.0)
    held[node, slot], held[to_node, to_slot] = coming, leaving
    load[node] -= given
    load[to_node] += given
    return True


@inner
def even_out(layout: Layout, limit: float) -> float:
    """Exchanges of the fullest node until it has no more than ``limit`` or none helps. Its tokens then."""
    for _ in range(layout.held.size):
        full, changed = fullest(layout.load), False
        if layout.load[full] <= limit:
            break
        for slot in range(layout.held.shape[1]):
            if layout.held[full, slot] >= 0 and _shift(layout, full, slot, layout.load[full] * (1 - RELATIVE)):
                changed = True
                break
        if not changed:
            break
    most: float = layout.load.max()
    return most


@inner
def weigh(layout: Layout, tokens: Floats) -> None:
    """Shares and loads, computed again from ``held``, ``counts`` and ``tokens`` [experts]."""
    nodes, slots = layout.held.shape
    for expert in range(len(tokens)):
        layout.share[expert] = tokens[expert] / layout.counts[expert]
    for node in range(nodes):
        layout.load[node] = 0.0
        for slot in range(slots):
            if layout.held[node, slot] >= 0:
                layout.load[node] += layout.share[layout.held[node, slot]]


@inner
def recount(layout: Layout, expert: int, count: int, tokens: Floats) -> None:
    """Another number of replicas of an expert: its share and the load of all nodes that hold it; ``tokens``
    [experts]."""
    after = tokens[expert] / count
    for node in range(layout.held.shape[0]):
        for slot in range(layout.held.shape[1]):
            if layout.held[node, slot] == expert:
                layout.load[node] += after - layout.share[expert]
    layout.share[expert] = after
    layout.counts[expert] = count
