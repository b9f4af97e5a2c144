"""Every baseline's own settings, tried on validation hours: the cheapest that keeps the SLO often enough is kept.

A sweep looks at validation hours only (:attr:`rl.evaluate.grid.Grid.split`); every trial is recorded. Candidates are
Knative's, KEDA's and Kubernetes' defaults first, then stronger and weaker reactions.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rl.evaluate.grid import Grid, file_name
from rl.evaluate.run import evaluate
from rl.evaluate.tables import runs_of

MOST_VIOLATED = 0.05
"""Share of windows over the SLO that a setting may have and still be chosen for its cost."""
LAST_WINDOW = "rl.bound.last_window:make"

Setting = Mapping[str, Any]


def _grid(**axes: Sequence[Any]) -> list[Setting]:
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


_HPA = _grid(concurrency_target=(0.7, 0.5, 0.3, 0.15), down_stabilisation_s=(300.0, 60.0), period_s=(15.0,))
CANDIDATES: Mapping[str, Sequence[Setting]] = {
    "hpa": _HPA,
    "tuned-hpa": _HPA,
    "openfaas": _HPA,
    "kpa": _grid(target_utilisation=(0.7, 0.5, 0.3, 0.15), panic_threshold=(2.0, 1.3)),
    "keda": [
        {"triggers": [{"metric": "in_flight", "threshold": threshold}], "down_stabilisation_s": down_s}
        for threshold in (2.8, 1.5, 0.8, 0.4)
        for down_s in (300.0, 60.0)
    ],
    "elasticmoe": [
        {"utilisation": utilisation, "classes": [{kind: size} for size in sizes]}
        for utilisation in (0.7, 0.4, 0.2)
        for kind, sizes in (
            ("cpu_cores", (1.0, 2.0, 4.0)),
            ("cpu_cores", (4.0, 5.0, 6.0)),
            ("gpu_share", (0.1, 0.1, 0.2)),
            ("gpu_share", (0.2, 0.2, 0.3)),
        )
    ],
    LAST_WINDOW: _grid(headroom=(0.6, 0.4, 0.25), load_factor=(1.0, 1.5, 2.5)),
}


@dataclass(frozen=True)
class Swept:
    """One setting of one policy on the validation hours."""

    policy: str
    setting: Setting
    cost: float
    """Provisioned, experts, summed over the hours."""
    violated: float
    """Share of judged windows over the SLO."""

    @property
    def keeps(self) -> bool:
        return self.violated <= MOST_VIOLATED


def best(trials: Sequence[Swept]) -> Swept:
    """The cheapest of those that keep the SLO; where none does, the one with the fewest violated windows."""
    keeping = [trial for trial in trials if trial.keeps]
    if keeping:
        return min(keeping, key=lambda trial: trial.cost)
    return min(trials, key=lambda trial: (trial.violated, trial.cost))


def sweep(
    grid: Grid, out: Path, progress: Callable[[str, int], object] = lambda what, trials: None
) -> dict[str, Swept]:
    """Policy → the best setting, for those policies of ``grid`` that have candidates.

    In this process, as all trials meet the same work. Writes ``POLICY.toml`` into ``out``, which is then a folder of
    policies' settings, and ``sweep.csv``. Raises what an evaluation raises.
    """
    validation = replace(grid, split="validation", bound=False)
    found: dict[str, Swept] = {}
    trials: list[Swept] = []
    for policy in grid.policies:
        for number, setting in enumerate(CANDIDATES.get(policy, ())):
            folder = out / "trials" / f"{file_name(policy)}-{number}"
            write_setting(folder, policy, setting)
            one = replace(validation, policies=(policy,), settings=folder)
            trials.append(_judge(policy, setting, evaluate(one, folder, workers=1)))
            progress(policy, len(trials))
        if policy in CANDIDATES:
            found[policy] = best([trial for trial in trials if trial.policy == policy])
            write_setting(out, policy, found[policy].setting)
    _record(out / "sweep.csv", trials, found)
    return found


def write_setting(folder: Path, policy: str, setting: Setting) -> None:
    """As the TOML file that an evaluation and ``smoe autoscale --policy-settings`` read."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{key} = {_toml(value)}" for key, value in setting.items() if not isinstance(value, list)]
    for key, rows in setting.items():
        for row in rows if isinstance(rows, list) else ():
            lines += ["", f"[[{key}]]", *(f"{name} = {_toml(value)}" for name, value in row.items())]
    (folder / f"{file_name(policy)}.toml").write_text("\n".join(lines) + "\n")


def _toml(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _judge(policy: str, setting: Setting, summaries: Sequence[Mapping[str, Any]]) -> Swept:
    runs = runs_of(summaries)
    judged = sum(run["judged_windows"] for run in runs)
    violated = sum(run["violated_windows"] for run in runs)
    cost = sum(run["provisioned_experts"] for run in runs)
    return Swept(policy, setting, float(cost), violated / judged if judged else 1.0)


def _record(path: Path, trials: Sequence[Swept], chosen: Mapping[str, Swept]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("policy", "setting", "provisioned_experts", "violated_share", "chosen"))
        for trial in trials:
            setting = ", ".join(f"{key}={value}" for key, value in trial.setting.items())
            mark = "yes" if chosen[trial.policy] is trial else ""
            writer.writerow((trial.policy, setting, f"{trial.cost:.6g}", f"{trial.violated:.4f}", mark))
