"""The compiled heart: one node's queue and replicas over a window, and one stage of nodes.

Places in arrays are made unsigned on the hot path: Numba then need not ask whether they count from the end, a tenth of
the time.

Ties in time: control (resize, a replica gets ready) before completions before arrivals; among completions the oldest
replica first; within a replica the call that began first.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rl.sim.compiled import compiled, inner
from rl.sim.draws import ATOM_SHIFT, ATOMS, COLD_START, LENGTH, SERVICE, draw, draw_bits, route, stream_key, uniform
from rl.sim.histograms import Cells, bucket_of, cells_of, count_spans
from rl.sim.replicas import (
    ACTIVE,
    BURST,
    CHANGE_AT,
    COUNT,
    DRAIN,
    FAR,
    GENERATION,
    HEAD,
    LAST,
    LEVEL,
    LIMIT,
    NEXT,
    NEXT_LIMIT,
    NEXT_ROW,
    NOW_GENERATION,
    READY,
    REFILL,
    ROW,
    SINCE,
    VIRTUAL,
    Calls,
    Floats,
    Ints,
    Tokens,
    catch_up,
    choose,
    cpu_after,
    earliest,
    insert,
    level_after,
    open_up,
    reach,
    resize,
    worked,
)

CALLS, TOKENS, SERVED_S, WAITED_S, BUSY_S, PEAK, FLIGHT, LATENCY_S, CPU_S = range(9)
"""Columns of ``meter``: calls ended, tokens of calls that came, call-seconds at replicas, call-seconds waited,
replica-seconds with at least one call, most tokens in flight, tokens in flight now, sum of the ended calls' seconds,
CPU seconds used by replicas whose limit is played."""
METERS = 9

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
def control(
    clock: Floats, slot: Ints, ends: Floats, calls: Calls, slots: int, order: Ints, order_s: Floats, work: Floats,
    rate: Floats, stretch: Floats, use: Floats, bucket: Floats, tokens: Tokens, room: Ints, now_s: float,
) -> tuple[float, float, float]:  # fmt: skip
    """Bring about what holds from ``now_s`` on: a new configuration, replicas that are ready or take no more calls.

    Returns when there is something to bring about next, and the call-seconds and CPU seconds served meanwhile by
    replicas that were brought up to date.
    """
    count, served_s, cpu_s = order[COUNT], 0.0, 0.0
    if order_s[CHANGE_AT] <= now_s:
        order[LIMIT] = order[NEXT_LIMIT]
        row = order[NEXT_ROW]
        for r in range(count):
            if row >= 0 and row != slot[ROW, r] and slot[GENERATION, r] == order[NOW_GENERATION]:
                active = slot[ACTIVE, r]
                limited = bucket[slot[ROW, r], REFILL] < 1
                if active or limited:
                    spent_s, used_s = catch_up(clock, slot, r, rate, use, bucket, now_s)
                    served_s += spent_s * active
                    cpu_s += used_s if active and limited else 0.0
                resize(clock, slot, ends, calls, slots, work, bucket, tokens, r, row)
                if clock[READY, r] > now_s:
                    clock[LEVEL, r] = bucket[row, BURST]
                if active:
                    left_s = ends[r * slots + slot[HEAD, r]]
                    clock[NEXT, r] = now_s + reach(
                        left_s, stretch[row, active], clock[LEVEL, r], use[row, active], bucket[row, REFILL]
                    )
        order_s[CHANGE_AT], order[NEXT_ROW] = FAR, -1
    return open_up(clock[READY], clock[DRAIN], room, count, order[LIMIT], order_s[CHANGE_AT], now_s), served_s, cpu_s


@inner
def run_node(
    begin_s: float, end_s: float, key: np.uint64, queue: Calls, waiting: int, arrived: Floats, gather: Floats,
    tokens: Tokens, clock: Floats, slot: Ints, end: Floats, call: Calls, order: Ints, order_s: Floats, work: Floats,
    rate: Floats, stretch: Floats, use: Floats, bucket: Floats, noise: Floats, cells: Cells, bounds: Floats,
    meter: Floats, histogram: Ints,
) -> int:  # fmt: skip
    """One node from ``begin_s`` to ``end_s`` (events at ``end_s`` belong to the next window).

    ``queue [n] uint32``: requests in order of arrival, the first ``waiting`` of which have arrived before; ``arrived
    [requests]`` says when. Returns how many of them were taken into service: ``queue`` from there on still waits.
    ``gather [requests]`` is raised to the end of each call. Everything after ``tokens`` is this node's state.
    """
    virtual, last, coming, since = clock[VIRTUAL], clock[LAST], clock[NEXT], clock[SINCE]
    level, row, active, heads = clock[LEVEL], slot[ROW], slot[ACTIVE], slot[HEAD]
    slots = end.shape[1]
    ends, calls, mask = end.reshape(-1), call.reshape(-1), slots - 1
    count, size = order[COUNT], queue.size
    taken, come, ended = 0, waiting, 0
    served_s, busy_s, latency_s, waited_s, cpu_s = 0.0, 0.0, 0.0, 0.0, 0.0
    flight, peak, sent = int(meter[FLIGHT]), int(meter[PEAK]), 0
    room = np.zeros(count, dtype=np.int64)
    control_s = open_up(clock[READY], clock[DRAIN], room, count, order[LIMIT], order_s[CHANGE_AT], begin_s)
    control_s = begin_s if waiting > 0 else control_s
    next_s = arrived[queue[come]] if come < size else FAR
    done_s, first = earliest(coming, count)
    while True:
        now_s = min(control_s, done_s, next_s)
        if now_s >= end_s:
            break
        if control_s <= now_s:
            control_s, more_served_s, more_cpu_s = control(
                clock, slot, ends, calls, slots, order, order_s, work, rate, stretch, use, bucket, tokens, room, now_s
            )
            served_s += more_served_s
            cpu_s += more_cpu_s
            done_s, first = earliest(coming, count)
        elif done_s <= now_s:
            q = np.uint32(first)
            size_r, head, base, kind = active[q], heads[q], first * slots, np.uint32(row[q])
            at = np.uint32(base + head)
            request = calls[at]
            spent_s = now_s - last[q]
            served_s += spent_s * size_r
            if bucket[kind, REFILL] < 1:
                used, refill = use[kind, np.uint32(size_r)], bucket[kind, REFILL]
                cpu_s += cpu_after(spent_s, level[q], used, refill)
                level[q] = level_after(spent_s, level[q], used, refill, bucket[kind, BURST])
            virtual_s = ends[at]
            virtual[q], last[q] = virtual_s, now_s
            head, size_r = (head + 1) & mask, size_r - 1
            active[q], heads[q] = size_r, head
            if size_r:
                many = np.uint32(size_r)
                coming[q] = now_s + reach(
                    ends[np.uint32(base + head)] - virtual_s, stretch[kind, many], level[q], use[kind, many],
                    bucket[kind, REFILL],
                )  # fmt: skip
            else:
                coming[q] = FAR
                busy_s += now_s - since[q]
            done_s, first = earliest(coming, count)
            span_s = now_s - arrived[request]
            ended += 1
            latency_s += span_s
            flight -= tokens[request]
            histogram[bucket_of(cells, bounds, span_s)] += 1
            gather[request] = max(gather[request], now_s)
        else:
            length = tokens[queue[np.uint32(come)]]
            sent += length
            flight += length
            peak = max(peak, flight)
            come += 1
            next_s = arrived[queue[np.uint32(come)]] if come < size else FAR
            if done_s >= FAR and taken == come - 1:
                # Nobody else is here: a call that ends before anything else happens needs no place among others.
                r = choose(active, room, count)
                request, kind = queue[np.uint32(taken)], np.uint32(row[np.uint32(max(r, 0))])
                if r >= 0 and bucket[kind, REFILL] >= 1:
                    alone_s = work[kind, length] * noise[kind, draw_bits(key, request) >> ATOM_SHIFT]
                    left_s = now_s + alone_s * stretch[kind, np.uint32(1)]
                    if left_s < min(min(next_s, control_s), end_s):
                        span_s = left_s - now_s
                        served_s += span_s
                        busy_s += span_s
                        latency_s += span_s
                        ended += 1
                        flight -= length
                        histogram[bucket_of(cells, bounds, span_s)] += 1
                        gather[request] = max(gather[request], left_s)
                        taken = come
        while taken < come:
            r = choose(active, room, count)
            if r < 0:
                break
            p = np.uint32(r)
            request, size_r, base, head = queue[np.uint32(taken)], active[p], r * slots, heads[p]
            kind, many = np.uint32(row[p]), np.uint32(size_r)
            refill = bucket[kind, REFILL]
            factor = noise[kind, draw_bits(key, request) >> ATOM_SHIFT]
            virtual_s, spent_s = 0.0, now_s - last[p]
            if size_r:
                served_s += spent_s * size_r
                virtual_s = virtual[p] + worked(spent_s, rate[kind, many], level[p], use[kind, many], refill)
                if refill < 1:
                    cpu_s += cpu_after(spent_s, level[p], use[kind, many], refill)
            else:
                since[p] = now_s
            if refill < 1:
                level[p] = level_after(spent_s, level[p], use[kind, many], refill, bucket[kind, BURST])
            last[p] = now_s
            virtual[p] = virtual_s
            value = virtual_s + work[kind, tokens[request]] * factor
            insert(ends, calls, base, mask, head, size_r, value, request)
            active[p] = size_r + 1
            many = np.uint32(size_r + 1)
            soon_s = now_s + reach(
                ends[np.uint32(base + head)] - virtual_s, stretch[kind, many], level[p], use[kind, many], refill
            )
            coming[p] = soon_s
            if r == first or soon_s < done_s or (soon_s == done_s and r < first):
                done_s, first = earliest(coming, count)
            waited_s += now_s - max(arrived[request], begin_s)
            taken += 1
    for r in range(count):
        if active[r] > 0:
            limited = bucket[row[r], REFILL] < 1
            spent_s, used_s = catch_up(clock, slot, r, rate, use, bucket, end_s)
            served_s += spent_s * active[r]
            cpu_s += used_s if limited else 0.0
            busy_s += end_s - since[r]
            since[r] = end_s
    for k in range(taken, come):
        waited_s += end_s - max(arrived[queue[k]], begin_s)
    meter[CALLS] += ended
    meter[TOKENS] += sent
    meter[SERVED_S] += served_s
    meter[WAITED_S] += waited_s
    meter[BUSY_S] += busy_s
    meter[PEAK], meter[FLIGHT] = peak, flight
    meter[LATENCY_S] += latency_s
    meter[CPU_S] += cpu_s
    return taken


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
    """How many of ``due`` reach their stage before ``end_s``; their ``gather [threads, requests]`` begins anew."""
    here = 0
    while here < due.size and arrived[due[here]] < end_s:
        for thread in range(gather.shape[0]):
            gather[thread, due[here]] = arrived[due[here]]
        here += 1
    return here


@compiled
def run_nodes(
    begin_s: float, end_s: float, keys: NDArray[np.uint64], nodes: Ints, entering: Calls, held: Calls, held_from: Ints,
    arrived: Floats, gather: Floats, marks: NDArray[np.uint8], counts: Tokens, source: Ints, clock: Floats, slot: Ints,
    end: Floats, call: Calls, order: Ints, order_s: Floats, work: Floats, rate: Floats, stretch: Floats, use: Floats,
    bucket: Floats, noise: Floats, cells: Cells, bounds: Floats, meter: Floats, histogram: Ints,
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
        tokens = counts[source[node]]
        waiting = held_from[k + 1] - held_from[k]
        queue[:waiting] = held[held_from[k] : held_from[k + 1]]
        size = waiting
        for request in entering:
            queue[size] = request
            size += tokens[request] > 0
        taken = run_node(
            begin_s, end_s, keys[node], queue[:size], waiting, arrived, gather, tokens, clock[node], slot[node],
            end[node], call[node], order[node], order_s[node], work, rate, stretch, use, bucket, noise, cells, bounds,
            meter[node], histogram[node],
        )  # fmt: skip
        left = size - taken
        still[still_from[k] : still_from[k] + left] = queue[taken:size]
        still_from[k + 1] = still_from[k] + left
        for r in range(order[node, COUNT]):
            for place in range(slot[node, ACTIVE, r]):
                marks[call[node, r, (slot[node, HEAD, r] + place) & (end.shape[2] - 1)]] = 1
    still = still[: still_from[nodes.size]].copy()
    for request in still:
        marks[request] = 1
    return still, still_from


@compiled
def leave(
    hop_s: float, entering: Calls, unfinished: Calls, arrived: Floats, gather: Floats, marks: NDArray[np.uint8],
    cells: Cells, bounds: Floats, barrier: Ints,
) -> tuple[Calls, Calls]:  # fmt: skip
    """Requests that leave a stage, in order of their last call's end, and those that have calls left there.

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
    begin_s: float, end_s: float, hop_s: float, keys: NDArray[np.uint64], nodes: Ints, due: Calls, held: Calls,
    held_from: Ints, unfinished: Calls, arrived: Floats, gather: Floats, marks: NDArray[np.uint8], counts: Tokens,
    source: Ints, clock: Floats, slot: Ints, end: Floats, call: Calls, order: Ints, order_s: Floats, work: Floats,
    rate: Floats, stretch: Floats, use: Floats, bucket: Floats, noise: Floats, cells: Cells, bounds: Floats,
    meter: Floats, histogram: Ints, barrier: Ints,
) -> tuple[Calls, Calls, Calls, Calls, Ints]:  # fmt: skip
    """The nodes of one stage over one window: a segment, or the experts of a layer.

    ``due``: requests that will reach the stage, in order of ``arrived``; ``unfinished``: those that reached it before
    and have calls left there; ``held[held_from[k] : held_from[k + 1]]``: what waits at node k. Returns the requests
    that leave the stage, in order of ``gather`` (when their last call ended), and the new ``due``, ``unfinished``,
    ``held``, ``held_from``. ``counts [rows, requests]``: tokens by ``source[node]``.
    """
    here = enter(due, arrived, gather, end_s)
    still, still_from = run_nodes(
        begin_s, end_s, keys, nodes, due[:here], held, held_from, arrived, gather[0], marks, counts, source, clock,
        slot, end, call, order, order_s, work, rate, stretch, use, bucket, noise, cells, bounds, meter, histogram,
    )  # fmt: skip
    gone, remaining = leave(hop_s, due[:here], unfinished, arrived, gather, marks, cells, bounds, barrier)
    return gone, due[here:].copy(), remaining, still, still_from
