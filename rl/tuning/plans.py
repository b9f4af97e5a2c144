"""Plans of the baselines that hold one, searched on the beginning of a validation hour of every workload."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import optuna

from autoscaler.plan import save_plan
from autoscaler.policy.hpa import HpaSettings
from rl.bound.loads import WindowLoad, windows
from rl.bound.physics import Physics
from rl.evaluate.episode import prepare
from rl.evaluate.grid import Grid, file_name
from rl.tuning.search import Outcome, SearchSettings, Trial, hpa_outcome, search, static_outcome, write_trials

PLANNED = ("serverlessmoe", "tuned-hpa")
PROFILING_WINDOWS = 12


def make_plans(
    grid: Grid, out: Path, trials: int, progress: Callable[[str, int], object] = lambda what, trial: None
) -> dict[str, Trial]:
    """``POLICY.WORKLOAD.json`` and the trials beside it in ``out``, for the policies of ``grid`` that hold a plan.

    Profiled on ``PROFILING_WINDOWS`` windows of the first pattern's first validation hour, provisioned meter. Plans
    that are there stay. Returns the best trial of each new plan. Raises what an evaluation raises.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    found: dict[str, Trial] = {}
    for workload in grid.workloads:
        wanted = [name for name in PLANNED if name in grid.policies and not _path(out, name, workload).is_file()]
        if not wanted:
            continue
        one = replace(grid, split="validation", workloads=(workload,), seeds=grid.seeds[:1], tokens=grid.tokens[:1])
        load = _load(replace(one, patterns=one.patterns[:1]))
        for policy in wanted:
            outcome = _outcome(policy, load, grid)
            settings = SearchSettings(trials=trials, seed=grid.seeds[0])
            result = search(load, outcome, settings, lambda trial, name=policy: progress(name, trial.number))  # type: ignore[misc]
            about: dict[str, object] = {"policy": policy, "workload": workload, "trace": load.requests.source}
            write_trials(result.trials, _path(out, policy, workload).with_suffix(".csv"))
            save_plan(
                result.plan(workload, "optuna TPE with random and local trials", about), _path(out, policy, workload)
            )
            found[f"{policy}.{workload}"] = result.best
    return found


def _load(grid: Grid) -> WindowLoad:
    work = prepare(grid, next(grid.groups()))
    profiling_s = min(PROFILING_WINDOWS * grid.window_s, work.arrivals.seconds)
    physics = Physics(work.workload, work.requests.most_tokens)
    return max(windows(physics, work.requests, profiling_s, work.arrivals.seconds), key=lambda load: load.count)


def _outcome(policy: str, load: WindowLoad, grid: Grid) -> Outcome:
    if policy == "serverlessmoe":
        return static_outcome(load, "provisioned", grid.seeds[0])
    hpa = HpaSettings(kinds=frozenset(("expert",)), max_replicas=load.physics.workload.space.replicas_max)
    return hpa_outcome(load, "provisioned", grid.seeds[0], hpa, grid.window_s)


def _path(out: Path, policy: str, workload: str) -> Path:
    return out / f"{file_name(policy)}.{workload}.json"
