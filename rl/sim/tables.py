"""Latency models as tables that compiled code reads: one row for each kind of node and resource in use."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autoscaler.contract import Configuration, NodeInfo
from rl.latency.contract import NodeCost, Noise
from rl.sim import kernel
from rl.sim.errors import SimulationError
from rl.sim.kernel import ATOMS
from rl.workload import Workload

Floats = NDArray[np.float64]
DIGITS = 12
"""Seconds are rounded to a picosecond, so that libraries of other machines give the same table."""


class ResourceTables:
    """Rows are made when first asked for, and shared by nodes of equal cost.

    ``seconds [rows, tokens + 1]``: a call alone; ``rate [rows, calls + 1]``: how fast each of m calls at once goes,
    and ``stretch`` is its inverse;
    ``noise [rows, ATOMS]``; ``used [rows]``: share of the resource in use while serving.
    """

    def __init__(self, workload: Workload, most_tokens: int, most_calls: int) -> None:
        self._workload = workload
        self._rows: dict[tuple[NodeCost, float, float, float], int] = {}
        self.seconds: Floats = np.zeros((0, max(1, most_tokens) + 1))
        self.rate: Floats = np.zeros((0, most_calls + 1))
        self.stretch: Floats = self.rate.copy()
        self.noise: Floats = np.zeros((0, ATOMS))
        self.used: Floats = np.zeros(0)

    def row(self, node: NodeInfo, configuration: Configuration) -> int:
        """Row of a replica of ``node``. Raises SimulationError where the model gives no sensible numbers."""
        cost, typical = self._workload.costs[node.id], self._workload.typical_tokens(node)
        cores, share = self._workload.cores(configuration), configuration.gpu_share
        key = (cost, typical, cores, share)
        if key not in self._rows:
            self._rows[key] = self._add(cost, typical, cores, share)
        return self._rows[key]

    def _add(self, cost: NodeCost, typical: float, cores: float, share: float) -> int:
        model = self._workload.latency
        seconds = np.round(model.seconds(cost, np.arange(self.seconds.shape[1]), cores, share), DIGITS)
        calls = np.arange(1, self.rate.shape[1])
        speedup = np.round(model.speedup(cost, typical, cores, share, calls), DIGITS)
        where = f"{model.name}: {cost.kind} with {cores:g} cores and {share:g} of a GPU"
        if not np.isfinite(seconds).all() or seconds.min() <= 0:
            raise SimulationError(f"{where} takes {seconds.min():g} s at least; it must be above 0")
        if not np.isfinite(speedup).all() or speedup.min() <= 0 or (speedup > calls + 1e-9).any():
            raise SimulationError(f"{where}: the speed-up of m calls must be above 0 and at most m, got {speedup}")
        rate = np.concatenate([[1.0], np.minimum(speedup / calls, 1.0)])
        self.seconds = np.vstack([self.seconds, seconds])
        self.rate = np.vstack([self.rate, rate])
        self.stretch = 1.0 / self.rate
        self.noise = np.vstack([self.noise, atoms_of(model.noise(cost, share > 0))])
        self.used = np.append(self.used, float(model.utilisation(cost, typical, cores, share)))
        return self.used.size - 1


def call_factors(atoms: Floats, seed: int, node: int, first: int, last: int) -> Floats:
    """[rows, last - first]: what a simulation with this seed multiplies seconds by at ``Simulation.nodes[node]``, for
    requests ``first`` to ``last - 1`` and every row of ``atoms [rows, ATOMS]``."""
    draws = np.array([kernel.draw(seed, kernel.SERVICE, node, request) for request in range(first, last)])
    return np.asarray(atoms[:, (draws * ATOMS).astype(np.int64)])


def atoms_of(noise: Noise) -> Floats:
    """[ATOMS] factors, equally likely, that stand for ``noise``: its quantiles at the middles of even steps."""
    middles = (np.arange(ATOMS) + 0.5) / ATOMS
    factors = np.interp(middles, np.linspace(0, 1, noise.factors.size), noise.factors)
    return np.asarray(np.round(factors / factors.mean(), DIGITS))
