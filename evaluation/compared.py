"""Every policy tuned on validation hours, then all of them on test hours: what ``smoe lab compare`` runs.

Plans are searched for each workload and pattern, settings swept for each workload and pattern (and for those workloads
that are not swept over all that are). Nothing of it looks at a test hour. What is in the folder already is not done
again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from evaluation.comparison.grid import Grid
from evaluation.comparison.run import evaluate, names_of
from evaluation.comparison.tables import rows
from evaluation.processes import worker_processes
from evaluation.tuning.curves import best_so_far
from evaluation.tuning.search import SearchSettings
from evaluation.tuning.searches import CONSTANTS, PLANNED, make_plans
from evaluation.tuning.sweep import candidates_of, sweep

Progress = Callable[[str, int, int], object]
"""What is done, how many steps are, and of how many."""


@dataclass(frozen=True)
class Tuning:
    """How settings and plans are found on validation hours."""

    swept: tuple[str, ...]
    """Workloads that settings are swept on."""
    trials: int
    """Most deployments judged in a search."""
    seconds: float
    """The part of each hour that is most like the whole."""


def compare(
    grid: Grid, tuning: Tuning, out: Path, workers: int, progress: Progress
) -> tuple[list[dict[str, Any]], Grid, dict[str, str]]:
    """Summaries of the tuned policies on the test hours, the grid they ran with, and what was left out (a group, a
    policy in it, or a plan, by name), each with the reason. Raises what an evaluation raises."""
    plans, settings, workers = out / "plans", out / "settings", workers or os.cpu_count() or 1
    short = replace(grid, seconds=min(grid.seconds, tuning.seconds))
    refused: dict[str, str] = {}
    tasks = [(one, plans, tuning.trials) for one in searches_of(short)]
    workers_of_plans = min(workers, len(tasks))
    with worker_processes(workers_of_plans) if workers_of_plans > 1 else nullcontext() as pool:
        for done, left_out in enumerate(map(_planned, tasks) if pool is None else pool.map(_planned, tasks)):
            refused |= left_out
            progress("plans", done + 1, len(tasks))
    planned, tuned = replace(short, plans=plans), replace(grid, plans=plans, settings=settings)
    total = len(tuning.swept) * sum(len(candidates_of(policy)) for policy in grid.policies)
    swept = replace(planned, workloads=tuning.swept)
    chosen = sweep(swept, settings, lambda name, done: progress(f"settings: {name}", done, total), workers)
    for one in chosen:
        if not one.judged:
            refused[f"{one.policy}.{one.workload}"] = "untuned: no validation hour can be measured"
    runs, ended = len(list(tuned.groups())) * len(names_of(tuned)), list[int]()

    def on_runs(what: str, more: int) -> None:
        ended.append(more)
        progress(f"test hours: {what}", sum(ended), runs)

    return evaluate(tuned, out, workers, on_runs, refused), tuned, refused


def searches_of(grid: Grid) -> Iterator[Grid]:
    """Parts of the grid that are searched independently of each other."""
    for workload in grid.workloads:
        for pattern in grid.patterns:
            for family in (CONSTANTS, *((name,) for name in PLANNED)):
                if policies := tuple(name for name in grid.policies if name in family):
                    yield replace(grid, workloads=(workload,), patterns=(pattern,), policies=policies)


def _planned(task: tuple[Grid, Path, int]) -> dict[str, str]:
    """What was left out."""
    grid, out, trials = task
    refused: dict[str, str] = {}
    settings = SearchSettings(trials, least_trials=min(trials, SearchSettings.least_trials))
    make_plans(grid, out, settings, refused=refused)
    return refused


def result_of(
    grid: Grid, summaries: Sequence[Mapping[str, Any]], refused: Mapping[str, str], out: Path
) -> dict[str, Any]:
    """As one JSON object: ``cells`` (rows of the table), ``policies``, ``beyond_cluster`` (runs that ordered more than
    there is), ``refused``, ``searches``, ``trace_measured``."""
    return {
        "cells": [json.loads(json.dumps(asdict(row))) for row in rows(summaries)],
        "policies": list(grid.policies),
        "beyond_cluster": sum(bool(summary.get("beyond_cluster")) for summary in summaries),
        "refused": dict(refused),
        "searches": searches(out / "plans"),
        "trace_measured": all(summary.get("trace_measured", True) for summary in summaries),
    }


def searches(plans: Path) -> dict[str, dict[str, Any]]:
    """Each search in a folder of plans: how many trials, and whether it converged."""
    summary_of = {}
    for path in sorted(plans.glob("*.csv")):
        plan = next(iter(sorted(plans.glob(f"{path.stem}.*.json"))), None)
        made_by = json.loads(plan.read_text())["made_by"] if plan else {}
        summary_of[path.stem] = {"trials": len(best_so_far(path)), "converged": made_by.get("converged")}
    return summary_of
