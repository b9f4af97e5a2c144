"""Where scaling pays: constants against what is best in each window by itself, one for all experts or each its own.

Ways to keep the SLO λ in the same windows, all on the provisioned meter, each without and with burst activation:

- the cheapest constants found: the same for all experts (so many whole replicas of them), one for each layer, one for
  each expert;
- the cheapest choice found for each window by itself, one for all experts, or each its own.

The latter know the window beforehand, change between windows for nothing and begin each with an empty pipeline: what
no policy can do, so they say how much scaling can save at most as far as the searches found it. Windows in which no
choice was found are judged for nobody; in all others every way keeps λ, so all have equally many windows over it. With
burst activation there are standbys on top of what always runs, which follow the arrivals
(:mod:`functions.dispatch.activation`); they cost their memory, and a replica's price while they are activated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product

import numpy as np

from autoscaler.contract import Burst, Configuration
from evaluation.bound.loads import WindowLoad, expected_tables, windows
from evaluation.bound.oracle import alone, cheapest_feasible, configurations
from evaluation.bound.physics import Physics
from evaluation.bound.walls import Problem
from evaluation.regimes.judged import Deployment, OneWindow, Stretch, Work
from evaluation.regimes.search import Found, cheapest_uniform, descended, neighbours, price_per_hour, pricing
from simulation.engine.requests import Requests
from simulation.workloads.workload import Workload

TIMES_MEAN = (1.0, 1.25, 1.6, 2.0, 3.0, 4.0, 6.0)
"""Load that a constant for each expert is planned for, over the mean load."""
SHARES = (0.5, 0.7, 0.85, 1.0)
"""Part of λ that the queueing model is given for it."""
BURSTS = tuple(
    Burst(standbys, headroom, 1.0, hold_s, sleep_s=sleep_s)
    for standbys, headroom, hold_s, sleep_s in product((1, 3, 6), (1.0, 1.5), (2.0, 10.0), (None, 2.0))
)
"""Rules that burst activation is tried with."""
WARM_UP = 1
"""Windows at the start that are not judged."""


@dataclass(frozen=True)
class Ways:
    """Cost of the experts an hour under each way; None where none was found that keeps λ in every judged window."""

    constant: float | None
    constant_per_layer: float | None
    constant_per_expert: float | None
    constant_burst: float | None
    """One for all experts, with standbys."""
    constant_per_expert_burst: float | None
    window: float | None
    window_per_expert: float
    window_burst: float | None
    """One for all experts in each window, with standbys where they are cheaper."""
    window_per_expert_burst: float
    judged: int
    """Windows in which some choice keeps λ."""
    unmet: int
    """Windows in which none was found."""
    changes: float
    """Share of an expert's windows, the first apart, in which its own best choice is another than the window before."""
    burst: str
    """The rule that ``constant_burst`` was found with; empty where there is none."""


@dataclass(frozen=True)
class Best:
    """The least costly choices found for one window by itself, without standbys."""

    judged: OneWindow
    uniform: Found | None
    per_expert: Found


def ways(
    workload: Workload,
    requests: Requests,
    window_s: float,
    seconds: float,
    seed: int,
    progress: Callable[[str, float], object] = lambda what, share: None,
) -> Ways | None:
    """All ways on ``seconds`` of ``requests``; None where no choice keeps λ in any window. ``progress`` gets what is
    searched and how much is done (0 to 1)."""
    physics = Physics(workload, requests.most_tokens)
    loads = list(windows(physics, requests, window_s, seconds))[WARM_UP:]
    best: dict[int, Best] = {}
    for number, load in enumerate(loads, WARM_UP):
        progress("windows by themselves", 0.5 * (number - WARM_UP) / len(loads))
        if load.count and (each := _best(load, seed)) is not None:
            best[number] = each
    if not best:
        return None
    judged = Stretch(Work(workload, requests, seed), window_s, frozenset(best))
    optima = [each.per_expert.deployment for each in best.values()]
    progress("constants", 0.5)
    constant, per_layer, per_expert = _constants(judged, physics, seconds, optima)
    progress("constants with burst activation", 0.65)
    rule, burst, burst_per_expert = _with_bursts(judged, constant, per_expert)
    with_bursts = []
    for number, each in enumerate(best.values()):
        progress("windows with burst activation", 0.8 + 0.2 * number / len(best))
        with_bursts.append(_burst_window(each, rule))
    return Ways(
        _cost(constant),
        _cost(per_layer),
        _cost(per_expert),
        _cost(burst),
        _cost(burst_per_expert),
        _mean(each.uniform for each in best.values()),
        float(np.mean([each.per_expert.cost for each in best.values()])),
        _mean(uniform for uniform, _ in with_bursts),
        float(np.mean([each.cost for _, each in with_bursts])),
        len(best),
        sum(load.count > 0 for load in loads) - len(best),
        _changes(optima),
        "" if rule is None or burst is constant else _words(rule),
    )


def _best(load: WindowLoad, seed: int) -> Best | None:
    """None where nothing keeps λ."""
    by_itself = alone(load)
    workload = load.physics.workload
    judged = OneWindow(Work(workload, by_itself.requests, seed), load.window_s)
    uniform = cheapest_uniform(judged)
    starts = [] if uniform is None else [uniform]
    if workload.host is None and (feasible := cheapest_feasible(load, "provisioned", seed)) is not None:
        numbers = configurations(load.physics, feasible.numbers)
        starts.append(Found(numbers, price_per_hour(workload, numbers)))
    if not starts:
        return None
    start = min(starts, key=lambda one: one.cost)
    return Best(judged, uniform, descended(judged, start, _each(start.deployment), neighbours(workload)))


def _constants(
    judged: Stretch, physics: Physics, seconds: float, optima: Sequence[Deployment]
) -> tuple[Found | None, Found | None, Found | None]:
    """For all experts, for each layer, for each expert."""
    workload = judged.workload
    layers = [[node.function for node in workload.topology.experts(layer)] for layer in range(workload.topology.layers)]
    smaller = neighbours(workload)

    def cheaper(functions: Sequence[str], deployment: Deployment) -> Iterator[Configuration]:
        yield from dict.fromkeys(optimum[function] for optimum in optima for function in functions)
        yield from smaller(functions, deployment)

    constant = cheapest_uniform(judged)
    per_layer = None if constant is None else descended(judged, constant, layers, cheaper)
    planned = [_largest(workload, optima)]
    if workload.host is None:
        planned += planned_constants(physics, judged.requests, seconds)
    starts = [one for one in (per_layer, _first(judged, planned)) if one is not None]
    if not starts:
        return constant, per_layer, None
    start = min(starts, key=lambda one: one.cost)
    return constant, per_layer, descended(judged, start, _each(start.deployment), cheaper)


def _with_bursts(
    judged: Stretch, constant: Found | None, per_expert: Found | None
) -> tuple[Burst | None, Found | None, Found | None]:
    """The rule and the cheapest constants with standbys, for all experts and for each; those without where standbys
    only add to the cost. No rule where no constant with standbys was found."""
    uniform, chosen = None, None
    for burst in BURSTS:
        one = cheapest_uniform(judged, burst, np.inf if uniform is None else uniform.cost)
        if one is not None:
            uniform, chosen = one, burst
    if uniform is None:
        return None, constant, per_expert
    starts = [uniform]
    if per_expert is not None:
        with_rule = {name: replace(one, burst=chosen) for name, one in per_expert.deployment.items()}
        cost = judged.cost(with_rule)
        starts += [] if cost is None else [Found(with_rule, cost)]
    cheapest = per_expert
    for start in starts:
        cheapest = _cheaper(descended(judged, start, _each(start.deployment), neighbours(judged.workload)), cheapest)
    return chosen, _cheaper(uniform, constant), cheapest


def _burst_window(best: Best, rule: Burst | None) -> tuple[Found | None, Found]:
    """The window's choices with standbys where these are cheaper: one for all experts, and each its own."""
    if rule is None:
        return best.uniform, best.per_expert
    judged = best.judged
    uniform = cheapest_uniform(judged, rule)
    if uniform is None:
        return best.uniform, best.per_expert
    own_choices = descended(judged, uniform, _each(uniform.deployment), neighbours(judged.workload))
    return _cheaper(uniform, best.uniform), _cheaper(own_choices, best.per_expert)


def planned_constants(physics: Physics, requests: Requests, seconds: float) -> Iterator[Deployment]:
    """Constants with a configuration for each expert: the queueing model's optimum for a multiple of the mean load and
    a part of λ."""
    for times, share in product(TIMES_MEAN, SHARES):
        load = WindowLoad(physics, requests, 0, requests.arrival_s.size, seconds / times)
        tables, outside_s = expected_tables(load, "provisioned")
        problem = Problem(tables, physics.space_arrays, physics.workload.expert_room)
        enclosure = problem.enclose(share * max(0.0, physics.workload.slo_s - outside_s))
        if enclosure.feasible:
            yield configurations(physics, enclosure.numbers)


def _first(judged: Stretch, choices: Iterable[Deployment]) -> Found | None:
    """The least costly of ``choices`` that keeps λ; None where none does."""
    for deployment in sorted(choices, key=lambda one: price_per_hour(judged.workload, one)):
        if (cost := judged.cost(deployment)) is not None:
            return Found(deployment, cost)
    return None


def _largest(workload: Workload, optima: Sequence[Deployment]) -> Deployment:
    """Each expert's most expensive choice of any window."""
    return {function: max((optimum[function] for optimum in optima), key=pricing(workload)) for function in optima[0]}


def _each(deployment: Deployment) -> list[list[str]]:
    return [[function] for function in deployment]


def _cheaper(first: Found, second: Found | None) -> Found:
    return first if second is None or first.cost < second.cost else second


def _cost(choice: Found | None) -> float | None:
    return None if choice is None else choice.cost


def _mean(choices: Iterable[Found | None]) -> float | None:
    """None where a window has none."""
    costs = [_cost(one) for one in choices]
    measured = [cost for cost in costs if cost is not None]
    return float(np.mean(measured)) if len(measured) == len(costs) else None


def _words(rule: Burst) -> str:
    return f"{rule.standbys} standbys, headroom {rule.headroom:g}, hold {rule.hold_s:g} s"


def _changes(chosen: Sequence[Deployment]) -> float:
    pairs = [
        _plain(before[function]) != _plain(after[function]) for before, after in pairwise(chosen) for function in before
    ]
    return float(np.mean(pairs)) if pairs else 0.0


def _plain(configuration: Configuration) -> Configuration:
    return replace(configuration, burst=None)
