"""A workload's latency model over every compute of Φ, as arrays: the simulator's own tables, one row a compute."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from autoscaler.contract import Configuration, NodeInfo
from evaluation.bound.frontier import SpaceArrays, space_arrays
from simulation.arrays import Bools, Floats, Ints, Tokens
from simulation.engine.host_limits import KEPT_S
from simulation.engine.replicas import BURST, REFILL
from simulation.engine.tables import ResourceTables
from simulation.workloads.workload import Host, Workload

ROUNDING = 1e-9
"""Relative room given to rounding, always towards a weaker bound."""


@dataclass(frozen=True, eq=False)
class NodeRows:
    """One kind of node on every row of the space_arrays (or, for a segment, on its one configuration)."""

    seconds: Floats
    """[rows, tokens + 1]: a call alone, mean."""
    rate: Floats
    """[rows, m]: how fast each of m = 1, 2 … calls at once goes; 1 alone."""
    noise: Floats
    """[scatters, points]: inverse distribution functions of a call's factor."""
    noise_of: Ints
    """[rows]: which of them a row has."""
    work: Floats
    """[rows, tokens + 1]: a call alone on a replica that no limit stops; as ``seconds`` where there is no limit. On a
    shared machine this and what follows are those of :meth:`Physics._at_best`."""
    pace: Floats
    """[rows, m]: as ``rate`` while no limit stops the replica."""
    use: Floats
    """[rows, m]: cores in use meanwhile."""
    bucket: Floats
    """[rows, 2]: CPU seconds that a limit lets through at once, and how many come back in a second (1: no limit)."""

    @cached_property
    def speedup(self) -> Floats:
        """[rows, m]: work per second of m calls at once over that of one."""
        return np.asarray(self.rate * np.arange(1, self.rate.shape[1] + 1))

    @cached_property
    def most_work(self) -> Floats:
        """[rows, m]: the most work per second of at most m calls, whoever else is served with them.

        Others never speed a call up, so where a rate rises with m it is taken for smaller m too.
        """
        highest = np.maximum.accumulate(self.pace[:, ::-1], axis=1)[:, ::-1]
        return np.asarray(np.maximum.accumulate(highest * np.arange(1, self.pace.shape[1] + 1), axis=1))

    def alone_s(self, work_s: Floats) -> Floats:
        """[rows, calls]: the least seconds that calls of ``work_s [rows, calls]`` take, whoever is served with them.

        A replica uses ``use / pace`` CPU seconds while a call advances by one, and its limit gives it no more than
        what the full bucket holds and what comes back meanwhile.
        """
        cpu_s = work_s * (self.use / self.pace).min(axis=1)[:, None]
        return np.asarray(np.maximum(work_s, (cpu_s - self.bucket[:, :1]) / self.bucket[:, 1:]))

    def enough(self, work_s: Floats, replicas: Floats, there_s: float) -> Bools:
        """[rows, replicas]: whether the limits of so many ``replicas``, each there for ``there_s`` seconds from a full
        bucket on, let ``work_s [rows]`` through."""
        calls = np.arange(1, self.pace.shape[1] + 1)
        cpu_s = work_s * (self.use / (calls * self.pace)).min(axis=1)
        burst, refill = self.bucket[:, :1], self.bucket[:, 1:]
        return np.asarray((refill >= 1) | (replicas * (burst + refill * there_s) * (1 + ROUNDING) >= cpu_s[:, None]))


@dataclass(frozen=True, eq=False)
class Front:
    """CPU seconds of the one ingress on a shared machine, which nothing makes shorter; none where there is no host."""

    start_s: float
    send_s: float
    receive_s: float
    answer_s: float
    token_s: float

    @classmethod
    def of(cls, host: Host | None) -> Front:
        if host is None:
            return cls(0.0, 0.0, 0.0, 0.0, 0.0)
        ingress_s = (host.start_s, host.send_s, host.receive_s, host.answer_s, host.token_s)
        return cls(*(host.least * host.pace * seconds for seconds in ingress_s))

    def sending_s(self, tokens: Tokens) -> Floats:
        """[calls] for calls of so many tokens; 0 for those without any, which are not made."""
        return np.where(tokens > 0, self.send_s + tokens * self.token_s, 0.0)

    def receiving_s(self, tokens: Tokens) -> Floats:
        """The same of their replies. Returns [calls]."""
        return np.where(tokens > 0, self.receive_s + tokens * self.token_s, 0.0)


class Physics:
    """Tables of a workload up to requests of ``most_tokens`` tokens. Nodes of equal cost share theirs."""

    def __init__(self, workload: Workload, most_tokens: int) -> None:
        self.workload = workload
        self.space_arrays: SpaceArrays = space_arrays(workload.space, workload.prices, workload.memory_mb_per_core)
        widest = replace(workload.space, concurrency_min=workload.space.concurrency_max)
        self.widest: SpaceArrays = space_arrays(widest, workload.prices, workload.memory_mb_per_core)
        """Φ with the largest concurrency alone: all that a bound which is blind to waiting needs."""
        self.layers = [workload.topology.experts(layer) for layer in range(workload.topology.layers)]
        calls = max(workload.space.concurrency_max, workload.segment_configuration.concurrency)
        self.front = Front.of(workload.host)
        self._tables = ResourceTables(workload, most_tokens, calls)
        self._shared: dict[tuple[int, ...], NodeRows] = {}
        self._least: dict[tuple[float, float, float], Ints] = {}
        computes = self._computes()
        self.experts = [[self._of(node, computes) for node in layer] for layer in self.layers]
        self.segments = [self._of(node, [workload.segment_configuration]) for node in workload.segments]

    @property
    def constant_s(self) -> float:
        """The ingress's part of every request, but on a shared machine (:class:`Front`): before the first stage and
        between the 2n + 1 stages."""
        return self.workload.request_s + 2 * len(self.layers) * self.workload.hop_s

    def least_memory(self, node: NodeInfo, peak_tokens: float) -> Ints:
        """Eq. (2) for an expert, see :meth:`SpaceArrays.least_memory`. Returns [replica counts]."""
        need = self.workload.memory_need(node, peak_tokens)
        key = (need.runtime_bytes, need.bytes_per_token, peak_tokens)
        if key not in self._least:
            self._least[key] = self.space_arrays.least_memory(need)
        return self._least[key]

    def _computes(self) -> list[Configuration]:
        """A configuration for every row; its memory is enough for the cores in coupled mode."""
        per_core = self.workload.memory_mb_per_core or 0.0
        return [
            Configuration(max(1, int(np.ceil(cores * per_core))), float(cores), float(share), 1, 1)
            for cores, share in zip(self.space_arrays.cpu_cores, self.space_arrays.gpu_share, strict=True)
        ]

    def _at_best(self, at: Ints) -> tuple[Floats, Floats, Floats, Floats]:
        """Work, pace, use and bucket of the rows ``at``. On a shared machine those of the best that can happen to a
        call there: it comes right after another, with as many requests in flight as make it quickest, all of its batch
        are computed in the time of one, and its limit lets it have what a core has kept of a quota, one that no core
        has taken, one more that is granted at once, and what it overruns until a tick."""
        tables = self._tables
        use, bucket = tables.use[at, 1:], tables.bucket[at]
        if self.workload.host is None:
            return tables.work[at], tables.pace[at, 1:], use, bucket
        work = tables.again[at, : tables.seconds.shape[1]] * tables.in_flight[at].min(axis=1, keepdims=True)
        at_once = 2 * bucket[:, BURST] + np.maximum(bucket[:, BURST], KEPT_S) + tables.tick_s
        return work, np.ones_like(use), use, np.stack([at_once, bucket[:, REFILL]], axis=1)

    def _of(self, node: NodeInfo, computes: list[Configuration]) -> NodeRows:
        rows = tuple(self._tables.row(node, compute) for compute in computes)
        if rows not in self._shared:
            at = np.array(rows)
            noise, noise_of = np.unique(self._tables.noise[at], axis=0, return_inverse=True)
            self._shared[rows] = NodeRows(
                self._tables.seconds[at],
                self._tables.rate[at, 1:],
                noise,
                noise_of.reshape(-1).astype(np.int64),
                *self._at_best(at),
            )
        return self._shared[rows]
