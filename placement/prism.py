"""Prism, Section III-C: experts on heterogeneous nodes so that as few calls as possible leave the node they arise on.

Algorithm 1 shares a node's places among layers by the entropy of its activations and sees to it that every layer has
places for all its experts; Algorithm 2 fills them by frequency and swaps duplicates for what nobody holds. As published
they get stuck on tight instances, so they are made total here:

* places are whole experts on single GPUs, not memory summed over a node;
* a layer gets at most as many places on a node as it has experts, and what rounding down leaves over is handed out
  by the largest rest, so that every place is used;
* a layer borrows only from a layer with more than it needs; Algorithm 2 passes over nodes without a duplicate.

Then every feasible instance ends with a plan: all places are used, so while a layer is short another has more than it
needs, and some node holds places of it; and while an expert is nowhere, some node holds one that another holds too.
An *improvement* by exchanges follows (:mod:`placement.exchange`), up to the optimum of Eq. (2).
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import coo_array, csr_array

from placement.cluster import Cluster, PlanArray, Whole, check_fits, check_frequency, check_plan_shape, entropy
from placement.errors import InfeasibleError, PlacementError
from placement.exchange import MOST_CYCLES, improve, to_gpus
from placement.layout import Floats

Method = Literal["auto", "improved", "published", "exact"]
METHODS: tuple[Method, ...] = get_args(Method)
EXACT_CELLS = 40_000
"""Nodes × layers × experts from which ``auto`` takes the linear program. Below, the improvement by exchanges takes a
tenth to nine tenths of its time; above, 0.9 to 2 times, unless memory is so ample that little has to be exchanged."""


def plan(
    frequency: Floats,
    cluster: Cluster,
    expert_bytes: int,
    *,
    method: Method = "auto",
    most_cycles: int = MOST_CYCLES,
    previous: PlanArray | None = None,
) -> PlanArray:
    """[gpus, layers, experts] bool for ``frequency`` [nodes, layers, experts]: calls of each expert by node.

    ``published`` is Algorithms 1 and 2 made total, ``improved`` goes on from there, ``exact`` is the linear program;
    both end at the optimum of Eq. (2), and ``auto`` takes the one that is usually the faster at this size.
    ``previous``: an expert that stays on a node stays on its GPU. Raises PlacementError, InfeasibleError.
    """
    if method not in METHODS:
        raise PlacementError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    frequency = check_frequency(frequency, cluster)
    if previous is not None:
        check_plan_shape(previous, "previous", cluster, frequency)
    nodes, layers, experts = frequency.shape
    check_fits(cluster, layers, experts, expert_bytes)
    slots = np.minimum(cluster.node_slots(expert_bytes), layers * experts)
    flat = frequency.reshape(nodes, -1)
    if method == "auto":
        method = "exact" if frequency.size >= EXACT_CELLS else "improved"
    if method == "exact":
        held = fewest_remote(flat, slots)
    else:
        held = assign(frequency, layer_counts(frequency, slots)).reshape(nodes, -1)
        if method == "improved":
            held = improve(flat, held, most_cycles)
    before = None if previous is None else previous.reshape(cluster.gpus, -1)
    on_gpus = to_gpus(flat, held, cluster.node, cluster.slots(expert_bytes), cluster.speed, before)
    return on_gpus.reshape(cluster.gpus, layers, experts)


def layer_counts(frequency: Floats, slots: Whole) -> Whole:
    """Algorithm 1: places [nodes, layers] of each layer on nodes with ``slots`` [nodes] (≤ layers × experts)."""
    nodes, layers, experts = frequency.shape
    diversity = entropy(frequency)
    diversity[diversity.sum(axis=1) == 0] = 1.0  # nothing known: all layers count the same
    ideal = slots[:, None] * diversity / diversity.sum(axis=1, keepdims=True)
    counts: Whole = np.minimum(np.floor(ideal), experts).astype(np.int64)
    for node in range(nodes):
        while (left := int(slots[node] - counts[node].sum())) > 0:
            room = counts[node] < experts
            order = np.argsort(np.where(room, counts[node] - ideal[node], np.inf), kind="stable")
            counts[node, order[: min(left, int(room.sum()))]] += 1
    totals = counts.sum(axis=0)
    largest_first = np.argsort(-slots, kind="stable")
    for layer in range(layers):
        while totals[layer] < experts:
            for node in largest_first:
                donor = int(totals.argmax())
                if counts[node, donor] > 0:
                    counts[node, donor] -= 1
                    counts[node, layer] += 1
                    totals[donor] -= 1
                    totals[layer] += 1
                    if totals[layer] == experts:
                        break
    return counts


def assign(frequency: Floats, counts: Whole) -> PlanArray:
    """Algorithm 2: experts [nodes, layers, experts] bool that fill ``counts`` [nodes, layers] and cover all experts."""
    order = np.argsort(-frequency, axis=2, kind="stable")
    rank = np.argsort(order, axis=2, kind="stable")
    held: PlanArray = rank < counts[:, :, None]
    for layer in range(frequency.shape[1]):
        _cover(held[:, layer], frequency[:, layer])
    return held


def _cover(held: PlanArray, frequency: Floats) -> None:
    """Lines 9 to 20 for one layer, [nodes, experts] both: duplicates give way to experts that nobody holds."""
    holders = held.sum(axis=0)
    while not holders.all():
        duplicates = (held & (holders > 1)).sum(axis=1)
        for node in np.argsort(duplicates, kind="stable"):
            twice = np.flatnonzero(held[node] & (holders > 1))
            nowhere = np.flatnonzero(holders == 0)
            if not nowhere.size:
                break
            if twice.size:
                given_up = twice[frequency[node, twice].argmin()]
                taken = nowhere[frequency[node, nowhere].argmax()]
                held[node, given_up], held[node, taken] = False, True
                holders[given_up] -= 1
                holders[taken] += 1


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
