"""Plans of the policies that hold one, searched on validation hours and built for each seed's own profile.

A seed has its own popularity of experts, in every set of hours. What is searched, for each workload and pattern, are
the parameters of a deployment on the validation hours of the first seeds; then every seed gets the deployment that
these parameters make of its own validation hour's profile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import optuna

from autoscaler.policy.hpa import HpaSettings, hpa_of_windows
from autoscaler.stored_deployment import Plan, save_plan
from evaluation.bound.loads import WindowLoad, windows
from evaluation.comparison.episode import Work, prepare
from evaluation.comparison.errors import EvaluationError
from evaluation.comparison.grid import BURST_SUFFIX, Grid, Group, stem
from evaluation.tuning.constants import NAMES, Constants, Hour, hour_of, search_constants
from evaluation.tuning.deployments import AXES, Deployments, Parameters
from evaluation.tuning.outcomes import Replay, tail_s
from evaluation.tuning.search import Found, SearchSettings, search, write_trials

Made = TypeVar("Made")


class Planned(NamedTuple):
    """How the plan of a policy is searched."""

    axes: tuple[str, ...]
    seeds: int
    """So many of the first seeds' validation hours are searched on."""


PLANNED = {"serverlessmoe": Planned(AXES, 2), "tuned-hpa": Planned(("compute", "concurrency"), 1)}
"""Policies whose plan is made for a profile. The tuned HPA's replicas are its own; simulating it costs ten times as
much."""
CONSTANTS = (*NAMES, *(name + BURST_SUFFIX for name in NAMES))
"""Policies whose plan is a best constant."""
SEEDS = 2
"""So many of the first seeds' validation hours constants are searched on."""
HOURS_KEPT = 12
"""Hours that stay in memory with the outcomes of what was judged on them: those of ten seeds, so that writing one
search's plans does not lose what the next one starts from."""
METHOD = "optuna TPE with random and local trials around separable optima"
CONSTANT_METHOD = "bisection over uniform configurations, then descent"
PROFILING_WINDOWS = 12


@dataclass(frozen=True, eq=False)
class Profile:
    """An hour: what deployments are made for, and what they are judged on."""

    deployments: Deployments
    replay: Replay

    def outcome(self, parameters: Parameters, hpa: HpaSettings | None) -> tuple[float, list[float]]:
        """(cost, P95 of each judged window); infinite and none where the cluster has no room for it."""
        deployment = self.deployments.build(parameters)
        if not self.replay.fits(deployment):
            return np.inf, []
        return self.replay.static(deployment) if hpa is None else self.replay.with_hpa(deployment, hpa)


def make_plans(
    grid: Grid,
    out: Path,
    settings: SearchSettings,
    refused: dict[str, str] | None = None,
) -> dict[str, Found | Constants]:
    """``POLICY.WORKLOAD.PATTERN.SEED.json`` in ``out`` for the policies of ``grid`` that hold a plan, and the trials of
    each search next to them as ``POLICY.WORKLOAD.PATTERN.csv``.

    Provisioned meter; input size the first of ``grid``. Searches whose plans are all there are not done again. Returns
    the new ones. Raises what an evaluation raises; with ``refused`` given, a plan for whose hours nothing can be
    measured (EvaluationError) is left out, and its name and the reason put there; so is that of a single seed.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    results: dict[str, Found | Constants] = {}
    for workload in grid.workloads:
        for pattern in grid.patterns:
            for policy in (*PLANNED, *CONSTANTS):
                name = stem(policy, workload, pattern)
                cell = Group(workload, pattern, grid.tokens[0], 0)
                if policy not in grid.policies:
                    continue
                missing = _missing(grid, cell, [_path(out, name, seed) for seed in grid.seeds], refused)
                if not missing:
                    continue
                try:
                    results[name] = (_search if policy in PLANNED else _constants)(grid, policy, cell, settings)
                    write_trials(results[name].trials, out / f"{name}.csv")
                    for seed in missing:
                        _store(grid, policy, replace(cell, seed=seed), results[name], out)
                except EvaluationError as error:
                    if refused is None:
                        raise
                    refused[name] = str(error)
    return results


def _missing(grid: Grid, cell: Group, paths: Sequence[Path], refused: dict[str, str] | None) -> list[int]:
    """Seeds without a plan in ``paths``; with ``refused`` given, those whose own validation hour can be measured: the
    names of the others' plans and the reasons are put there."""
    missing = [(seed, path) for seed, path in zip(grid.seeds, paths, strict=True) if not path.is_file()]
    if refused is None:
        return [seed for seed, _ in missing]
    reasons = {path: refusal_of(_validation(grid), replace(cell, seed=seed)) for seed, path in missing}
    refused.update({path.stem: reason for path, reason in reasons.items() if reason})
    return [seed for seed, path in missing if not reasons[path]]


@lru_cache(maxsize=HOURS_KEPT)
def refusal_of(grid: Grid, group: Group) -> str:
    """Why nothing can be measured in an hour; empty where it can."""
    try:
        prepare(grid, group)
    except EvaluationError as error:
        return str(error)
    return ""


def _constants(grid: Grid, policy: str, cell: Group, settings: SearchSettings) -> Constants:
    hours = _measurable(lambda seed: prepared_hour(_validation(grid), replace(cell, seed=seed)), grid.seeds[:SEEDS])
    return search_constants(policy, hours, settings.trials)


def _validation(grid: Grid) -> Grid:
    """The same for all policies."""
    return replace(grid, split="validation", policies=("static",), plans=None, settings=None)


@lru_cache(maxsize=HOURS_KEPT)
def prepared_hour(grid: Grid, group: Group) -> Hour:
    return hour_of(prepare(grid, group))


def _measurable(make: Callable[[int], Made], seeds: Sequence[int]) -> list[Made]:
    """What ``make`` returns for the seeds for which it does. Raises its EvaluationError where there is none."""
    every, errors = [], []
    for seed in seeds:
        try:
            every.append(make(seed))
        except EvaluationError as error:
            errors.append(error)
    if not every:
        raise errors[0]
    return every


def _search(grid: Grid, policy: str, cell: Group, settings: SearchSettings) -> Found:
    """``cell``: a group of the wanted workload and pattern."""
    axes, seeds = PLANNED[policy]
    validation = _validation(grid)
    profiles = _measurable(lambda seed: profile(validation, replace(cell, seed=seed), axes), grid.seeds[:seeds])
    workload = profiles[0].replay.workload
    hpa = None
    if policy == "tuned-hpa":
        hpa = HpaSettings(kinds=frozenset(("expert",)), max_replicas=workload.space.replicas_max)
        hpa = replace(hpa, **hpa_of_windows(grid.window_s)) if grid.speed > 1 else hpa

    def outcome(parameters: Parameters) -> tuple[float, float]:
        parts = [one.outcome(parameters, hpa) for one in profiles]
        # Where λ is relative each hour has its own, and a tail is given in seconds of the first hour's.
        scales = [workload.slo_s / one.replay.workload.slo_s for one in profiles]
        values = [scale * value for scale, (_, values) in zip(scales, parts, strict=True) for value in values]
        return sum(cost for cost, _ in parts), tail_s(values)

    first = profiles[0].deployments
    return search(first.spans, outcome, workload.slo_s, settings, first.words)


def profile(grid: Grid, group: Group, axes: tuple[str, ...] = AXES) -> Profile:
    """Stretches of the group's hour: its median and its busiest stretch of ``PROFILING_WINDOWS`` windows."""
    work = prepare(grid, group)
    seconds = work.arrivals.seconds
    replay = Replay(
        work.workload, work.requests, grid.window_s, seconds, grid.warm_up_windows, "provisioned", group.seed
    )
    return Profile(Deployments(_stretches(work, PROFILING_WINDOWS * grid.window_s), axes=axes), replay)


def _stretches(work: Work, stretch_s: float) -> tuple[WindowLoad, ...]:
    """The median and the busiest stretch with requests, which may be the same."""
    seconds = work.arrivals.seconds
    every = windows(work.physics, work.requests, min(stretch_s, seconds), seconds)
    loads = sorted((load for load in every if load.count), key=lambda load: load.count)
    if not loads:
        raise EvaluationError(f"{work.requests.source}: no request to profile with")
    return loads[(len(loads) - 1) // 2], loads[-1]


def _store(grid: Grid, policy: str, group: Group, result: Found | Constants, out: Path) -> None:
    if isinstance(result, Constants):
        hour = prepared_hour(_validation(grid), group)
        requests, chosen, words = hour.work.requests, hour.deployment(result.configurations), result.best.words
    else:
        one = profile(_validation(grid), group, PLANNED[policy].axes)
        requests, chosen = one.replay.requests, one.deployments.build(result.parameters)
        words = one.deployments.words(result.parameters)
    about: dict[str, object] = {
        "method": METHOD if policy in PLANNED else CONSTANT_METHOD,
        "policy": policy,
        "workload": group.workload,
        "pattern": group.pattern,
        "seed": group.seed,
        "profile": requests.source,
        "words": words,
        "trials": len(result.trials),
        "converged": result.converged,
    }
    save_plan(Plan(group.workload, chosen, about), _path(out, stem(policy, group.workload, group.pattern), group.seed))


def _path(out: Path, name: str, seed: int) -> Path:
    return out / f"{name}.{seed}.json"
