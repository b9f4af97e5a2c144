"""Which part of a simulation rests on measured seconds, and which on a model's or an extrapolation's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from autoscaler.contract import Configuration, NodeInfo
from simulation.arrays import Bools
from simulation.engine.controlled import Step
from simulation.engine.requests import Requests
from simulation.latency.contract import NodeCost
from simulation.workloads.workload import Workload


def measured_part(workload: Workload, requests: Requests, steps: Sequence[Step]) -> float | None:
    """Part (0 to 1) of the calls whose tokens and resource lie where the latency model was measured; None of no calls.

    All calls of a request are counted in the window in which it arrived, each under its function's configuration at
    that window's end; a window in which that is not known is left out for that function.
    """
    rows = _rows(workload)
    regions = _Regions(workload, requests.most_tokens)
    measured = calls = 0
    for step in steps:
        within = slice(*np.searchsorted(requests.arrival_s, (step.window.start_s, step.window.end_s)))
        configured = {node.node: node.configuration for node in step.report.observation.nodes}
        for node, row in rows:
            configuration = configured.get(node.id)
            if configuration is not None:
                tokens = requests.counts[row, within]
                tokens = tokens[tokens > 0]
                calls += tokens.size
                measured += int(regions.of(node, configuration)[tokens].sum())
    return measured / calls if calls else None


def measured_part_of(
    workload: Workload, requests: Requests, deployment: Mapping[str, Configuration], start_s: float = 0.0
) -> float | None:
    """The same of all requests from ``start_s`` on, where nothing changes. ``deployment``: function → configuration of
    every expert; segments have the workload's."""
    configured = {**workload.initial(next(iter(deployment.values()))), **deployment}
    regions = _Regions(workload, requests.most_tokens)
    counts = requests.counts[:, np.searchsorted(requests.arrival_s, start_s) :]
    calls = [
        regions.of(node, configured[node.function])[tokens[tokens > 0]]
        for node, row in _rows(workload)
        if (tokens := counts[row]).size
    ]
    total = sum(inside.size for inside in calls)
    return sum(int(inside.sum()) for inside in calls) / total if total else None


def _rows(workload: Workload) -> list[tuple[NodeInfo, int]]:
    """Every segment and expert, and which row of the requests' counts has its tokens."""
    nodes = (*workload.segments, *workload.experts)
    return [(node, max(0, place - len(workload.segments) + 1)) for place, node in enumerate(nodes)]


class _Regions:
    """Whether the latency model was measured at every number of tokens, by kind of node and resource; asked once for
    each."""

    def __init__(self, workload: Workload, most_tokens: int) -> None:
        self._workload = workload
        self._tokens = np.arange(most_tokens + 1)
        self._found: dict[tuple[NodeCost, float, float], Bools] = {}

    def of(self, node: NodeInfo, configuration: Configuration) -> Bools:
        """[tokens + 1] whether a call of so many tokens was measured."""
        cost, cores = self._workload.costs[node.id], self._workload.cores(configuration)
        key = (cost, cores, configuration.gpu_share)
        if key not in self._found:
            self._found[key] = self._workload.latency.measured(cost, self._tokens, cores, configuration.gpu_share)
        return self._found[key]
