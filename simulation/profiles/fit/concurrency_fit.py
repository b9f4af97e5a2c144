"""How much longer than simulated requests take that meet, by how many: fitted to the profile's volleys."""

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
from simulation.profiles.measure.concurrent import Slowdown, volley
from simulation.workloads.workload import Workload

VOLLEYS = 150
"""Of each size in the simulator."""
APART_S = 2.0
"""Between their beginnings: what a volley may take."""
LEAST, MOST = 0.5, 2.0
"""Of the number that is looked for."""
TOLERANCE = 2e-3
ERRORS = 2.0
SEED = 17
Volleys = Sequence[Sequence[float]]
"""When the requests of each come after its beginning."""


def fitted_overlap(
    workload: Workload, slowdowns: Mapping[int, Slowdown], tokens: int, full_core: float
) -> tuple[float, ...]:
    """``simulation.workloads.workload.Host.overlap``: for two requests at once, three and so on the number nearest to 1 under which a
    volley of as many is as much slower than lone requests as ``slowdowns`` says, within ``ERRORS`` standard errors, the
    numbers for fewer being what was found before: what is not known to cost anything costs nothing, and what is costs
    as much as is certain. The nearer bound where none does it.

    ``slowdowns``: by the volley's size, from two on without a gap; ``tokens``: of each request; ``full_core``:
    configured cores that give a function a whole one. The volleys are those of ``simulation.profiles.measure.concurrent``, with the
    workload's own routing.
    """
    median_s = partial(_median_s, workload, tokens=tokens, asked_for=Configuration(1024, full_core, 0.0, 1, 8))
    lone_s = median_s((), [[0.0]] * VOLLEYS)
    order, found = random.Random(SEED), tuple[float, ...]()
    for size, slowdown in sorted(slowdowns.items()):
        volleys = [volley(order, size, lone_s) for _ in range(VOLLEYS)]
        excess = cache(partial(_excess, median_s, found, volleys, lone_s * slowdown.times))
        found = (*found, _nearest_to_one(excess, ERRORS * slowdown.error))
    return found


def _excess(
    median_s: Callable[[tuple[float, ...], Volleys], float],
    fewer: tuple[float, ...],
    volleys: Volleys,
    wanted_s: float,
    times: float,
) -> float:
    """Logarithm of simulated over wanted seconds, what was found for ``fewer`` requests going on with ``times``."""
    return float(np.log(median_s((*fewer, times), volleys) / wanted_s))


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
    workload: Workload, overlap: tuple[float, ...], volleys: Volleys, *, tokens: int, asked_for: Configuration
) -> float:
    """Median seconds of the requests of volleys where meeting costs ``overlap``."""
    assert workload.host is not None
    inside = replace(workload, request_s=0.0, host=replace(workload.host, overlap=overlap))
    sent = [number * APART_S + after_s for number, one in enumerate(volleys) for after_s in one]
    arrival_s: Floats = np.sort(sent)
    start = {node.function: asked_for for node in workload.topology.nodes}
    tokens_of = np.full(arrival_s.size, tokens)
    requests = draw_requests(inside, arrival_s, seed=SEED, tokens=tokens_of)
    window = Simulation(inside, requests, start, seed=SEED).advance(APART_S * len(volleys) + 60.0)
    return float(np.median(window.latency_s))
