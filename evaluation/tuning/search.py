"""Bayesian optimisation of a deployment on profiled traffic: the paper's ServerlessMoE, and the HPA's other axes.

ServerlessMoE (arXiv 2501.05313) profiles which experts tokens choose, optimises the deployment with Bayesian
optimisation and never changes it. No code of it was found, so this is an adaptation to Φ over the parameters of
:class:`evaluation.tuning.deployments.Deployments`. All anchors are judged first; then a tree-structured Parzen
estimator (optuna) proposes, some trials are drawn at random, as in that paper's ε-greedy exploration, and some take the
best so far and change one parameter by a step. The search has *converged* where no such step is left untried.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, IntDistribution
from optuna.trial import create_trial

from evaluation.tuning.deployments import Parameters

Outcome = Callable[[Parameters], tuple[float, float]]
"""Parameters to (cost, tail in seconds)."""
WORST = 1e30
MISSES = 1e15
"""Added to what the estimator gets for a trial that misses the SLO: any that meets it is better."""


@dataclass(frozen=True)
class SearchSettings:
    """How a search is done."""

    trials: int = 300
    """At most."""
    least_trials: int = 40
    """A search that has converged goes on until so many are done."""
    penalty: float = 10.0
    """Cost of a tail of twice the SLO, in costs of the same configurations."""
    explore: float = 0.1
    """Share of trials drawn at random."""
    refine: float = 0.6
    """Share of trials that take the best so far and change one parameter by a step."""
    seed: int = 0


@dataclass(frozen=True)
class Trial:
    """One choice of parameters that was judged."""

    number: int
    cost: float
    tail_s: float
    meets: bool
    objective: float
    words: str

    @property
    def rank(self) -> tuple[bool, float, int]:
        """Lower is better: the cheapest that meets the SLO, else the one with the least objective."""
        return not self.meets, self.cost if self.meets else self.objective, self.number


@dataclass(frozen=True)
class Found:
    """The best parameters and how they were found."""

    parameters: Parameters
    best: Trial
    trials: tuple[Trial, ...]
    converged: bool
    """Every step away from the best was tried."""


def search(
    spans: Mapping[str, tuple[int, int]],
    outcome: Outcome,
    slo_s: float,
    settings: SearchSettings | None = None,
    words: Callable[[Parameters], str] = str,
    on_trial: Callable[[Trial], object] = lambda trial: None,
) -> Found:
    """The best parameters within ``spans``. Same settings, same result. No parameters are judged twice."""
    chosen = settings or SearchSettings()
    state = _State(spans, chosen)
    anchors = range(spans["anchor"][0], spans["anchor"][1] + 1)
    waiting: list[dict[str, int]] = [dict.fromkeys(spans, 0) | {"anchor": anchor} for anchor in anchors]
    while len(state.trials) < chosen.trials:
        parameters = waiting.pop(0) if waiting else state.propose()
        if parameters is None:
            break
        cost, tail = outcome(parameters)
        finite = bool(np.isfinite(cost + tail))
        objective = cost * (1 + chosen.penalty * max(0.0, tail / slo_s - 1)) if finite else WORST
        trial = Trial(len(state.trials), cost, tail, finite and tail <= slo_s, objective, words(parameters))
        state.add(parameters, trial)
        on_trial(trial)
        if state.converged and len(state.trials) >= chosen.least_trials:
            break
    return Found(state.best, min(state.trials, key=lambda trial: trial.rank), tuple(state.trials), state.converged)


class _State:
    """Trials so far, and where to go next."""

    def __init__(self, spans: Mapping[str, tuple[int, int]], settings: SearchSettings) -> None:
        self.trials: list[Trial] = []
        self.tried: dict[tuple[int, ...], Trial] = {}
        self.best: dict[str, int] = {}
        self._spans = spans
        self._settings = settings
        self._rng = random.Random(settings.seed)
        sampler = optuna.samplers.TPESampler(seed=settings.seed, multivariate=True)
        self._study = optuna.create_study(sampler=sampler)
        self._distributions: dict[str, BaseDistribution] = {
            name: IntDistribution(low, high) for name, (low, high) in spans.items()
        }

    @property
    def converged(self) -> bool:
        return bool(self.best) and not self._beside()

    def add(self, parameters: dict[str, int], trial: Trial) -> None:
        best = self.tried.get(_key(self.best)) if self.best else None
        self.trials.append(trial)
        self.tried[_key(parameters)] = trial
        if best is None or trial.rank < best.rank:
            self.best = parameters
        value = trial.objective if trial.meets else MISSES + trial.objective
        self._study.add_trial(create_trial(params=parameters, distributions=self._distributions, value=value))

    def propose(self) -> dict[str, int] | None:
        """Parameters that were not tried yet; None where chance finds none any more."""
        draw = self._rng.random()
        beside = self._beside()
        if beside and draw < self._settings.refine:
            return self._rng.choice(beside)
        if draw < 1 - self._settings.explore:
            proposed = self._study.ask(self._distributions)
            parameters = {name: int(proposed.params[name]) for name in self._spans}
            self._study.tell(proposed, state=optuna.trial.TrialState.FAIL)  # its outcome is given by ``add``
            if _key(parameters) not in self.tried:
                return parameters
        for _ in range(100):
            parameters = {name: self._rng.randint(*span) for name, span in self._spans.items()}
            if _key(parameters) not in self.tried:
                return parameters
        return self._rng.choice(beside) if beside else None

    def _beside(self) -> list[dict[str, int]]:
        """Untried parameters one step of one of them away from the best."""
        neighbours = []
        for name, (low, high) in self._spans.items():
            for step in (-1, 1):
                moved = {**self.best, name: self.best[name] + step}
                if low <= moved[name] <= high and _key(moved) not in self.tried:
                    neighbours.append(moved)
        return neighbours


def _key(parameters: Parameters) -> tuple[int, ...]:
    """Parameters in the order of their names."""
    return tuple(value for _, value in sorted(parameters.items()))


def write_trials(trials: Sequence[Trial], path: Path) -> None:
    """The search as CSV, one line a trial."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [entry.name for entry in fields(Trial)])
        writer.writeheader()
        writer.writerows(asdict(trial) for trial in trials)
