"""The learner's settings, with the reason for each default."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from autoscaler.checked import BelowOne, Checked, FromOne, FromZero, NotNegative, Positive, PositiveShare, Rule, Share

Rate = Annotated[float, Field(gt=0, lt=1)]


class LearnerError(ValueError):
    """Settings or a checkpoint that cannot be used; the message states which and what is allowed."""


@dataclass(frozen=True)
class LearnerSettings(Checked):
    """Settings of the algorithm alone; what is trained on is :class:`rl.train.settings.TrainingSettings`."""

    title = "learner"
    error = LearnerError
    batch_windows: FromOne = 16
    """Windows of an update, all of one pipeline."""
    buffer_windows: FromOne = 12_000
    actor_rate: Rate = 2e-4
    critic_rate: Rate = 1e-3
    rate_end: PositiveShare = 0.1
    """Both rates fall linearly to this share of themselves."""
    gamma: BelowOne = 0.0
    """Discount between windows; inside a window it is 1. Windows touch each other by backlog and cold starts only."""
    tau: PositiveShare = 0.01
    """Step of the soft update: target ← (1 - tau) target + tau network."""
    slo_weight: Positive = 60.0
    """Weight of an excess over λ (:func:`rl.agent.ddpg.targets.penalties`)."""
    alternatives: FromOne = 6
    """Changes of each scope (an expert, a layer, the window) that an update compares the actor's decisions with."""
    policy_delay: FromOne = 2
    """Updates of the critic for one of the actor."""
    busy_meter: bool = False
    """Whether cost counts while replicas work only, so that it is not known from the decisions alone; in a run by its
    ``meter``."""
    guard: PositiveShare = 0.93
    """Part of λ from which on an excess counts: keeps the share of windows over λ itself small."""
    clone_rate: Rate = 1e-3
    """Learning rate of the actor while it clones its teacher and nothing else."""
    clone_end: PositiveShare = 1.0
    """Part of it that is left at the last update of the warm start; it falls evenly."""
    clone_weight: NotNegative = 0.0
    """Weight of the teacher's cross-entropy next to the policy gradient, at the start; falls to 0 with exploration.
    Above 0 the teacher also labels what the actor brings about itself."""
    pointer_weight: NotNegative = 0.1
    """Weight of the pointer's own loss (:mod:`rl.agent.ddpg.pointer_loss`) next to the actor's."""
    gradient_norm: Positive = 1.0
    """Longest gradient of either network."""
    temperature: tuple[NotNegative, NotNegative] = (0.3, 0.05)
    """Temperature of the softmax that training decisions are drawn from: at the start, and once exploration is over."""
    random_share: tuple[Share, Share] = (0.03, 0.0)
    """Share of experts that get any valid configuration instead."""
    exploration: PositiveShare = 0.6
    """Part of the planned windows in which both fall."""
    actor_from: FromZero = 1000
    """Updates of the critic alone before the actor's first: a critic that has not seen low-cost decisions fail
    leads the actor to them."""

    def rules(self) -> Iterable[Rule]:
        return (("buffer_windows", self.buffer_windows >= self.batch_windows, "at least batch_windows"),)

    def explored(self, progress: float) -> tuple[float, float]:
        """(temperature, share of random experts) at ``progress`` 0 to 1 of training.

        The temperature falls geometrically, as its effect depends on its ratio to the scores.
        """
        part = min(1.0, max(0.0, progress) / self.exploration)
        (hot, cold), (many, few) = self.temperature, self.random_share
        temperature = hot * (cold / hot) ** part if hot and cold else hot + (cold - hot) * part
        return temperature, many + (few - many) * part
