"""The bound of a window, and the deterministic optimum that the oracle starts from."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autoscaler.prices import Meter
from evaluation.bound.certain import certain
from evaluation.bound.loads import WindowLoad, expected_tables
from evaluation.bound.physics import ROUNDING
from evaluation.bound.tail import groups
from evaluation.bound.walls import Problem
from evaluation.bound.window import Enclosure, enclose


@dataclass(frozen=True)
class Bound:
    """What no policy can undercut in one window."""

    cost: float
    """Lower bound of the experts' cost, in the price sheet's currency; where not ``reachable``, of the work at all."""
    reachable: bool
    """False: no configuration meets the SLO in this window, so even the clairvoyant violates it."""
    binds: bool
    """Whether the SLO excludes the cheapest choice already by calls' own work."""


def lower_bound(load: WindowLoad, meter: Meter, seed: int = 0) -> Bound:
    """A valid lower bound of what serving this window costs within the SLO, backlog and cold starts left out.

    ``seed``: of the simulation that it is to be compared with.
    """
    space, slo_s = load.physics.widest, load.physics.workload.slo_s
    # Every group of requests gives a valid bound of its own, so the highest of them is the bound.
    problems = certain(load, meter, seed, groups(load.tokens(0)))
    room = load.physics.workload.expert_room
    enclosures = [
        Problem(one.tables, space, room).enclose((slo_s - one.outside_s) * (1 + ROUNDING)) for one in problems
    ]
    if all(one.feasible or (room is not None and one.fastest_s <= one.budget_s) for one in enclosures):
        # Rounding always towards a weaker bound: it must hold for the simulated run to the last bit.
        best = max(one.lower for one in enclosures)
        return Bound(best * (1 - ROUNDING), True, any(one.binds for one in enclosures))
    # No choice is in time: no latency counts then, and what remains is the price of doing the work at all.
    at_all = certain(load, meter, seed, None)[0]
    return Bound(enclose(at_all.tables, space, math.inf).lower * (1 - ROUNDING), False, False)


def deterministic(load: WindowLoad, meter: Meter, share: float = 1.0) -> Enclosure:
    """The separable optimum by the queueing model: mean seconds of the layers' slowest experts add up to at most
    ``share`` of what λ leaves them."""
    tables, outside_s = expected_tables(load, meter)
    workload = load.physics.workload
    problem = Problem(tables, load.physics.space_arrays, workload.expert_room)
    return problem.enclose(share * max(0.0, workload.slo_s - outside_s))
