"""What an actor has to beat on a pattern's hours: the best constant for each expert, and the best of the rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from autoscaler.contract import Burst, Policy
from autoscaler.policies import BURST_TABLE, make_policy
from autoscaler.policy.hpa import hpa_of_windows
from autoscaler.policy.static import StaticPolicy
from benchmarks.agent.replayed import Replayed, under
from benchmarks.agent.trained import Trained, ValidationHour
from evaluation.comparison.grid import BURST_SUFFIX
from evaluation.comparison.policies import DEFAULT_BURST, making_of
from evaluation.tuning.constants import search_constants
from evaluation.tuning.outcomes import MOST_VIOLATED
from rl.episodes import Clip, Episode
from rl.staffing.policy import RuleSettings, rule_for
from simulation.workloads.workload import Workload

CONSTANT = "constant-per-expert"
RULES = ("hpa", f"hpa{BURST_SUFFIX}", "staffing")


@dataclass(frozen=True)
class Opponent:
    """Results on a pattern's hours."""

    name: str
    cost: float
    """Mean of an hour, on the run's meter."""
    over: int
    """Windows over λ."""


def constant_name(run: Trained) -> str:
    """The constants that an actor of ``run`` has to beat: with standbys where it may have them."""
    return CONSTANT if run.burst is None else CONSTANT + BURST_SUFFIX


def best_constant(run: Trained, hours: Sequence[ValidationHour], trials: int) -> Opponent:
    """The best constant for each expert on all ``hours`` together, by the run's meter; on the busy
    one it is replayed as an actor is."""
    searched = [one.hour for one in hours]
    chosen = search_constants(constant_name(run), searched, trials)
    if run.meter == "provisioned":
        outcomes = [hour.outcome(chosen.configurations) for hour in searched]
        over = sum(value > 1 for _, values in outcomes for value in values)
        return Opponent("constant", float(np.mean([cost for cost, _ in outcomes])), over)
    replayed = []
    for one in hours:
        held = StaticPolicy(one.hour.deployment(chosen.configurations), "constant")
        replayed.append(under(held, from_start(one.begin()), one.clip, run))
    return _summed("constant", replayed)


def best_rule(run: Trained, hours: Sequence[ValidationHour]) -> Opponent:
    """The cheapest of :data:`RULES`, with their defaults, that breaks λ in at most :data:`MOST_VIOLATED` of the
    windows; where none does, the one that breaks it in fewest."""
    judged = []
    for name in RULES:
        burst = (run.burst or DEFAULT_BURST) if name.endswith(BURST_SUFFIX) else None
        replayed = []
        for one in hours:
            episode = from_start(one.begin())
            policy = rule(name.removesuffix(BURST_SUFFIX), episode.workload, one.clip, burst)
            replayed.append(under(policy, episode, one.clip, run))
        summed, windows = _summed(name, replayed), max(1, sum(one.judged for one in replayed))
        judged.append((summed, max(summed.over / windows, MOST_VIOLATED)))
    return min(judged, key=lambda one: (one[1], one[0].cost))[0]


def rule(name: str, workload: Workload, clip: Clip, burst: Burst | None = None) -> Policy:
    """``hpa`` or ``staffing``, as the controller makes it for experts alone; ``burst``: standbys on top of it."""
    table = hpa_of_windows(clip.window_s) if name == "hpa" and clip.speed > 1 else {}
    table |= {} if burst is None else {BURST_TABLE: asdict(burst)}
    making = making_of(name, workload, clip.window_s, table or None)
    return rule_for(making, RuleSettings(), workload) if name == "staffing" else make_policy(making)


def from_start(episode: Episode) -> Episode:
    """One like ``episode``, of which nothing was decided, without standbys of its own."""
    start = {function: replace(one, burst=None) for function, one in episode.present.items()}
    return Episode(
        episode.workload, episode.requests, start, reference=episode.reference,
        seconds=episode.windows * episode.window_s, window_s=episode.window_s, seed=episode.seed,
        settings=episode.settings,
    )  # fmt: skip


def _summed(name: str, replayed: Sequence[Replayed]) -> Opponent:
    return Opponent(name, float(np.mean([one.per_hour for one in replayed])), sum(one.over for one in replayed))
