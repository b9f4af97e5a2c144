"""The flat mode of DeepSeek's expert-parallelism load balancer, stated in NumPy: the peer for speed and balance.

Replicas one by one to the expert with most tokens per replica; then replicas by falling tokens, each to the node with
the fewest tokens that still has a free slot, every node equally many. Tokens only, layers side by side in every array
operation. As in the original, a node may get two replicas of one expert.
"""

from __future__ import annotations

import numpy as np

from placement.errors import PlacementError
from placement.layout import Floats, Held


def replicate(tokens: Floats, replicas: int) -> tuple[Held, Floats]:
    """Expert of each replica [layers, replicas] int32 and its share of tokens [layers, replicas] float64."""
    layers, experts = tokens.shape
    expert = np.empty((layers, replicas), dtype=np.int32)
    expert[:, :experts] = np.arange(experts)
    counts, share, rows = np.ones_like(tokens), tokens.copy(), np.arange(layers)
    for replica in range(experts, replicas):
        most = share.argmax(axis=1)
        expert[:, replica] = most
        counts[rows, most] += 1
        share[rows, most] = tokens[rows, most] / counts[rows, most]
    return expert, np.take_along_axis(share, expert.astype(np.int64), axis=1)


def balanced(tokens: Floats, nodes: int, slots: int) -> Held:
    """``held`` [layers, nodes, slots] int32. Raises PlacementError where the experts do not fit."""
    layers, experts = tokens.shape
    if nodes * slots < experts:
        raise PlacementError(f"{experts} experts do not fit in {nodes} nodes of {slots} slots")
    expert, share = replicate(tokens, nodes * slots)
    order = np.argsort(-share, axis=1, kind="stable")
    expert, share = np.take_along_axis(expert, order, axis=1), np.take_along_axis(share, order, axis=1)
    held = np.empty((layers, nodes, slots), dtype=np.int32)
    load, used = np.zeros((layers, nodes)), np.zeros((layers, nodes), dtype=np.int64)
    rows = np.arange(layers)
    for replica in range(nodes * slots):
        node = load.argmin(axis=1)
        held[rows, node, used[rows, node]] = expert[:, replica]
        load[rows, node] += share[:, replica]
        used[rows, node] += 1
        load[rows, node] += np.where(used[rows, node] == slots, np.inf, 0.0)
    return held
