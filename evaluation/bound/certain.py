"""What no configuration undercuts, for the requests of one window: the tables of the lower bound.

*Latency.* A call takes at least its work alone; trimmed means take the place of percentiles
(:mod:`evaluation.bound.tail`).

*Busy replica-seconds.* While m calls share a replica, they get at most ``most_work(m)`` seconds of work done a second,
so a call of w seconds has at least ``w / most_work(m)`` busy seconds to itself. How many calls can share is limited
too: a request that is in time reaches a layer no earlier, and leaves it no later, than its fastest possible way through
all other stages allows, so only calls whose spans overlap can meet. At most 5 % of the requests may be late; they are
left out, wherever that helps most.

*Replicas.* From the window's start until λ after its end they must be able to do all that.

*CPU limits.* A call takes no less than its limit takes to give it its CPU seconds: once what a full bucket holds, then
what comes back. All calls together take no more than that of all replicas.

*One shared machine.* Other calls, and the ingress, only take cores away. The ingress is one server and does first what
came first: the k-th call of a layer is sent after those before it, and its reply is taken after it. A pass's own factor
is that of all its calls. What interference and idle gaps add to CPU seconds counts with the least that it can be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit

from autoscaler.prices import Meter
from evaluation.bound.frontier import ExpertTable, SpaceArrays
from evaluation.bound.loads import WindowLoad
from evaluation.bound.physics import NodeRows, Physics
from evaluation.bound.tail import Group, everyone, sum_of_lowest
from simulation.arrays import Floats, Ints, Tokens
from simulation.engine import kernel
from simulation.engine.host import pass_factors
from simulation.engine.tables import atoms_of

ROUNDING_S = 1e-9


@dataclass(frozen=True, eq=False)
class Certain:
    """What the requests of one group that are in time cannot undercut."""

    tables: list[list[ExpertTable]]
    """[layers, experts] on ``Physics.widest``: a larger concurrency costs nothing here."""
    outside_s: float
    """Seconds outside of experts."""


@dataclass(frozen=True, eq=False)
class _Calls:
    """An expert's calls of the window."""

    called: Ints
    """[calls]: their requests, counted from the window's first."""
    work: Floats
    """[rows, calls]: seconds alone where no limit stops them, with the simulation's own draws."""
    alone: Floats
    """[rows, calls]: the least seconds under the row's limit, in the ingress's hands included."""


@dataclass(frozen=True, eq=False)
class _Spans:
    """Times of each request and layer, [layers, count]: when it can reach the layer, and when it must have left it.

    A request that is late whatever happens gets a span all the same, which only weakens the bound.
    """

    from_s: Floats
    until_s: Floats


def certain(load: WindowLoad, meter: Meter, seed: int, groups: Sequence[Group] | None) -> list[Certain]:
    """One problem for each group of requests; each is valid by itself, and the costs are those of all requests.

    ``seed`` is the simulation's, whose draws are used, so that the bound holds for that very run. ``groups`` None: the
    SLO is not met anyway, so there is one problem without latencies, in which only the work itself costs.
    """
    physics, row = load.physics, 0
    # The run's own draws and not their mean: the bound is compared with that run, and a mean is no lower bound of it.
    every = [*physics.segments, *(rows for layer in physics.experts for rows in layer)]
    factors = [factors_of(rows, load, seed, node) for node, rows in enumerate(every)]
    if physics.workload.host is not None:
        # The least that a host's interference takes, times the pass's own factor, which all calls of a request share.
        host = physics.workload.host
        slow = host.least * pass_factors(host, seed, load.first, load.last)
        factors = [factor * slow for factor in factors]
    through = [
        _calls(physics, rows, load.tokens(0), factor).alone[0]
        for rows, factor in zip(physics.segments, factors, strict=False)
    ]
    factors = factors[len(physics.segments) :]
    # What no choice of configurations changes: it is taken off λ once, and only the experts' seconds are searched.
    constant_s = physics.constant_s + physics.front.start_s + physics.front.answer_s
    layers = calls_by_layer(load, factors)
    spans = None if groups is None else spans_of(load, through, layers)
    bounds = [
        Certain([[] for _ in physics.layers], constant_s + sum(group.mean(one) for one in through))
        for group in groups or (everyone(0),)
    ]
    for number, (layer, nodes) in enumerate(zip(physics.experts, physics.layers, strict=True)):
        for rows, node, calls in zip(layer, nodes, layers[number], strict=True):
            row += 1
            meet = None
            if spans is not None:
                # Only calls that can meet share a replica, so the fewer, the more busy seconds each has to itself.
                ends = spans.from_s[number, calls.called], spans.until_s[number, calls.called]
                meet = most_meeting(*ends, rows.rate.shape[1])
            possible, charged = _charged(load, rows, calls.work, meet, meter)
            # Eq. (2) with the largest single request: at least that many tokens are in flight at its peak.
            least = physics.least_memory(node, float(load.tokens(row).max(initial=0)))
            for group, one in zip(groups or (None,), bounds, strict=True):
                alone_s = np.zeros(len(calls.work)) if group is None else group.means(calls.called, calls.alone)
                # Infinite where so few replicas cannot do the work in time: the frontier then leaves it out.
                latency = np.where(possible, alone_s[:, None], np.inf)
                one.tables[number].append(ExpertTable(_over(physics.widest, latency), charged, least))
    return bounds


def calls_by_layer(load: WindowLoad, factors: list[Floats]) -> list[list[_Calls]]:
    """[layers, experts]; ``factors``: of each expert, [scatters, count]."""
    layers, row = [], 0
    for layer in load.physics.experts:
        sent_s, line = np.zeros(load.count), []
        for rows in layer:
            row += 1
            tokens = load.tokens(row)
            line.append(_calls(load.physics, rows, tokens, factors[row - 1], sent_s))
            sent_s = sent_s + load.physics.front.sending_s(tokens)
        layers.append(line)
    return layers


def _charged(
    load: WindowLoad, rows: NodeRows, work: Floats, meet: Ints | None, meter: Meter
) -> tuple[np.ndarray, Floats]:
    """[rows, replicas] whether that many can do the work in time, and the replica-seconds that must be paid.

    ``meet [calls]``: how many calls can share a replica at most; None: any number, and no time matters.
    """
    space = load.physics.widest
    replicas, most = space.replicas.astype(np.float64), space.space.concurrency_max
    # At best every replica is full all the time it is busy: then its busy seconds do the most work each.
    busy_s = work.sum(axis=1) / rows.most_work[:, most - 1]
    possible = np.ones(space.shape[:2], np.bool_)
    if meet is not None:
        each_s = work / rows.most_work[:, np.minimum(meet, most) - 1]
        # 5 % of the requests may be late and so need no time: those that would need most are left out.
        in_time_s = sum_of_lowest(each_s, load.count - work.shape[1], everyone(load.count).in_time)
        busy_s = np.maximum(busy_s, in_time_s)
        # A request of the window's last moment is in time until λ after it, and replicas may serve it until then.
        each_there_s = load.window_s + load.physics.workload.slo_s
        possible = replicas * each_there_s * (1 + ROUNDING_S) >= in_time_s[:, None]
        in_time_work = sum_of_lowest(work, load.count - work.shape[1], everyone(load.count).in_time)
        possible &= rows.enough(in_time_work, replicas, each_there_s)
    paid = busy_s[:, None] if meter == "busy" else replicas * load.window_s
    return possible, _over(space, np.broadcast_to(paid, space.shape[:2]))


def _over(space: SpaceArrays, values: Floats) -> Floats:
    """[rows, replicas] → the same for every concurrency."""
    return np.ascontiguousarray(np.broadcast_to(values[:, :, None], space.shape))


def _calls(physics: Physics, rows: NodeRows, tokens: Tokens, factors: Floats, sent_s: Floats | None = None) -> _Calls:
    """``tokens [count]`` that a node gets of each request, ``factors [scatters, count]`` of its calls; ``sent_s
    [count]``: the ingress's seconds for the calls before it in its layer."""
    called = np.flatnonzero(tokens)
    work = _work(rows.work, tokens[called], factors[:, called], rows.noise_of)
    host = physics.workload.host
    if host is None:
        return _Calls(called, work, rows.alone_s(work))
    # A batch takes the mean of its calls' factors, and who else is in it is not known: a call takes the least of all.
    least = np.full_like(factors, host.least * host.pace * float(atoms_of(host.noise).min()))
    fastest = _work(rows.work, tokens[called], (least * rows.noise.min(axis=1)[:, None])[:, called], rows.noise_of)
    front_s = physics.front.sending_s(tokens) + physics.front.receiving_s(tokens)
    front_s += 0.0 if sent_s is None else sent_s
    return _Calls(called, work, rows.alone_s(fastest) + front_s[called])


def spans_of(load: WindowLoad, through: list[Floats], layers: list[list[_Calls]]) -> _Spans:
    """``through``: [count] seconds of each request in each segment; ``layers``: the experts' calls."""
    physics = load.physics
    fastest = np.zeros((len(physics.layers), load.count))
    for number, layer in enumerate(layers):
        for calls in layer:
            least = calls.alone.min(axis=0)
            fastest[number, calls.called] = np.maximum(fastest[number, calls.called], least)
    workload = physics.workload
    # Forwards: when a request can reach each layer. What is left of λ at the end may be spent at any one layer, so
    # it is added to every layer's span.
    before = np.zeros_like(fastest)
    at = load.arrival_s + workload.request_s + physics.front.start_s
    for number in range(len(physics.layers)):
        before[number] = at + through[number] + workload.hop_s
        at = before[number] + fastest[number] + workload.hop_s
    left = load.arrival_s + workload.slo_s - (at + through[-1] + physics.front.answer_s)
    return _Spans(before, before + fastest + np.maximum(left, 0.0) + ROUNDING_S)


def most_meeting(from_s: Floats, until_s: Floats, most: int) -> Ints:
    """[calls]: with how many calls, itself included, each can be in service at the same time; 1 to ``most``."""
    # Spans that have begun when this one ends, less those that ended before it begins: all that overlap it.
    begun = np.searchsorted(np.sort(from_s), until_s, side="right")
    ended = np.searchsorted(np.sort(until_s), from_s, side="left")
    return np.asarray(np.clip(begun - ended, 1, most))


def factors_of(rows: NodeRows, load: WindowLoad, seed: int, node: int) -> Floats:
    """[scatters, count]: the simulation's own draws for the calls of one node; it numbers segments first."""
    key = np.uint64(kernel.stream_key(seed, kernel.SERVICE, node))
    return _drawn(key, load.first, load.last, rows.noise)


@njit(cache=True)
def _drawn(key: np.uint64, first: int, last: int, noise: Floats) -> Floats:
    factors = np.empty((noise.shape[0], last - first))
    for request in range(first, last):
        atom = int(kernel.uniform(key, request) * noise.shape[1])
        for scatter in range(noise.shape[0]):
            factors[scatter, request - first] = noise[scatter, atom]
    return factors


@njit(cache=True)
def _work(seconds: Floats, tokens: Tokens, factors: Floats, noise_of: Ints) -> Floats:
    """[rows, calls] seconds alone."""
    work_s = np.empty((seconds.shape[0], len(tokens)))
    for row in range(seconds.shape[0]):
        for call in range(len(tokens)):
            work_s[row, call] = seconds[row, tokens[call]] * factors[noise_of[row], call]
    return work_s
