"""Contenders on test hours, through the controller's own parts as ``smoe lab compare`` judges, and who wins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rlscale.contenders import RELATIVE_SLO, SECONDS, WORKLOAD, WORLD, Pattern
from evaluation.comparison.episode import Work, prepare, run_policy
from evaluation.comparison.errors import EvaluationError
from evaluation.comparison.grid import Grid, Group

LEARNT, CALIBRATED = "staffing-learnt", "staffing"
HPA = "hpa+burst"
MOST_TRIED = 16
"""Test hours that are looked at for those that can be measured."""
DRAWS = 2000
WORTH = 0.98
"""Cost over the rule's below which a victory is worth something: an actor that stays where it began ends within a
percent of the rule, and on either side of it by chance."""


@dataclass(frozen=True)
class Ran:
    """One policy in one test hour."""

    hour: int
    cost: float
    """USD of the experts, standbys included."""
    judged: int
    over: int
    """Windows over λ."""


def grid_of(pattern: Pattern, data: Path | None) -> Grid:
    """The pattern's test hours."""
    return Grid(
        workloads=(WORKLOAD,), patterns=(pattern.kind,), tokens=(0,), policies=(LEARNT, CALIBRATED, HPA),
        seeds=tuple(range(MOST_TRIED)), seconds=SECONDS, mean_rps=pattern.rate, data=data, bound=False,
        world=WORLD, relative_slo=RELATIVE_SLO,
    )  # fmt: skip


@lru_cache(maxsize=8)
def hours_of(pattern: Pattern, count: int, data: Path | None) -> tuple[Work, ...]:
    """The first ``count`` test hours that can be measured: segments fit into the cluster, λ can be kept in the warm-up
    and in the busiest window, and the least of everything does not keep it.

    Raises EvaluationError where there are fewer among :data:`MOST_TRIED`."""
    grid, works = grid_of(pattern, data), list[Work]()
    for seed in grid.seeds:
        try:
            work = prepare(grid, Group(WORKLOAD, pattern.kind, 0, seed))
            measurable = any(work.binds.values()) and bool(work.start)
        except EvaluationError:
            continue
        if measurable:
            works.append(work)
        if len(works) == count:
            return tuple(works)
    raise EvaluationError(f"{pattern.name}: only {len(works)} of {MOST_TRIED} test hours can be measured, not {count}")


def run(pattern: Pattern, count: int, data: Path | None, settings: Path | None, policy: str) -> list[Ran]:
    """``policy`` on ``count`` test hours; ``settings``: folder of its file, None: its defaults."""
    grid = replace(grid_of(pattern, data), settings=settings)
    return [_ran(run_policy(grid, work, policy)[0]) for work in hours_of(pattern, count, data)]


def _ran(summary: Mapping[str, Any]) -> Ran:
    return Ran(summary["seed"], summary["provisioned_experts"], summary["judged_windows"], summary["violated_windows"])


Runs = dict[tuple[str, int, str], list[Ran]]
"""(pattern that it was made for, seed, policy) → its test hours; the untuned ones were made for ``""``."""


@dataclass(frozen=True)
class Verdict:
    """The learnt policy against the calibrated rule, over all seeds and hours of one pattern."""

    ratio: float
    """Geometric mean of cost over the rule's in the same hour and seed."""
    low: float
    high: float
    """Its 95 % interval over hours (bootstrap; an hour's seeds stay together)."""
    over: float
    rule_over: float
    """Shares of windows over λ."""

    @property
    def won(self) -> bool:
        """Cheaper at no more windows over λ."""
        return self.ratio < 1 and self.over <= self.rule_over

    @property
    def worth(self) -> bool:
        """Won by so much that somebody would train for it (:data:`WORTH`)."""
        return self.won and self.ratio <= WORTH

    @property
    def certain(self) -> bool:
        """Won, and the interval of the ratio lies below 1."""
        return self.won and self.high < 1


def verdict(learnt: Sequence[Sequence[Ran]], rule: Sequence[Sequence[Ran]]) -> Verdict:
    """``learnt`` and ``rule``: [seeds][hours], the same hours in the same order. Raises ValueError otherwise."""
    if [[one.hour for one in runs] for runs in learnt] != [[one.hour for one in runs] for runs in rule]:
        raise ValueError("learnt policies and rules are not judged on the same hours")
    logs = np.log([[one.cost for one in runs] for runs in learnt]) - np.log(
        [[one.cost for one in runs] for runs in rule]
    )
    of_hours = logs.mean(0)
    drawn = np.random.default_rng(0).integers(0, of_hours.size, (DRAWS, of_hours.size))
    low, high = np.exp(np.quantile(of_hours[drawn].mean(1), (0.025, 0.975)))
    return Verdict(
        round(float(np.exp(of_hours.mean())), 4),
        round(float(low), 4),
        round(float(high), 4),
        share(learnt),
        share(rule),
    )


def share(runs: Sequence[Sequence[Ran]]) -> float:
    """Share of all judged windows that are over λ."""
    judged = sum(one.judged for of_seed in runs for one in of_seed)
    return round(sum(one.over for of_seed in runs for one in of_seed) / max(1, judged), 4)


def on_pattern(
    pattern: Pattern, made_for: Sequence[str], seeds: Sequence[int], count: int, data: Path | None, out: Path
) -> Runs:
    """All contenders on one pattern's test hours."""
    runs = {("", 0, policy): run(pattern, count, data, None, policy) for policy in (CALIBRATED, HPA)}
    for name in made_for:
        for seed in seeds:
            for policy in (LEARNT, CALIBRATED):
                runs[name, seed, policy] = run(pattern, count, data, out / f"{name}.{seed}", policy)
    return runs


def verdicts(runs: Runs, made_for: str, seeds: Sequence[int]) -> Verdict:
    """The contenders that were made for one pattern compared, where ``runs`` are of one pattern's test hours."""
    learnt, rule = ([runs[made_for, seed, policy] for seed in seeds] for policy in (LEARNT, CALIBRATED))
    return verdict(learnt, rule)


def shifted(on: dict[str, Runs], made_for: str, seeds: Sequence[int]) -> Verdict:
    """The same on the test hours of all other patterns together."""
    others = [runs for name, runs in on.items() if name != made_for]
    learnt, rule = (
        [[one for runs in others for one in runs[made_for, seed, policy]] for seed in seeds]
        for policy in (LEARNT, CALIBRATED)
    )
    return verdict(learnt, rule)
