"""A rule that is calibrated and a policy that is learnt, for one pattern and seed, each in so much CPU time.

The rule is chosen on train and validation hours together; the actor learns on train hours and is chosen on validation
hours, all by the same score (:meth:`rl.staffing.training.Judge.score`). The calibrated rule has all of the budget. The
learnt policy has a third of it for a rule as well, which its actor begins with, and the rest for DDPG: a third finds
nearly the same rule, and from the default a run of a few minutes does not come as far.
"""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rl.staffing.action import AXES, NAMES, Actions, action_of
from rl.staffing.features import NODES
from rl.staffing.hours import HourSettings
from rl.staffing.policy import RuleSettings
from rl.staffing.training import BEST, Judge, StaffingSettings, train
from rl.staffing.warm_start import RULES
from simulation.workloads.worlds import World

WORKLOAD, RELATIVE_SLO = "bert-4", 5.0
WORLD: World = "cores-only"
SECONDS = 600.0
TRAIN_HOURS, SEARCH_HOURS, VALIDATION_HOURS = 24, 4, 3
STEP, CHANGED = 0.2, 0.4
"""Deviation of a number in the search, within -1 and 1, and the chance that it is changed at all."""
BEGIN = 1 / 3
"""Part of the learnt policy's budget that finds the rule which it begins with."""
MADE = "made.json"


@dataclass(frozen=True)
class Pattern:
    """One of the patterns: hours of a kind at a rate."""

    kind: str
    rate: float

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.rate:g}"

    @property
    def settings(self) -> StaffingSettings:
        """Settings of training, without its budget."""
        hours = HourSettings(WORKLOAD, WORLD, RELATIVE_SLO, (self.rate, self.rate), (self.kind,), SECONDS)
        return StaffingSettings(
            hours=hours,
            validation_rates=(self.rate,),
            validation_hours=VALIDATION_HOURS,
            train_hours=TRAIN_HOURS,
            warm_hours=0,
            windows=10_000_000,
            validate_every=640,
            batch=32,
        )


@dataclass(frozen=True)
class Calibrated:
    """The rule that did best, and how many were tried."""

    values: Mapping[str, float]
    score: float
    tried: int


def calibrated(train: Judge, validation: Judge, minutes: float, seed: int) -> Calibrated:
    """The best rule that so many minutes of CPU find: the one whose worse score of the two, on hours of ``train`` and
    of ``validation``, is least. Chosen by either alone it breaks λ on the other."""
    begun_s, score, tried = time.process_time(), np.inf, 0
    proposals = _proposals(np.random.default_rng((seed, 3)))
    action = best = next(proposals)
    while True:
        reached = _score(validation, action)
        if reached < score:
            reached = max(reached, _score(train, action))
        tried += 1
        if reached < score:
            best, score = action, reached
        if time.process_time() - begun_s >= 60 * minutes:
            return Calibrated(_values(best), float(score), tried)
        action = proposals.send(best)


def _proposals(rng: np.random.Generator) -> Generator[Actions, Actions]:
    """The default and the rules known from other hours, then steps away from the best, which is sent."""
    best = action_of(RuleSettings().values())
    for rule in (RuleSettings().values(), *RULES):
        best = yield action_of(rule)
    while True:
        step = rng.normal(0, STEP, len(AXES)) * (rng.random(len(AXES)) < CHANGED)
        best = yield np.clip(best + step, -1, 1).astype(np.float32)


def _values(action: Actions) -> dict[str, float]:
    """By :data:`rl.staffing.action.NAMES`, rounded as a settings file has them."""
    return {axis.name: round(float(axis.value(action[place])), 4) for place, axis in enumerate(AXES)}


def everywhere(rows: Mapping[str, np.ndarray[Any, Any]], action: Actions) -> np.ndarray[Any, Any]:
    """[hours, experts · 9]: ``action`` [8] for every expert, even priorities."""
    experts = rows["experts"].shape[1] // len(NODES)
    return np.tile(np.append(action, np.float32(0.0)), (len(rows["pipeline"]), experts))


def _score(judge: Judge, action: Actions) -> float:
    return judge.score(judge.judge(lambda rows: everywhere(rows, action)))[0]


def make(pattern: Pattern, seed: int, minutes: float, data: Path | None, out: Path) -> dict[str, Any]:
    """Both contenders, each with ``minutes`` of CPU: their settings files ``staffing.toml`` and
    ``staffing-learnt.toml`` in ``out``, and what is known of them. Read where they are there already."""
    path = out / MADE
    if path.is_file():
        stored: dict[str, Any] = json.loads(path.read_text())
        return stored
    out.mkdir(parents=True, exist_ok=True)
    settings = replace(pattern.settings, seed=seed)
    search = Judge(replace(settings, validation_hours=SEARCH_HOURS), data, "train")
    validation = Judge(settings, data)
    for judge in (search, validation):
        _score(judge, action_of(RuleSettings().values()))  # compiles what is compiled once a process
    rule = calibrated(search, validation, minutes, seed)
    begin = calibrated(search, validation, BEGIN * minutes, seed)
    learnt = replace(settings, start=dict(begin.values), minutes=(1 - BEGIN) * minutes)
    learning = train(learnt, out, data)
    rule_lines = [f"{'activation_headroom' if name == 'headroom' else name} = {rule.values[name]}" for name in NAMES]
    planner = f'workload = "{WORKLOAD}"'
    (out / "staffing.toml").write_text("\n".join([planner, *rule_lines, ""]))
    (out / "staffing-learnt.toml").write_text(f'{planner}\nactor = "{(out / BEST).resolve()}"\n')
    made = {
        "pattern": pattern.name,
        "seed": seed,
        "rule": dict(rule.values),
        "rule_score": rule.score,
        "rules_tried": rule.tried,
        "begins_with": dict(begin.values),
        "begin_score": begin.score,
        "learnt_score": learning.best,
        "best_after_windows": next(entry["windows"] for entry in reversed(learning.curve) if entry["best"]),
        "windows": learning.curve[-1]["windows"],
    }
    path.write_text(json.dumps(made, indent=1))
    return made
