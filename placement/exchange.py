"""Improve a plan for heterogeneous nodes by exchanges along cycles, and put a node's experts on its GPUs. Compiled.

Eq. (2) is a transportation problem. In its residual graph, an arc from node a to node b moves an expert that a holds
and b does not (a place gets free on a, one is used on b); an arc to the *pool* drops an expert that another node holds
too; an arc from the pool adds a copy. A cycle keeps every node's number of experts and every expert's coverage, and a
plan with no cycle that saves calls is optimal. Arcs between two nodes are represented by the cheapest expert, so the
graph has only nodes + 1 vertices. Cycles are found by Bellman and Ford's method and cancelled one by one.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from placement.layout import Floats

MOST_CYCLES = 20_000
RELATIVE = 1e-12
Marks = NDArray[np.bool_]


def improve(frequency: Floats, held: Marks, most_cycles: int = MOST_CYCLES) -> Marks:
    """A plan with fewer remote calls: [nodes, experts] float64 and bool; optimal unless ``most_cycles`` runs out."""
    better = np.ascontiguousarray(held).copy()
    _improve(np.ascontiguousarray(frequency), better, most_cycles)
    return better


def to_gpus(
    frequency: Floats,
    held: Marks,
    node: NDArray[np.int64],
    slots: NDArray[np.int64],
    speed: Floats,
    before: Marks | None,
) -> Marks:
    """[gpus, experts] bool: a node's experts by falling frequency to its GPU with the least calls for its speed.

    What a GPU held before and its node keeps, stays there (once). ``slots`` [gpus] are respected.
    """
    on = np.zeros((len(node), held.shape[1]), dtype=np.bool_)
    first = np.zeros_like(on) if before is None else np.ascontiguousarray(before)
    order = np.argsort(-frequency, axis=1, kind="stable")
    _to_gpus(np.ascontiguousarray(frequency), held, order, node, slots, speed, first, on)
    return on


@njit(cache=True, nogil=True)
def _improve(frequency, held, most_cycles):  # type: ignore[no-untyped-def]
    nodes, experts = held.shape
    pool = nodes
    holders = np.zeros(experts, dtype=np.int64)
    for node in range(nodes):
        for expert in range(experts):
            holders[expert] += held[node, expert]
    _trade(frequency, held, holders)
    cost = np.full((nodes + 1, nodes + 1), np.inf)
    via = np.full((nodes + 1, nodes + 1), -1, dtype=np.int64)
    for node in range(nodes):
        for other in range(nodes):
            _arc(node, other, frequency, held, cost, via)
    tolerance = RELATIVE * frequency.max() * nodes
    cycle = np.empty(nodes + 1, dtype=np.int64)
    for _ in range(most_cycles):
        for node in range(nodes):
            _pool_arcs(node, frequency, held, holders, cost, via)
        length = _negative_cycle(cost, tolerance, cycle)
        if length == 0:
            return
        for at in range(length):
            start, end = cycle[at], cycle[(at + 1) % length]
            expert = via[start, end]
            if start != pool:
                held[start, expert] = False
                holders[expert] -= 1
            if end != pool:
                held[end, expert] = True
                holders[expert] += 1
        for at in range(length):
            if cycle[at] != pool:
                for other in range(nodes):
                    _arc(cycle[at], other, frequency, held, cost, via)
                    _arc(other, cycle[at], frequency, held, cost, via)


@njit(cache=True, nogil=True)
def _trade(frequency, held, holders):  # type: ignore[no-untyped-def]
    """Within one node: a duplicate gives way to a more frequent expert, while there is one."""
    for node in range(len(held)):
        while True:
            drop, add = -1, -1
            for expert in range(held.shape[1]):
                if held[node, expert]:
                    if holders[expert] > 1 and (drop < 0 or frequency[node, expert] < frequency[node, drop]):
                        drop = expert
                elif add < 0 or frequency[node, expert] > frequency[node, add]:
                    add = expert
            if drop < 0 or add < 0 or frequency[node, add] <= frequency[node, drop]:
                break
            held[node, drop], held[node, add] = False, True
            holders[drop] -= 1
            holders[add] += 1


@njit(cache=True, nogil=True)
def _arc(start, end, frequency, held, cost, via):  # type: ignore[no-untyped-def]
    """The cheapest move of an expert from ``start`` to ``end``."""
    least, best = np.inf, -1
    if start != end:
        for expert in range(held.shape[1]):
            if held[start, expert] and not held[end, expert]:
                loss = frequency[start, expert] - frequency[end, expert]
                if loss < least:
                    least, best = loss, expert
    cost[start, end], via[start, end] = least, best


@njit(cache=True, nogil=True)
def _pool_arcs(node, frequency, held, holders, cost, via):  # type: ignore[no-untyped-def]
    """The cheapest drop of a duplicate and the best copy to add."""
    pool = len(held)
    drop, add = np.inf, np.inf
    via[node, pool], via[pool, node] = -1, -1
    for expert in range(held.shape[1]):
        if held[node, expert]:
            if holders[expert] > 1 and frequency[node, expert] < drop:
                drop, via[node, pool] = frequency[node, expert], expert
        elif -frequency[node, expert] < add:
            add, via[pool, node] = -frequency[node, expert], expert
    cost[node, pool], cost[pool, node] = drop, add


@njit(cache=True, nogil=True)
def _negative_cycle(cost, tolerance, cycle):  # type: ignore[no-untyped-def]
    """Length of a cycle of negative cost, written to ``cycle`` in its direction; 0: there is none."""
    count = len(cost)
    distance = np.zeros(count)
    parent = np.full(count, -1, dtype=np.int64)
    mark = np.empty(count, dtype=np.int64)
    for _ in range(count + 1):
        changed = False
        for start in range(count):
            for end in range(count):
                if distance[start] + cost[start, end] < distance[end] - tolerance:
                    distance[end] = distance[start] + cost[start, end]
                    parent[end] = start
                    changed = True
        if not changed:
            return 0
        mark[:] = -1
        for root in range(count):
            at = root
            while at >= 0 and mark[at] < 0:
                mark[at] = root
                at = parent[at]
            if at >= 0 and mark[at] == root:
                length, end = 0, at
                while True:
                    cycle[length] = at
                    length += 1
                    at = parent[at]
                    if at == end:
                        break
                for left in range(length // 2):
                    cycle[left], cycle[length - 1 - left] = cycle[length - 1 - left], cycle[left]
                return length
    return 0


@njit(cache=True, nogil=True)
def _to_gpus(frequency, held, order, node, slots, speed, before, on):  # type: ignore[no-untyped-def]
    gpus, experts = on.shape
    load, used = np.zeros(gpus), np.zeros(gpus, dtype=np.int64)
    placed = np.zeros(held.shape, dtype=np.bool_)
    for gpu in range(gpus):
        for expert in range(experts):
            here = node[gpu]
            if before[gpu, expert] and held[here, expert] and not placed[here, expert] and used[gpu] < slots[gpu]:
                on[gpu, expert] = placed[here, expert] = True
                used[gpu] += 1
                load[gpu] += frequency[here, expert] / speed[gpu]
    first = 0
    for here in range(len(held)):
        last = first
        while last < gpus and node[last] == here:
            last += 1
        for expert in order[here]:
            if held[here, expert] and not placed[here, expert]:
                best = -1
                for gpu in range(first, last):
                    if used[gpu] < slots[gpu] and (best < 0 or load[gpu] < load[best]):
                        best = gpu
                on[best, expert] = True
                used[best] += 1
                load[best] += frequency[here, expert] / speed[best]
        first = last
