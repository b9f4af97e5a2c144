"""Every baseline's own settings, tried on validation hours: the cheapest that keeps the SLO often enough is kept.

For each workload by itself, over all patterns and under each of them (as plans are searched), and once for all
workloads, for those that were not swept. A sweep looks at validation hours only
(:attr:`evaluation.comparison.grid.Grid.split`); every trial is recorded. Candidates are Knative's, KEDA's and
Kubernetes' defaults first, then ever stronger reactions: where a call takes milliseconds, a replica that is loaded as
it should be uses a hundredth of its slots.
"""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from evaluation.comparison.grid import Grid, file_name, without_burst
from evaluation.comparison.run import evaluate
from evaluation.comparison.tables import runs_of
from evaluation.processes import worker_processes
from evaluation.tuning.constants import BURSTS, LEAN, NAMES
from evaluation.tuning.outcomes import MOST_VIOLATED

SWEEP_SEEDS = 2
"""So many of the first seeds' validation hours of each pattern are swept on."""

ALL = "all"
Setting = Mapping[str, Any]


def _grid(**axes: Sequence[Any]) -> list[Setting]:
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


_USED = (0.7, 0.3, 0.1, 0.03, 0.01, 0.003)
"""Shares of a replica's slots that calls use, from the usual default down."""
_HPA = _grid(concurrency_target=_USED, down_stabilisation_s=(300.0, 60.0), period_s=(15.0,))
CANDIDATES: Mapping[str, Sequence[Setting]] = {
    "hpa": _HPA,
    "tuned-hpa": _HPA,
    "openfaas": _HPA,
    "vpa": [
        {"margin": margin, **dict.fromkeys(("half_life_s", "confidence_s", "settled_s"), memory_s), **replicas}
        for replicas in ({}, {"with_hpa": True, "hpa": {"cpu_target": 0.0, "concurrency_target": 0.1}})
        for memory_s in (86400.0, 300.0)
        for margin in (0.15, 1.0, 3.0)
    ],
    "kpa": _grid(target_utilisation=_USED, scale_down_delay_s=(0.0, 300.0)),
    "keda": [
        {"triggers": [{"metric": "in_flight", "threshold": threshold}], "down_stabilisation_s": down_s}
        for threshold in (2.8, 1.0, 0.3, 0.1, 0.03, 0.01)
        for down_s in (300.0, 60.0)
    ],
    "apa": _grid(target=_USED, down_cooldown_s=(300.0, 60.0)),
    "slo-aware": [
        {"up_threshold": up, "down_threshold": 0.73 * up, "down_stabilisation_s": down_s}
        for up in (0.55, 0.9, 0.8, 0.7, 0.4, 0.3)
        for down_s in (180.0, 60.0)
    ],
    "elasticmoe": [
        {"utilisation": utilisation, "class_windows": windows, "classes": [{kind: size} for size in sizes]}
        for utilisation, windows in ((0.7, 3), (0.2, 3), (0.7, 1))
        for kind, sizes in (
            ("cpu_cores", (1.0, 2.0, 4.0)),
            ("cpu_cores", (4.0, 5.0, 6.0)),
            ("gpu_share", (0.1, 0.1, 0.2)),
            ("gpu_share", (0.1, 0.2, 0.3)),
            ("gpu_share", (0.2, 0.2, 0.3)),
            ("gpu_share", (0.2, 0.3, 0.4)),
        )
    ],
    "last-window": _grid(
        headroom=(1.0, 0.8, 0.6, 0.4, 0.3, 0.27, 0.25, 0.23, 0.21, 0.19, 0.17, 0.15), load_factor=(1.0, 2.0)
    ),
    "janus": _grid(headroom=(0.9, 0.7, 0.5), load_factor=(1.1, 1.6)),
    "staffing": [
        {**plan, "standbys": standbys, "spare": spare, "hold_s": hold_s, "look_back_s": look_back_s}
        for plan in (
            *_grid(load=(1.0, 0.5, 0.1), budget=(1.0, 0.5, 0.25), sleep_s=(60.0,)),
            *_grid(load=(0.1,), budget=(1.0, 0.5), sleep_s=(2.0,)),
        )
        for standbys in (4.0, 8.0)
        for spare, hold_s, look_back_s in LEAN
    ][::3],
}


_STANDBYS = [{"burst": {key: value for key, value in asdict(burst).items() if value is not None}} for burst in BURSTS]
_SOME_STANDBYS = [_STANDBYS[place] for place in (1, 6, 9, 11, 13, 15, 18, 21)]
"""Some of each part: every number of standbys, headroom or spare, hold, and seconds until replicas sleep."""


def candidates_of(policy: str) -> Sequence[Setting]:
    """Settings that are tried: with standbys six of the policy's without, each with eight rules, about as many as of
    ``staffing``; all rules where it has no settings. None for policies that are not swept: constants' standbys are in
    their plans."""
    base = without_burst(policy)
    if base == policy or base in NAMES:
        return CANDIDATES.get(policy, ())
    settings = CANDIDATES.get(base)
    if settings is None:
        return _STANDBYS
    return [{**setting, **rule} for setting in _some(settings) for rule in _SOME_STANDBYS]


def _some(settings: Sequence[Setting]) -> list[Setting]:
    """Six from end to end. Every other one is taken one later: the last axis has two levels, and even steps would
    always meet the same."""
    last = len(settings) - 1
    places = {min(last, number * len(settings) // 6 + number % 2) for number in range(6)}
    return [setting for place, setting in enumerate(settings) if len(settings) <= 6 or place in places]


@dataclass(frozen=True)
class Swept:
    """One setting of one policy on the validation hours of one workload, or of all, under one pattern, or all."""

    policy: str
    workload: str
    """``ALL``: of all together."""
    setting: Setting
    cost: float
    """Provisioned, experts, summed over the hours."""
    violated: int
    judged: int
    """Windows over the SLO, and windows that could be judged."""
    pattern: str = ALL

    @property
    def share(self) -> float:
        return self.violated / self.judged if self.judged else 1.0


def best(trials: Sequence[Swept]) -> Swept:
    """The cheapest of those that keep the SLO; where none does, of those that break it in hardly more windows than the
    one that does so in the fewest (by the same share that keeping it may miss): a last window is not bought at any
    price."""
    trials = [trial for trial in trials if math.isfinite(trial.cost)] or trials  # those that no hour refused
    fewest = min(trial.share for trial in trials)
    most = MOST_VIOLATED if fewest <= MOST_VIOLATED else fewest + MOST_VIOLATED
    return min((trial for trial in trials if trial.share <= most), key=lambda trial: trial.cost)


def sweep(
    grid: Grid,
    out: Path,
    progress: Callable[[str, int], object] = lambda what, trials: None,
    workers: int = 1,
) -> list[Swept]:
    """The best setting of each policy of ``grid`` that has candidates, for each workload, over all of its patterns and
    under each, and for all workloads.

    All settings of a policy on a workload are simulated in one process; ``workers``: so many of them at once.
    ``progress`` gets what was tried last and how many settings are done. ``POLICY.WORKLOAD.PATTERN.toml``,
    ``POLICY.WORKLOAD.toml``, ``POLICY.toml`` and ``sweep.csv`` go to ``out``, which is then a folder of policies'
    settings. Runs that are stored there are not simulated again; hours that nothing can be measured with are left out.
    Raises what else an evaluation raises.
    """
    validation = replace(grid, split="validation", bound=False, seeds=grid.seeds[:SWEEP_SEEDS])
    policies = [policy for policy in grid.policies if candidates_of(policy)]
    for policy in policies:
        for number, setting in enumerate(candidates_of(policy)):
            write_setting(_trial(out, policy, number), file_name(policy), setting)
    tasks = [
        (replace(validation, workloads=(workload,)), policy, out) for policy in policies for workload in grid.workloads
    ]
    workers, done = min(workers, len(tasks)), 0
    parts: dict[str, list[list[Swept]]] = {policy: [] for policy in policies}
    with worker_processes(workers) if workers > 1 else nullcontext() as pool:
        tried = map(_tried, tasks) if pool is None else pool.map(_tried, tasks)
        for (one, policy, _), swept in zip(tasks, tried, strict=True):
            parts[policy].append(swept)
            done += len(candidates_of(policy))
            progress(f"{policy} on {one.workloads[0]}", done)
    trials: list[Swept] = []
    chosen: list[Swept] = []
    for every in parts.values():
        for candidate in [*(part for swept in every for part in _parts(swept)), _together(every)]:
            trials += candidate
            if candidate[0].pattern == ALL or any(one.judged for one in candidate):
                chosen.append(best(candidate))
                write_setting(out, _name(chosen[-1]), chosen[-1].setting)
    _record(out / "sweep.csv", trials, chosen)
    return chosen


def _name(swept: Swept) -> str:
    parts = (file_name(swept.policy), swept.workload, swept.pattern)
    return ".".join(part for part in parts if part != ALL)


def _parts(swept: Sequence[Swept]) -> list[list[Swept]]:
    """By pattern."""
    return [[one for one in swept if one.pattern == pattern] for pattern in dict.fromkeys(one.pattern for one in swept)]


def _trial(out: Path, policy: str, number: int) -> Path:
    """Folder of a candidate: its setting, and its runs."""
    return out / "trials" / f"{file_name(policy)}-{number}"


def _tried(task: tuple[Grid, str, Path]) -> list[Swept]:
    """Every candidate of a policy on the validation hours of one workload, over all patterns and, of several, under
    each."""
    validation, policy, out = task
    patterns = (ALL, *(validation.patterns if len(validation.patterns) > 1 else ()))
    tried = []
    for number, setting in enumerate(candidates_of(policy)):
        folder = _trial(out, policy, number)
        summaries = evaluate(replace(validation, policies=(policy,), settings=folder), folder, workers=1, refused={})
        for pattern in patterns:
            part = [summary for summary in summaries if pattern in (ALL, summary["pattern"])]
            tried.append((_judge(policy, validation.workloads[0], setting, part, pattern), len(runs_of(part))))
    # Costs are sums over hours: a setting that was refused in some of them would look cheap.
    most = {pattern: max(hours for one, hours in tried if one.pattern == pattern) for pattern in patterns}
    return [one if hours == most[one.pattern] else replace(one, cost=math.inf) for one, hours in tried]


def _together(every: Sequence[Sequence[Swept]]) -> list[Swept]:
    """Each setting over all workloads and patterns."""
    return [
        replace(
            same[0],
            workload=ALL,
            cost=sum(one.cost for one in same),
            violated=sum(one.violated for one in same),
            judged=sum(one.judged for one in same),
        )
        for same in zip(*(_parts(swept)[0] for swept in every), strict=True)
    ]


def write_setting(folder: Path, name: str, setting: Setting) -> None:
    """As the TOML file ``name`` that an evaluation and ``smoe autoscale --policy-settings`` read."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{key} = {_toml(value)}" for key, value in setting.items() if not isinstance(value, list | Mapping)]
    for key, value in setting.items():
        head = f"[{key}]" if isinstance(value, Mapping) else f"[[{key}]]"
        for row in [value] if isinstance(value, Mapping) else value if isinstance(value, list) else ():
            lines += ["", head, *(f"{name} = {_toml(entry)}" for name, entry in row.items())]
    (folder / f"{name}.toml").write_text("\n".join(lines) + "\n")


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _judge(policy: str, workload: str, setting: Setting, summaries: Sequence[Mapping[str, Any]], pattern: str) -> Swept:
    runs = runs_of(summaries)
    cost = sum(run["provisioned_experts"] for run in runs)
    judged, violated = (sum(run[name] for run in runs) for name in ("judged_windows", "violated_windows"))
    return Swept(policy, workload, setting, float(cost), violated, judged, pattern)


def _record(path: Path, trials: Sequence[Swept], chosen: Sequence[Swept]) -> None:
    kept = {id(trial) for trial in chosen}
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(
            ("policy", "workload", "pattern", "setting", "provisioned_experts", "violated", "judged", "chosen")
        )
        for trial in trials:
            setting = ", ".join(f"{key}={value}" for key, value in trial.setting.items())
            figures = f"{trial.cost:.6g}", trial.violated, trial.judged, "yes" if id(trial) in kept else ""
            writer.writerow((trial.policy, trial.workload, trial.pattern, setting, *figures))
