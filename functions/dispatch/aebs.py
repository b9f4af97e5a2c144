"""Which replica of each activated expert serves a pass: as few activated experts on the fullest node as possible.

Janus, Algorithm 1 (AEBS): experts with one replica are bound to their node, every other one goes to the node with the
fewest activated experts among those that hold it. The result depends on the order of assignment and ends above the
optimum now and then, so a *repair* follows: while an expert can leave a node for another, which hands one on in turn,
so that a node with at least two activated experts fewer gains one, that is done (cost-reducing paths of optimal
semi-matchings; Harvey, Ladner, Lovász, Tamir, 2006). When no such path is left, no choice of replicas has a fuller
fullest node, nor an emptier emptiest one: the maximum is the least and the minimum the greatest possible.

Nothing depends on anything but the tokens' choices and the table, ties go to the lowest number, so every ingress
computes the same without talking. Compiled; no memory is taken in a call.

Words: *slot* a place for one replica on a node, *replica* a number ``node x slots + slot``.
Worked example: nodes hold (0, 1) and (0, 2); with experts 0 and 1 activated, expert 1 is bound to node 0, so expert 0
is served by replica 2, its copy on node 1: one activated expert on either node.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Places = NDArray[np.int32]

CHOSEN, AFTER, BEFORE = range(3)
"""Rows of ``by_expert``: place in the table, next and previous expert served by the same node (-1: none)."""
LOAD, FIRST, FROZEN, QUEUE, CAME, VIA, PLACE = range(7)
"""Rows of ``by_node``: activated experts, first of the list of experts served, excluded from searches, queue of the
search, number of the search that reached it, expert that led here, that expert's place here."""
MAX_REPLICAS = 1 << 24


@dataclass(frozen=True, eq=False)
class ReplicaTable:
    """Where the replicas of a layer's experts are, by expert. Build it with :func:`replica_table`."""

    nodes: int
    start: Places
    """[experts + 1] int32: places ``start[e] … start[e + 1] - 1`` are those of expert e."""
    node: Places
    """[places] int32: node of each place, rising within an expert."""
    replica: Places
    """[places] int32: number of the replica."""

    @property
    def experts(self) -> int:
        return len(self.start) - 1


def replica_table(slots: NDArray[np.integer], experts: int) -> ReplicaTable:
    """The table of ``slots`` [nodes, slots], the expert in each slot, -1 where a slot is free.

    Raises ValueError where an expert has no replica, stands twice on a node, or is neither one of ``experts`` nor -1.
    """
    if slots.ndim != 2 or not slots.size or slots.size > MAX_REPLICAS:
        raise ValueError(f"slots must be [nodes, slots] with 1 to {MAX_REPLICAS} of them, got shape {slots.shape}")
    if int(slots.min()) < -1:
        raise ValueError(f"a slot holds {int(slots.min())}; slots hold experts from 0 on, or -1 where they are free")
    node, _ = np.nonzero(slots >= 0)
    held = slots[slots >= 0]
    if held.size and int(held.max()) >= experts:
        raise ValueError(f"a slot holds expert {int(held.max())}, the layer has experts 0 to {experts - 1}")
    counts = np.bincount(held, minlength=experts)
    if not counts.all():
        raise ValueError(f"expert {int(np.argmin(counts))} has no replica on any node")
    order = np.lexsort((node, held))
    node, held = node[order], held[order]
    twice = np.flatnonzero((held[1:] == held[:-1]) & (node[1:] == node[:-1]))
    if twice.size:
        raise ValueError(f"expert {held[twice[0]]} stands twice on node {node[twice[0]]}")
    start = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    return ReplicaTable(
        len(slots), start, node.astype(np.int32), np.flatnonzero(slots.ravel() >= 0)[order].astype(np.int32)
    )


class ActivatedExpertBalance:
    """AEBS for one layer. Not for two threads at once: the workspace is its own."""

    def __init__(self, table: ReplicaTable, *, repair: bool = True) -> None:
        """``repair=False`` is Algorithm 1 as published."""
        self.table = table
        self._repair = repair
        self._seen = np.zeros(table.experts, dtype=np.uint8)
        self._by_expert = np.zeros((3, table.experts), dtype=np.int32)
        self._by_node = np.zeros((7, table.nodes), dtype=np.int32)

    @property
    def activated(self) -> Places:
        """[nodes] int32: activated experts by node in the last call (a view)."""
        load: Places = self._by_node[LOAD]
        return load

    def choose(self, expert_ids: Ints, replicas: Places) -> int:
        """Write the replica of every (token, choice) to ``replicas``; activated experts on the fullest node.

        ``expert_ids`` [tokens, k] int64 and ``replicas`` [tokens, k] int32, both contiguous. Raises ValueError for
        an expert that is not in the table and for shapes that differ.
        """
        if expert_ids.shape != replicas.shape:
            raise ValueError(f"expert_ids {expert_ids.shape} and replicas {replicas.shape} must have one shape")
        table = self.table
        fullest: int = assign(
            expert_ids.reshape(-1),
            replicas.reshape(-1),
            table.start,
            table.node,
            table.replica,
            self._seen,
            self._by_expert,
            self._by_node,
            self._repair,
        )
        if fullest < 0:
            raise ValueError(f"expert_ids are 0 to {table.experts - 1}, got {expert_ids.min()} to {expert_ids.max()}")
        return fullest


@njit(cache=True, nogil=True)
def assign(ids, out, start, node, replica, activated, by_expert, by_node, repair):  # type: ignore[no-untyped-def]
    """The rule itself, for compiled callers: the fullest node's activated experts, or -1 for an expert that is not in
    the table. Arguments are the tables and the workspace of :class:`ActivatedExpertBalance`; ids and out are flat."""
    experts, nodes = len(activated), by_node.shape[1]
    activated[:] = 0
    # An expert outside the table would be written outside the workspace, which compiled code does not notice.
    for at in range(ids.size):
        if ids[at] < 0 or ids[at] >= experts:
            return -1
        activated[ids[at]] = 1
    by_node[LOAD, :] = 0
    by_node[FIRST, :] = -1
    # Algorithm 1 binds experts with one replica first: the choices that follow must see these loads.
    for expert in range(experts):
        if activated[expert] and start[expert + 1] == start[expert] + 1:
            _serve(expert, start[expert], node, by_expert, by_node)
    for expert in range(experts):
        if activated[expert] and start[expert + 1] > start[expert] + 1:
            best = start[expert]
            for place in range(start[expert] + 1, start[expert + 1]):
                if by_node[LOAD, node[place]] < by_node[LOAD, node[best]]:
                    best = place
            _serve(expert, best, node, by_expert, by_node)
    if repair:
        _level(start, node, by_expert, by_node)
    # Only now: the repair needs places in the table, callers need replica numbers.
    for expert in range(experts):
        if activated[expert]:
            by_expert[CHOSEN, expert] = replica[by_expert[CHOSEN, expert]]
    for at in range(ids.size):
        out[at] = by_expert[CHOSEN, ids[at]]
    fullest = 0
    for here in range(nodes):
        fullest = max(fullest, by_node[LOAD, here])
    return fullest


@njit(cache=True, nogil=True)
def _serve(expert, place, node, by_expert, by_node):  # type: ignore[no-untyped-def]
    """Put an expert that no node serves at the head of the list of its place's node."""
    here = node[place]
    head = by_node[FIRST, here]
    by_expert[CHOSEN, expert] = place
    by_expert[AFTER, expert] = head
    by_expert[BEFORE, expert] = -1
    if head >= 0:
        by_expert[BEFORE, head] = expert
    by_node[FIRST, here] = expert
    by_node[LOAD, here] += 1


@njit(cache=True, nogil=True)
def _leave(expert, node, by_expert, by_node):  # type: ignore[no-untyped-def]
    """Take an expert off the list of the node that serves it."""
    here = node[by_expert[CHOSEN, expert]]
    after, before = by_expert[AFTER, expert], by_expert[BEFORE, expert]
    if after >= 0:
        by_expert[BEFORE, after] = before
    if before >= 0:
        by_expert[AFTER, before] = after
    else:
        by_node[FIRST, here] = after
    by_node[LOAD, here] -= 1


@njit(cache=True, nogil=True)
def _level(start, node, by_expert, by_node):  # type: ignore[no-untyped-def]
    """Shift experts along cost-reducing paths until none is left.

    Each search starts at the fullest node that is not frozen. All nodes that a search without result has reached are
    frozen: from them no node with two fewer activated experts can be reached, now or later, because a later path
    through one of them would have to end in it.
    """
    nodes = by_node.shape[1]
    by_node[FROZEN, :] = 0
    by_node[CAME, :] = 0
    search = 0
    while True:
        source, least = -1, 1 << 30
        for here in range(nodes):
            least = min(least, by_node[LOAD, here])
            if by_node[FROZEN, here] == 0 and (source < 0 or by_node[LOAD, here] > by_node[LOAD, source]):
                source = here
        # Between nodes that differ by one, handing an expert on would only exchange their loads.
        if source < 0 or by_node[LOAD, source] < least + 2:
            return
        search += 1
        end = _search(source, search, start, node, by_expert, by_node)
        # From the path's end back to its source each node takes over one expert of the node before it, so that only the
        # two ends change their loads.
        while end >= 0 and end != source:
            expert, place = by_node[VIA, end], by_node[PLACE, end]
            end = node[by_expert[CHOSEN, expert]]
            _leave(expert, node, by_expert, by_node)
            _serve(expert, place, node, by_expert, by_node)


@njit(cache=True, nogil=True)
def _search(source, search, start, node, by_expert, by_node):  # type: ignore[no-untyped-def]
    """A node with at least two activated experts fewer than ``source``, reached breadth first; -1: none, all frozen."""
    by_node[CAME, source] = search
    by_node[QUEUE, 0] = source
    taken, queued = 0, 1  # breadth first: the shortest path moves the fewest experts
    while taken < queued:
        here = by_node[QUEUE, taken]
        taken += 1
        expert = by_node[FIRST, here]
        while expert >= 0:
            for place in range(start[expert], start[expert + 1]):
                there = node[place]
                if by_node[CAME, there] != search and by_node[FROZEN, there] == 0:
                    by_node[CAME, there] = search
                    by_node[VIA, there] = expert
                    by_node[PLACE, there] = place
                    if by_node[LOAD, there] <= by_node[LOAD, source] - 2:
                        return there
                    by_node[QUEUE, queued] = there
                    queued += 1
            expert = by_expert[AFTER, expert]
    for at in range(queued):
        by_node[FROZEN, by_node[QUEUE, at]] = 1
    return -1
