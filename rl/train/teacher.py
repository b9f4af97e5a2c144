"""The teacher of the warm start: the separable optimum at which recent requests would keep the SLO.

Like the last window's optimum (:mod:`evaluation.bound.last_window`) it splits λ over layers by the queueing model, for
each expert's busiest of the last ``look_back`` windows. That model's seconds are means, though, and an SLO on the P95
breaks on long requests, which are long at every layer at once. So the part of λ that means may take is bisected until
the P95 of the requests of these windows, with their own tokens at every expert, is ``keep`` · λ: the sum over layers of
the slowest expert's seconds, and the mean wait there times ``TAIL``. It knows the latency model and each request's
routing, which a policy in production does not; what it cannot know is the coming window.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from autoscaler.checked import Checked, FromOne, Positive, PositiveShare
from autoscaler.contract import SLO_QUANTILE, Configuration, Observation
from autoscaler.prices import Meter
from evaluation.bound.frontier import ExpertTable, frontier
from evaluation.bound.loads import call_s, expert_table, load_of
from evaluation.bound.oracle import configurations
from evaluation.bound.physics import Physics
from evaluation.bound.window import Enclosure, enclose_frontiers
from rl.train.errors import TrainingError
from simulation.arrays import Floats
from simulation.engine.requests import Requests
from simulation.workloads.workload import Workload

TAIL = 1.5
"""Wait of a request at the P95 over the mean wait (assumption)."""
SHARES = (0.05, 1.3)
BISECTIONS = 6
FEWEST, MOST = 30, 300
"""Requests that a P95 is taken over: earlier ones are taken too where windows had fewer; more are thinned."""
LEAST_CALLS_PER_S = 1e-3
"""An expert that was not called is planned for, as it may be."""
IDLE_S = 1e6
"""Latency that is no limit."""
STEP = 0.75
"""Step of boldness, for the next cheaper choice."""
PLANS = Mapping[str, Configuration]
Kind = Literal["queueing", "schedule", "last-window"]


@dataclass(frozen=True)
class TeacherSettings(Checked):
    """Which teacher, and how careful it is."""

    title = "teacher"
    error = TrainingError
    keep: Positive = 0.82
    """P95 of recent requests that is planned for, over λ."""
    look_back: FromOne = 4
    """Windows whose largest load is planned for, and whose requests are looked at. After as many without any, the
    cheapest configurations are planned: the first window that has requests again is the price."""
    meter: Meter = "provisioned"
    kind: Kind = "queueing"
    """``queueing``: this one, quick; ``schedule``: :mod:`rl.train.schedule`, by search; ``last-window``:
    :mod:`rl.train.rule_teacher`, which knows no more than the actor."""
    headroom: PositiveShare = 0.6
    """Part of what λ leaves the experts that their mean seconds may take, with the kind ``last-window``."""
    boldness: tuple[float, float] = (1.0, 2.5)
    """Least and most of an episode's simulating teacher, see :meth:`Teacher.plan`."""


Load = tuple[float, float]
"""Calls per second, tokens of a mean call."""


class Teacher:
    """One episode's: it remembers. :meth:`plan` is called once a window, in order."""

    def __init__(self, workload: Workload, requests: Requests, settings: TeacherSettings) -> None:
        self.settings, self._requests = settings, requests
        self._physics = Physics(workload, max(workload.tokens.most, requests.most_tokens))
        self._tokens = {node.id: workload.typical_tokens(node) for node in workload.experts}
        self._past: list[Mapping[str, Load]] = []

    def plan(self, observation: Observation, boldness: float = 1.0) -> tuple[PLANS, PLANS]:
        """Function → configuration for the coming window; and the same with ``boldness`` times the share of λ that was
        found. Both are empty where no configuration serves the load."""
        loads = {node.node: load_of(node) for node in observation.nodes if node.kind == "expert"}
        known_loads = {name: load for name, load in loads.items() if load is not None}
        self._past = [*self._past, known_loads][-self.settings.look_back :]
        tables = self._tables(observation)
        frontiers = [[frontier(table, self._physics.space_arrays) for table in layer] for layer in tables]
        if self._idle:
            cheapest = self._named(enclose_frontiers(frontiers, IDLE_S))
            return cheapest, cheapest
        counts = self._recent(observation)
        outside_s = self._outside_s(counts[0])
        budget_s = max(1e-6, self._physics.workload.slo_s - float(np.mean(outside_s)))
        low, high = SHARES
        fast: Enclosure | None = None
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            enclosure = enclose_frontiers(frontiers, middle * budget_s)
            if enclosure.feasible and self._p95_s(enclosure, tables, counts, outside_s) > self._wanted_s:
                high = middle
            else:
                low, fast = middle, enclosure if enclosure.feasible else fast
        if fast is None:
            fast = enclose_frontiers(frontiers, enclose_frontiers(frontiers, 0.0).fastest_s * (1 + 1e-9))
        bold = fast if boldness == 1.0 else enclose_frontiers(frontiers, boldness * low * budget_s)
        return self._named(fast), self._named(bold if bold.feasible else fast)

    @property
    def _idle(self) -> bool:
        """No call in any of the last windows: what is judged by its P95 has to come first."""
        there = [load for past in self._past for load in past.values()]
        return len(self._past) == self.settings.look_back and not any(calls for calls, _ in there)

    @property
    def _wanted_s(self) -> float:
        return self.settings.keep * self._physics.workload.slo_s

    def _named(self, enclosure: Enclosure) -> PLANS:
        return configurations(self._physics, enclosure.numbers) if enclosure.feasible else {}

    def _tables(self, observation: Observation) -> list[list[ExpertTable]]:
        physics = self._physics
        tables: list[list[ExpertTable]] = []
        for layer, nodes in zip(physics.experts, physics.layers, strict=True):
            tables.append([])
            for rows, node in zip(layer, nodes, strict=True):
                row = observation.node(node.id)
                peak = 0.0 if row is None or row.peak_tokens is None else row.peak_tokens
                calls, tokens = self._heaviest(node.id)
                alone_s = call_s(rows, tokens)
                least = physics.least_memory(node, peak)
                window_s, meter = observation.window_s, self.settings.meter
                tables[-1].append(expert_table(physics, rows, calls, alone_s, least, window_s, meter))
        return tables

    def _heaviest(self, node: str) -> Load:
        loads = [past[node] for past in self._past if node in past]
        busy = [tokens for calls, tokens in loads if calls]
        calls = max((calls for calls, _ in loads), default=0.0)
        return max(calls, LEAST_CALLS_PER_S), sum(busy) / len(busy) if busy else self._tokens[node]

    def _recent(self, observation: Observation) -> NDArray[np.uint16]:
        """[1 + experts, some]: tokens of the requests of the last windows; of the episode's first where none came."""
        arrivals = self._requests.arrival_s
        last = int(np.searchsorted(arrivals, observation.end_s))
        first = int(np.searchsorted(arrivals, observation.end_s - self.settings.look_back * observation.window_s))
        first = max(0, min(first, last - FEWEST))
        chosen = np.arange(first, max(last, min(FEWEST, arrivals.size)))
        return np.asarray(self._requests.counts[:, chosen[:: max(1, chosen.size // MOST)]])

    def _outside_s(self, tokens: NDArray[np.uint16]) -> Floats:
        """[some] seconds of each request outside of experts, without waiting."""
        physics = self._physics
        return np.asarray(physics.constant_s + sum(rows.seconds[0, tokens] for rows in physics.segments))

    def _p95_s(
        self, enclosure: Enclosure, tables: list[list[ExpertTable]], counts: NDArray[np.uint16], outside_s: Floats
    ) -> float:
        physics, total_s, at = self._physics, outside_s.copy(), 0
        space = physics.workload.space
        axes = (len(space.memory_sizes_mb), len(space.resources), len(space.replica_counts), len(space.concurrencies))
        for layer, numbers, layer_tables in zip(physics.experts, enclosure.numbers, tables, strict=True):
            memory, resource, replicas, concurrency = np.unravel_index(np.asarray(numbers), axes)
            slowest = np.zeros_like(total_s)
            for j, (rows, table) in enumerate(zip(layer, layer_tables, strict=True)):
                at += 1
                row = physics.space_arrays.row[memory[j], resource[j]]
                alone_s = rows.seconds[row]
                mean_s = table.latency_s[row, replicas[j], concurrency[j]]
                wait_s = max(0.0, float(mean_s) - float(call_s(rows, self._heaviest_tokens(at))[row]))
                seconds = np.where(counts[at] > 0, alone_s[counts[at]] + TAIL * wait_s, 0.0)
                np.maximum(slowest, seconds, out=slowest)
            total_s += slowest
        return float(np.quantile(total_s, SLO_QUANTILE))

    def _heaviest_tokens(self, at: int) -> float:
        """Tokens of a planned call of the ``at``-th expert, from 1, in order of layer and number."""
        return self._heaviest(self._physics.workload.experts[at - 1].id)[1]


def bolder(level: int, boldness: float, choices: int) -> int:
    """The choice cheaper than ``level`` by one for each ``STEP`` that ``boldness`` is above 1, or more expensive by as
    many below; of ``choices``, in order of price."""
    return min(max(0, level - int(np.ceil((boldness - 1) / STEP))), choices - 1)
