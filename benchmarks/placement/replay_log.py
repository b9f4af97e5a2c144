"""Replay of requests on heterogeneous machines under a plan, event by event: latencies and where calls were computed.

The model, after Prism's simulator (Section IV-C). A node serves its own requests one at a time in order of arrival. A
request is a row of *passes* (one over the prompt, one for each token generated after it); a pass goes through the
layers. In a layer the dense part takes the node's first GPU; then the experts that the node holds are computed on its
GPUs, and the hidden states of all other (token, expert) pairs go out, one message per node called; that node's GPUs
compute and one message comes back. The layer ends when everything is there. GPUs and every node's way out (at the
bandwidth to the receiver, as traffic control shapes it) serve one after another in order of arrival. An expert with
copies on several other nodes is computed on the GPU that is free first. Times are linear in tokens. Memory traffic
between requests, prefetching and overlap of a layer's dense part with the layer before are not modelled.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numba import njit
from numpy.typing import NDArray

from placement.cluster import Cluster, PlanArray, Whole
from placement.errors import PlacementError
from placement.layout import Floats

BEGIN, GATED, CALLED, COMPUTED, BACK = range(5)
"""Events: a layer begins, its router is done, a message is at the called node, computed there, one part is back."""


@dataclass(frozen=True, eq=False)
class Requests:
    """What arrives where, and which experts it calls. Passes of a request, and layers of a pass, are in a row."""

    arrival_s: Floats
    """[requests], rising."""
    node: Whole
    """[requests]: where it arrives."""
    first_pass: Whole
    """[requests + 1]: passes ``first_pass[r] … first_pass[r + 1] - 1`` are those of request r."""
    tokens: Whole
    """[passes]."""
    start: Whole
    """[passes × layers + 1]: calls of pass p, layer l are those from ``start[p × layers + l]``."""
    expert: NDArray[np.int32]
    """[calls]."""
    count: NDArray[np.int32]
    """[calls]: tokens of the pass that chose the expert."""

    def frequency(self, nodes: int, layers: int, experts: int, which: NDArray[np.bool_]) -> Floats:
        """[nodes, layers, experts]: (token, expert) pairs of the requests ``which`` [requests] picks."""
        passes = np.repeat(np.arange(len(self.node)), np.diff(self.first_pass))
        cells = np.repeat(np.arange(len(self.tokens) * layers), np.diff(self.start))
        request = passes[cells // layers]
        kept = which[request]
        place = (self.node[request[kept]] * layers + cells[kept] % layers) * experts + self.expert[kept]
        counted = np.bincount(place, weights=self.count[kept], minlength=nodes * layers * experts)
        frequency: Floats = counted.astype(np.float64).reshape(nodes, layers, experts)
        return frequency


@dataclass(frozen=True)
class Costs:
    """Seconds and bytes of a layer's parts on the reference GPU."""

    dense_s: float
    dense_token_s: float
    expert_s: float
    expert_token_s: float
    token_bytes: int
    """Bytes of one token's hidden state in one direction."""
    message_s: float
    """Seconds of a message besides its bytes: network, and from and to the GPU."""


@dataclass(frozen=True, eq=False)
class PlanChange:
    """A plan from some time on; loading its experts (from each node's disk) is over by then and delays nobody."""

    active_s: float
    plan: PlanArray


@dataclass(frozen=True, eq=False)
class Replay:
    """What happened."""

    latency_s: Floats
    """[requests]: from arrival to the end of the last pass."""
    served_s: Floats
    """[requests]: from the start of the first pass."""
    local: Floats
    """[nodes, bins] (token, expert) pairs computed on the node they arose on, by time of the call."""
    calls: Floats
    """[nodes, bins]: all pairs."""
    messages: int

    @property
    def local_ratio(self) -> Floats:
        """[bins] of all nodes; NaN where nothing was called."""
        calls = self.calls.sum(axis=0)
        ratio: Floats = np.divide(self.local.sum(axis=0), calls, out=np.full(len(calls), np.nan), where=calls > 0)
        return ratio


def replay(
    requests: Requests, changes: list[PlanChange], cluster: Cluster, costs: Costs, *, bin_s: float, bins: int
) -> Replay:
    """Simulate ``requests`` under the plan of ``changes`` that is active when a layer's experts are called.

    The first change's plan holds from the beginning; ``bins`` of ``bin_s`` seconds, later ones count in the last.
    """
    if not changes or any(later.active_s < sooner.active_s for sooner, later in pairwise(changes)):
        raise PlacementError("there must be a first plan, and plans must come in order of their times")
    plans = np.stack([change.plan for change in changes])
    latency, served = np.zeros(len(requests.node)), np.zeros(len(requests.node))
    local, calls = np.zeros((cluster.nodes, bins)), np.zeros((cluster.nodes, bins))
    messages = _simulate(
        (requests.arrival_s, requests.node, requests.first_pass, requests.tokens),
        (requests.start, requests.expert, requests.count),
        plans,
        np.array([change.active_s for change in changes]),
        (cluster.node, cluster.speed, cluster.bandwidth),
        (costs.dense_s, costs.dense_token_s, costs.expert_s, costs.expert_token_s, costs.token_bytes, costs.message_s),
        bin_s,
        (latency, served, local, calls),
    )
    return Replay(latency, served, local, calls, messages)


@njit(cache=True, nogil=True)
def _simulate(passes, routed, plans, active_s, machine, costs, bin_s, results):  # type: ignore[no-untyped-def]
    """Number of messages; fills ``results``. A node has one layer under way, so its state is one row of each array.

    In one piece: arrays handed on are counted by reference, and with a function for each kind of event it takes three
    times as long, inlined or not.
    """
    arrival_s, node_of, first_pass, tokens = passes
    gpu_node, speed, bandwidth = machine
    dense_s, dense_token_s, _, _, token_bytes, message_s = costs
    latency, served, local, calls = results
    nodes, gpus, layers = len(bandwidth), len(gpu_node), plans.shape[2]
    first_gpu = np.searchsorted(gpu_node, np.arange(nodes))
    free_gpu, free_out = np.zeros(gpus), np.zeros(nodes)
    work, bytes_to = np.zeros((nodes, gpus)), np.zeros((nodes, nodes))
    request, at_pass, at_layer = np.full(nodes, -1), np.zeros(nodes, dtype=np.int64), np.zeros(nodes, dtype=np.int64)
    waits = np.zeros(nodes, dtype=np.int64)
    serial, messages, plan = 0, 0, 0
    events = [(0.0, 0, BEGIN, 0, 0)]  # numba takes the type of an empty list from what it held
    events.pop()
    for node in range(nodes):
        following = _following(request[node], node, node_of)
        if following >= 0:
            request[node], at_pass[node] = following, first_pass[following]
            events.append((arrival_s[following], serial, BEGIN, node, 0))
            serial += 1
    heapq.heapify(events)
    while len(events) > 0:
        now, _, kind, node, other = heapq.heappop(events)
        while plan + 1 < len(active_s) and active_s[plan + 1] <= now:
            plan += 1
        if kind == BEGIN:
            here = request[node]
            if at_pass[node] == first_pass[here] and at_layer[node] == 0:
                served[here] = now
            # attention and gate run on the node's first GPU, which its experts share
            gpu = first_gpu[node]
            end = max(now, free_gpu[gpu]) + (dense_s + dense_token_s * tokens[at_pass[node]]) / speed[gpu]
            free_gpu[gpu] = end
            heapq.heappush(events, (end, serial, GATED, node, 0))
            serial += 1
            continue
        if kind == GATED:
            cell = at_pass[node] * layers + at_layer[node]
            near, every = _spread(
                node, cell, at_layer[node], routed, plans[plan], gpu_node, speed, free_gpu, costs, work, bytes_to
            )
            time_bin = min(int(now / bin_s), local.shape[1] - 1)
            local[node, time_bin] += near
            calls[node, time_bin] += every
            waits[node] = 1  # for its own experts; every called node adds one
            for called in range(nodes):
                if bytes_to[node, called] > 0:
                    size = bytes_to[node, called] * token_bytes
                    free_out[node] = max(now, free_out[node]) + size / bandwidth[node, called]
                    heapq.heappush(events, (free_out[node] + message_s, serial, CALLED, node, called))
                    serial += 1
                    messages += 2  # the call and its answer
                    waits[node] += 1
            end = _compute(now, node, node, gpu_node, work, free_gpu)
            heapq.heappush(events, (end, serial, BACK, node, 0))
            serial += 1
            continue
        if kind == CALLED:
            end = _compute(now, node, other, gpu_node, work, free_gpu)
            heapq.heappush(events, (end, serial, COMPUTED, node, other))
            serial += 1
            continue
        if kind == COMPUTED:
            size = bytes_to[node, other] * token_bytes
            free_out[other] = max(now, free_out[other]) + size / bandwidth[other, node]
            heapq.heappush(events, (free_out[other] + message_s, serial, BACK, node, 0))
            serial += 1
            continue
        # BACK: the layer ends with the last answer, and the next layer, pass or request of the node begins
        waits[node] -= 1
        if waits[node] > 0:
            continue
        at_layer[node] += 1
        begins = now
        if at_layer[node] == layers:
            at_layer[node] = 0
            at_pass[node] += 1
            here = request[node]
            if at_pass[node] == first_pass[here + 1]:
                latency[here] = now - arrival_s[here]
                served[here] = now - served[here]  # held the begin until now
                following = _following(here, node, node_of)
                if following < 0:
                    continue
                request[node], at_pass[node] = following, first_pass[following]
                begins = max(now, arrival_s[following])
        heapq.heappush(events, (begins, serial, BEGIN, node, 0))
        serial += 1
    return messages


@njit(cache=True, nogil=True)
def _following(request, node, node_of):  # type: ignore[no-untyped-def]
    """The node's next request; -1: none."""
    for later in range(request + 1, len(node_of)):
        if node_of[later] == node:
            return later
    return -1


@njit(cache=True, nogil=True)
def _spread(node, cell, layer, routed, plan, gpu_node, speed, free_gpu, costs, work, bytes_to):  # type: ignore[no-untyped-def]
    """Fill the node's rows of ``work`` (seconds by GPU) and ``bytes_to`` (tokens by node); (local, all) pairs."""
    start, experts, counts = routed
    work[node, :] = 0.0
    bytes_to[node, :] = 0.0
    near, every = 0.0, 0.0
    for call in range(start[cell], start[cell + 1]):
        expert, count = experts[call], counts[call]
        best = -1
        for gpu in range(len(gpu_node)):
            if plan[gpu, layer, expert]:
                if best < 0:
                    best = gpu
                    continue
                is_local, better = gpu_node[gpu] == node, gpu_node[best] == node
                sooner = free_gpu[gpu] + work[node, gpu] < free_gpu[best] + work[node, best]
                if (is_local and not better) or (is_local == better and sooner):
                    best = gpu
        work[node, best] += (costs[2] + costs[3] * count) / speed[best]
        every += count
        if gpu_node[best] == node:
            near += count
        else:
            bytes_to[node, gpu_node[best]] += count
    return near, every


@njit(cache=True, nogil=True)
def _compute(now, caller, where, gpu_node, work, free_gpu):  # type: ignore[no-untyped-def]
    """Queue the caller's work on the GPUs of node ``where``; when the last of it is done."""
    end = now
    for gpu in range(len(gpu_node)):
        if gpu_node[gpu] == where and work[caller, gpu] > 0:
            free_gpu[gpu] = max(now, free_gpu[gpu]) + work[caller, gpu]
            end = max(end, free_gpu[gpu])
    return end
