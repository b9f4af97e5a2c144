"""One node over a window, compiled: its queue, its replicas, what arrives and what ends.

Places in arrays are made unsigned on the hot path: Numba then need not ask whether they count from the end, a tenth of
the time.

Ties in time: control (resize, a replica gets ready) before completions before arrivals; among completions the oldest
replica first; within a replica the call that began first.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simulation.arrays import Calls, Floats, Ints, Keys, Marks, Tokens
from simulation.engine.compiled import inner
from simulation.engine.draws import ATOM_SHIFT, draw_bits
from simulation.engine.histograms import bucket_of
from simulation.engine.machines import Sited, choose_at, reply_s, slowed
from simulation.engine.replicas import (
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
    SITE,
    VIRTUAL,
    Limits,
    Replicas,
    Rows,
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
CPU seconds used by replicas whose limit is simulated as a token bucket."""
METERS = 9


class Traffic(NamedTuple):
    """Requests, and what of them each node gets: ``arrived [requests]``, seconds at which they reach the stage where
    they are; ``counts [rows, requests]``, tokens by ``source [nodes]``, the row of each node; ``keys [nodes]`` of the
    draws that scatter the nodes' service."""

    arrived: Floats
    counts: Tokens
    source: Ints
    keys: Keys


class Tally(NamedTuple):
    """What is counted in a window: ``meter [nodes, METERS]``, and ``histogram [nodes, bounds]`` of the calls' seconds,
    whose ``bounds [bounds]`` are found through ``cells`` (:mod:`simulation.engine.histograms`)."""

    meter: Floats
    histogram: Ints
    cells: Marks
    bounds: Floats


@inner
def control(node: int, replicas: Replicas, rows: Rows, tokens: Tokens, now_s: float) -> tuple[float, float, float]:
    """Bring about what holds at ``node`` from ``now_s`` on: a new configuration, replicas that are ready or take no
    more calls. ``tokens [requests]``.

    Returns when there is something to bring about next, and the call-seconds and CPU seconds served meanwhile by
    replicas that were brought up to date. All times in seconds.
    """
    clock, slot = replicas.clock[node], replicas.slot[node]
    order, order_s, slots = replicas.order[node], replicas.order_s[node], replicas.end.shape[2]
    ends, calls = replicas.end[node].reshape(-1), replicas.call[node].reshape(-1)
    count, served_s, cpu_s = order[COUNT], 0.0, 0.0
    if order_s[CHANGE_AT] <= now_s:
        order[LIMIT] = order[NEXT_LIMIT]
        row = order[NEXT_ROW]
        for r in range(count):
            # Older generations leave when their successors are ready, and keep what they have until then.
            if row >= 0 and row != slot[ROW, r] and slot[GENERATION, r] == order[NOW_GENERATION]:
                active = slot[ACTIVE, r]
                limited = rows.bucket[slot[ROW, r], REFILL] < 1
                if active or limited:
                    spent_s, used_s = catch_up(clock, slot, r, rows, now_s)
                    served_s += spent_s * active
                    cpu_s += used_s if active and limited else 0.0
                resize(clock, slot, ends, calls, slots, rows, tokens, r, row)
                if clock[READY, r] > now_s:  # a replica that is still starting has used nothing of its bucket
                    clock[LEVEL, r] = rows.bucket[row, BURST]
                if active:
                    left_s = ends[r * slots + slot[HEAD, r]]
                    stretched, used, refill = rows.stretch[row, active], rows.use[row, active], rows.bucket[row, REFILL]
                    clock[NEXT, r] = now_s + reach(left_s, stretched, clock[LEVEL, r], used, refill)
        order_s[CHANGE_AT], order[NEXT_ROW] = FAR, -1
    next_s = open_up(clock[READY], clock[DRAIN], replicas.room[node], count, order[LIMIT], order_s[CHANGE_AT], now_s)
    return next_s, served_s, cpu_s


@inner
def settle(clock: Floats, slot: Ints, count: int, rows: Rows, meter: Floats, end_s: float) -> None:
    """Bring all replicas that have calls to the window's end. Arrays [replicas]; ``meter [METERS]``."""
    for r in range(count):
        active = slot[ACTIVE, r]
        if active > 0:
            limited = rows.bucket[slot[ROW, r], REFILL] < 1
            spent_s, used_s = catch_up(clock, slot, r, rows, end_s)
            meter[SERVED_S] += spent_s * active
            meter[CPU_S] += used_s if limited else 0.0
            meter[BUSY_S] += end_s - clock[SINCE, r]
            clock[SINCE, r] = end_s


@inner
def next_end_s(
    now_s: float, left_s: float, stretch: float, level: float, use: float, refill: float, limits: Limits
) -> float:
    """When ``left_s`` virtual seconds from now will have gone by, if nothing else happens."""
    if limits is None:
        return now_s + left_s * stretch
    return now_s + reach(left_s, stretch, level, use, refill)


@inner
def run_node(
    begin_s: float, end_s: float, node: int, queue: Calls, waiting: int, gather: Floats, traffic: Traffic,
    replicas: Replicas, rows: Rows, limits: Limits, machines: Sited | None, tally: Tally,
) -> int:  # fmt: skip
    """One node from ``begin_s`` to ``end_s`` (events at ``end_s`` belong to the next window).

    ``queue [n] uint32``: requests in order of arrival, the first ``waiting`` of which have arrived before. Returns how
    many of them were taken into service: ``queue`` from there on still waits. ``gather [requests]`` is raised to the
    end of each call. With None for ``limits`` or ``machines`` the compiled code does without them.

    One loop over three kinds of events: control, the end of a call, the arrival of a request; after each of them calls
    start while a replica has a free slot. Tuples are taken apart ahead of the loop, and the loop is in one piece:
    arrays handed on inside it are counted by reference each time, which takes four times as long as everything else.
    """
    clock, slot, order, room = replicas.clock[node], replicas.slot[node], replicas.order[node], replicas.room[node]
    virtual, last, coming, since = clock[VIRTUAL], clock[LAST], clock[NEXT], clock[SINCE]
    level, row, active, heads = clock[LEVEL], slot[ROW], slot[ACTIVE], slot[HEAD]
    slots = replicas.end.shape[2]
    ends, calls, mask = replicas.end[node].reshape(-1), replicas.call[node].reshape(-1), slots - 1
    work, pace, stretch, use, bucket, noise = rows.work, rows.pace, rows.stretch, rows.use, rows.bucket, rows.noise
    arrived, tokens, key = traffic.arrived, traffic.counts[traffic.source[node]], traffic.keys[node]
    meter, histogram, cells, bounds = tally.meter[node], tally.histogram[node], tally.cells, tally.bounds
    count, size = order[COUNT], queue.size
    taken, come, ended = 0, waiting, 0
    served_s, busy_s, latency_s, waited_s, cpu_s = 0.0, 0.0, 0.0, 0.0, 0.0
    flight, peak, sent = int(meter[FLIGHT]), int(meter[PEAK]), 0
    change_s = replicas.order_s[node, CHANGE_AT]
    control_s = open_up(clock[READY], clock[DRAIN], room, count, order[LIMIT], change_s, begin_s)
    # Calls left over from the last window may start now though nothing else happens: control is an event that lets
    # them.
    control_s = begin_s if waiting > 0 else control_s
    next_s = arrived[queue[come]] if come < size else FAR
    done_s, first = earliest(coming, count)
    while True:
        now_s = min(control_s, done_s, next_s)
        if now_s >= end_s:
            break
        if control_s <= now_s:
            control_s, more_served_s, more_cpu_s = control(node, replicas, rows, tokens, now_s)
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
            if limits is not None and bucket[kind, REFILL] < 1:
                used, refill = use[kind, np.uint32(size_r)], bucket[kind, REFILL]
                cpu_s += cpu_after(spent_s, level[q], used, refill)
                level[q] = level_after(spent_s, level[q], used, refill, bucket[kind, BURST])
            # Set to the call's end, not advanced by the seconds that went by: rounding would let the two drift apart.
            virtual_s = ends[at]
            virtual[q], last[q] = virtual_s, now_s
            head, size_r = (head + 1) & mask, size_r - 1
            active[q], heads[q] = size_r, head
            many = np.uint32(size_r)
            left_s, idle_s, refill = ends[np.uint32(base + head)] - virtual_s, since[q], bucket[kind, REFILL]
            soon_s = next_end_s(now_s, left_s, stretch[kind, many], level[q], use[kind, many], refill, limits)
            coming[q] = soon_s if size_r else FAR
            busy_s += 0.0 if size_r else now_s - idle_s
            done_s, first = earliest(coming, count)
            left_at_s = now_s
            if machines is not None:
                left_at_s += reply_s(machines, node, request, tokens[request], slot[SITE, q])
            span_s = left_at_s - arrived[request]
            ended += 1
            latency_s += span_s
            flight -= tokens[request]
            histogram[bucket_of(cells, bounds, span_s)] += 1
            gather[request] = max(gather[request], left_at_s)
        else:
            length = tokens[queue[np.uint32(come)]]
            sent += length
            flight += length
            peak = max(peak, flight)
            come += 1
            next_s = arrived[queue[np.uint32(come)]] if come < size else FAR
        while taken < come:
            if machines is None:
                r = choose(active, room, count)
            else:
                r = choose_at(machines, node, queue[np.uint32(taken)], active, room, slot[SITE], count)
            if r < 0:
                break
            p = np.uint32(r)
            request, size_r, base, head = queue[np.uint32(taken)], active[p], r * slots, heads[p]
            kind, many = np.uint32(row[p]), np.uint32(size_r)
            alone_s = work[kind, tokens[request]] * noise[kind, draw_bits(key, request) >> ATOM_SHIFT]
            if machines is not None:
                alone_s *= slowed(machines, node, request)
            if size_r == 0 and taken + 1 == come and (limits is None or bucket[kind, REFILL] >= 1):
                # An idle replica, and the call ends before anything else happens: it needs no place among others.
                soon_s = now_s + alone_s * stretch[kind, np.uint32(1)]
                if soon_s < min(min(next_s, control_s), min(done_s, end_s)):
                    span_s = soon_s - now_s
                    served_s += span_s
                    busy_s += span_s
                    last[p] = soon_s
                    if machines is not None:
                        soon_s += reply_s(machines, node, request, tokens[request], slot[SITE, p])
                    latency_s += soon_s - arrived[request]
                    waited_s += now_s - max(arrived[request], begin_s)
                    ended += 1
                    flight -= tokens[request]
                    histogram[bucket_of(cells, bounds, soon_s - arrived[request])] += 1
                    gather[request] = max(gather[request], soon_s)
                    taken = come
                    break
            spent_s = now_s - last[p]
            served_s += spent_s * size_r
            before_s, pace_m, began_s = virtual[p], pace[kind, many], since[p]
            if limits is None:
                moved_s = spent_s * pace_m
            else:
                used, refill = use[kind, many], bucket[kind, REFILL]
                moved_s = worked(spent_s, pace_m, level[p], used, refill)
                if refill < 1 and size_r:
                    cpu_s += cpu_after(spent_s, level[p], used, refill)
            # An idle replica starts virtual time again at 0, so that it never grows and loses digits.
            virtual_s = before_s + moved_s if size_r else 0.0
            since[p] = began_s if size_r else now_s
            if limits is not None and bucket[kind, REFILL] < 1:
                level[p] = level_after(spent_s, level[p], use[kind, many], bucket[kind, REFILL], bucket[kind, BURST])
            last[p] = now_s
            virtual[p] = virtual_s
            insert(ends, calls, base, mask, head, size_r, virtual_s + alone_s, request)
            active[p] = size_r + 1
            many = np.uint32(size_r + 1)
            left_s, refill = ends[np.uint32(base + head)] - virtual_s, bucket[kind, REFILL]
            soon_s = next_end_s(now_s, left_s, stretch[kind, many], level[p], use[kind, many], refill, limits)
            coming[p] = soon_s
            if soon_s < done_s or (soon_s == done_s and r < first):
                done_s, first = soon_s, r
            elif r == first:  # the next completion was this replica's and has moved
                done_s, first = earliest(coming, count)
            waited_s += now_s - max(arrived[request], begin_s)
            taken += 1
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
    settle(clock, slot, count, rows, meter, end_s)
    return taken
