"""The compiled heart: the nodes of one stage over a window, and who leaves it."""

from __future__ import annotations

import numpy as np

from simulation.arrays import Calls, Floats, Ints, Marks
from simulation.engine.compiled import compiled, inner
from simulation.engine.draws import ATOMS, COLD_START, LENGTH, SERVICE, draw, route, stream_key, uniform
from simulation.engine.histograms import bucket_of, cells_of, count_spans
from simulation.engine.machines import Sited
from simulation.engine.node import (
    BUSY_S,
    CALLS,
    CPU_S,
    FLIGHT,
    LATENCY_S,
    METERS,
    PEAK,
    SERVED_S,
    TOKENS,
    WAITED_S,
    Tally,
    Traffic,
    run_node,
)
from simulation.engine.replicas import ACTIVE, COUNT, FAR, HEAD, Limits, Replicas, Rows

__all__ = [
    "ATOMS",
    "BUSY_S",
    "CALLS",
    "COLD_START",
    "CPU_S",
    "FAR",
    "FLIGHT",
    "LATENCY_S",
    "LENGTH",
    "METERS",
    "PEAK",
    "SERVED_S",
    "SERVICE",
    "TOKENS",
    "WAITED_S",
    "Tally",
    "Traffic",
    "cells_of",
    "count_spans",
    "draw",
    "route",
    "run_nodes",
    "run_stage",
    "stream_key",
    "uniform",
]


@inner
def in_order(members: Calls, times: Floats) -> Calls:
    """``members`` sorted by ``times[member]``, stable. Nearly sorted already, so by insertion; by merging if not."""
    keys = times[members]
    result, moves, most = members.copy(), 0, 24 * members.size + 64
    for k in range(1, keys.size):
        time_s, member, place = keys[k], result[k], k
        while place > 0 and keys[place - 1] > time_s:
            keys[place], result[place] = keys[place - 1], result[place - 1]
            place -= 1
        keys[place], result[place] = time_s, member
        moves += k - place
        if moves > most:
            return members[np.argsort(times[members], kind="mergesort")]
    return result


@compiled
def enter(due: Calls, arrived: Floats, gather: Floats, end_s: float) -> int:
    """How many of ``due`` reach their stage before ``end_s``; their ``gather [threads, requests]`` starts at their
    arrival."""
    here = 0
    while here < due.size and arrived[due[here]] < end_s:
        for thread in range(gather.shape[0]):
            gather[thread, due[here]] = arrived[due[here]]
        here += 1
    return here


@compiled
def run_nodes(
    begin_s: float, end_s: float, nodes: Ints, entering: Calls, held: Calls, held_from: Ints, gather: Floats,
    marks: Marks, traffic: Traffic, replicas: Replicas, rows: Rows, limits: Limits, machines: Sited | None,
    tally: Tally,
) -> tuple[Calls, Ints]:  # fmt: skip
    """Some nodes of a stage over one window; returns what still waits at them, as ``held`` and ``held_from``.

    ``marks [requests]`` is set for requests that have calls left here.
    """
    waits = held_from[nodes.size] - held_from[0]
    queue = np.empty(waits + entering.size, dtype=np.uint32)
    still = np.empty(waits + nodes.size * entering.size, dtype=np.uint32)
    still_from = np.zeros(nodes.size + 1, dtype=np.int64)
    for k in range(nodes.size):
        node = nodes[k]
        tokens = traffic.counts[traffic.source[node]]
        waiting = held_from[k + 1] - held_from[k]
        queue[:waiting] = held[held_from[k] : held_from[k + 1]]
        size = waiting
        for request in entering:
            queue[size] = request
            size += tokens[request] > 0
        taken = run_node(
            begin_s, end_s, node, queue[:size], waiting, gather, traffic, replicas, rows, limits, machines, tally
        )
        left = size - taken
        still[still_from[k] : still_from[k] + left] = queue[taken:size]
        still_from[k + 1] = still_from[k] + left
        slot, call = replicas.slot[node], replicas.call[node]
        for r in range(replicas.order[node, COUNT]):
            for place in range(slot[ACTIVE, r]):
                marks[call[r, (slot[HEAD, r] + place) & (call.shape[1] - 1)]] = 1
    still = still[: still_from[nodes.size]].copy()
    for request in still:
        marks[request] = 1
    return still, still_from


@compiled
def leave(
    hop_s: float, entering: Calls, unfinished: Calls, arrived: Floats, gather: Floats, marks: Marks,
    cells: Marks, bounds: Floats, barrier: Ints,
) -> tuple[Calls, Calls]:  # fmt: skip
    """Requests that leave a stage, in order of their last call's end, and those that have calls left there. Arrays
    [requests].

    Those that leave get ``arrived`` at the next stage, ``hop_s`` later; their time here is counted in ``barrier``.
    """
    gone = np.empty(unfinished.size + entering.size, dtype=np.uint32)
    remaining = np.empty(unfinished.size + entering.size, dtype=np.uint32)
    left, stay = 0, 0
    for group in (unfinished, entering):
        for request in group:
            if marks[request]:
                marks[request] = 0
                remaining[stay] = request
                stay += 1
            else:
                done_s = gather[0, request]
                for thread in range(1, gather.shape[0]):
                    done_s = max(done_s, gather[thread, request])
                gather[0, request] = done_s
                barrier[bucket_of(cells, bounds, done_s - arrived[request])] += 1
                arrived[request] = done_s + hop_s
                gone[left] = request
                left += 1
    return in_order(gone[:left], gather[0]), remaining[:stay].copy()


@compiled
def run_stage(
    begin_s: float, end_s: float, hop_s: float, nodes: Ints, due: Calls, held: Calls, held_from: Ints,
    unfinished: Calls, gather: Floats, marks: Marks, traffic: Traffic, replicas: Replicas, rows: Rows, limits: Limits,
    machines: Sited | None, tally: Tally, barrier: Ints,
) -> tuple[Calls, Calls, Calls, Calls, Ints]:  # fmt: skip
    """The nodes of one stage over one window: a segment, or the experts of a layer.

    ``due``: requests that will reach the stage, in order of ``arrived``; ``unfinished``: those that reached it before
    and have calls left there; ``held[held_from[k] : held_from[k + 1]]``: what waits at node k. Returns the requests
    that leave the stage, in order of ``gather`` (when their last call ended), and the new ``due``, ``unfinished``,
    ``held``, ``held_from``.
    """
    here = enter(due, traffic.arrived, gather, end_s)
    still, still_from = run_nodes(
        begin_s, end_s, nodes, due[:here], held, held_from, gather[0], marks, traffic, replicas, rows, limits, machines,
        tally,
    )  # fmt: skip
    gone, remaining = leave(
        hop_s, due[:here], unfinished, traffic.arrived, gather, marks, tally.cells, tally.bounds, barrier
    )
    return gone, due[here:].copy(), remaining, still, still_from
