"""Requests with their token routing, drawn once and simulated as often as wanted: all policies meet the same ones."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from simulation.arrays import Floats, Ints, Tokens
from simulation.engine import kernel
from simulation.engine.errors import SimulationError
from simulation.workloads.routing import factor_tables
from simulation.workloads.workload import Workload

MOST_TOKENS = 2**16 - 1


@dataclass(frozen=True, eq=False)
class Requests:
    """``arrival_s [N] float64``, never falling, seconds on the simulation's clock. ``counts [1 + experts, N] uint16``:
    row 0 the tokens of the request, then the tokens that each expert gets of it, in order of layer and number."""

    arrival_s: Floats
    counts: Tokens
    source: str

    def __post_init__(self) -> None:
        arrivals = self.arrival_s
        if arrivals.ndim != 1 or self.counts.ndim != 2 or self.counts.shape[1] != arrivals.size:
            raise SimulationError(f"{arrivals.shape} arrivals do not fit routing of shape {self.counts.shape}")
        if not np.isfinite(arrivals).all() or (np.diff(arrivals) < 0).any():
            raise SimulationError("arrival times are finite numbers that never fall")
        if arrivals.size and self.counts[0].min() < 1:
            raise SimulationError(f"request {int(self.counts[0].argmin())} has no tokens; every request needs one")
        arrivals.setflags(write=False)
        self.counts.setflags(write=False)

    @property
    def tokens(self) -> Tokens:
        """[N] uint16."""
        return np.asarray(self.counts[0])

    @property
    def most_tokens(self) -> int:
        """Tokens of the longest request; 0 without requests."""
        return int(self.counts[0].max(initial=0))

    @cached_property
    def sha256(self) -> str:
        """Hash of arrivals and routing: equal hashes, equal work."""
        digest = hashlib.sha256(self.arrival_s.astype("<f8").tobytes())
        digest.update(self.counts.astype("<u2").tobytes())
        return digest.hexdigest()


def draw_requests(
    workload: Workload, arrival_s: ArrayLike, *, seed: int, tokens: ArrayLike | None = None, source: str = ""
) -> Requests:
    """Lengths and routing for ``arrival_s`` [N]; ``tokens`` [N] where the trace gives them.

    Draws depend on ``seed``, the request's number and the layer alone. Raises SimulationError.
    """
    arrivals = np.array(arrival_s, dtype=np.float64)
    lengths = _lengths(workload, arrivals.size, seed) if tokens is None else np.array(tokens, dtype=np.int64)
    if lengths.shape != arrivals.shape:
        raise SimulationError(f"{arrivals.size} arrivals need as many lengths, got {lengths.shape}")
    if lengths.size and not 1 <= lengths.min() <= lengths.max() <= MOST_TOKENS:
        raise SimulationError(f"requests have 1 to {MOST_TOKENS} tokens, got {lengths.min()} to {lengths.max()}")
    experts = np.array([len(workload.topology.experts(layer)) for layer in range(workload.topology.layers)])
    counts = np.zeros((1 + int(experts.sum()), arrivals.size), dtype=np.uint16)
    if arrivals.size and arrivals[0] < 0:
        raise SimulationError(f"the first request arrives at {arrivals[0]:g} s; the clock starts at 0")
    routing = workload.routing
    kernel.route(
        seed, arrivals, lengths, routing.popularity, routing.spread, factor_tables(), routing.phase_s,
        experts.astype(np.int64), workload.top_k, workload.shared, counts,
    )  # fmt: skip
    return Requests(arrivals, counts, source or f"{arrivals.size} requests, {routing.source}, seed {seed}")


def _lengths(workload: Workload, count: int, seed: int) -> Ints:
    draws = np.array([kernel.draw(seed, kernel.LENGTH, 0, request) for request in range(count)])
    at = draws * (workload.tokens.quantiles.size - 1)
    low = at.astype(np.int64)
    quantiles = workload.tokens.quantiles
    drawn = quantiles[low] + (at - low) * (quantiles[np.minimum(low + 1, quantiles.size - 1)] - quantiles[low])
    return np.asarray(np.floor(drawn + 0.5), dtype=np.int64)
