"""What placements are judged by: loads of nodes, and exact optima that the fast algorithms are measured against.

* :func:`least_fullest`: AEBS's problem, by binary search over a maximum flow.
* :func:`least_pairs`: Janus's Eq. (2), NP-hard, by branch and bound; for small instances.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from placement.errors import InfeasibleError, PlacementError
from placement.layout import Floats, Held, Singles, copies

MAX_BRANCHES = 5_000_000


def token_load(held: Held, tokens: Floats) -> Floats:
    """[layers, nodes]: tokens by node; ``tokens`` [layers, experts] of an expert split evenly over its replicas."""
    counts = copies(held, tokens.shape[1])
    share = tokens / np.maximum(counts.sum(axis=1), 1)
    load: Floats = np.einsum("lne,le->ln", counts, share)
    return load


def coactivation_load(held: Held, together: Singles) -> Floats:
    """[layers, nodes]: Janus, Eq. (1): co-activations [layers, experts, experts] summed over pairs on a node.

    An expert that stands twice on a node counts once.
    """
    here = (copies(held, together.shape[1]) > 0).astype(np.float32)
    pairs: Floats = ((here @ together) * here).sum(axis=2, dtype=np.float64) / 2
    return pairs


def least_fullest(hosts: Sequence[Sequence[int]], nodes: int) -> int:
    """Least possible number of activated experts on the fullest node.

    ``hosts[i]``: nodes with a replica of the i-th activated expert, at least one each.
    """
    experts = len(hosts)
    if not experts:
        return 0
    source, sink = experts + nodes, experts + nodes + 1
    pairs = [(expert, experts + node) for expert, held in enumerate(hosts) for node in held]
    rows = [*(source for _ in range(experts)), *(a for a, _ in pairs), *(experts + node for node in range(nodes))]
    columns = [*range(experts), *(b for _, b in pairs), *(sink for _ in range(nodes))]
    low, high = -(-experts // nodes), experts
    while low < high:
        limit = (low + high) // 2
        capacity = np.array([1] * (experts + len(pairs)) + [limit] * nodes, dtype=np.int32)
        graph = csr_array((capacity, (rows, columns)), shape=(sink + 1, sink + 1))
        if maximum_flow(graph, source, sink).flow_value == experts:
            high = limit
        else:
            low = limit + 1
    return low


def least_pairs(counts: NDArray[np.integer], together: NDArray[np.floating], nodes: int, slots: int) -> float:
    """Least possible greatest Eq. (1) load of a node for given replica ``counts`` [experts] of one layer.

    Raises InfeasibleError where the replicas do not fit, PlacementError where the search is too large.
    """
    experts = len(counts)
    if counts.sum() > nodes * slots or counts.max() > nodes:
        raise InfeasibleError(f"{int(counts.sum())} replicas, up to {int(counts.max())} of an expert, do not fit")
    order = np.argsort(-(together.sum(axis=1) * counts), kind="stable")
    replicas = [int(expert) for expert in order for _ in range(counts[expert])]
    held: list[list[int]] = [[] for _ in range(nodes)]
    load = [0.0] * nodes
    best, branches = float(np.triu(together).sum()) + 1.0, 0

    def deeper(at: int, earliest: int) -> None:
        nonlocal best, branches
        branches += 1
        if branches > MAX_BRANCHES:
            raise PlacementError(f"{experts} experts on {nodes} nodes of {slots} slots are too many to solve exactly")
        if at == len(replicas):
            best = max(load)
            return
        expert, tried_empty = replicas[at], False
        for node in range(earliest, nodes):
            if len(held[node]) == slots or expert in held[node] or (not held[node] and tried_empty):
                continue
            tried_empty = tried_empty or not held[node]
            before = load[node]
            grown = before + sum(float(together[expert, other]) for other in held[node])
            if grown < best - 1e-9:
                held[node].append(expert)
                load[node] = grown
                same = at + 1 < len(replicas) and replicas[at + 1] == expert
                deeper(at + 1, node + 1 if same else 0)
                held[node].pop()
                load[node] = before

    deeper(0, 0)
    return best
