"""A layout: the expert in every slot of every node, layer by layer, and what it means for load and movement.

``held`` [layers, nodes, slots] int32 holds expert numbers; -1 is a free slot. The order of slots on a node means
nothing. Worked example: one layer, two nodes of two slots, ``[[[0, 1], [0, 2]]]``: expert 0 has a replica on both
nodes, so each node bears half of its tokens.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from placement.errors import PlacementError

Held = NDArray[np.int32]
Floats = NDArray[np.float64]
Singles = NDArray[np.float32]


def copies(held: Held, experts: int) -> NDArray[np.int32]:
    """[layers, nodes, experts] int32: replicas of each expert on each node (EPLB may put several on one)."""
    layers, nodes, _ = held.shape
    counts = np.zeros((layers, nodes, experts + 1), dtype=np.int32)
    layer, node = np.arange(layers)[:, None, None], np.arange(nodes)[None, :, None]
    np.add.at(counts, (layer, node, np.where(held < 0, experts, held)), 1)
    return counts[:, :, :experts]


def once(held: Held) -> Held:
    """The layout with second replicas of an expert on a node left out; slots in another order."""
    slots = np.sort(held, axis=2)
    slots[:, :, 1:][slots[:, :, 1:] == slots[:, :, :-1]] = -1
    return slots


def arrivals(previous: Held, held: Held) -> int:
    """Replicas that a node holds in ``held`` and did not hold in ``previous``: what has to be copied."""
    experts = int(max(previous.max(), held.max())) + 1
    return int(np.maximum(copies(held, experts) - copies(previous, experts), 0).sum())


def keep_in_place(held: Held, previous: Held, node_groups: int = 1) -> Held:
    """The same layout with like nodes renamed so that as few replicas as possible move, layer by layer.

    Neighbouring nodes in ``node_groups`` equal groups stay together; groups are renamed first, then nodes within them.
    The best renaming is an assignment problem. Raises PlacementError where the two layouts' nodes differ.
    """
    if held.shape[:2] != previous.shape[:2]:
        raise PlacementError(f"layers and nodes must be those of before: {held.shape[:2]} against {previous.shape[:2]}")
    experts = int(max(previous.max(), held.max())) + 1
    before, after = (np.minimum(copies(part, experts), 1).astype(np.float32) for part in (previous, held))
    common = before @ after.transpose(0, 2, 1)  # [layers, nodes before, nodes after]
    renamed = np.empty_like(held)
    size = held.shape[1] // node_groups
    for layer in range(len(held)):
        block = common[layer].reshape(node_groups, size, node_groups, size).transpose(0, 2, 1, 3)
        inner = {
            (a, b): linear_sum_assignment(block[a, b], maximize=True)[1]
            for a in range(node_groups)
            for b in range(node_groups)
        }
        kept = [[block[a, b, range(size), inner[a, b]].sum() for b in range(node_groups)] for a in range(node_groups)]
        for group, other in enumerate(linear_sum_assignment(np.array(kept), maximize=True)[1]):
            target = slice(group * size, (group + 1) * size)
            renamed[layer, target] = held[layer, other * size + inner[group, other]]
    return renamed
