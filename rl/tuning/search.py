"""Bayesian optimisation of a deployment on a profiling window: the paper's ServerlessMoE, and the HPA's other axes.

ServerlessMoE (arXiv 2501.05313) predicts which experts tokens will choose, optimises the deployment with Bayesian
optimisation and never changes it. No code of it was found, so this is an adaptation to Φ: experts are put into groups
by their tokens in the profiling window, every group has a compute, replicas and a concurrency, memory is the least of
Eq. (2); a tree-structured Parzen estimator (optuna) proposes, the simulator judges. Some trials are drawn at random, as
in that paper's ε-greedy exploration, and some change one axis of the best so far.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
import optuna

from autoscaler.contract import Configuration
from autoscaler.decision.limits import LimitSettings
from autoscaler.plan import Plan
from autoscaler.policy.hpa import HpaSettings
from autoscaler.policy.vertical import VerticalHpaPolicy
from rl.bound.loads import Meter, WindowLoad, peak_tokens
from rl.bound.oracle import simulate
from rl.sim.play import play
from rl.sim.simulation import Simulation

Outcome = Callable[[Mapping[str, Configuration]], tuple[float, float]]
"""Function → configuration of every expert to (cost, P95 in seconds)."""


@dataclass(frozen=True)
class SearchSettings:
    """How a search is done."""

    trials: int = 200
    groups: int = 4
    """Groups of experts by popularity, equally many in each."""
    penalty: float = 10.0
    """Cost of a P95 of twice the SLO, in costs of the same configurations."""
    explore: float = 0.1
    """Share of trials drawn at random."""
    refine: float = 0.4
    """Share of trials that take the best so far and change one axis of one group by a step."""
    seed: int = 0


@dataclass(frozen=True)
class Trial:
    """One deployment that was judged."""

    number: int
    cost: float
    p95_s: float
    meets: bool
    objective: float
    groups: str
    """``compute/replicas x concurrency`` of each group, least popular first."""


@dataclass(frozen=True)
class Found:
    """The best deployment: the cheapest that meets the SLO, else the one with the least objective."""

    configurations: Mapping[str, Configuration]
    best: Trial
    trials: tuple[Trial, ...]

    def plan(self, pipeline: str, method: str, about: Mapping[str, object]) -> Plan:
        """To be stored (``autoscaler.plan``)."""
        return Plan(pipeline, self.configurations, {"method": method, **about, **asdict(self.best)})


def search(
    load: WindowLoad,
    outcome: Outcome,
    settings: SearchSettings | None = None,
    on_trial: Callable[[Trial], object] = lambda trial: None,
) -> Found:
    """The best deployment of the experts by ``outcome`` over a profiling window. Same settings, same result."""
    chosen = settings or SearchSettings()
    slo_s = load.physics.workload.slo_s
    groups = popularity_groups(load, chosen.groups)
    sampler = optuna.samplers.TPESampler(seed=chosen.seed, multivariate=True)
    study = optuna.create_study(sampler=sampler)
    rng = random.Random(chosen.seed)
    trials: list[Trial] = []
    deployments: list[dict[str, Configuration]] = []

    def judge(trial: optuna.Trial) -> float:
        picks = [_picks(trial, load, group) for group in range(len(groups))]
        deployment = deploy(load, groups, picks)
        cost, p95_s = outcome(deployment)
        objective = cost * (1 + chosen.penalty * max(0.0, p95_s / slo_s - 1)) if np.isfinite(cost + p95_s) else 1e30
        trials.append(Trial(trial.number, cost, p95_s, p95_s <= slo_s, objective, _words(load, picks)))
        deployments.append(deployment)
        on_trial(trials[-1])
        return objective

    for number in range(chosen.trials):
        draw = rng.random()
        if number < len(_EVEN) or draw < chosen.explore:
            study.enqueue_trial(_given(load, len(groups), number, rng))
        elif draw < chosen.explore + chosen.refine:
            study.enqueue_trial(_beside(study.best_params, load, rng))
        study.optimize(judge, n_trials=1, catch=())
    best = min(
        trials, key=lambda trial: (not trial.meets, trial.cost if trial.meets else trial.objective, trial.number)
    )
    return Found(deployments[best.number], best, tuple(trials))


def popularity_groups(load: WindowLoad, count: int) -> list[list[str]]:
    """Functions of the experts in groups by their tokens in the window, fewest first; no group is empty."""
    nodes = [node for layer in load.physics.layers for node in layer]
    tokens = [int(load.tokens(1 + e).sum(dtype=np.int64)) for e in range(len(nodes))]
    order = np.argsort(tokens, kind="stable")
    parts = np.array_split(order, min(count, len(nodes)))
    return [[nodes[int(e)].function for e in part] for part in parts]


def deploy(
    load: WindowLoad, groups: Sequence[Sequence[str]], picks: Sequence[tuple[int, int, int]]
) -> dict[str, Configuration]:
    """Configurations of all experts. ``picks``: resource number, replicas and concurrency of each group."""
    space, physics = load.physics.workload.space, load.physics
    pick_of = {function: pick for group, pick in zip(groups, picks, strict=True) for function in group}
    until = np.searchsorted(load.arrival_s, load.arrival_s + physics.workload.slo_s, side="right")
    found = {}
    for e, node in enumerate(node for layer in physics.layers for node in layer):
        resource, replicas, concurrency = pick_of[node.function]
        cores, share = space.resources[resource]
        need = physics.workload.memory_need(node, peak_tokens(load.tokens(1 + e), until))
        memory_mb = max(space.least_memory_mb(need, replicas) or space.memory_max_mb, _for_cores(load, cores))
        found[node.function] = Configuration(memory_mb, cores, share, replicas, concurrency)
    return found


def static_outcome(load: WindowLoad, meter: Meter, seed: int) -> Outcome:
    """ServerlessMoE's: the deployment stays as it is over the profiling window."""
    return lambda deployment: simulate(load, deployment, meter, seed)


def hpa_outcome(
    load: WindowLoad, meter: Meter, seed: int, hpa: HpaSettings, window_s: float, warm_up_windows: int = 2
) -> Outcome:
    """The tuned HPA's: it starts with the deployment's replicas and then scales them, a decision every ``window_s``."""
    workload = load.physics.workload
    limits = LimitSettings(space=workload.space, alpha=workload.alpha, runtime_mb=workload.runtime_mb)
    experts = {node.id for node in workload.experts}

    def outcome(deployment: Mapping[str, Configuration]) -> tuple[float, float]:
        start = {**workload.initial(next(iter(deployment.values()))), **deployment}
        simulation = Simulation(workload, load.requests, start, seed=seed)
        policy = VerticalHpaPolicy("tuned-hpa", deployment, hpa)
        steps = play(simulation, policy, limits, window_s=window_s, until_s=load.window_s)[warm_up_windows:]
        costs = [getattr(step.report.cost_by_node[node], meter) for step in steps for node in experts]
        latency = np.concatenate([step.window.latency_s for step in steps]) if steps else np.zeros(0)
        if any(cost is None for cost in costs) or not latency.size:
            return np.inf, np.inf
        waiting = steps[-1].window.in_flight
        every = np.concatenate([latency, np.full(waiting, np.inf)]) if waiting > 0.05 * latency.size else latency
        return float(sum(costs)), float(np.quantile(every, 0.95, method="higher"))

    return outcome


def write_trials(trials: Sequence[Trial], path: Path) -> None:
    """The sweep as CSV, one line a trial."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [entry.name for entry in fields(Trial)])
        writer.writeheader()
        writer.writerows(asdict(trial) for trial in trials)


_EVEN = (0.0, 0.5, 1.0)
"""The first trials: every group the least, the middle and the most of each axis."""


def _picks(trial: optuna.Trial, load: WindowLoad, group: int) -> tuple[int, int, int]:
    space = load.physics.workload.space
    return (
        trial.suggest_int(f"resource-{group}", 0, len(space.resources) - 1),
        trial.suggest_int(f"replicas-{group}", space.replicas_min, space.replicas_max),
        trial.suggest_int(f"concurrency-{group}", space.concurrency_min, space.concurrency_max),
    )


def _given(load: WindowLoad, groups: int, number: int, rng: random.Random) -> dict[str, int]:
    """Parameters of an even trial, later of a random one."""
    space = load.physics.workload.space
    axes = {
        "resource": range(len(space.resources)),
        "replicas": space.replica_counts,
        "concurrency": space.concurrencies,
    }
    return {
        f"{axis}-{group}": values[round(_EVEN[number] * (len(values) - 1))]
        if number < len(_EVEN)
        else rng.choice(values)
        for group in range(groups)
        for axis, values in axes.items()
    }


def _beside(best: Mapping[str, int], load: WindowLoad, rng: random.Random) -> dict[str, int]:
    """``best`` with one parameter a step up or down, inside the space."""
    space = load.physics.workload.space
    ends = {
        "resource": (0, len(space.resources) - 1),
        "replicas": (space.replicas_min, space.replicas_max),
        "concurrency": (space.concurrency_min, space.concurrency_max),
    }
    name = rng.choice(sorted(best))
    low, high = ends[name.split("-")[0]]
    return {**best, name: min(max(best[name] + rng.choice((-1, 1)), low), high)}


def _for_cores(load: WindowLoad, cores: float) -> int:
    """Least memory of the space that lets a replica have its cores, in coupled mode."""
    per_core, sizes = load.physics.workload.memory_mb_per_core, load.physics.workload.space.memory_sizes_mb
    return next((size for size in sizes if size >= cores * (per_core or 0.0)), sizes[-1])


def _words(load: WindowLoad, picks: Sequence[tuple[int, int, int]]) -> str:
    resources = load.physics.workload.space.resources
    names = [(f"{resources[r][1]:g}gpu" if resources[r][1] else f"{resources[r][0]:g}cpu", p, c) for r, p, c in picks]
    return " ".join(f"{name}/{p}x{c}" for name, p, c in names)
