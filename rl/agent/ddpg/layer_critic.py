"""The critic of layer steps as the paper has it: Q(s_i, a_i) in view of the layers decided before."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rl.agent import variants as arms
from rl.agent.configuration_table import features_of
from rl.agent.contract import Batch
from rl.agent.ddpg.buffer import WindowSamples
from rl.agent.ddpg.settings import LearnerSettings
from rl.agent.ddpg.targets import own_returns, penalties, returns
from rl.agent.settings import NetworkSettings


class LayerCritic(nn.Module):
    """The arm's Q_ω with its targets."""

    def __init__(self, networks: NetworkSettings, learner: LearnerSettings) -> None:
        super().__init__()
        self.learner = learner
        self.network = arms.critic(networks)

    def value(self, batch: Batch, features: Tensor, executed: Tensor, unit: float) -> Tensor:
        """[B] mean of the layers' Q: each estimates its own cost and what all share."""
        values: Tensor = self.network(batch, features, executed)
        return values.mean(-1)

    def window_value(self, batch: Batch, features: Tensor, executed: Tensor, unit: float) -> Tensor:
        """[B] what a window is worth before anything is decided in it: the first layer's Q; with own returns the
        mean of all."""
        values: Tensor = self.network(batch, features, executed)
        return values[:, 0] if self.learner.credit == "return" else values.mean(-1)

    def targets(self, samples: WindowSamples, following: Tensor) -> Tensor:
        """[B, n] by the wanted credit."""
        punished, gamma = penalties(samples.p95, self.learner), self.learner.gamma
        if self.learner.credit == "own":
            return own_returns(samples.rewards, punished, following, gamma)
        last = torch.zeros_like(samples.rewards)
        last[:, -1] = punished
        return returns(samples.rewards + last, following, gamma)

    def loss(self, samples: WindowSamples, following: Tensor) -> tuple[Tensor, dict[str, float]]:
        """Mean squared distance of Q from its targets. Scalar."""
        batch, wanted = samples.observations, self.targets(samples, following)
        values = self.network(batch, features_of(batch.space, samples.actions), samples.actions)
        loss = nn.functional.mse_loss(values, wanted)
        spread = float(wanted.var(dim=0).mean()) if len(wanted) > 1 else 0.0
        return loss, {"critic": loss.item(), "critic_unexplained": loss.item() / spread if spread > 0 else 0.0}
