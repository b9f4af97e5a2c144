"""All groups of a grid over the cores, each in a process of its own; what is stored already is not run again."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from autoscaler.errors import SettingsError
from evaluation.bound.errors import BoundError
from evaluation.comparison.episode import BOUND, prepare, run_bound, run_policy
from evaluation.comparison.errors import EvaluationError
from evaluation.comparison.grid import Grid, Group
from evaluation.comparison.store import load_run, otherwise, path_of, save_run
from evaluation.processes import run_tasks

log = logging.getLogger("smoe.evaluate")

Summary = dict[str, Any]


class GroupRuns(NamedTuple):
    """One group: its runs in order, and why a policy (its name) cannot serve it, or there is no bound."""

    summaries: list[Summary]
    refused: dict[str, str]
    otherwise: set[str]
    """How stored runs were made that were simulated again for it."""


def evaluate(
    grid: Grid,
    out: Path,
    workers: int = 0,
    progress: Callable[[str, int], object] = lambda what, runs: None,
    refused: dict[str, str] | None = None,
) -> list[Summary]:
    """Summaries of every run of ``grid``, in its order. ``progress`` gets what is under way, or a group that is done,
    and how many more runs are (in all, :func:`names_of` each group); groups in other processes report when they end.

    ``workers`` 0: one a core. A group that nothing can be measured with, or a policy that cannot serve it, ends the
    evaluation, once the groups under way have ended; what they stored stays. With ``refused`` given it is left out
    instead, its key (``GROUP`` or ``GROUP.POLICY``) and the reason put there; so is the bound where there is none.
    Stored runs of other code or prices are simulated again, which is logged once. Raises what else a group raises.
    """
    groups = list(grid.groups())
    workers = min(workers or os.cpu_count() or 1, len(groups))
    left = dict.fromkeys(groups, len(names_of(grid)))

    def on_run(group: Group, name: str, runs: int) -> None:
        left[group] -= runs
        progress(f"{group.key}.{name}", runs)

    results, logged = dict[Group, list[Summary]](), set[str]()

    def take(group: Group, run: Callable[[], GroupRuns]) -> None:
        try:
            runs = run()
            for how in runs.otherwise - logged:
                log.warning("%s: stored runs were made %s; they are simulated again", out, how)
            logged.update(runs.otherwise)
            if refused is None and runs.refused:
                raise EvaluationError(next(iter(runs.refused.values())))
            if refused is not None:
                refused.update({f"{group.key}.{policy}": why for policy, why in runs.refused.items()})
            results[group] = runs.summaries
        except EvaluationError as error:
            if refused is None:
                raise
            refused[group.key] = str(error)
        progress(group.key, left[group])

    here = {"on_run": on_run} if workers <= 1 else {}
    run_tasks(workers, {group: partial(run_group, grid, group, out, **here) for group in groups}, take)
    return [summary for group in groups for summary in results.get(group, ())]


def names_of(grid: Grid) -> list[str]:
    """What every group runs: the bound, if it is asked for, and the policies."""
    return ([BOUND] if grid.bound else []) + list(grid.policies)


def run_group(
    grid: Grid, group: Group, out: Path, on_run: Callable[[Group, str, int], object] = lambda *_: None
) -> GroupRuns:
    """The group's runs, from disk where they are there already; ``on_run`` gets each name before it runs, with how many
    runs ended since the last. Raises EvaluationError and what its parts raise."""
    work = prepare(grid, group)
    runs = GroupRuns([], {}, set())
    for place, name in enumerate(names_of(grid)):
        on_run(group, name, min(place, 1))
        path = path_of(out, group, name)
        made_by = grid.made_by(group.workload, name)
        fingerprint = grid.fingerprint(group, name, work.requests.sha256)
        stored = load_run(path, fingerprint)
        if stored is None:
            runs.otherwise.update(filter(None, [otherwise(path, made_by)]))
            try:
                summary, windows = (run_bound(work), None) if name == BOUND else run_policy(grid, work, name)
            except BoundError as error:
                runs.refused[name] = str(error)
                continue
            except SettingsError as error:
                runs.refused[name] = f"{group.workload}: {error}"
                continue
            stored = {**summary, **made_by, "fingerprint": fingerprint}
            save_run(path, stored, windows)
        runs.summaries.append(stored)
    return runs
