"""Best constants: one configuration for all experts, for each layer, or for each expert, searched on validation hours.

The search is that of :mod:`evaluation.regimes.search`; this module judges it on several hours, by the rule that
settings are swept by (:func:`evaluation.tuning.sweep.best`): the cheapest of those that break λ in at most
:data:`evaluation.tuning.outcomes.MOST_VIOLATED` of the windows, or where none does in hardly more than the one that
does so in the fewest. Each freedom starts from what was found with less, and all judge equally many deployments. With
``+burst`` every function has standbys by one of :data:`BURSTS`, whose cost is part of what is compared, or none has
where that is cheaper. All by the meter of the hours.

Every hour has its own popularity of experts. A constant for each expert is one for each *rank*: what the layer's most
called expert of the first hour has, that of any other hour gets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import NamedTuple

import numpy as np

from autoscaler.contract import Burst, Configuration
from autoscaler.prices import Meter
from evaluation.bound.physics import Physics
from evaluation.comparison.episode import Work as Episode
from evaluation.comparison.grid import without_burst
from evaluation.regimes.judged import Deployment, Work
from evaluation.regimes.search import Found, cheapest_uniform, descended, least_per_hour, neighbours, pricing
from evaluation.regimes.ways import planned_constants
from evaluation.tuning.outcomes import MOST_VIOLATED, p95s, tail_s
from evaluation.tuning.search import Trial
from simulation.engine.kernel import BUSY_S
from simulation.engine.requests import Requests
from simulation.engine.simulation import Answers
from simulation.workloads.workload import Workload

Steps = Callable[[Sequence[str], Deployment], Iterator[Configuration]]
"""Cheaper configurations for a group of functions of a deployment."""
NAMES = ("constant", "constant-per-layer", "constant-per-expert")
"""Policies that hold such a plan, in order of freedom."""
_AMPLE = ((1, 3), (1.0, 1.5), (2.0, 10.0))
LEAN = (
    (0.25, 0.05, 0.5),
    (0.25, 0.2, 0.5),
    (0.25, 0.2, 0.25),
    (0.25, 0.5, 0.25),
    (0.5, 0.2, 0.5),
    (0.5, 0.5, 0.25),
    (0.75, 1.5, 0.25),
    (0.75, 3.0, 0.25),
)
"""``spare``, ``hold_s`` and ``look_back_s``."""
_ASLEEP = ((1, 3), (0.25, 0.75), (1.0, 4.0))
BURSTS = (
    *(Burst(standbys, headroom, 1.0, hold_s) for standbys, headroom, hold_s in product(*_AMPLE)),
    *(Burst(5, 1.0, *rule) for rule in LEAN),
    *(Burst(standbys, 1.0, spare, 0.5, 0.25, sleep_s=sleep_s) for standbys, spare, sleep_s in product(*_ASLEEP)),
)
"""Standbys that are tried: the second part with less to spare and a shorter hold, which were found to cost less, the
third with nothing that always runs."""


@dataclass(frozen=True, eq=False)
class Hour:
    """What an hour's deployments are judged on."""

    work: Work
    window_s: float
    windows: range
    """Numbers of those that are judged."""
    meter: Meter = "provisioned"
    outcomes: dict[tuple[Configuration, ...], tuple[float, list[float]]] = field(default_factory=dict)
    """Outcomes by :attr:`ranked`'s configurations."""

    def outcome(self, configurations: tuple[Configuration, ...]) -> tuple[float, list[float]]:
        """(cost of the experts an hour on the meter, P95 over λ of each judged window) where ``configurations`` are
        those of :attr:`ranked`; infinite and none without room for them."""
        if configurations not in self.outcomes:
            self.outcomes[configurations] = self._simulated(self.deployment(configurations))
        return self.outcomes[configurations]

    def deployment(self, configurations: Iterable[Configuration]) -> dict[str, Configuration]:
        """Function → its own of ``configurations``, which are in the order of :attr:`Hour.ranked`."""
        return dict(zip(self.ranked, configurations, strict=True))

    @cached_property
    def ranked(self) -> tuple[str, ...]:
        """Functions of the experts, layer by layer, those with most tokens first."""
        experts, tokens = self.work.workload.experts, self.work.requests.counts[1:].sum(axis=1, dtype=np.int64)
        order = sorted(range(len(experts)), key=lambda e: (experts[e].layer, -tokens[e], e))
        return tuple(experts[e].function for e in order)

    def _simulated(self, deployment: Deployment) -> tuple[float, list[float]]:
        ends_s = tuple((number + 1) * self.window_s for number in range(self.windows.stop))
        seconds = len(self.windows) * self.window_s
        if self.meter == "busy":
            simulation = self.work.simulation(deployment)
            if simulation is None:
                return np.inf, []
            windows = [simulation.advance(end_s) for end_s in ends_s][self.windows.start :]
            cost = self.work.busy_per_hour(
                deployment, seconds, np.sum([window.meter[:, BUSY_S] for window in windows], 0)
            )
            return cost, self._over_slo(windows)
        every = self.work.answers(deployment, ends_s)
        if every is None:
            return np.inf, []
        counted = every[self.windows.start :]
        activated_s = np.sum([window.activated_s for window in counted], axis=0)
        return self.work.per_hour(deployment, seconds, activated_s), self._over_slo(counted)

    def _over_slo(self, counted: Sequence[Answers]) -> list[float]:
        return [p95_s / self.work.workload.slo_s for p95_s in p95s(counted)]


def hour_of(episode: Episode) -> Hour:
    """The windows after the warm-up."""
    warm_up, count = (round(seconds / episode.window_s) for seconds in (episode.profiling_s, episode.arrivals.seconds))
    work = Work(episode.workload, episode.requests, episode.group.seed)
    return Hour(work, episode.window_s, range(warm_up, count))


class Hours:
    """Deployments of the first hour's experts, judged on all hours together: what a search asks."""

    def __init__(self, hours: Sequence[Hour], trials: int, look: Callable[[], object] = lambda: None) -> None:
        """``look`` is called before each trial, and may raise."""
        self.hours, self.trials, self._look = hours, dict[tuple[Configuration, ...], Trial](), look
        self.spent = False
        """Whether something was left untried."""
        self._most_trials = trials
        self.allowed = MOST_VIOLATED
        """Share of windows over λ up to which it counts as kept."""
        self.shares: dict[tuple[Configuration, ...], float] = {}

    @property
    def workload(self) -> Workload:
        return self.hours[0].work.workload

    @property
    def requests(self) -> Requests:
        return self.hours[0].work.requests

    @property
    def meter(self) -> Meter:
        return self.hours[0].meter

    def cost(self, deployment: Deployment) -> float | None:
        """None where λ is not kept often enough, there is no room, or all trials are done."""
        key = tuple(deployment[function] for function in self.hours[0].ranked)
        if key not in self.trials and len(self.trials) >= self._most_trials:
            self.spent = True
            return None
        trial = self.trials.get(key) or self._judge(key)
        return trial.cost if self.shares[key] <= self.allowed else None

    def best(self) -> tuple[tuple[Configuration, ...], Trial]:
        """The cheapest trial that is allowed."""
        allowed = [key for key, share in self.shares.items() if share <= self.allowed]
        key = min(allowed or self.trials, key=lambda key: (self.trials[key].cost, self.trials[key].number))
        return key, self.trials[key]

    def _judge(self, key: tuple[Configuration, ...]) -> Trial:
        self._look()
        costs, values = zip(*(hour.outcome(key) for hour in self.hours), strict=True)
        every = [value for part in values for value in part]
        cost, tail = float(np.mean(costs)), tail_s(every)
        self.shares[key] = sum(value > 1 for value in every) / len(every) if every and np.isfinite(cost) else 1.0
        meets = self.shares[key] <= MOST_VIOLATED
        self.trials[key] = Trial(len(self.trials), cost, tail * self.workload.slo_s, meets, cost, _words(key))
        return self.trials[key]


class Constants(NamedTuple):
    """The best constants and how they were found."""

    configurations: tuple[Configuration, ...]
    """In the order of :attr:`Hour.ranked`."""
    best: Trial
    trials: tuple[Trial, ...]
    converged: bool
    """No trial that the search asked for was left out."""


def search_constants(policy: str, hours: Sequence[Hour], trials: int) -> Constants:
    """What ``policy``, one of :data:`NAMES` with or without :data:`BURST_SUFFIX`, holds; at most ``trials`` deployments
    are judged on top of those of the policies with less freedom, whose outcomes ``hours`` remember."""
    judged = Hours(hours, trials)
    start: Found | None = None
    for less in _less_free(policy):
        constants = search_constants(less, hours, trials)
        one = Found(hours[0].deployment(constants.configurations), constants.best.cost)
        judged.cost(one.deployment)
        judged.allowed = max(judged.allowed, judged.shares[constants.configurations])
        start = one if start is None or one.cost < start.cost else start
    if start is None:
        cheapest_uniform(judged)
        if (fewest := min(judged.shares.values(), default=1.0)) > MOST_VIOLATED:
            judged.allowed = fewest + MOST_VIOLATED
            cheapest_uniform(judged)
    elif without_burst(policy) == NAMES[0]:
        _with_standbys(judged, start)
    else:
        _descend(judged, start, without_burst(policy) == NAMES[1])
    configurations, best = judged.best()
    return Constants(configurations, best, tuple(judged.trials.values()), not judged.spent)


def _less_free(policy: str) -> list[str]:
    """Policies whose constants ``policy`` may hold, too: the next coarser one, and the same without standbys."""
    name = without_burst(policy)
    suffix, place = policy.removeprefix(name), NAMES.index(name)
    return ([name] if suffix else []) + ([NAMES[place - 1] + suffix] if place else [])


def _with_standbys(judged: Hours, always: Found) -> None:
    """Uniform configurations that keep λ for less than ``always``, which has none, as many calls at once as there."""
    concurrency, least = next(iter(always.deployment.values())).concurrency, always.cost
    for burst in BURSTS:
        cheapest = cheapest_uniform(judged, burst, least, (concurrency,))
        least = least if cheapest is None else cheapest.cost


def _descend(judged: Hours, start: Found, by_layer: bool) -> None:
    """Until no step of any group is left that keeps λ for less."""
    workload, physics = judged.workload, Physics(judged.workload, judged.requests.most_tokens)
    burst = next(iter(start.deployment.values())).burst
    layers = [[node.function for node in workload.topology.experts(layer)] for layer in range(workload.topology.layers)]
    seconds = judged.hours[0].windows.stop * judged.hours[0].window_s
    plans = [] if workload.host is not None else list(planned_constants(physics, judged.requests, seconds))
    for plan in plans if not by_layer else [_by_layer(workload, plan, layers) for plan in plans]:
        one = {name: replace(configuration, burst=burst) for name, configuration in plan.items()}
        if least_per_hour(judged, one) < start.cost and (cost := judged.cost(one)) is not None and cost < start.cost:
            start = Found(one, cost)
    steps = neighbours(workload) if by_layer else steps_down(workload)
    lowest(judged, start, layers if by_layer else [[name] for name in start.deployment], steps)


def lowest(judged: Hours, start: Found, groups: Sequence[Sequence[str]], steps: Steps) -> Found:
    """``start`` or the cheapest that follows from it by ``steps`` of one of ``groups`` of functions after the other."""
    while not judged.spent and (lower := descended(judged, start, groups, steps)).cost < start.cost:
        start = lower
    return start


def steps_down(workload: Workload) -> Steps:
    """From :func:`evaluation.regimes.search.neighbours` those with the present resource and a replica less, or with the
    next smaller one and as many or one more."""

    every = neighbours(workload)

    def near(functions: Sequence[str], deployment: Deployment) -> Iterator[Configuration]:
        present = deployment[functions[0]]
        for one in every(functions, deployment):
            same = (one.cpu_cores, one.gpu_share) == (present.cpu_cores, present.gpu_share)
            if one.replicas - present.replicas in ((-1,) if same and one.burst == present.burst else (0, 1)):
                yield one

    return near


def _by_layer(workload: Workload, plan: Deployment, layers: Sequence[Sequence[str]]) -> Deployment:
    """Each layer has the most expensive of its experts' configurations."""
    by_layer: dict[str, Configuration] = {}
    for functions in layers:
        largest = max((plan[name] for name in functions), key=pricing(workload))
        by_layer |= dict.fromkeys(functions, largest)
    return by_layer


def _words(key: Sequence[Configuration]) -> str:
    """How many experts have what, as ``40: 2 cores × 1, 4 calls; 8: …``."""
    counts = {one: key.count(one) for one in dict.fromkeys(key)}
    return "; ".join(
        f"{count}: {f'{one.cpu_cores:g} cores' if one.cpu_cores else f'{one.gpu_share:g} GPU'} × {one.replicas}"
        f"{f' + {one.standbys} standbys' if one.burst else ''}, {one.concurrency} calls"
        for one, count in sorted(counts.items(), key=lambda item: -item[1])
    )
