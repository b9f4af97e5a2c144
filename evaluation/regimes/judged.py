"""What a deployment costs where it keeps the SLO λ: in a stretch that it runs through, or in one window by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import Protocol

import numpy as np

from autoscaler.capacity import total_needs
from autoscaler.contract import SLO_QUANTILE, Configuration
from autoscaler.prices import Meter
from simulation.arrays import Floats
from simulation.engine.bursts import BurstSettings
from simulation.engine.passages import Passages
from simulation.engine.requests import Requests
from simulation.engine.simulation import Answers, Simulation
from simulation.engine.tables import ResourceTables
from simulation.workloads.workload import Workload

Deployment = Mapping[str, Configuration]
"""Function → configuration of every expert."""
DRAINS = 20
"""Windows in which the requests of one by itself have to be answered."""


class Judged(Protocol):
    """Requests with a workload, on which deployments are compared."""

    @property
    def workload(self) -> Workload: ...
    @property
    def requests(self) -> Requests: ...
    @property
    def meter(self) -> Meter: ...

    def cost(self, deployment: Deployment) -> float | None:
        """Cost of the experts an hour on :attr:`meter`, standbys included; None where λ is not kept or there is no
        room."""


@dataclass(frozen=True, eq=False)
class Work:
    """Requests, and the seconds that a token costs each function, as a profile has them."""

    workload: Workload
    requests: Requests
    seed: int

    def simulation(self, deployment: Deployment) -> Simulation | None:
        """From an empty pipeline that is ready; None where the cluster has no room for it."""
        if not self._fits(deployment):
            return None
        start, bursts = self._begun(deployment)
        return Simulation(self.workload, self.requests, start, seed=self.seed, bursts=bursts, tables=self._tables)

    def answers(self, deployment: Deployment, ends_s: tuple[float, ...]) -> Sequence[Answers] | None:
        """What comes of each window where nothing changes, as :meth:`simulation` has it; they end at ``ends_s``."""
        if self.workload.host is not None:
            simulation = self.simulation(deployment)
            return None if simulation is None else [simulation.advance(end_s) for end_s in ends_s]
        if not self._fits(deployment):
            return None
        if ends_s not in self._passages:
            self._passages[ends_s] = Passages(self.workload, self.requests, ends_s, self.seed, self._tables)
        return self._passages[ends_s].answers(*self._begun(deployment))

    def _fits(self, deployment: Deployment) -> bool:
        room = self.workload.expert_room
        return room is None or total_needs(deployment.values()).within(room)

    def _begun(self, deployment: Deployment) -> tuple[Deployment, BurstSettings]:
        """Configurations of all functions, and how standbys follow the arrivals."""
        start = self.workload.initial(replace(next(iter(deployment.values())), burst=None)) | dict(deployment)
        return start, BurstSettings(seconds_per_token=self.seconds_per_token(deployment))

    def seconds_per_token(self, deployment: Deployment) -> dict[str, float]:
        """Function → replica-seconds that a token of the pipeline costs it, where it has standbys."""
        tokens = float(self.requests.tokens.sum())
        if not tokens or all(configuration.burst is None for configuration in deployment.values()):
            return {}
        return {
            node.function: float(self._seconds(number, deployment[node.function])) / tokens
            for number, node in enumerate(self.workload.experts)
        }

    def _seconds(self, number: int, configuration: Configuration) -> float:
        """Seconds of all calls of an expert, each alone at its replica."""
        row = self._tables.row(self.workload.experts[number], configuration)
        key = number, row
        if key not in self._known:
            self._known[key] = float(self._tables.seconds[row] @ self._calls[number])
        return self._known[key]

    @cached_property
    def _tables(self) -> ResourceTables:
        slots = max(self.workload.space.concurrency_max, self.workload.segment_configuration.concurrency)
        return ResourceTables(self.workload, self.requests.most_tokens, slots)

    @cached_property
    def _calls(self) -> Floats:
        """[experts, tokens + 1] calls of each length; those of none are none."""
        length = self._tables.seconds.shape[1]
        calls = np.array([np.bincount(row, minlength=length) for row in self.requests.counts[1:]], dtype=np.float64)
        calls[:, 0] = 0.0
        return calls

    @cached_property
    def _known(self) -> dict[tuple[int, int], float]:
        return {}

    @cached_property
    def _passages(self) -> dict[tuple[float, ...], Passages]:
        return {}

    @cached_property
    def _place_of(self) -> dict[str, int]:
        """Function → its place among a simulation's nodes."""
        return {node.function: place for place, node in enumerate((*self.workload.segments, *self.workload.experts))}

    def busy_per_hour(self, deployment: Deployment, seconds: float, busy_s: Floats) -> float:
        """``busy_s`` [nodes] replica-seconds with a call, of ``seconds``."""
        prices = self.workload.prices
        spent = (prices.unit_per_s(one) * busy_s[self._place_of[name]] for name, one in deployment.items())
        return float(3600 * sum(spent) / seconds)

    def per_hour(self, deployment: Deployment, seconds: float, activated_s: Floats) -> float:
        """``activated_s`` [nodes] of ``seconds``."""
        prices, cost = self.workload.prices, 0.0
        for function, configuration in deployment.items():
            cost += prices.provisioned(configuration, seconds, float(activated_s[self._place_of[function]]))
        return 3600 * cost / seconds


@dataclass(frozen=True, eq=False)
class _OfWork:
    """Judges deployments on ``work``, in windows of ``window_s``."""

    work: Work
    window_s: float

    @property
    def workload(self) -> Workload:
        return self.work.workload

    @property
    def requests(self) -> Requests:
        return self.work.requests

    @property
    def meter(self) -> Meter:
        return "provisioned"


@dataclass(frozen=True, eq=False)
class Stretch(_OfWork):
    """One continuous simulation, in which what never changes has to keep λ in all ``windows``."""

    windows: frozenset[int]
    """Numbers of those that are judged."""

    def cost(self, deployment: Deployment) -> float | None:
        simulation = self.work.simulation(deployment)
        if simulation is None:
            return None
        activated_s: Floats = np.zeros(len(simulation.nodes))
        for number in range(max(self.windows) + 1):
            window = simulation.advance((number + 1) * self.window_s)
            if number in self.windows:
                p95_s = window.judged_s(SLO_QUANTILE)
                if p95_s is not None and p95_s > self.workload.slo_s:
                    return None
                activated_s += window.activated_s
        return self.work.per_hour(deployment, len(self.windows) * self.window_s, activated_s)


@dataclass(frozen=True, eq=False)
class OneWindow(_OfWork):
    """A window by itself: from an empty pipeline until its last request is answered, whatever follows it."""

    def cost(self, deployment: Deployment) -> float | None:
        simulation = self.work.simulation(deployment)
        if simulation is None:
            return None
        first = window = simulation.advance(self.window_s)
        latencies = [window.latency_s]
        for number in range(DRAINS):
            if not window.in_flight:
                break
            window = simulation.advance((number + 2) * self.window_s)
            latencies.append(window.latency_s)
        every = np.concatenate(latencies)
        p95_s = inf if window.in_flight else float(np.quantile(every, SLO_QUANTILE)) if every.size else 0.0
        if p95_s > self.workload.slo_s:
            return None
        return self.work.per_hour(deployment, self.window_s, first.activated_s)
