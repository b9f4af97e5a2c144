"""One machine that everything shares, compiled: its cores, and the ingress as a server of its own, event by event.

Layers meet at the ingress and on the cores, so nothing here can be simulated stage by stage: at each event the cores
are dealt out again among the ingress and the replicas that have calls, and everything moves on to the next event.

Ties in time: control, then the ingress, then the front, then what replicas and their limits do, then arrivals.
"""

from __future__ import annotations

import numpy as np

from simulation.arrays import Calls, Floats, Ints
from simulation.engine.compiled import compiled, inner
from simulation.engine.draws import ATOM_SHIFT, draw_bits
from simulation.engine.host_limits import (
    begin_limit,
    fall_asleep,
    first_seen,
    goes_on_at,
    grant,
    noticed_at,
    take,
    wake_on,
)
from simulation.engine.host_queue import come_in, count_waiting, finish_front, finish_item, to_front, to_ingress
from simulation.engine.host_state import COME, HEAD_OF, INSIDE, SIZE_OF, WAITING, Meters, Passes, Rules
from simulation.engine.node import BUSY_S, CPU_S, SERVED_S, control
from simulation.engine.replicas import (
    ACTIVE,
    BATCH,
    CALLS,
    CHANGE_AT,
    COUNT,
    DRAIN,
    FAR,
    GRANT_AT,
    HEAD,
    LAST,
    LEVEL,
    LIMIT,
    NEXT,
    READY,
    REFILL,
    ROW,
    STOPPED,
    TURN,
    VIRTUAL,
    WAS_STOPPED,
    Replicas,
    choose_in_turn,
    open_up,
)

END, CONTROL, INGRESS, ARRIVAL, FRONT = -1, -2, -3, -4, -5
"""What comes next, where it is not a replica."""
DONE, STOPS, GOES_ON, GRANTED = range(4)
"""What comes next of a replica: its batch or its start is done, its limit stops it or lets it go on, or it is granted
more while it runs."""


@inner
def fair_share(wanted: Floats, count: int, cores: float) -> float:
    """The most that each of the ``count`` first of ``wanted`` (cores, at most 1 each) gets, so that together they use
    ``cores``: who wants less gets all it wants, the others the same. ``wanted`` [calls]."""
    share = cores / count
    while True:
        given, more = 0.0, 0
        for k in range(count):
            if wanted[k] <= share:
                given += wanted[k]
            else:
                more += 1
        if more == 0:
            return 1.0
        risen = (cores - given) / more
        if risen <= share * (1 + 1e-12):
            return share
        share = risen


@inner
def begin_batch(node: int, r: int, seconds: Floats, rules: Rules, replicas: Replicas, passes: Passes) -> None:
    """All calls that replica ``r`` of the node has are computed as one, from now on; ``seconds [rows, tokens + 1]``."""
    clock, slot, slots = replicas.clock[node], replicas.slot[node], replicas.end.shape[2]
    ends, calls, row, size = replicas.end[node, r], replicas.call[node, r], slot[ROW, r], slot[ACTIVE, r]
    tokens, whole, apart_s, slow_s = rules.counts[rules.source[node]], 0, 0.0, 0.0
    more_s = (size - 1) * rules.rows.further[row]
    if slot[WAS_STOPPED, r]:
        more_s += rules.rows.after_stop[row]
        if rules.rows.cold[row] > 0:
            seconds = rules.rows.work
    for k in range(size):
        request = calls[(slot[HEAD, r] + k) & (slots - 1)]
        alone_s = seconds[row, tokens[request]]
        factor = rules.rows.noise[row, draw_bits(rules.keys[node], request) >> ATOM_SHIFT]
        whole += tokens[request]
        apart_s += alone_s
        slow_s += alone_s * factor * rules.slow[request] * passes.cold[request]
    end = clock[VIRTUAL, r] + (seconds[row, whole] + more_s) * (slow_s / apart_s)
    slot[BATCH, r], slot[WAS_STOPPED, r] = size, 0
    for k in range(size):
        ends[(slot[HEAD, r] + k) & (slots - 1)] = end


@inner
def wake_up(node: int, r: int, request: int, rules: Rules, replicas: Replicas, passes: Passes, now_s: float) -> None:
    """Idle replica ``r`` of the node has got a call: it begins, or waits until its limit lets it."""
    clock, slot = replicas.clock[node], replicas.slot[node]
    bucket = rules.rows.bucket[slot[ROW, r]]
    slot[BATCH, r] = slot[STOPPED, r] = 0
    if bucket[REFILL] < 1:
        first_seen(clock, r, bucket, rules.tick_s, rules.keys[node], request, now_s)
        grant(clock, slot, r, bucket, now_s)
        wake_on(clock, slot, r, rules.keys[node], request)
        slot[STOPPED, r] = 1 if clock[LEVEL, r] <= 0 else 0
    slot[WAS_STOPPED, r] = slot[STOPPED, r]
    if slot[STOPPED, r]:
        replicas.end[node, r, slot[HEAD, r]] = clock[VIRTUAL, r]
    else:
        begin_batch(node, r, rules.rows.work, rules, replicas, passes)


@inner
def go_on(node: int, r: int, rules: Rules, replicas: Replicas, passes: Passes) -> None:
    """Replica ``r`` of the node, which was stopped, goes on with its batch, or begins with all calls that it has."""
    slot, slots = replicas.slot[node], replicas.end.shape[2]
    slot[STOPPED, r] = 0
    if slot[BATCH, r] == 0:
        begin_batch(node, r, rules.rows.work, rules, replicas, passes)
        return
    slot[WAS_STOPPED, r] = 1
    more_s = rules.rows.stop[slot[ROW, r]] * rules.slow[replicas.call[node, r, slot[HEAD, r]]]
    for k in range(slot[ACTIVE, r]):
        replicas.end[node, r, (slot[HEAD, r] + k) & (slots - 1)] += more_s


@inner
def dispatch(
    node: int, rules: Rules, replicas: Replicas, passes: Passes, meters: Meters, running: Ints, active: int,
    now_s: float,
) -> int:  # fmt: skip
    """Put the node's waiting calls into service as far as there is room; returns how many replicas have calls now.

    ``running [2, …]``: node and replica of all that have calls, and of those that start; they are up to date, others
    are brought so.
    """
    queue, clock, slot, order = passes.queues[node], replicas.clock[node], replicas.slot[node], replicas.order[node]
    ends, calls, slots = replicas.end[node].reshape(-1), replicas.call[node].reshape(-1), replicas.end.shape[2]
    while queue[SIZE_OF] > 0:
        r = choose_in_turn(slot[ACTIVE], slot[TURN], replicas.room[node], order[COUNT])
        if r < 0:
            break
        request, size = queue[HEAD_OF], slot[ACTIVE, r]
        queue[HEAD_OF] = passes.behind[node, request]
        queue[SIZE_OF] -= 1
        if size == 0:
            clock[VIRTUAL, r] = 0.0
            running[0, active], running[1, active] = node, r
            active += 1
        at = r * slots + ((slot[HEAD, r] + size) & (slots - 1))
        calls[at] = request
        order[CALLS] += 1
        slot[ACTIVE, r], slot[TURN, r] = size + 1, order[CALLS]
        if size:
            ends[at] = ends[r * slots + slot[HEAD, r]]  # it waits for the batch that is being computed
        else:
            wake_up(node, r, request, rules, replicas, passes, now_s)
    return active


@inner
def deal_out(rules: Rules, replicas: Replicas, busy: int, running: Ints, active: int, given: Floats) -> float:
    """``given [active]``: cores that each of ``running`` gets; returns what each of the ``busy`` servers (ingress,
    front) gets.

    A replica that its limit has stopped wants none.
    """
    whole = 0.0
    for k in range(active):
        node, r = running[0, k], running[1, k]
        row, size = replicas.slot[node, ROW, r], replicas.slot[node, ACTIVE, r]
        desired = rules.rows.use[row, size] if size else rules.start_cores
        if size and replicas.slot[node, STOPPED, r]:
            desired = 0.0
        given[k] = desired
        whole += desired
    for k in range(busy):
        given[active + k] = 1.0
        whole += 1.0
    if whole <= rules.cores:
        return 1.0
    share = fair_share(given, active + busy, rules.cores)
    for k in range(active):
        given[k] = min(given[k], share)
    return share


@inner
def following(
    rules: Rules, replicas: Replicas, running: Ints, active: int, given: Floats, speed: Floats, slow: float,
    inside: int, next_s: float, what: int, now_s: float,
) -> tuple[float, int, int]:  # fmt: skip
    """When what comes next, if that is before ``next_s``: a replica's number in ``running``, and which of the events
    from ``DONE`` on. Fills ``speed [active]``: virtual seconds in a second, where everything takes ``slow`` times its
    CPU seconds, and ``inside`` requests are in flight."""
    among = min(max(inside, 1), rules.rows.in_flight.shape[1]) - 1
    event = DONE
    for k in range(active):
        node, r = running[0, k], running[1, k]
        row, size = replicas.slot[node, ROW, r], replicas.slot[node, ACTIVE, r]
        clock = replicas.clock[node]
        if size == 0:
            ready_s = now_s + clock[NEXT, r] * rules.start_cores / given[k]
            if ready_s < next_s:
                next_s, what, event = ready_s, k, DONE
            continue
        speed[k] = 0.0
        if replicas.slot[node, STOPPED, r]:
            goes_on_s = goes_on_at(clock, r, rules.rows.bucket[row])
            if goes_on_s < next_s:
                next_s, what, event = goes_on_s, k, GOES_ON
            continue
        speed[k] = given[k] / rules.rows.use[row, size] / slow / rules.rows.in_flight[row, among]
        left_s = max(0.0, replicas.end[node, r, replicas.slot[node, HEAD, r]] - clock[VIRTUAL, r])
        if now_s + left_s / speed[k] < next_s:
            next_s, what, event = now_s + left_s / speed[k], k, DONE
        if rules.rows.bucket[row, REFILL] < 1:
            stops_s = noticed_at(clock, r, rules.tick_s, given[k], now_s)
            if clock[GRANT_AT, r] < next_s and clock[GRANT_AT, r] <= stops_s:
                next_s, what, event = clock[GRANT_AT, r], k, GRANTED
            elif stops_s < next_s:
                next_s, what, event = stops_s, k, STOPS
    return next_s, what, event


@inner
def move_on(
    rules: Rules, replicas: Replicas, meters: Meters, running: Ints, active: int, given: Floats, speed: Floats,
    spent_s: float, now_s: float,
) -> None:  # fmt: skip
    """All of ``running`` work for ``spent_s`` seconds, until now. ``running`` [replicas]."""
    for k in range(active):
        node, r = running[0, k], running[1, k]
        row, clock, meter = replicas.slot[node, ROW, r], replicas.clock[node], meters.meter[node]
        if replicas.slot[node, ACTIVE, r] == 0:
            clock[NEXT, r] = max(0.0, clock[NEXT, r] - spent_s * given[k] / rules.start_cores)
            continue
        clock[VIRTUAL, r] += spent_s * speed[k]
        if rules.rows.bucket[row, REFILL] < 1:
            clock[LEVEL, r] -= spent_s * given[k]
            take(clock, r)  # at some time until now, so what a period that ends now leaves is what it did not take
            grant(clock, replicas.slot[node], r, rules.rows.bucket[row], now_s)
            take(clock, r)
        meter[SERVED_S] += spent_s * replicas.slot[node, ACTIVE, r]
        meter[BUSY_S] += spent_s
        meter[CPU_S] += spent_s * given[k]


@inner
def change(node: int, rules: Rules, replicas: Replicas, passes: Passes, now_s: float) -> float:
    """What holds from now on at a node; returns when there is something to bring about next."""
    clock, slot, order = replicas.clock[node], replicas.slot[node], replicas.order[node]
    before, levels = slot[ROW, : order[COUNT]].copy(), clock[LEVEL, : order[COUNT]].copy()
    for r in range(order[COUNT]):
        clock[LAST, r] = now_s  # what was done is counted already
        clock[LEVEL, r] = max(0.0, levels[r])  # the stages' bucket, which ``control`` looks at, has no debts
    next_s, _, _ = control(node, replicas, rules.rows, rules.counts[rules.source[node]], now_s)
    for r in range(order[COUNT]):
        if slot[ROW, r] == before[r]:
            clock[LEVEL, r] = levels[r]
        else:  # the kernel begins a new limit with a whole quota
            bucket = rules.rows.bucket[slot[ROW, r]]
            begin_limit(clock, r, bucket)
            if bucket[REFILL] < 1 and slot[ACTIVE, r]:
                first = replicas.call[node, r, slot[HEAD, r]]
                first_seen(clock, r, bucket, rules.tick_s, rules.keys[node], first, now_s)
                grant(clock, slot, r, bucket, now_s)
                take(clock, r)
            if slot[ACTIVE, r] and slot[STOPPED, r]:
                go_on(node, r, rules, replicas, passes)
    return next_s


@inner
def finish_batch(
    k: int, rules: Rules, replicas: Replicas, passes: Passes, meters: Meters, running: Ints, active: int, now_s: float
) -> int:
    """The batch of replica ``k`` of ``running`` ends, and the next begins; returns how many replicas have calls now.
    ``running`` [replicas]."""
    node, r = running[0, k], running[1, k]
    clock, slot = replicas.clock[node], replicas.slot[node]
    clock[VIRTUAL, r] = 0.0
    for _ in range(slot[BATCH, r]):
        item = 2 * (replicas.call[node, r, slot[HEAD, r]] * (rules.keys.size + 1) + node) + 1
        to_ingress(item, rules, passes, meters, now_s)
        slot[HEAD, r] = (slot[HEAD, r] + 1) & (replicas.end.shape[2] - 1)
        slot[ACTIVE, r] -= 1
    if slot[ACTIVE, r] > 0:
        begin_batch(node, r, rules.rows.again, rules, replicas, passes)
    else:
        clock[LAST, r] = now_s
        fall_asleep(clock, r, rules.rows.bucket[slot[ROW, r]])
        active -= 1
        running[0, k], running[1, k] = running[0, active], running[1, active]
    return active


@inner
def resume(begin_s: float, replicas: Replicas, running: Ints, control_at: Floats) -> int:
    """Who has calls at the beginning of a window or is starting, in ``running``, and when each node changes next;
    returns how many. ``running`` [replicas]."""
    active = 0
    for node in range(control_at.size):
        count = replicas.order[node, COUNT]
        control_at[node] = open_up(
            replicas.clock[node, READY], replicas.clock[node, DRAIN], replicas.room[node], count,
            replicas.order[node, LIMIT], replicas.order_s[node, CHANGE_AT], begin_s,
        )  # fmt: skip
        for r in range(count):
            starting = replicas.clock[node, READY, r] >= FAR and replicas.clock[node, DRAIN, r] > begin_s
            if starting or replicas.slot[node, ACTIVE, r] > 0:
                running[0, active], running[1, active] = node, r
                active += 1
    return active


@inner
def get_ready(k: int, replicas: Replicas, running: Ints, active: int, now_s: float) -> int:
    """Replica ``k`` of ``running`` [2, replicas] has started and has no calls yet; returns how many run now."""
    node, r = running[0, k], running[1, k]
    replicas.clock[node, READY, r] = replicas.clock[node, LAST, r] = now_s
    active -= 1
    running[0, k], running[1, k] = running[0, active], running[1, active]
    return active


@inner
def close(replicas: Replicas, passes: Passes, meters: Meters, running: Ints, active: int, end_s: float) -> None:
    """Bring all that have calls, and what waits, to the window's end. ``running`` [2, replicas]."""
    for k in range(active):
        replicas.clock[running[0, k], LAST, running[1, k]] = end_s
    for node in range(passes.queues.shape[0]):
        count_waiting(node, passes.queues[node, SIZE_OF], meters, end_s)


@inner
def next_server(end_s: float, control_s: float, line_s: float, front_s: float) -> tuple[float, int]:
    """When what comes next of changes and the two servers, and what it is; ``END`` at the window's end.

    Strictly sooner replaces, so what is at the window's end waits for the next window, and of events at one time
    changes go before completions, and arrivals come last.
    """
    next_s, what = end_s, END
    if control_s < next_s:
        next_s, what = control_s, CONTROL
    if line_s < next_s:
        next_s, what = line_s, INGRESS
    if front_s < next_s:
        next_s, what = front_s, FRONT
    return next_s, what


@compiled
def run_host(
    begin_s: float, end_s: float, last: int, rules: Rules, replicas: Replicas, passes: Passes, meters: Meters
) -> Calls:
    """Everything from ``begin_s`` to ``end_s``; requests below ``last`` have arrived or will. Returns who was answered,
    in order of the answers.

    What happens at an event is in one piece with the loop: tuples of arrays that are handed on are counted by reference
    each time, and with a function for it all the run takes a third longer.
    """
    nodes, line, front = rules.keys.size, passes.line_state, passes.front_state
    running = np.empty((2, replicas.room.size + 2), dtype=np.int64)
    given, speed, control_at = np.empty(running.shape[1]), np.empty(running.shape[1]), np.empty(nodes)
    answered, done, now_s = np.empty(last, dtype=np.uint32), 0, begin_s
    active = resume(begin_s, replicas, running, control_at)
    for node in range(nodes):
        active = dispatch(node, rules, replicas, passes, meters, running, active, begin_s)
    control_s = control_at.min()
    while True:
        # Every event changes who wants a core, so shares hold until the next event only.
        share = deal_out(rules, replicas, (line[WAITING] > 0) + (front[WAITING] > 0), running, active, given)
        slow = rules.overlap[min(max(line[INSIDE], 1), rules.overlap.size) - 1]
        line_s = now_s + passes.line_left[0] * slow / share if line[WAITING] > 0 else FAR
        front_s = now_s + passes.front_left[0] / share if front[WAITING] > 0 else FAR
        next_s, what = next_server(end_s, control_s, line_s, front_s)
        next_s, what, event = following(
            rules, replicas, running, active, given, speed, slow, line[INSIDE], next_s, what, now_s
        )
        if line[COME] < last and rules.reached[line[COME]] < next_s:
            next_s, what = max(now_s, rules.reached[line[COME]]), ARRIVAL
        move_on(rules, replicas, meters, running, active, given, speed, next_s - now_s, next_s)
        if line[WAITING] > 0:
            passes.line_left[0] = max(0.0, passes.line_left[0] - (next_s - now_s) * share / slow)
        if front[WAITING] > 0:
            passes.front_left[0] = max(0.0, passes.front_left[0] - (next_s - now_s) * share)
        now_s, served = next_s, -1
        if what == END:
            break
        if what == CONTROL:
            for node in range(nodes):
                if control_at[node] <= now_s:
                    control_at[node] = change(node, rules, replicas, passes, now_s)
                    count_waiting(node, passes.queues[node, SIZE_OF], meters, now_s)
                    active = dispatch(node, rules, replicas, passes, meters, running, active, now_s)
            control_s = control_at.min()
        elif what == ARRIVAL:
            if rules.front_s > 0:
                to_front(2 * line[COME], rules, passes)
            else:
                come_in(line[COME], rules, passes, meters, now_s)
            line[COME] += 1
        elif what == INGRESS:
            served, request = finish_item(rules, passes, meters, now_s)
            if request >= 0:
                answered[done] = request
                done += 1
        elif what == FRONT:
            request = finish_front(rules, passes, meters, now_s)
            if request >= 0:
                answered[done] = request
                done += 1
        elif what >= 0 and replicas.slot[running[0, what], ACTIVE, running[1, what]] == 0:
            served = running[0, what]
            active = get_ready(what, replicas, running, active, now_s)
            control_at[served] = change(served, rules, replicas, passes, now_s)
            count_waiting(served, passes.queues[served, SIZE_OF], meters, now_s)
        elif event == STOPS:
            replicas.slot[running[0, what], STOPPED, running[1, what]] = 1
        elif event == GOES_ON:
            go_on(running[0, what], running[1, what], rules, replicas, passes)
        elif event == DONE:
            served = running[0, what]
            active = finish_batch(what, rules, replicas, passes, meters, running, active, now_s)
            count_waiting(served, passes.queues[served, SIZE_OF], meters, now_s)
        if served >= 0:  # only there a slot came free or a call came in
            active = dispatch(served, rules, replicas, passes, meters, running, active, now_s)
    close(replicas, passes, meters, running, active, end_s)
    return answered[:done].copy()
