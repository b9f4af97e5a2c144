"""Clusters with walls that the paper's workloads run in, and segments that live inside them.

``mixed`` is the paper's cluster (section 5.1): eight machines of 52 cores, 128 GB and one GPU. ``cores-only`` is the
same without GPUs, as most OpenFaaS and Kubernetes clusters are; GPU shares leave the configuration space. In
``unlimited`` there is room for every replica.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import Literal, get_args

import numpy as np

from autoscaler.capacity import needs
from autoscaler.contract import SLO_QUANTILE, Capacity, Configuration, Machine
from simulation.arrays import Floats
from simulation.workloads.workload import Workload

World = Literal["unlimited", "mixed", "cores-only"]
WORLDS: tuple[World, ...] = get_args(World)
PAPER_MACHINES = Machine(cores=52.0, memory_mb=128 * 1024.0, gpu_tenths=10, count=8)
PAPER_CAPACITY = Capacity(8 * 52.0, 8 * 128 * 1024.0, 80)
"""Totals of :data:`PAPER_MACHINES`."""

SEGMENT_BUSY = (0.5, 0.75, 1.0)
"""Most that a replica of the busiest segment is used, one call at a time, at the rate that segments are made for: the
first of these for which there is room."""
SEGMENT_TIME = 0.5
"""Most of λ that the segments take for a request of P95 length; the rest is the experts' and queues'."""
SEGMENT_ROOM = 0.5
"""Most of each resource that all segments (and the ingress) take."""
LEAST_REPLICAS = (2, 1)
"""One that fails leaves another; one alone where two do not fit."""


class NoRoomError(ValueError):
    """Segments for a load do not fit the cluster."""


def in_world(workload: Workload, world: World, rate_rps: float) -> Workload:
    """``workload`` inside the walls of ``world``, with segments for ``rate_rps`` and its λ; as it is in ``unlimited``.

    Policies leave segments alone. Where they are made for the mean rate, they break λ in every window of a bursty hour
    whatever the experts do; so where requests are known the rate is that of the busiest second (:func:`busiest_rps`).

    Raises NoRoomError where no configuration of the segments keeps the rules above.
    """
    if world == "unlimited":
        return workload
    capacity, space = PAPER_CAPACITY, workload.space
    if world == "cores-only":
        capacity, space = replace(capacity, gpu_tenths=0), replace(space, gpu_shares=())
    walled = replace(workload, capacity=capacity, space=space)
    return replace(walled, segment_configuration=sized_segments(walled, rate_rps))


def busiest_rps(arrival_s: Floats) -> float:
    """Most requests within a second; ``arrival_s`` [requests] seconds, ascending."""
    within = np.searchsorted(arrival_s, arrival_s + 1.0) - np.arange(arrival_s.size)
    return float(within.max(initial=0))


def sized_segments(workload: Workload, rate_rps: float) -> Configuration:
    """The uniform configuration of all segments of least cost that keeps :data:`SEGMENT_BUSY`, :data:`SEGMENT_TIME` and
    :data:`SEGMENT_ROOM`: the segments are sized first, and experts share what is left. Raises NoRoomError."""
    for least, busy in product(LEAST_REPLICAS, SEGMENT_BUSY):
        if candidates := _fitting(workload, rate_rps, least, busy):
            return min(candidates, key=lambda one: one.replicas * workload.prices.unit_per_s(one))
    raise NoRoomError(
        f"{workload.name}: no configuration of the segments takes at most {SEGMENT_TIME:.0%} of the SLO of "
        f"{1000 * workload.slo_s:.4g} ms and {SEGMENT_ROOM:.0%} of the cluster at {rate_rps:g} requests/s; lower the "
        f"load or the input size, or take a larger SLO"
    )


def _fitting(workload: Workload, rate_rps: float, least: int, busy: float) -> list[Configuration]:
    """Configurations of ``least`` replicas or more that keep the three rules, used at most ``busy``."""
    assert workload.capacity is not None
    room = workload.capacity.total.times(SEGMENT_ROOM)
    functions = sum(node.kind != "expert" for node in workload.topology.nodes)
    candidates = []
    for cores, share in workload.space.resources:
        seconds = segment_seconds(workload, cores, share)
        count = max(least, math.ceil(rate_rps * max(seconds) / busy))
        sized = replace(workload.segment_configuration, cpu_cores=cores, gpu_share=share, replicas=count)
        long_s = sum(segment_seconds(workload, cores, share, SLO_QUANTILE))
        if long_s <= SEGMENT_TIME * workload.slo_s and needs(sized).times(functions).within(room):
            candidates.append(sized)
    return candidates


def segment_seconds(workload: Workload, cores: float, share: float, quantile: float | None = None) -> list[float]:
    """Seconds of a call of each segment alone, in order, for a request of mean length or of this ``quantile`` of it."""
    lengths = workload.tokens
    tokens = lengths.mean if quantile is None else float(np.quantile(lengths.quantiles, quantile))
    costs = [workload.costs[node.id] for node in workload.segments]
    return [float(workload.latency.seconds(cost, tokens, cores, share)) for cost in costs]
