"""How much longer than simulated requests take that meet: one number, fitted to the profile's volleys."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
from scipy.optimize import brentq

from autoscaler.contract import Configuration
from rl.latency.contract import Floats
from rl.profile.overlap import Slowdown, volley
from rl.sim.requests import draw_requests
from rl.sim.simulation import Simulation
from rl.workload import Workload

VOLLEYS = 150
"""Of each size in the simulator."""
APART_S = 2.0
"""Between their beginnings: what a volley may take."""
LEAST, MOST = 0.5, 2.0
"""Of the number that is looked for."""
TOLERANCE = 2e-3
ERRORS = 2.0
SEED = 17


def fitted_overlap(workload: Workload, slowdowns: Mapping[int, Slowdown], tokens: int, full_core: float) -> float:
    """``rl.workload.Host.overlap`` nearest to 1 under which volleys of these sizes are as much slower than lone
    requests as ``slowdowns`` says, on the geometric mean over sizes, within ``ERRORS`` standard errors: what is not
    known to cost anything costs nothing, and what is costs as much as is certain. The nearer bound where none does it.

    ``tokens``: of each request; ``full_core``: configured cores that give a function a whole one. The volleys are
    those of ``rl.profile.overlap``, with the workload's own routing.
    """
    asked_for = Configuration(1024, full_core, 0.0, 1, 8)
    alone = [[0.0]] * VOLLEYS
    lone_s = _medians_s(workload, {1: alone}, tokens, asked_for)[1]
    order = random.Random(SEED)
    volleys = {size: [volley(order, size, lone_s) for _ in range(VOLLEYS)] for size in slowdowns}

    @cache
    def excess(overlap: float) -> float:
        assert workload.host is not None
        tried = replace(workload, host=replace(workload.host, overlap=overlap))
        found = _medians_s(tried, volleys, tokens, asked_for)
        return float(np.mean([np.log(found[size] / lone_s / slowdown.times) for size, slowdown in slowdowns.items()]))

    margin = ERRORS * float(np.mean([slowdown.error for slowdown in slowdowns.values()]))
    off = excess(1.0)
    if abs(off) <= margin:
        return 1.0
    left = float(np.copysign(margin, off))
    if excess(LEAST) >= left or excess(MOST) <= left:
        return LEAST if excess(LEAST) >= left else MOST
    return float(brentq(lambda overlap: excess(overlap) - left, LEAST, MOST, xtol=TOLERANCE))


def _medians_s(
    workload: Workload, volleys: Mapping[int, Sequence[Sequence[float]]], tokens: int, asked_for: Configuration
) -> dict[int, float]:
    """Median seconds of requests by the size of their volley; a volley: when its requests come after its beginning."""
    inside, every = replace(workload, request_s=0.0), [one for ones in volleys.values() for one in ones]
    sizes = np.array([len(one) for one in every for _ in one])
    arrival_s: Floats = np.array([number * APART_S + after_s for number, one in enumerate(every) for after_s in one])
    order = np.argsort(arrival_s, kind="stable")
    start = {node.function: asked_for for node in workload.topology.nodes}
    requests = draw_requests(inside, arrival_s[order], seed=SEED, tokens=np.full(order.size, tokens))
    window = Simulation(inside, requests, start, seed=SEED).advance(APART_S * len(every) + 60.0)
    seconds = np.full(order.size, np.nan)
    seconds[window.finished] = window.latency_s
    return {size: float(np.nanmedian(seconds[sizes[order] == size])) for size in volleys}
