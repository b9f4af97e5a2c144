"""Validation hours of the staffing policy, and results on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np

from rl.staffing.action import Actions
from rl.staffing.env import StaffingEnv
from rl.staffing.features import NODES
from rl.staffing.hours import episode, works
from rl.staffing.settings import StaffingSettings
from traces.splits import Split

WARM_UP = 4
"""Windows of an hour that are not judged."""


@dataclass(frozen=True)
class Judged:
    """One validation hour under the actor."""

    pattern: str
    rate: float
    cost: float
    """Experts', in C_ref a window."""
    judged: int
    violated: int


class Judge:
    """Hours of ``split``, and an actor's results on them."""

    def __init__(
        self,
        settings: StaffingSettings,
        data: Path | None,
        split: Split = "validation",
        look: Callable[[], object] = lambda: None,
    ) -> None:
        """``look``: called while hours are chosen; what it raises ends that."""
        self.settings = settings
        self.hours = [
            work
            for rate, pattern in product(settings.validation_rates, settings.hours.patterns)
            if pattern != "slow" or rate == settings.validation_rates[0]  # slow hours are as busy as they are
            for work in islice(
                works(replace(settings.hours, patterns=(pattern,), mean_rps=(rate, rate)), split, 1, data, look),
                settings.validation_hours,
            )
        ]

    def judge(self, decide: Callable[[dict[str, Any]], np.ndarray[Any, Any]]) -> list[Judged]:
        """All hours side by side, without noise. ``decide``: observations [hours, ..] → actions [hours, ..]."""
        envs = [StaffingEnv(iter([episode(self.settings.hours, work)] * 2)) for work in self.hours]
        rows = [env.reset()[0] for env in envs]
        costs, over = [list[float]() for _ in envs], [list[bool]() for _ in envs]
        going = list(range(len(envs)))
        step = 1
        while going:
            stacked = {name: np.stack([rows[place][name] for place in going]) for name in rows[0]}
            actions = decide(stacked)
            ended = []
            for place, action in zip(going, actions, strict=True):
                rows[place], _, _, done, info = envs[place].step(action)
                if step >= WARM_UP:
                    costs[place].append(float(info["costs"].sum()))
                    over[place] += [] if info["judged_p95"] is None else [info["judged_p95"] > 1]
                if done:
                    ended.append(place)
            going = [place for place in going if place not in ended]
            step += 1
        return [
            Judged(work.clip.pattern, work.clip.mean_rps, float(np.mean(cost)), len(broken), sum(broken))
            for work, cost, broken in zip(self.hours, costs, over, strict=True)
        ]

    def score(self, results: Sequence[Judged]) -> tuple[float, float]:
        """(score, share of windows over λ): mean cost, and the price of windows over λ beyond the allowed share."""
        share = sum(one.violated for one in results) / max(1, sum(one.judged for one in results))
        cost = float(np.mean([one.cost for one in results]))
        return cost + self.settings.price * max(0.0, share - self.settings.most_violated), share


def everywhere(rows: Mapping[str, np.ndarray[Any, Any]], action: Actions) -> np.ndarray[Any, Any]:
    """[hours, experts · 9]: ``action`` [8] for every expert of the observations ``rows``, even priorities."""
    experts = rows["experts"].shape[1] // len(NODES)
    return np.tile(np.append(action, np.float32(0.0)), (len(rows["pipeline"]), experts))
