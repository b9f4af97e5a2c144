"""A round: some clips of one pipeline side by side, simulated with exploration, learnt from as windows come in.

Everything that is drawn in a round comes from the run's seed and the round's number, so a run that goes on from a
checkpoint between two rounds draws what it would have drawn.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from autoscaler.contract import SLO_QUANTILE
from evaluation.comparison.errors import EvaluationError
from rl.agent.contract import Batch, Floats32, Space, State
from rl.agent.ddpg.algorithm import PipelineDDPG
from rl.agent.ddpg.buffer import BranchStep, WindowStep
from rl.agent.ddpg.exploration import decide as decide_by
from rl.agent.ddpg.exploration import with_random
from rl.agent.ddpg.exploration_moves import SCOPES, mixed, moves
from rl.episodes import Branch, Clip, Episode, Outcome, episode_of, training_clips, work_of
from rl.episodes.clips import SEEDS
from rl.episodes.episode import encoder_of
from rl.features.configuration_index import REPLICAS
from rl.reward import RewardSettings
from rl.train.errors import TrainingError
from rl.train.parallel_episodes import Actions, Decide, EpisodeWindow, Vary, simulate_all
from rl.train.settings import TrainingSettings
from rl.train.training_workloads import Kind, reference_of, starts_within
from rl.train.warm_start import Teachers

MOST_TRIED = 1000
"""Clips of which a round's are chosen."""
log = logging.getLogger("smoe.train")
MOVED = 0.3
"""Share of the layers that change in a branch that is not of the whole window."""


@dataclass
class Tally:
    """Results of one round."""

    windows: int = 0
    reward: float = 0.0
    cost: float = 0.0
    """Both summed over windows, in C_ref."""
    judged: int = 0
    violated: int = 0
    clips: list[tuple[Clip, str]] = field(default_factory=list)
    """Each with the hash of its requests."""


class Rounds:
    """Rounds of one run, on one agent."""

    def __init__(
        self,
        settings: TrainingSettings,
        agent: PipelineDDPG,
        data: Path | None = None,
        kinds: Sequence[Kind] | None = None,
    ) -> None:
        """``kinds``: trained on in turn; None: all of ``settings``."""
        self.settings, self.agent, self.data = settings, agent, data
        self.kinds = settings.kinds if kinds is None else kinds
        self._owed = 0.0

    def run(self, number: int, *, teach: bool, on_window: Callable[[int], object] = lambda windows: None) -> Tally:
        """Round ``number``; ``teach``: a teacher simulates and labels, and nothing is learnt yet."""
        self._owed = 0.0  # of this round alone, so that a run that goes on does the same
        rng = np.random.default_rng((self.settings.seed, number))
        episodes, tally = self._open(number, rng)
        labels: dict[int, Actions] = {}
        decide = self._exploring(rng)
        if teach or self.agent.cloning:
            teachers = Teachers(episodes, self.settings.teacher, rng)
            decide = taught(episodes, teachers, labels, None if teach else decide)
        for row in simulate_all(episodes, decide, self._varying(episodes[0].encoder.space, rng)):
            for window in row:
                self._take(window, labels.get(window.episode_number), tally)
            tally.windows += len(row)
            on_window(len(row))
            if not teach:
                self._learn(len(row))
        return tally

    def _open(self, number: int, rng: np.random.Generator) -> tuple[list[Episode], Tally]:
        settings, kinds, tally = self.settings, self.kinds, Tally()
        order = np.random.default_rng((settings.seed, number // len(kinds))).permutation(len(kinds))
        kind = kinds[int(order[number % len(kinds)])]
        clips = training_clips(
            (kind.name,),
            settings.patterns(self.agent.done),
            seed=int(rng.integers(2**31)),
            mean_rps=kind.mean_rps or settings.mean_rps,
            seconds=settings.episode_windows * kind.window_s,
            window_s=kind.window_s,
            speed=kind.speed,
            world=kind.world,
        )
        reference, episodes = self.register(kind), list[Episode]()
        for clip in itertools.islice(clips, MOST_TRIED):
            if len(episodes) == settings.lanes:
                return episodes, tally
            workload = kind.workload(SEEDS[clip.split] + clip.seed, clip.mean_rps)
            try:
                work = work_of(clip, self.data, workload)
            except EvaluationError as error:
                log.info("a clip is left out: %s", error)  # no request is left of it, or no room for its segments
                continue
            starts = starts_within(kind, work.workload, settings.standbys.burst)
            if not starts:
                log.info("a clip is left out: %s: the cluster has no room to start in", work.requests.source)
                continue
            start = work.workload.initial(starts[int(rng.integers(len(starts)))])
            made = episode_of(
                clip, settings=settings.reward, start=start, data=self.data, workload=workload, reference=reference,
                burst=settings.standbys.burst,
            )  # fmt: skip
            episodes.append(made)
            tally.clips.append((clip, work.requests.sha256))
        raise TrainingError(
            f"{kind.name}: {MOST_TRIED} clips hold fewer than {settings.lanes} that its world has room for"
        )

    def register(self, kind: Kind) -> float:
        """Make a kind's pipeline known to the replay; returns its C_ref, the same for all its clips."""
        space, reference, unit = scale_of(kind, self.settings.reward)
        self.agent.replay_buffer.register(kind.name, space, unit)
        return reference

    def _exploring(self, rng: np.random.Generator) -> Decide:
        """The actor with exploration."""

        def decide(episodes: list[Episode], states: list[State]) -> list[NDArray[np.int16]]:
            temperature, share = self.agent.learner.explored(self.agent.done)
            space = episodes[0].encoder.space
            batch = Batch.of(space, states)
            decided = decide_by(self.agent.actor.network, batch, temperature, int(rng.integers(2**62)))
            mask = space.mask.numpy()
            return [
                with_random(one, state, space.sizes, mask, share, rng)
                for one, state in zip(decided, states, strict=True)
            ]

        return decide

    def _varying(self, space: Space, rng: np.random.Generator) -> Vary:
        """Changes of what is simulated, of some layers each: by experts, layers or all together in turn."""

        def vary(states: list[State], actions: Sequence[Actions]) -> list[list[Actions]]:
            batch, base = Batch.of(space, states), torch.from_numpy(np.stack(actions)).long()
            draw, changes = torch.Generator().manual_seed(int(rng.integers(2**62))), []
            for number in range(self.settings.branches):
                scope = SCOPES[number % len(SCOPES)]
                moved = moves(batch, base, scope, 1, draw)
                changes.append((moved if scope == "window" else mixed(base, moved, MOVED, draw))[0])
            return [
                [one[episode_number].numpy().astype(np.int16) for one in changes]
                for episode_number in range(len(states))
            ]

        return vary

    def _take(self, window: EpisodeWindow, label: Actions | None, tally: Tally) -> None:
        outcome, slo_s = window.outcome, window.episode.workload.slo_s
        branches = [BranchStep(*_learnt(branch, slo_s)) for branch in window.branches]
        name, lesson = window.episode.workload.name, _learnt(outcome, slo_s)
        self.agent.replay_buffer.add(WindowStep(name, window.state, *lesson, window.following, label, tuple(branches)))
        self.agent.num_timesteps += 1
        tally.reward += float(outcome.reward.sum())
        tally.cost -= float(outcome.cost_rewards.sum())
        # Those who wait count at their age once they are overdue; where nobody is, nor was answered, λ is missed too.
        p95_s = outcome.window.judged_s(SLO_QUANTILE) if outcome.p95_s is None else outcome.p95_s
        tally.judged += p95_s is not None
        tally.violated += p95_s is not None and p95_s > slo_s

    def _learn(self, windows: int) -> None:
        self.agent.progress(self.agent.num_timesteps / self.settings.windows)
        self._owed += self.settings.updates * windows
        if self._owed >= 1:
            self.agent.train(int(self._owed))
            self._owed -= int(self._owed)


def _learnt(outcome: Outcome | Branch, slo_s: float) -> tuple[Actions, Floats32, float]:
    """What is kept of a window: decisions in force, rewards for cost, P95 over λ."""
    p95 = np.nan if outcome.p95_s is None else outcome.p95_s / slo_s
    return outcome.executed, outcome.cost_rewards.astype(np.float32), p95


def taught(
    episodes: list[Episode], teachers: Teachers, labels: dict[int, Actions], instead: Decide | None = None
) -> Decide:
    """What teachers simulate, or ``instead`` does: then they label the windows that the actor brings about itself, as
    in DAgger (Ross et al., 2011). ``labels``: episode_number → the careful plan of the present window, filled in as it
    goes."""
    numbers = {id(episode): episode_number for episode_number, episode in enumerate(episodes)}

    def decide(going: list[Episode], states: list[State]) -> list[Actions]:
        bold_plans = []
        for episode, state in zip(going, states, strict=True):
            labels[numbers[id(episode)]], bold = teachers.plan(episode, state)
            bold_plans.append(bold)
        return bold_plans if instead is None else list(instead(going, states))

    return decide


@lru_cache(maxsize=32)
def scale_of(kind: Kind, reward: RewardSettings) -> tuple[Space, float, float]:
    """Φ of a kind, its C_ref, and what Σ replicas × price (as features) costs in a window, in C_ref."""
    workload, reference = kind.workload(0), reference_of(kind, reward)
    encoder = encoder_of(workload)
    most_expensive = float(encoder.configuration_index.unit_per_s.max()) * REPLICAS * kind.window_s
    return encoder.space, reference, most_expensive / reference * reward.cost_weight
