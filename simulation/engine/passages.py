"""Deployments that never change, one after the other on the same requests and windows.

Stages follow each other and nothing flows back, so each can be simulated through all windows before the next one is
begun, and what enters it follows from what is deployed before it. So of a deployment only the stages from the first on
that differs from the last deployment's are simulated; the answers are those of :class:`Simulation`, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from autoscaler.contract import Configuration
from simulation.arrays import Calls, Floats
from simulation.engine.bursts import BurstSettings
from simulation.engine.requests import Requests
from simulation.engine.simulation import Answers, Simulation
from simulation.engine.tables import ResourceTables
from simulation.workloads.workload import Workload


class _Span(NamedTuple):
    """A window, and which requests arrive in it."""

    start_s: float
    end_s: float
    first: int
    last: int


class _Entering(NamedTuple):
    """What enters a stage: requests of each window in order of arrival, and when each reaches it ([requests])."""

    requests: Sequence[Calls]
    reached_s: Floats


class _StageByStage(Simulation):
    """A simulation of which single stages are asked for."""

    def through(
        self, number: int, entering: _Entering, spans: Sequence[_Span], rates: Sequence[dict[float, Floats]]
    ) -> tuple[_Entering, Floats]:
        """What leaves stage ``number``, and seconds [windows, nodes] in which its standbys were activated. ``rates`` of
        each window: what :class:`Bursts` keeps."""
        stage, gone, activated_s = self._stages[number], [], np.zeros((len(spans), len(self.nodes)))
        nodes = slice(int(stage.nodes[0]), int(stage.nodes[-1]) + 1)
        self._reached[:] = entering.reached_s
        for place, span in enumerate(spans):
            self.now_s, self._until_s = span.start_s, span.end_s
            if self._bursts is not None and len(self._bursts):
                self.fleet.compact(span.start_s, nodes)
                self._bursts.open(span.first, span.last, rates[place])
                for node in stage.nodes.tolist():
                    self._bursts.activate(node, self.fleet, span.end_s)
            stage.due = np.concatenate([stage.due, entering.requests[place]])
            gone.append(self._run_alone(stage))
            if self._bursts is not None and len(self._bursts):
                activated_s[place, nodes] = self.fleet.activated_s(span.start_s, span.end_s)[nodes]
        return _Entering(gone, self._reached.copy()), activated_s

    def left_s(self, finished: Calls) -> Floats:
        """[finished] when each of them left the last stage."""
        return self._left[finished]

    def deployed(self) -> list[tuple[Configuration | None, ...]]:
        """Configurations of each stage's nodes."""
        return [tuple(self.fleet.configurations[node] for node in stage.nodes.tolist()) for stage in self._stages]


class Passages:
    """``ends_s``: where each window ends; the first begins at 0. ``seed`` and ``tables`` as of :class:`Simulation`;
    no shared machine. Raises SimulationError."""

    def __init__(
        self, workload: Workload, requests: Requests, ends_s: Sequence[float], seed: int, tables: ResourceTables
    ) -> None:
        self._workload, self._requests, self._seed, self._tables = workload, requests, seed, tables
        borders = np.searchsorted(requests.arrival_s, [0.0, *ends_s], side="left")
        borders[0] = 0
        edges = zip(pairwise([0.0, *ends_s]), pairwise(borders.tolist()), strict=True)
        self._spans = [_Span(*window, *numbers) for window, numbers in edges]
        arrived = [np.arange(span.first, span.last, dtype=np.uint32) for span in self._spans]
        self._entering = [_Entering(arrived, requests.arrival_s + workload.request_s)]
        self._activated_s: list[Floats] = []
        self._deployed: list[tuple[Configuration | None, ...]] = []
        self._rates: list[dict[float, Floats]] = [{} for _ in self._spans]

    def answers(self, configurations: Mapping[str, Configuration], bursts: BurstSettings) -> list[Answers]:
        """One for each window; arguments as of :class:`Simulation`."""
        simulation = _StageByStage(
            self._workload, self._requests, configurations, seed=self._seed, bursts=bursts, tables=self._tables
        )
        deployed = simulation.deployed()
        same = [one == other for one, other in zip(deployed[:-1], self._deployed, strict=False)]
        first = [*same, False].index(False)
        del self._entering[first + 1 :], self._activated_s[first:]
        for number in range(first, simulation.stages):
            left, activated_s = simulation.through(number, self._entering[number], self._spans, self._rates)
            self._entering.append(left)
            self._activated_s.append(activated_s)
        self._deployed = deployed
        activated = np.sum(self._activated_s, axis=0)
        answers, in_flight = list[Answers](), 0
        for place, (span, finished) in enumerate(zip(self._spans, self._entering[-1].requests, strict=True)):
            in_flight += span.last - span.first - finished.size
            latency_s = simulation.left_s(finished) - self._requests.arrival_s[finished]
            answers.append(Answers(latency_s=latency_s, in_flight=in_flight, activated_s=activated[place]))
        return answers
