"""A rule that is calibrated and a policy that is learnt, for one pattern and seed, in so much CPU time.

The rule is chosen on train and validation hours together; the actor learns on train hours and is chosen on validation
hours, all by the same score (:meth:`rl.staffing.judge.Judge.score`). The actor begins with the calibrated rule and
has as much time again: from the default, or from a rule found in a third of the time, it does not come as far.
"""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from evaluation.comparison.errors import EvaluationError
from rl.staffing.action import AXES, NAMES, Actions, action_of
from rl.staffing.checkpoint import BEST
from rl.staffing.hours import HourSettings
from rl.staffing.judge import Judge, everywhere
from rl.staffing.policy import RuleSettings
from rl.staffing.settings import StaffingSettings
from rl.staffing.training import train
from rl.staffing.warm_start import RULES
from simulation.workloads.worlds import World

WORKLOAD, RELATIVE_SLO = "bert-4", 5.0
WORLD: World = "cores-only"
SECONDS = 600.0
TRAIN_HOURS, SEARCH_HOURS, VALIDATION_HOURS = 24, 4, 3
STEP, CHANGED = 0.2, 0.4
"""Deviation of a number in the search, within -1 and 1, and the chance that it is changed at all."""
RULE, MADE = "rule.json", "made.json"
CURVE = ("windows", "minutes", "score", "cost", "violated", "best")


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


def _score(judge: Judge, action: Actions) -> float:
    return judge.score(judge.judge(lambda rows: everywhere(rows, action)))[0]


def make(pattern: Pattern, seed: int, minutes: float, data: Path | None, out: Path) -> dict[str, Any]:
    """Both contenders: the rule of ``minutes`` of CPU, and what as many minutes of learning make of it.

    Writes their settings files ``staffing.toml`` and ``staffing-learnt.toml`` into ``out``; returns what is known of
    them. What is there is read. Raises EvaluationError where that is of other minutes."""
    path = out / MADE
    if path.is_file():
        return _stored(path, minutes)
    out.mkdir(parents=True, exist_ok=True)
    settings = replace(pattern.settings, seed=seed)
    rule = _rule(settings, minutes, data, out)
    learning = train(replace(settings, start=dict(rule.values), minutes=minutes), out, data)
    rule_lines = [f"{'activation_headroom' if name == 'headroom' else name} = {rule.values[name]}" for name in NAMES]
    planner = f'workload = "{WORKLOAD}"'
    (out / "staffing.toml").write_text("\n".join([planner, *rule_lines, ""]))
    (out / "staffing-learnt.toml").write_text(f'{planner}\nactor = "{(out / BEST).resolve()}"\n')
    made = {
        "pattern": pattern.name,
        "seed": seed,
        "minutes": minutes,
        "rule": asdict(rule),
        "curve": [{name: entry[name] for name in CURVE} for entry in learning.curve],
    }
    path.write_text(json.dumps(made, indent=1))
    return made


def _rule(settings: StaffingSettings, minutes: float, data: Path | None, out: Path) -> Calibrated:
    path = out / RULE
    if path.is_file():
        stored = _stored(path, minutes)
        return Calibrated(**{entry.name: stored[entry.name] for entry in fields(Calibrated)})
    search = Judge(replace(settings, validation_hours=SEARCH_HOURS), data, "train")
    validation = Judge(settings, data)
    for judge in (search, validation):
        _score(judge, action_of(RuleSettings().values()))  # compiles what is compiled once a process
    rule = calibrated(search, validation, minutes, settings.seed)
    path.write_text(json.dumps({"minutes": minutes, **asdict(rule)}, indent=1))
    return rule


def _stored(path: Path, minutes: float) -> dict[str, Any]:
    stored: dict[str, Any] = json.loads(path.read_text())
    spent = stored.get("minutes")
    if spent != minutes:
        spent = "an unstated number of" if spent is None else spent
        raise EvaluationError(f"{path} was made in {spent} minutes, not {minutes:g}; take another --out")
    return stored
