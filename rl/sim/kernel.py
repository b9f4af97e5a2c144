"""The compiled heart: routing of requests, one node's queue and replicas over a window, and one stage of nodes.

A replica shares its speed among the calls in service (limited processor sharing). In its *virtual time* every call in
service advances alike, at ``rate[row, m]`` for m calls, so a call that starts at virtual time v with w seconds of work
ends at v + w whatever comes and goes; calls in service are a ring sorted by that end, and only its first end is looked
at. Replicas of a node are in order of age. Times are absolute seconds, ``FAR`` stands for never. Places in arrays are
made unsigned on the hot path: Numba then need not ask whether they count from the end, a tenth of the time.

Ties in time: control (resize, a replica gets ready) before completions before arrivals; among completions the oldest
replica first; within a replica the call that began first.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rl.sim.compiled import compiled, inlined

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Calls = NDArray[np.uint32]
Tokens = NDArray[np.uint16]
Cells = NDArray[np.uint8]

FAR = 1e300
"""Never: a finite number, since infinities turn into NaN by subtraction."""
NO_LIMIT = 1 << 40

READY, DRAIN, VIRTUAL, LAST, NEXT, SINCE = range(6)
"""Rows of ``clock``: ready from, no new calls from, virtual time, when that was, next completion, busy since."""
ROW, GENERATION, ACTIVE, HEAD = range(4)
"""Rows of ``slot``: row of the resource tables, generation, calls in service, first of the ring."""
CHANGE_AT = 0
"""Column of ``order_s``: when the change that is under way holds."""
LIMIT, NEXT_LIMIT, NEXT_ROW, NOW_GENERATION, COUNT = range(5)
"""Columns of ``order``: calls at once, the same after the change, row after it, generation it is for, replicas."""
CALLS, TOKENS, SERVED_S, WAITED_S, BUSY_S, PEAK, FLIGHT, LATENCY_S = range(8)
"""Columns of ``meter``: calls ended, tokens of calls that came, call-seconds at replicas, call-seconds waited,
replica-seconds with at least one call, most tokens in flight, tokens in flight now, sum of the ended calls' seconds."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_ONE = np.uint64(0xBF58476D1CE4E5B9)
_MIX_TWO = np.uint64(0x94D049BB133111EB)
_CELL_BITS = 46
_FIRST_CELL, _LAST_CELL = 64000, 66600
"""Upper 18 bits of the floats from 3e-5 to 1e4."""
SERVICE, COLD_START, LENGTH = 3_000_000, 2_000_000, 1_000_000
"""Streams of the scatter of calls (numbered by request), of cold starts and of requests' lengths; layers' routing has
the streams from 0."""
ATOMS = 1024
"""Of a noise table: as many values, equally likely, chosen by the upper ten bits of a draw."""
_ATOM_SHIFT = np.uint64(54)
_S30, _S27, _S31, _S11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)


@compiled
def mixed(value: np.uint64) -> np.uint64:
    """Finaliser of SplitMix64 (Steele, Lea, Flood 2014): 64 bits to 64 bits that look independent."""
    value = (value ^ (value >> _S30)) * _MIX_ONE
    value = (value ^ (value >> _S27)) * _MIX_TWO
    return value ^ (value >> _S31)


@compiled
def stream_key(seed: int, stream: int, index: int) -> np.uint64:
    """Key of one stream of draws; the same on every machine and in every order of drawing."""
    key = mixed(np.uint64(seed) + _GOLDEN)
    key = mixed(key ^ (np.uint64(stream) + np.uint64(1)) * _GOLDEN)
    return mixed(key ^ (np.uint64(index) + np.uint64(1)) * _MIX_ONE)


@compiled
def draw_bits(key: np.uint64, index: int) -> np.uint64:
    """Draw number ``index`` of a stream, 64 bits."""
    return mixed(key + (np.uint64(index) + np.uint64(1)) * _GOLDEN)


@compiled
def uniform(key: np.uint64, index: int) -> float:
    """The same as a number from 0 to below 1."""
    return float(draw_bits(key, index) >> _S11) * 1.1102230246251565e-16


@compiled
def draw(seed: int, stream: int, index: int, number: int) -> float:
    """Draw ``number`` of the stream ``(seed, stream, index)``, 0 to below 1."""
    return uniform(stream_key(seed, stream, index), number)


@compiled
def quantile(tables: Floats, row: int, probability: float) -> float:
    """Inverse distribution function ``row`` of ``tables [rows, Q]``, on an even grid and linear in between."""
    at = probability * (tables.shape[1] - 1)
    low = int(at)
    return float(tables[row, low] + (at - low) * (tables[row, low + 1] - tables[row, low]))


@compiled
def bucket(cells: Cells, bounds: Floats, value: float) -> int:
    """Index of the first bound that is not below ``value``; the last bound is ``FAR``.

    ``cells``: see :func:`cells_of`. The upper bits of a float are its logarithm in steps of less than 1/64, finer than
    bounds lie, so one comparison is left to do. No branches: which way they go would be a guess.
    """
    cell = int(np.float64(value).view(np.int64) >> _CELL_BITS) - _FIRST_CELL
    cell = min(max(cell, 0), cells.size - 1)
    found = np.uint32(cells[np.uint32(cell)])
    return int(found + np.uint32(bounds[found] < value))


def cells_of(bounds: Floats) -> Cells:
    """Where :func:`bucket` begins to look. Raises ValueError for bounds less than 1/32 apart or outside its range."""
    cells = np.arange(_FIRST_CELL, _LAST_CELL)
    lowest = (cells << _CELL_BITS).view(np.float64)
    if (bounds[1:] < bounds[:-1] * (1 + 1 / 32)).any() or bounds[0] < lowest[1] or bounds[-2] > lowest[-1]:
        raise ValueError(f"bounds lie between {lowest[1]:g} and {lowest[-1]:g} and each is 1/32 above the one before")
    return np.searchsorted(bounds, lowest, side="left").astype(np.uint8)


@inlined
def choose(active: Ints, room: Ints, count: int) -> int:
    """Least calls in service among replicas with a free slot, the oldest of equals; -1 without one.

    ``room``: calls at once that each replica takes now, see :func:`open_up`.
    """
    best, least = -1, NO_LIMIT
    for r in range(count):
        better = (active[r] < room[r]) & (active[r] < least)
        best = r if better else best
        least = active[r] if better else least
    return best


@compiled
def open_up(ready: Floats, drain: Floats, room: Ints, count: int, limit: int, change_s: float, now_s: float) -> float:
    """Give every replica that takes new calls now its ``limit`` of ``room``, others none; returns when this, or the
    configuration (``change_s``), is to change next."""
    next_s = change_s
    for r in range(count):
        room[r] = limit if ready[r] <= now_s < drain[r] else 0
        next_s = min(next_s, ready[r] if ready[r] > now_s else FAR, drain[r] if drain[r] > now_s else FAR)
    return next_s


@inlined
def earliest(coming: Floats, count: int) -> tuple[float, int]:
    """Time and replica of the next completion."""
    done_s, first = FAR, 0
    for r in range(count):
        sooner = coming[r] < done_s
        done_s = coming[r] if sooner else done_s
        first = r if sooner else first
    return done_s, first


@inlined
def insert(ends: Floats, calls: Calls, base: int, mask: int, head: int, size: int, value: float, request: int) -> None:
    """Put a call into the ring of ``size`` calls that begins at ``base``, behind those that end no later."""
    place = size
    while place > 0:
        before = np.uint32(base + ((head + place - 1) & mask))
        if ends[before] <= value:
            break
        here = np.uint32(base + ((head + place) & mask))
        ends[here] = ends[before]
        calls[here] = calls[before]
        place -= 1
    here = np.uint32(base + ((head + place) & mask))
    ends[here] = value
    calls[here] = request


@compiled
def resize(
    clock: Floats, slot: Ints, ends: Floats, calls: Calls, slots: int, seconds: Floats, rate: Floats,
    stretch: Floats, tokens: Tokens, r: int, row: int, now_s: float,
) -> float:  # fmt: skip
    """Give replica ``r`` the resources of ``row`` in place: what is left of each call scales with its seconds alone.

    Returns the call-seconds served since the replica was last looked at.
    """
    old, active, mask, base = slot[ROW, r], slot[ACTIVE, r], slots - 1, r * slots
    slot[ROW, r] = row
    if active == 0 or row == old:
        return 0.0
    spent_s = now_s - clock[LAST, r]
    virtual, head = clock[VIRTUAL, r] + spent_s * rate[old, active], slot[HEAD, r]
    for k in range(active):
        at = base + ((head + k) & mask)
        request = calls[at]
        left_s = (ends[at] - virtual) * (seconds[row, tokens[request]] / seconds[old, tokens[request]])
        insert(ends, calls, base, mask, head, k, left_s, request)
    clock[VIRTUAL, r], clock[LAST, r] = 0.0, now_s
    clock[NEXT, r] = now_s + ends[base + head] * stretch[row, active]
    return float(spent_s * active)


@compiled
def run_node(
    begin_s: float, end_s: float, key: np.uint64, queue: Calls, waiting: int, arrived: Floats, gather: Floats,
    tokens: Tokens, clock: Floats, slot: Ints, end: Floats, call: Calls, order: Ints, order_s: Floats, seconds: Floats,
    rate: Floats, stretch: Floats, noise: Floats, cells: Cells, bounds: Floats, meter: Floats, histogram: Ints,
) -> int:  # fmt: skip
    """One node from ``begin_s`` to ``end_s`` (events at ``end_s`` belong to the next window).

    ``queue [n] uint32``: requests in order of arrival, the first ``waiting`` of which have arrived before; ``arrived
    [requests]`` says when. Returns how many of them were taken into service: ``queue`` from there on still waits.
    ``gather [requests]`` is raised to the end of each call. Everything after ``tokens`` is this node's state.
    """
    ready, drain, virtual, last = clock[READY], clock[DRAIN], clock[VIRTUAL], clock[LAST]
    coming, since, row, active, heads = clock[NEXT], clock[SINCE], slot[ROW], slot[ACTIVE], slot[HEAD]
    slots = end.shape[1]
    ends, calls, mask = end.reshape(-1), call.reshape(-1), slots - 1
    count, limit, size = order[COUNT], order[LIMIT], queue.size
    taken, come, ended = 0, waiting, 0
    served_s, busy_s, latency_s, waited_s = 0.0, 0.0, 0.0, 0.0
    flight, peak, sent = int(meter[FLIGHT]), int(meter[PEAK]), 0
    room = np.zeros(count, dtype=np.int64)
    control_s = open_up(ready, drain, room, count, limit, order_s[CHANGE_AT], begin_s)
    control_s = begin_s if waiting > 0 else control_s
    next_s = arrived[queue[come]] if come < size else FAR
    done_s, first = earliest(coming, count)
    while True:
        now_s = min(control_s, done_s, next_s)
        if now_s >= end_s:
            break
        if control_s <= now_s:
            if order_s[CHANGE_AT] <= now_s:
                limit = order[LIMIT] = order[NEXT_LIMIT]
                for k in range(count):
                    if order[NEXT_ROW] >= 0 and slot[GENERATION, k] == order[NOW_GENERATION]:
                        served_s += resize(
                            clock, slot, ends, calls, slots, seconds, rate, stretch, tokens, k, order[NEXT_ROW], now_s
                        )
                order_s[CHANGE_AT], order[NEXT_ROW] = FAR, -1
                done_s, first = earliest(coming, count)
            control_s = open_up(ready, drain, room, count, limit, order_s[CHANGE_AT], now_s)
        elif done_s <= now_s:
            q = np.uint32(first)
            size_r, head, base = active[q], heads[q], first * slots
            at = np.uint32(base + head)
            request = calls[at]
            served_s += (now_s - last[q]) * size_r
            virtual_s = ends[at]
            virtual[q], last[q] = virtual_s, now_s
            head, size_r = (head + 1) & mask, size_r - 1
            active[q], heads[q] = size_r, head
            if size_r:
                coming[q] = (
                    now_s + (ends[np.uint32(base + head)] - virtual_s) * stretch[np.uint32(row[q]), np.uint32(size_r)]
                )
            else:
                coming[q] = FAR
                busy_s += now_s - since[q]
            done_s, first = earliest(coming, count)
            span_s = now_s - arrived[request]
            ended += 1
            latency_s += span_s
            flight -= tokens[request]
            histogram[bucket(cells, bounds, span_s)] += 1
            gather[request] = max(gather[request], now_s)
        else:
            length = tokens[queue[np.uint32(come)]]
            sent += length
            flight += length
            peak = max(peak, flight)
            come += 1
            next_s = arrived[queue[np.uint32(come)]] if come < size else FAR
        while taken < come:
            r = choose(active, room, count)
            if r < 0:
                break
            p = np.uint32(r)
            request, size_r, base, head = queue[np.uint32(taken)], active[p], r * slots, heads[p]
            kind = np.uint32(row[p])
            factor = noise[kind, draw_bits(key, request) >> _ATOM_SHIFT]
            virtual_s = 0.0
            if size_r:
                spent_s = now_s - last[p]
                served_s += spent_s * size_r
                virtual_s = virtual[p] + spent_s * rate[kind, np.uint32(size_r)]
            else:
                since[p] = now_s
            last[p] = now_s
            virtual[p] = virtual_s
            value = virtual_s + seconds[kind, tokens[request]] * factor
            insert(ends, calls, base, mask, head, size_r, value, request)
            active[p] = size_r + 1
            soon_s = now_s + (ends[np.uint32(base + head)] - virtual_s) * stretch[kind, np.uint32(size_r + 1)]
            coming[p] = soon_s
            if r == first or soon_s < done_s or (soon_s == done_s and r < first):
                done_s, first = earliest(coming, count)
            waited_s += now_s - max(arrived[request], begin_s)
            taken += 1
    for k in range(count):
        if active[k] > 0:
            served_s += (end_s - last[k]) * active[k]
            virtual[k] += (end_s - last[k]) * rate[row[k], active[k]]
            busy_s += end_s - since[k]
            last[k], since[k] = end_s, end_s
    for k in range(taken, come):
        waited_s += end_s - max(arrived[queue[k]], begin_s)
    meter[CALLS] += ended
    meter[TOKENS] += sent
    meter[SERVED_S] += served_s
    meter[WAITED_S] += waited_s
    meter[BUSY_S] += busy_s
    meter[PEAK], meter[FLIGHT] = peak, flight
    meter[LATENCY_S] += latency_s
    return taken


@compiled
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
    end: Floats, call: Calls, order: Ints, order_s: Floats, seconds: Floats, rate: Floats, stretch: Floats,
    noise: Floats, cells: Cells, bounds: Floats, meter: Floats, histogram: Ints,
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
            end[node], call[node], order[node], order_s[node], seconds, rate, stretch, noise, cells, bounds,
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
                barrier[bucket(cells, bounds, done_s - arrived[request])] += 1
                arrived[request] = done_s + hop_s
                gone[left] = request
                left += 1
    return in_order(gone[:left], gather[0]), remaining[:stay].copy()


@compiled
def run_stage(
    begin_s: float, end_s: float, hop_s: float, keys: NDArray[np.uint64], nodes: Ints, due: Calls, held: Calls,
    held_from: Ints, unfinished: Calls, arrived: Floats, gather: Floats, marks: NDArray[np.uint8], counts: Tokens,
    source: Ints, clock: Floats, slot: Ints, end: Floats, call: Calls, order: Ints, order_s: Floats, seconds: Floats,
    rate: Floats, stretch: Floats, noise: Floats, cells: Cells, bounds: Floats, meter: Floats, histogram: Ints,
    barrier: Ints,
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
        slot, end, call, order, order_s, seconds, rate, stretch, noise, cells, bounds, meter, histogram,
    )  # fmt: skip
    gone, remaining = leave(hop_s, due[:here], unfinished, arrived, gather, marks, cells, bounds, barrier)
    return gone, due[here:].copy(), remaining, still, still_from


@compiled
def count_spans(spans_s: Floats, cells: Cells, bounds: Floats, histogram: Ints) -> None:
    """Count every span into ``histogram [bounds]``."""
    for span_s in spans_s:
        histogram[bucket(cells, bounds, span_s)] += 1


@compiled
def route(
    seed: int, arrival_s: Floats, tokens: Ints, popularity: Floats, spread: Ints, factors: Floats, phase_s: float,
    experts: Ints, top_k: int, counts: Tokens,
) -> None:  # fmt: skip
    """Token routing of every request (see :mod:`rl.routing`): ``counts [1 + all experts, requests]`` gets the tokens of
    the request in row 0 and below the tokens that each expert gets of it, in order of layer and number."""
    weights = np.empty(popularity.shape[2])
    drawn = np.empty(popularity.shape[2], dtype=np.int64)
    chosen = np.empty(popularity.shape[2], dtype=np.uint8)
    for request in range(arrival_s.size):
        counts[0, request] = tokens[request]
        at = arrival_s[request] / phase_s
        phase = int(at)
        part = at - phase
        before, after = phase % popularity.shape[0], (phase + 1) % popularity.shape[0]
        first = 1
        for layer in range(experts.size):
            key = stream_key(seed, layer, request)
            size, whole = experts[layer], 0.0
            for j in range(size):
                weight = popularity[before, layer, j] * (1 - part) + popularity[after, layer, j] * part
                weights[j] = weight * quantile(factors, spread[layer, j], uniform(key, j))
                whole += weights[j]
                drawn[j] = 0
            for token in range(tokens[request]):
                left = whole
                chosen[:size] = 0
                for k in range(min(top_k, size)):
                    point, found = uniform(key, size + token * top_k + k) * left, -1
                    for j in range(size):
                        if chosen[j] == 0:
                            found = j
                            point -= weights[j]
                            if point < 0:
                                break
                    chosen[found] = 1
                    drawn[found] += 1
                    left -= weights[found]
            for j in range(size):
                counts[first + j, request] = drawn[j]
            first += size
