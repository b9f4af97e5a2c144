"""A simulation's state on one shared machine (``simulation.workloads.workload.Host``), which is advanced window by
window as a whole."""

from __future__ import annotations

import numpy as np

from simulation.arrays import Calls, Floats, Ints, Keys, Marks
from simulation.engine.draws import ATOMS, PASS, draw
from simulation.engine.fleet import Fleet
from simulation.engine.host_kernel import run_host
from simulation.engine.host_state import Meters, Passes, Rules
from simulation.engine.requests import Requests
from simulation.engine.tables import ResourceTables, atoms_of
from simulation.workloads.workload import Host


def pass_factors(host: Host, seed: int, first: int, last: int) -> Floats:
    """[last - first]: how many times their seconds the calls of requests ``first`` to ``last - 1`` take in a simulation
    with this seed."""
    draws = np.array([draw(seed, PASS, 0, request) for request in range(first, last)])
    return np.asarray(host.pace * atoms_of(host.noise)[(draws * ATOMS).astype(np.int64)])


class SharedMachine:
    """Requests on their way, calls that wait, and what the ingress has in line."""

    def __init__(self, host: Host, requests: Requests, keys: Keys, stages: list[Ints], source: Ints, seed: int) -> None:
        """``stages``: the nodes of each, numbered without gaps; ``keys`` and ``source`` are by node."""
        self._slow = pass_factors(host, seed, 0, requests.arrival_s.size)
        count, size = keys.size, max(1, requests.arrival_s.size)
        self._host, self._requests, self._keys, self._source = host, requests, keys, source
        self._stages = np.array([(nodes[0], nodes[-1] + 1) for nodes in stages])
        self._ingress_s = host.pace * np.array([host.start_s, host.send_s, host.receive_s, host.answer_s, host.token_s])
        self._overlap = np.array([1.0, *host.overlap])
        self._idle = np.array(host.idle or ((0.0, 1.0),)).T.copy()
        most = max(nodes.size for nodes in stages)
        self._passes = Passes(
            stage=np.zeros(size, dtype=np.int64),
            out=np.zeros(size, dtype=np.int64),
            scattered=np.zeros(size),
            left=np.zeros(size),
            cold=np.ones(size),
            asked=np.zeros((count, size)),
            answered=np.full(1, -np.inf),
            queues=np.zeros((count, 3), dtype=np.int64),
            behind=np.zeros((count, size), dtype=np.uint32),
            line=np.zeros(1 << (size * most).bit_length(), dtype=np.int64),
            line_state=np.zeros(4, dtype=np.int64),
            line_left=np.zeros(1),
            front=np.zeros(2 * size, dtype=np.int64),
            front_state=np.zeros(2, dtype=np.int64),
            front_left=np.zeros(1),
        )

    @property
    def left_s(self) -> Floats:
        """[requests] when they were answered."""
        return self._passes.left

    def run(
        self,
        begin_s: float,
        end_s: float,
        last: int,
        reached: Floats,
        fleet: Fleet,
        tables: ResourceTables,
        meter: Floats,
        histogram: Ints,
        barrier: Ints,
        cells: Marks,
        bounds: Floats,
    ) -> Calls:
        """One window; requests below ``last`` arrive before its end. Returns who was answered, in order. Arrays
        [requests]."""
        host = self._host
        rules = Rules(
            float(host.cores), float(host.start_cores), self._ingress_s, host.front_s / 2, self._overlap, self._idle,
            self._keys, self._stages, reached, self._requests.counts, self._slow, self._source, tables.rows,
            tables.tick_s,
        )  # fmt: skip
        meters = Meters(meter, histogram, barrier, cells, bounds, np.full(self._keys.size, begin_s))
        return run_host(begin_s, end_s, last, rules, fleet.replicas, self._passes, meters)
