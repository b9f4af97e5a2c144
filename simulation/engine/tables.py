"""Latency models as tables that compiled code reads: one row for each kind of node and resource in use."""

from __future__ import annotations

import numpy as np
from numba import njit

from autoscaler.contract import Configuration, NodeInfo
from simulation.arrays import Floats, Ints
from simulation.engine import kernel
from simulation.engine.errors import SimulationError
from simulation.engine.kernel import ATOMS
from simulation.engine.replicas import REFILL, Limits, Rows
from simulation.latency.contract import ALONE, LimitedLatencyModel, NodeCost, Noise
from simulation.workloads.workload import Workload

MOST_IN_FLIGHT = 8
"""Requests in flight that are distinguished; more are as these."""
DIGITS = 12
"""Seconds are rounded to a picosecond, so that libraries of other machines give the same table."""


class ResourceTables:
    """Rows are made when first asked for, and shared by nodes of equal cost.

    What the simulator computes with: ``work [rows, tokens + 1]``, seconds of a call alone on a replica that nothing
    stops, and ``again``, right after another (on a shared machine both up to the tokens of a whole batch); ``pace
    [rows, calls + 1]``, how fast each of m calls at once goes, and ``stretch``, its inverse; ``use [rows, calls + 1]``,
    cores in use meanwhile; ``bucket [rows, 2]``, burst (there: quota) and refill of the CPU limit (0 and 1: none);
    ``stop [rows]``, seconds more for each time that a limit stops a call there, and ``after_stop [rows]``, of the one
    right after it, ``cold [rows]`` 1 where that one takes ``work``; ``further [rows]``, seconds of each call of a batch
    but the first, besides its tokens; ``in_flight [rows, MOST_IN_FLIGHT]``, times the seconds of a call while so many
    requests are in flight; ``noise [rows, ATOMS]``. For those who plan without a clock: ``seconds [rows, tokens + 1]``
    and ``rate [rows, calls + 1]``, the same as ``work`` and ``pace`` in the mean under the limit; ``used [rows]``:
    share of the resource in use while serving.
    """

    def __init__(self, workload: Workload, most_tokens: int, most_calls: int) -> None:
        self._workload = workload
        self._rows: dict[tuple[NodeCost, float, float, float], int] = {}
        self.seconds: Floats = np.zeros((0, max(1, most_tokens) + 1))
        whole = max(1, most_tokens) * (1 if workload.host is None else most_calls)  # there calls are computed together
        self.work: Floats = np.zeros((0, whole + 1))
        self.again: Floats = self.work.copy()
        self.rate: Floats = np.zeros((0, most_calls + 1))
        self.pace: Floats = self.rate.copy()
        self.stretch: Floats = self.rate.copy()
        self.use: Floats = self.rate.copy()
        self.bucket: Floats = np.zeros((0, 2))
        self.stop: Floats = np.zeros(0)
        self.after_stop: Floats = np.zeros(0)
        self.cold: Floats = np.zeros(0)
        self.further: Floats = np.zeros(0)
        self.in_flight: Floats = np.zeros((0, MOST_IN_FLIGHT))
        self.noise: Floats = np.zeros((0, ATOMS))
        self.used: Floats = np.zeros(0)
        self.tick_s = 0.0

    def row(self, node: NodeInfo, configuration: Configuration) -> int:
        """Row of a replica of ``node``. Raises SimulationError where the model gives no sensible numbers."""
        cost, typical = self._workload.costs[node.id], self._workload.typical_tokens(node)
        cores, share = self._workload.cores(configuration), configuration.gpu_share
        key = (cost, typical, cores, share)
        if key not in self._rows:
            self._rows[key] = self._add(cost, typical, cores, share)
        return self._rows[key]

    def limited(self, row: int) -> bool:
        """Whether the row's CPU limit is simulated as a token bucket."""
        return bool(self.bucket[row, REFILL] < 1)

    @property
    def rows(self) -> Rows:
        """What compiled code reads."""
        stops, others = (self.stop, self.after_stop, self.cold), (self.further, self.in_flight)
        return Rows(self.work, self.again, self.pace, self.stretch, self.use, self.bucket, *stops, *others, self.noise)

    @property
    def limits(self) -> Limits:
        """None where no row has a CPU limit."""
        return True if (self.bucket[:, REFILL] < 1).any() else None

    def _add(self, cost: NodeCost, typical: float, cores: float, share: float) -> int:
        model = self._workload.latency
        whole, calls = np.arange(self.work.shape[1]), np.arange(1, self.rate.shape[1])
        where = f"{model.name}: {cost.kind} with {cores:g} cores and {share:g} of a GPU"
        work = again = _checked(where, model.seconds(cost, whole, cores, share))
        seconds = work[: self.seconds.shape[1]]
        rate = _rates(where, calls, model.speedup(cost, typical, cores, share, calls))
        pace, use, bucket, stop_s, after_stop_s = rate, np.ones(calls.size), (0.0, 1.0), 0.0, 0.0
        sharing, cold = ALONE, False
        if isinstance(model, LimitedLatencyModel):
            limit = model.throttle(cost, cores, share)
            work = _checked(where, model.work_seconds(cost, whole, share))
            again = _checked(where, model.again_seconds(cost, whole, share))
            pace = _rates(where, calls, model.core_speedup(cost, typical, cores, share, calls))
            desired = np.clip(model.core_use(cost, typical, calls, share), 1e-6, 1.0)
            use = np.asarray(np.round(desired, DIGITS), dtype=np.float64)
            at_once = limit.burst_s if self._workload.host is None else limit.quota_s
            bucket = round(float(at_once), DIGITS), round(float(limit.refill), DIGITS)
            self.tick_s, stop_s, after_stop_s = limit.tick_s, limit.stop_s, float(limit.after_stop_s)
            sharing, cold = model.sharing(cost, share), limit.cold
        if not (np.isfinite(bucket).all() and bucket[0] >= 0 and 0 < bucket[1] <= 1):
            raise SimulationError(f"{where}: a limit holds 0 CPU seconds or more and refills at 0 to 1, got {bucket}")
        self.seconds = np.vstack([self.seconds, seconds])
        self.work = np.vstack([self.work, work])
        self.again = np.vstack([self.again, again])
        self.rate = np.vstack([self.rate, rate])
        self.pace = np.vstack([self.pace, pace])
        self.stretch = 1.0 / self.pace
        self.use = np.vstack([self.use, [0.0, *use]])
        self.bucket = np.vstack([self.bucket, bucket])
        self.stop = np.append(self.stop, stop_s)
        self.after_stop = np.append(self.after_stop, after_stop_s)
        self.cold = np.append(self.cold, float(cold))
        self.further = np.append(self.further, sharing.further_s)
        in_flight = [sharing.times(requests) for requests in range(1, MOST_IN_FLIGHT + 1)]
        self.in_flight = np.vstack([self.in_flight, in_flight])
        self.noise = np.vstack([self.noise, atoms_of(model.noise(cost, share > 0))])
        self.used = np.append(self.used, float(model.utilisation(cost, typical, cores, share)))
        return self.used.size - 1


def _checked(where: str, seconds: Floats) -> Floats:
    """Rounded. Raises SimulationError for what is no time."""
    rounded_s = np.asarray(np.round(seconds, DIGITS), dtype=np.float64)
    if not np.isfinite(rounded_s).all() or rounded_s.min() <= 0:
        raise SimulationError(f"{where} takes {rounded_s.min():g} s at least; it must be above 0")
    return rounded_s


def _rates(where: str, calls: Ints, speedup: Floats) -> Floats:
    """[calls + 1] how fast each of m calls goes. Raises SimulationError for what is no speed-up."""
    rates = np.round(speedup, DIGITS)
    if not np.isfinite(rates).all() or rates.min() <= 0 or (rates > calls + 1e-9).any():
        raise SimulationError(f"{where}: the speed-up of m calls must be above 0 and at most m, got {rates}")
    return np.concatenate([[1.0], np.minimum(rates / calls, 1.0)])


def call_factors(atoms: Floats, seed: int, node: int, first: int, last: int) -> Floats:
    """[rows, last - first]: what a simulation with this seed multiplies seconds by at ``Simulation.nodes[node]``, for
    requests ``first`` to ``last - 1`` and every row of ``atoms [rows, ATOMS]``."""
    return np.asarray(atoms[:, (_draws(seed, node, first, last) * ATOMS).astype(np.int64)])


@njit(cache=True)
def _draws(seed: int, node: int, first: int, last: int) -> Floats:
    draws = np.empty(last - first)
    for request in range(first, last):
        draws[request - first] = kernel.draw(seed, kernel.SERVICE, node, request)
    return draws


def atoms_of(noise: Noise) -> Floats:
    """[ATOMS] factors, equally likely, that stand for ``noise``: its quantiles at the middles of even steps."""
    middles = (np.arange(ATOMS) + 0.5) / ATOMS
    factors = np.interp(middles, np.linspace(0, 1, noise.factors.size), noise.factors)
    return np.asarray(np.round(factors / factors.mean(), DIGITS))
