"""A workload in a world with walls, and a relative λ: a multiple of what the same requests take without walls.

Every function has its quickest configuration and a replica for every call, so that nothing waits. What is left is the
work of the slowest expert of each layer, of the segments and of the ingress, with the simulation's own draws.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autoscaler.contract import SLO_QUANTILE, Configuration, NodeInfo
from evaluation.comparison.errors import EvaluationError
from simulation.arrays import Floats
from simulation.engine.requests import Requests
from simulation.engine.tables import ResourceTables, call_factors
from simulation.workloads.workload import Workload
from simulation.workloads.worlds import NoRoomError, World, busiest_rps, in_world


def walled(workload: Workload, requests: Requests, world: World, relative_slo: float | None, seed: int) -> Workload:
    """``workload`` in ``world``, with segments for the busiest second of ``requests`` and, where ``relative_slo`` is
    given, so many times their P95 with unlimited capacity as λ; ``seed`` as of the simulation.

    Raises EvaluationError where λ is not defined, and where segments for the load do not fit.
    """
    if relative_slo is not None:
        space = replace(workload.space, gpu_shares=()) if world == "cores-only" else workload.space
        unlimited_s = quickest_p95_s(replace(workload, space=space), requests, seed)
        workload = replace(workload, slo_s=relative_slo * unlimited_s)
    try:
        return in_world(workload, world, busiest_rps(requests.arrival_s))
    except NoRoomError as error:
        raise EvaluationError(str(error)) from error


def quickest_p95_s(workload: Workload, requests: Requests, seed: int) -> float:
    """P95 of ``requests`` with unlimited capacity: what a simulation with ``seed`` would measure under
    :func:`quickest` of every function and as many replicas as it has calls. Raises EvaluationError."""
    if workload.host is not None:
        raise EvaluationError(f"{workload.name} runs on one machine, where no capacity is unlimited; take an --slo-ms")
    tables = ResourceTables(workload, requests.most_tokens, 1)
    place, row = 0, 0
    total_s = np.full(requests.arrival_s.size, workload.request_s + 2 * workload.topology.layers * workload.hop_s)
    for node in workload.segments:
        total_s += _alone_s(workload, tables, requests, node, place, 0, seed)
        place += 1
    for layer in range(workload.topology.layers):
        slowest_s: Floats = np.zeros_like(total_s)
        for node in workload.topology.experts(layer):
            row += 1
            np.maximum(slowest_s, _alone_s(workload, tables, requests, node, place, row, seed), out=slowest_s)
            place += 1
        total_s += slowest_s
    return float(np.quantile(total_s, SLO_QUANTILE))


def quickest(workload: Workload, node: NodeInfo) -> Configuration:
    """The resource of the workload's space on which a typical call takes least, with the most memory there is."""
    space, tokens = workload.space, workload.typical_tokens(node)
    every = [Configuration(space.memory_max_mb, cores, share, 1, 1) for cores, share in space.resources]
    seconds = [
        float(workload.latency.seconds(workload.costs[node.id], tokens, workload.cores(one), one.gpu_share))
        for one in every
    ]
    return every[int(np.argmin(seconds))]


def _alone_s(
    workload: Workload, tables: ResourceTables, requests: Requests, node: NodeInfo, place: int, row: int, seed: int
) -> Floats:
    """[requests] seconds of each one's call of ``node``; 0 where it has none. ``place``: its number in the simulation,
    ``row``: of its tokens in the requests."""
    table = tables.row(node, quickest(workload, node))
    tokens = requests.counts[row]
    factors = call_factors(tables.noise[table : table + 1], seed, place, 0, tokens.size)[0]
    return np.where(tokens > 0, tables.seconds[table][tokens] * factors, 0.0)
