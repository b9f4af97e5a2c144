"""How much longer concurrent requests take than simulated, by their number: fitted to the profile's bursts."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial

import numpy as np
from scipy.optimize import brentq

from autoscaler.contract import Configuration
from simulation.arrays import Floats
from simulation.engine.requests import draw_requests
from simulation.engine.simulation import Simulation
from simulation.profiles.measure.concurrent import Slowdown, burst
from simulation.workloads.workload import Workload

BURSTS = 150
"""Simulated bursts of each size."""
APART_S = 2.0
"""Seconds between their beginnings: what a burst may take."""
LEAST, MOST = 0.5, 2.0
"""Bounds of the fitted number."""
TOLERANCE = 2e-3
ERRORS = 2.0
SEED = 17
Bursts = Sequence[Sequence[float]]
"""When the requests of each come after its beginning."""


def fitted_overlap(
    workload: Workload, slowdowns: Mapping[int, Slowdown], tokens: int, full_core: float
) -> tuple[float, ...]:
    """``simulation.workloads.workload.Host.overlap``: for two requests at once, three and so on the number nearest to 1
    under which a burst of as many is as much slower than lone requests as ``slowdowns`` states, within ``ERRORS``
    standard errors, the numbers for fewer being what was found before: what is not known to cost anything costs
    nothing, and what is costs as much as is certain. The nearer bound where none does it.

    ``slowdowns``: by the burst's size, from two on without a gap; ``tokens``: of each request; ``full_core``:
    configured cores that give a function a whole one. The bursts are those of
    ``simulation.profiles.measure.concurrent``, with the workload's own routing.
    """
    median_s = partial(_median_s, workload, tokens=tokens, asked_for=Configuration(1024, full_core, 0.0, 1, 8))
    lone_s = median_s((), [[0.0]] * BURSTS)
    order, factors = random.Random(SEED), tuple[float, ...]()
    for size, slowdown in sorted(slowdowns.items()):
        bursts = [burst(order, size, lone_s) for _ in range(BURSTS)]
        excess = cache(partial(_excess, median_s, factors, bursts, lone_s * slowdown.times))
        factors = (*factors, _nearest_to_one(excess, ERRORS * slowdown.error))
    return factors


def _excess(
    median_s: Callable[[tuple[float, ...], Bursts], float],
    fewer: tuple[float, ...],
    bursts: Bursts,
    wanted_s: float,
    times: float,
) -> float:
    """Logarithm of simulated over wanted seconds, what was found for ``fewer`` requests going on with ``times``."""
    return float(np.log(median_s((*fewer, times), bursts) / wanted_s))


def _nearest_to_one(excess: Callable[[float], float], margin: float) -> float:
    """Where ``excess``, which rises, is not more than ``margin`` from 0; the nearer bound where it is so nowhere."""
    off = excess(1.0)
    if abs(off) <= margin:
        return 1.0
    left = float(np.copysign(margin, off))
    if excess(LEAST) >= left or excess(MOST) <= left:
        return LEAST if excess(LEAST) >= left else MOST
    return float(brentq(lambda times: excess(times) - left, LEAST, MOST, xtol=TOLERANCE))


def _median_s(
    workload: Workload, overlap: tuple[float, ...], bursts: Bursts, *, tokens: int, asked_for: Configuration
) -> float:
    """Median seconds of the requests of bursts where concurrency costs ``overlap``."""
    assert workload.host is not None
    inside = replace(workload, request_s=0.0, host=replace(workload.host, overlap=overlap))
    sent = [number * APART_S + after_s for number, one in enumerate(bursts) for after_s in one]
    arrival_s: Floats = np.sort(sent)
    start = {node.function: asked_for for node in workload.topology.nodes}
    tokens_of = np.full(arrival_s.size, tokens)
    requests = draw_requests(inside, arrival_s, seed=SEED, tokens=tokens_of)
    window = Simulation(inside, requests, start, seed=SEED).advance(APART_S * len(bursts) + 60.0)
    return float(np.median(window.latency_s))
