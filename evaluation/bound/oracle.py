"""A feasible choice for a window, by simulation: an upper end for the bound. Feasible, never optimal.

The deterministic optimum by the queueing model is taken at several shares of the latency budget; each is simulated from
an empty pipeline with all replicas ready, and the cheapest that meets the SLO is kept. The share is bisected between
one that meets it and one that does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autoscaler.contract import SLO_QUANTILE, Configuration
from autoscaler.prices import Meter
from evaluation.bound.loads import WindowLoad, expected_tables
from evaluation.bound.physics import Physics
from evaluation.bound.walls import Problem
from simulation.arrays import Ints
from simulation.engine.kernel import BUSY_S
from simulation.engine.requests import Requests
from simulation.engine.simulation import Simulation

SHARES = (0.1, 0.2, 0.3, 0.45, 0.6, 0.75, 0.9, 1.0, 1.15, 1.3)
BISECTIONS = 6
DRAINS = 20


@dataclass(frozen=True)
class Feasible:
    """A choice that met the SLO in simulation."""

    cost: float
    p95_s: float
    share: float
    """Part of the latency budget that the queueing model was given."""
    numbers: tuple[Ints, ...]
    """Per layer [experts]: configuration numbers."""


def alone(load: WindowLoad) -> WindowLoad:
    """The window by itself: its requests numbered from 0 on a clock that starts with it."""
    start_s = np.floor(load.arrival_s[0] / load.window_s) * load.window_s if load.count else 0.0
    counts = load.requests.counts[:, load.first : load.last].copy()  # in one piece: the kernels are compiled for that
    requests = Requests(load.arrival_s - start_s, counts, f"a window of {load.requests.source}")
    return WindowLoad(load.physics, requests, 0, load.count, load.window_s)


def cheapest_feasible(load: WindowLoad, meter: Meter, seed: int = 0) -> Feasible | None:
    """The cheapest choice found that meets the SLO in this window by itself (see :func:`alone`), whatever follows it;
    None without any."""
    load = alone(load)
    tables, outside_s = expected_tables(load, meter)
    problem = Problem(tables, load.physics.space_arrays, load.physics.workload.expert_room)
    budget_s = max(0.0, load.physics.workload.slo_s - outside_s)
    tried: dict[float, Feasible | None] = {}

    def attempt(share: float) -> Feasible | None:
        enclosure = problem.enclose(share * budget_s)
        if not enclosure.feasible:
            return None
        cost, p95_s = simulate_numbers(load, enclosure.numbers, meter, seed)
        return Feasible(cost, p95_s, share, enclosure.numbers) if p95_s <= load.physics.workload.slo_s else None

    # The queueing model misses both ways, so shares above 1 are tried too; whether one serves is not monotone in it.
    for share in SHARES:
        tried[share] = attempt(share)
    met = [share for share, feasible in tried.items() if feasible is not None]
    if not met:
        return None
    # From the largest that served: a larger share of λ is a cheaper choice.
    low = max(met)
    high = min((share for share in SHARES if share > low), default=2 * low)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        tried[middle] = attempt(middle)
        low, high = (middle, high) if tried[middle] is not None else (low, middle)
    return min((feasible for feasible in tried.values() if feasible is not None), key=lambda feasible: feasible.cost)


def simulate_numbers(load: WindowLoad, numbers: Sequence[Ints], meter: Meter, seed: int) -> tuple[float, float]:
    """:func:`simulate` for configurations by number. ``numbers`` [experts] of each layer."""
    return simulate(load, configurations(load.physics, numbers), meter, seed)


def simulate(load: WindowLoad, chosen: Mapping[str, Configuration], meter: Meter, seed: int) -> tuple[float, float]:
    """(cost of the experts, P95 of all requests) of a window by itself, from an empty pipeline that is ready.

    ``chosen``: function → configuration of every expert. Both are infinite where the requests are never all answered.
    """
    physics = load.physics
    simulation = Simulation(
        physics.workload, load.requests, {**physics.workload.initial(_any(chosen)), **chosen}, seed=seed
    )
    busy_s = np.zeros(len(simulation.nodes))
    latencies = []
    for number in range(1 + DRAINS):
        window = simulation.advance((number + 1) * load.window_s)
        busy_s += window.meter[:, BUSY_S]
        latencies.append(window.latency_s)
        if not window.in_flight:
            break
    else:
        return np.inf, np.inf
    cost = 0.0
    for node, info in enumerate(simulation.nodes):
        if info.kind == "expert":
            configuration = chosen[info.function]
            seconds = busy_s[node] if meter == "busy" else configuration.replicas * load.window_s
            cost += float(seconds) * physics.workload.prices.unit_per_s(configuration)
    every = np.concatenate(latencies)
    return cost, float(np.quantile(every, SLO_QUANTILE)) if every.size else 0.0


def configurations(physics: Physics, numbers: Sequence[Ints]) -> dict[str, Configuration]:
    """Function → configuration for a choice of numbers [layers, experts]."""
    return {
        node.function: physics.workload.space[int(number)]
        for layer, chosen in zip(physics.layers, numbers, strict=True)
        for node, number in zip(layer, chosen, strict=True)
    }


def _any(chosen: Mapping[str, Configuration]) -> Configuration:
    return next(iter(chosen.values()))
