"""Hours under a trained actor, and under any policy."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from autoscaler.contract import SLO_QUANTILE, Memory, Policy
from autoscaler.prices import Meter
from benchmarks.agent.trained import Trained, ValidationHour
from benchmarks.harness.learnt import acting
from rl.agent.actor import Actor
from rl.agent.contract import Batch, State
from rl.agent.ddpg.visited import NODE
from rl.agent.export import load
from rl.episodes import Clip, Episode, Outcome
from rl.staffing.export import load as load_staffing
from rl.staffing.policy import LearntStaffingPolicy
from rl.train.parallel_episodes import Actions, EpisodeWindow, simulate_all


@dataclass
class Replayed:
    """One hour; windows after the warm-up."""

    clip: Clip
    cost: float = 0.0
    """Cost of the experts, on the run's meter."""
    judged: int = 0
    over: int = 0
    decided: list[NDArray[np.integer]] = field(default_factory=list)
    """[experts, 5] in force in each window: configuration and standbys."""
    correlations: list[float] = field(default_factory=list)
    states: list[State] = field(default_factory=list)

    @property
    def per_hour(self) -> float:
        """Cost of an hour."""
        return self.cost / (len(self.decided) * self.clip.window_s / 3600)

    def count(self, episode: Episode, outcome: Outcome, meter: Meter) -> None:
        """Add the window that ``episode`` has just simulated."""
        p95_s = outcome.window.judged_s(SLO_QUANTILE)
        self.cost += float(getattr(outcome, meter).sum())
        self.judged += p95_s is not None
        self.over += p95_s is not None and p95_s > episode.workload.slo_s
        bursts = [episode.present[node.function].burst for node in episode.workload.experts]
        standbys = np.array([[0 if burst is None else burst.standbys] for burst in bursts])
        executed = outcome.executed[episode.encoder.configuration_index.mask]
        self.decided.append(np.concatenate([executed, standbys], axis=1))


def variety(decided: NDArray[np.integer]) -> dict[str, float]:
    """Mean number of configurations in force at a time (``across_experts``), and of an expert from first to last
    window (``across_windows``), of ``decided`` [windows, experts, numbers]."""
    return {
        name: float(np.mean([len(np.unique(one, axis=0)) for one in parts]))
        for name, parts in (("across_experts", decided), ("across_windows", decided.swapaxes(0, 1)))
    }


def replay(run: Trained, hours: Sequence[ValidationHour]) -> tuple[list[Replayed], float]:
    """Every hour of one workload under the run's actor, and seconds of a decision (median)."""
    if run.policy == "smoe":
        return _siso(run, hours)
    replayed, taken_s = list[Replayed](), list[float]()
    actor = load_staffing(run.actor)[0]
    for hour in hours:
        episode = hour.begin()
        policy = LearntStaffingPolicy(actor, episode.workload, episode.encoder)  # type: ignore[arg-type]
        replayed.append(under(policy, episode, hour.clip, run, taken_s))
    return replayed, float(np.median(taken_s))


def under(policy: Policy, episode: Episode, clip: Clip, run: Trained, taken_s: list[float] | None = None) -> Replayed:
    """``episode`` under ``policy``, from its beginning to its end, without a guard; seconds of decisions are added to
    ``taken_s``."""
    one, memory, taken_s = Replayed(clip), cast(Memory, None), [] if taken_s is None else taken_s
    while episode.windows_left:
        begun_s = time.perf_counter()
        proposal = policy.propose(episode.observation, episode.observation.end_s, memory)
        taken_s.append(time.perf_counter() - begun_s)
        memory = proposal.memory
        outcome = episode.order(proposal.desired or episode.present)
        if episode.simulated > run.warm_up:
            one.count(episode, outcome, run.meter)
    return one


def _siso(run: Trained, hours: Sequence[ValidationHour]) -> tuple[list[Replayed], float]:
    actor, decide = actor_of(run.actor), acting(run.actor)
    episodes, replayed = [hour.begin() for hour in hours], [Replayed(hour.clip) for hour in hours]
    taken_s = list[float]()

    def timed(going: list[Episode], states: list[State]) -> Sequence[Actions]:
        begun_s = time.perf_counter()
        actions = decide(going, states)
        taken_s.append((time.perf_counter() - begun_s) / len(going))
        return actions

    for number, row in enumerate(simulate_all(episodes, timed), start=2):
        for window in row if number > run.warm_up else ():
            one = replayed[window.episode_number]
            one.count(window.episode, window.outcome, run.meter)
            one.states.append(window.state)
            one.correlations += _correlations(window, actor)
    return replayed, float(np.median(taken_s))


def _correlations(window: EpisodeWindow, actor: Actor) -> list[float]:
    """Rank correlation of the pointer's weights with the latency that followed, of each layer where it is defined."""
    from scipy.stats import spearmanr

    space = window.episode.encoder.space
    batch = Batch.of(space, [window.state])
    weights = actor.explain(batch, batch.present)[0][0]
    ahead = Batch.of(space, [window.following]).experts[0]
    latency, called = NODE.log("latency_p95", ahead), NODE.is_known("latency_p95", ahead) > 0
    correlations = []
    for layer, there in enumerate(called):
        pairs = weights[layer, there], latency[layer, there]
        if there.sum() > 2 and all(len(set(numbers.tolist())) > 1 for numbers in pairs):
            correlations.append(float(spearmanr(*pairs).statistic))
    return correlations


def actor_of(path: Path) -> Actor:
    """The actor of a run of ``smoe lab train``."""
    return cast(Actor, load(path))
