"""The ingress of one machine that everything shares, compiled: its line, what lies before it, and what its items do.

An item is the beginning of a request, sending a call, taking its reply, or the answer. Whatever is done for a request
that comes after a pause takes longer (``Rules.idle``).
"""

from __future__ import annotations

from simulation.arrays import Floats
from simulation.engine.compiled import inner
from simulation.engine.histograms import bucket_of
from simulation.engine.host_state import (
    ANSWER,
    FIRST,
    HEAD_OF,
    INSIDE,
    RECEIVE,
    SEND,
    SIZE_OF,
    START,
    TAIL_OF,
    TOKEN,
    WAITING,
    Meters,
    Passes,
    Rules,
)
from simulation.engine.node import CALLS, FLIGHT, LATENCY_S, PEAK, TOKENS, WAITED_S


@inner
def append(item: int, passes: Passes) -> None:
    """Something more to do for the ingress."""
    state = passes.line_state
    passes.line[(state[FIRST] + state[WAITING]) % passes.line.size] = item
    state[WAITING] += 1


@inner
def to_front(item: int, rules: Rules, passes: Passes) -> None:
    """Something more to do for what lies before the ingress."""
    state = passes.front_state
    passes.front[(state[FIRST] + state[WAITING]) % passes.front.size] = item
    state[WAITING] += 1
    if state[WAITING] == 1:
        passes.front_left[0] = rules.front_s


@inner
def begin_item(rules: Rules, passes: Passes, meters: Meters, now_s: float) -> None:
    """The ingress begins with the first of its line, if there is one."""
    if passes.line_state[WAITING] == 0:
        return
    item, nodes = passes.line[passes.line_state[FIRST]], rules.keys.size
    reply, request, node = item % 2, (item // 2) // (nodes + 1), (item // 2) % (nodes + 1)
    if node == nodes:
        passes.line_left[0] = rules.ingress_s[ANSWER if reply else START] * passes.cold[request]
        return
    tokens = rules.counts[rules.source[node], request]
    cpu_s = rules.ingress_s[RECEIVE if reply else SEND] + tokens * rules.ingress_s[TOKEN]
    passes.line_left[0] = cpu_s * passes.cold[request]
    if not reply:
        passes.asked[node, request] = now_s
        meter = meters.meter[node]
        meter[TOKENS] += tokens
        meter[FLIGHT] += tokens
        meter[PEAK] = max(meter[PEAK], meter[FLIGHT])


@inner
def to_ingress(item: int, rules: Rules, passes: Passes, meters: Meters, now_s: float) -> None:
    """Something more to do for the ingress, which begins with it at once if it has nothing else."""
    append(item, passes)
    if passes.line_state[WAITING] == 1:
        begin_item(rules, passes, meters, now_s)


@inner
def scatter(request: int, rules: Rules, passes: Passes, now_s: float) -> None:
    """Calls to the nodes of the request's stage go into the ingress's line."""
    passes.scattered[request] = now_s
    stage = passes.stage[request]
    for node in range(rules.stages[stage, 0], rules.stages[stage, 1]):
        if rules.counts[rules.source[node], request] > 0:
            passes.out[request] += 1
            append(2 * (request * (rules.keys.size + 1) + node), passes)


@inner
def take_reply(node: int, request: int, rules: Rules, passes: Passes, meters: Meters, now_s: float) -> None:
    """A reply has been taken; with the last of its stage the request goes on."""
    span_s, meter = now_s - passes.asked[node, request], meters.meter[node]
    meter[CALLS] += 1
    meter[LATENCY_S] += span_s
    meter[FLIGHT] -= rules.counts[rules.source[node], request]
    meters.histogram[node, bucket_of(meters.cells, meters.bounds, span_s)] += 1
    passes.out[request] -= 1
    if passes.out[request] > 0:
        return
    stage = passes.stage[request]
    if stage % 2 == 1:
        spread_s = now_s - passes.scattered[request]
        meters.barrier[stage // 2, bucket_of(meters.cells, meters.bounds, spread_s)] += 1
    passes.stage[request] = stage + 1
    if stage + 1 < rules.stages.shape[0]:
        scatter(request, rules, passes, now_s)
    else:
        append(2 * (request * (rules.keys.size + 1) + rules.keys.size) + 1, passes)


@inner
def enqueue(node: int, request: int, passes: Passes) -> None:
    """A call that was sent waits for a slot."""
    queue = passes.queues[node]
    if queue[SIZE_OF] == 0:
        queue[HEAD_OF] = request
    else:
        passes.behind[node, queue[TAIL_OF]] = request
    queue[TAIL_OF] = request
    queue[SIZE_OF] += 1


@inner
def count_waiting(node: int, waited: int, meters: Meters, now_s: float) -> None:
    """``waited`` calls have waited at the node since it was touched."""
    meters.meter[node, WAITED_S] += waited * (now_s - meters.touched[node])
    meters.touched[node] = now_s


@inner
def finish_item(rules: Rules, passes: Passes, meters: Meters, now_s: float) -> tuple[int, int]:
    """The ingress is done with the first of its line; returns a node that has got a call to serve (or -1) and a request
    that has been answered (or -1)."""
    state, nodes = passes.line_state, rules.keys.size
    item = passes.line[state[FIRST]]
    state[FIRST] = (state[FIRST] + 1) % passes.line.size
    state[WAITING] -= 1
    reply, request, node = item % 2, (item // 2) // (nodes + 1), (item // 2) % (nodes + 1)
    served, answered = -1, -1
    if node == nodes and reply:
        state[INSIDE] -= 1
        passes.answered[0] = now_s
        if rules.front_s > 0:
            to_front(2 * request + 1, rules, passes)
        else:
            passes.left[request] = now_s
            answered = request
    elif node == nodes:
        passes.stage[request] = 0
        scatter(request, rules, passes, now_s)
    elif reply:
        take_reply(node, request, rules, passes, meters, now_s)
    else:
        count_waiting(node, passes.queues[node, SIZE_OF], meters, now_s)
        enqueue(node, request, passes)
        served = node
    begin_item(rules, passes, meters, now_s)
    return served, answered


@inner
def between(seconds: float, points: Floats) -> float:
    """The second row of ``points [2, n]`` where the first is ``seconds``: linear, as at the ends beyond."""
    last = points.shape[1] - 1
    if seconds <= points[0, 0]:
        return float(points[1, 0])
    for k in range(last):
        if seconds < points[0, k + 1]:
            part = (seconds - points[0, k]) / (points[0, k + 1] - points[0, k])
            return float(points[1, k] + part * (points[1, k + 1] - points[1, k]))
    return float(points[1, last])


@inner
def come_in(request: int, rules: Rules, passes: Passes, meters: Meters, now_s: float) -> None:
    """The ingress gets a request."""
    passes.line_state[INSIDE] += 1
    passes.cold[request] = between(now_s - passes.answered[0], rules.idle)
    to_ingress(2 * (request * (rules.keys.size + 1) + rules.keys.size), rules, passes, meters, now_s)


@inner
def finish_front(rules: Rules, passes: Passes, meters: Meters, now_s: float) -> int:
    """What lies before the ingress is done with the first of its line; returns a request that has been answered, or
    -1."""
    state = passes.front_state
    item = passes.front[state[FIRST]]
    state[FIRST] = (state[FIRST] + 1) % passes.front.size
    state[WAITING] -= 1
    passes.front_left[0] = rules.front_s
    request = item // 2
    if item % 2 == 0:
        come_in(request, rules, passes, meters, now_s)
        return -1
    passes.left[request] = now_s
    return int(request)
