"""Janus, section 3.4: how many replicas each expert gets, and on which of several like nodes they sit.

Counts: one replica each, the rest one by one to the expert with most tokens per replica, never more than there are
nodes (a second replica on one node helps nobody). Placement minimises the greatest *co-activation load* of a node,
Eq. (1) and (2): experts that the same tokens activate should lie apart. ``coactivation`` is the paper's Algorithm 2
followed by a bounded local search. ``tokens-first``, the default, begins with EPLB's evened-out tokens (which
Eq. (2) does not see) and then lowers the co-activation load by exchanges that leave no node with more tokens than
EPLB's fullest would have. ``tokens`` evens out tokens as far as it can and stops there.

*Hierarchical*: expert groups (whose experts are chosen together) stay within one of several equal groups of
neighbouring nodes, so that a token's experts cost one transfer between groups; expert groups are spread by tokens, then
each group of nodes is placed by itself.

The same statistics always give the same layout.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from placement.capped import place_capped
from placement.errors import InfeasibleError, PlacementError
from placement.layout import Floats, Held, Singles, keep_in_place
from placement.search import place_layers

Objective = Literal["tokens-first", "coactivation", "tokens"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
EFFORT = 3
"""How often the local search looks at all exchanges of the fullest node, for each layer (and group of nodes). Large
layouts gain up to some hundred, small ones end at the optimum of Eq. (2) with some thousand."""


@dataclass(frozen=True)
class Nodes:
    """Like nodes: ``count`` with ``slots`` replicas each, in ``groups`` equal groups of neighbours (1: flat)."""

    count: int
    slots: int
    groups: int = 1


@dataclass(frozen=True, eq=False)
class Placement:
    """Where the replicas are, and how many there are of each expert."""

    held: Held
    """[layers, nodes, slots] int32: expert in each slot, -1 free."""
    counts: NDArray[np.int32]
    """[layers, experts] int32."""


def place(
    tokens: Floats,
    together: Singles | None,
    nodes: Nodes,
    *,
    expert_groups: int = 1,
    objective: Objective = "tokens-first",
    slack: float = 0.0,
    effort: int = EFFORT,
    previous: Held | None = None,
) -> Placement:
    """A layout of replicas on homogeneous nodes.

    ``tokens`` [layers, experts] float64 and ``together`` [layers, experts, experts] float32, symmetric with a zero
    diagonal (:mod:`benchmarks.placement.activations`; None only for ``tokens``), are sums over a window.
    ``slack``: tokens of the fullest node may exceed the mean by this part for the sake of co-activation. ``effort`` 0
    leaves the search on co-activation out. ``previous``: nodes are renumbered so that least is moved. Raises
    PlacementError, InfeasibleError.
    """
    tokens, pairs = _checked(tokens, together, nodes, expert_groups, objective)
    if not 0 <= slack < math.inf or effort < 0:
        raise PlacementError(f"slack and effort must be finite and not be negative, got {slack:g} and {effort}")
    search = _Search(objective, slack, effort)
    placed = (
        search.run(tokens, pairs, nodes) if nodes.groups == 1 else search.grouped(tokens, pairs, nodes, expert_groups)
    )
    if previous is None:
        return placed
    return Placement(keep_in_place(placed.held, previous, nodes.groups), placed.counts)


@dataclass(frozen=True)
class _Search:
    objective: Objective
    slack: float
    effort: int

    def run(
        self, tokens: Floats, together: Singles | None, nodes: Nodes, least: Floats | None = None, per_layer: int = 1
    ) -> Placement:
        """``least`` [parts]: tokens that some node has in any case; the mean node's where not given. ``per_layer``
        neighbouring parts are one layer."""
        parts, experts = tokens.shape
        held = np.empty((parts, nodes.count, nodes.slots), dtype=np.int32)
        counts = np.empty((parts, experts), dtype=np.int32)
        if self.objective == "tokens-first" and together is not None:
            mean = tokens.sum(axis=1) / nodes.count if least is None else least
            order = np.argsort(-tokens, axis=1, kind="stable")
            allowed = mean * (1 + self.slack)
            place_capped(tokens, order, together, allowed, per_layer, self.effort, held, counts)
        else:
            pairs = np.zeros((1, 0, 0), dtype=np.float32) if together is None else together
            place_layers(tokens, pairs, self.objective != "coactivation", self.effort, held, counts)
        return Placement(held, counts)

    def grouped(self, tokens: Floats, together: Singles | None, nodes: Nodes, expert_groups: int) -> Placement:
        """Expert groups to node groups (as if they were experts, one replica each), then each by itself. ``tokens``
        [layers, experts], ``together`` [layers, experts, experts]."""
        layers, experts = tokens.shape
        size, per_node_group = experts // expert_groups, expert_groups // nodes.groups
        by_group = tokens.reshape(layers, expert_groups, size).sum(axis=2)
        spread = _Search("tokens", 0.0, self.effort).run(by_group, None, Nodes(nodes.groups, per_node_group))
        chosen = np.sort(spread.held, axis=2)[..., None] * size + np.arange(size)
        chosen = chosen.reshape(layers, nodes.groups, -1)  # [layers, node groups, experts of a node group]
        rows = np.arange(layers)[:, None]
        local = tokens[rows[..., None], chosen].reshape(layers * nodes.groups, -1)
        pairs = None
        if together is not None:
            blocks = [
                together[rows[..., None], chosen[:, g, :, None], chosen[:, g, None, :]] for g in range(nodes.groups)
            ]
            pairs = np.stack(blocks, axis=1).reshape(layers * nodes.groups, local.shape[1], local.shape[1])
        members = nodes.count // nodes.groups
        fullest = local.sum(axis=1).reshape(layers, nodes.groups).max(axis=1) / members
        inner = self.run(local, pairs, Nodes(members, nodes.slots), np.repeat(fullest, nodes.groups), nodes.groups)
        flat = inner.held.reshape(layers, nodes.groups, -1)
        held = np.where(flat < 0, -1, np.take_along_axis(chosen, np.maximum(flat, 0), axis=2))
        counts = np.empty((layers, experts), dtype=np.int32)
        counts[rows, chosen.reshape(layers, -1)] = inner.counts.reshape(layers, -1)
        return Placement(held.reshape(layers, nodes.count, nodes.slots).astype(np.int32), counts)


def _checked(
    tokens: Floats, together: Singles | None, nodes: Nodes, expert_groups: int, objective: Objective
) -> tuple[Floats, Singles | None]:
    """Arrays as the search needs them. Raises PlacementError, InfeasibleError."""
    if objective not in OBJECTIVES:
        raise PlacementError(f"objective must be one of {', '.join(OBJECTIVES)}, got {objective!r}")
    if tokens.ndim != 2 or not tokens.size or not np.isfinite(tokens).all() or tokens.min() < 0:
        raise PlacementError(f"tokens must be [layers, experts], finite and not negative, got shape {tokens.shape}")
    experts = tokens.shape[1]
    if min(nodes.count, nodes.slots, nodes.groups, expert_groups) < 1:
        raise PlacementError(f"nodes, slots and groups must be at least 1, got {nodes}, expert groups {expert_groups}")
    if nodes.groups > 1 and (nodes.count % nodes.groups or expert_groups % nodes.groups or experts % expert_groups):
        raise PlacementError(
            f"{nodes.count} nodes and {expert_groups} expert groups must divide evenly into {nodes.groups} groups of "
            f"nodes, and {experts} experts into {expert_groups} expert groups"
        )
    if nodes.count * nodes.slots < experts:
        raise InfeasibleError(
            f"slots: {experts} experts need as many slots, {nodes.count} nodes of {nodes.slots} have "
            f"{nodes.count * nodes.slots}"
        )
    if objective == "tokens":
        return np.ascontiguousarray(tokens, dtype=np.float64), None
    if together is None or together.shape != (*tokens.shape, experts):
        shape = None if together is None else together.shape
        raise PlacementError(f"together must be [layers, experts, experts] = {(*tokens.shape, experts)}, got {shape}")
    pairs = np.ascontiguousarray(together, dtype=np.float32)
    if not (pairs.min() >= 0 and pairs.max() < np.inf):  # NaN makes both false
        raise PlacementError("together must be finite and not negative")
    if pairs[:, range(experts), range(experts)].any():
        raise PlacementError("together must be symmetric with a zero diagonal, and an expert counts with itself")
    if not all(np.array_equal(of_layer, of_layer.T) for of_layer in pairs):
        raise PlacementError("together must be symmetric: tokens that chose both experts count at both places")
    return np.ascontiguousarray(tokens, dtype=np.float64), pairs
