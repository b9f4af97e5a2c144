"""Exact optima: what the fast algorithms are measured against, and for Prism's Eq. (2) a choice of its own.

* :func:`least_fullest`: AEBS's problem, by binary search over a maximum flow.
* :func:`least_pairs`: Janus's Eq. (2), NP-hard, by branch and bound; for small instances.
* :func:`fewest_remote`: Prism's Eq. (2), a transportation problem, by linear programming.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import maximum_flow

from placement.errors import InfeasibleError, PlacementError
from placement.layout import Floats

MAX_BRANCHES = 5_000_000


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


def fewest_remote(frequency: Floats, slots: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Prism, Eq. (2): experts on each node [nodes, experts] bool with the fewest expected remote calls.

    ``frequency`` [nodes, experts] (all layers' experts in a row), ``slots`` [nodes] experts that fit. The constraint
    matrix is that of a transportation problem, so a basic optimal solution is whole. Raises InfeasibleError.
    """
    nodes, experts = frequency.shape
    if np.minimum(slots, experts).sum() < experts:
        raise InfeasibleError(
            f"expert coverage: {experts} experts need a place each, all nodes together have "
            f"{int(np.minimum(slots, experts).sum())}"
        )
    cell = np.arange(nodes * experts)
    one = np.ones(nodes * experts)
    by_node = coo_array((one, (cell // experts, cell)), shape=(nodes, cell.size))
    by_expert = coo_array((-one, (cell % experts, cell)), shape=(experts, cell.size))
    limits = np.concatenate((slots.astype(np.float64), -np.ones(experts)))
    rows = np.concatenate((by_node.row, by_expert.row + nodes))
    columns = np.concatenate((by_node.col, by_expert.col))
    matrix = csr_array((np.concatenate((one, -one)), (rows, columns)))
    scale = max(float(frequency.max()), 1e-300)
    solution = linprog(-frequency.ravel() / scale, A_ub=matrix, b_ub=limits, bounds=(0, 1), method="highs-ds")
    if solution.status != 0:
        raise PlacementError(f"the linear program of Eq. (2) was not solved: {solution.message}")
    held: NDArray[np.bool_] = solution.x.reshape(nodes, experts) > 0.5
    return held
