"""The library's policy with our networks in it: actor and critic over a graph, each with its target.

Encoders are not shared between actor and critic: the library's shared extractor is not trained by the critic's loss and
moves into the targets twice as fast.
"""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from stable_baselines3.common.policies import ContinuousCritic
from stable_baselines3.common.type_aliases import Schedule
from stable_baselines3.td3.policies import Actor, TD3Policy
from torch import Tensor, nn

from rl.agent import variants as arms
from rl.agent.actor import SisoActor
from rl.agent.contract import Batch
from rl.agent.ddpg.settings import LearnerSettings
from rl.agent.ddpg.window_critic import WindowCritic
from rl.agent.settings import NetworkSettings

Space = spaces.Space[Any]


class PipelineActor(Actor):
    """π_θ of :mod:`rl.agent.variants` where the library expects a perceptron."""

    network: SisoActor
    optimizer: torch.optim.Optimizer

    def __init__(self, observation_space: Space, action_space: Space, settings: NetworkSettings) -> None:
        super().__init__(observation_space, action_space, [], nn.Identity(), 1)  # type: ignore[arg-type]
        self.mu = nn.Sequential()
        self.network = arms.actor(settings)


class PipelineCritic(ContinuousCritic):
    """Q_ω where the library expects a perceptron; one critic, as in DDPG."""

    qf0: WindowCritic
    optimizer: torch.optim.Optimizer

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        networks: NetworkSettings,
        learner: LearnerSettings,
    ) -> None:
        none = nn.Identity()
        super().__init__(observation_space, action_space, [], none, 1, n_critics=1)  # type: ignore[arg-type]
        self.qf0 = WindowCritic(networks, learner)
        self.q_networks = [self.qf0]


class PipelinePolicy(TD3Policy):
    """Spaces are those of one node and of one expert: nothing depends on a pipeline's size."""

    actor: PipelineActor
    actor_target: PipelineActor
    critic: PipelineCritic
    critic_target: PipelineCritic

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        lr_schedule: Schedule,
        networks: NetworkSettings,
        learner: LearnerSettings,
        **kwargs: Any,
    ) -> None:
        self.networks, self.learner = networks, learner
        super().__init__(observation_space, action_space, lr_schedule, net_arch=[], **kwargs)  # type: ignore[arg-type]

    def make_actor(self, features_extractor: object = None) -> PipelineActor:
        return PipelineActor(self.observation_space, self.action_space, self.networks).to(self.device)

    def make_critic(self, features_extractor: object = None) -> PipelineCritic:
        return PipelineCritic(self.observation_space, self.action_space, self.networks, self.learner).to(self.device)

    def forward(self, observation: Batch, deterministic: bool = True) -> Tensor:  # type: ignore[override]
        return self._predict(observation, deterministic)

    @torch.no_grad()
    def _predict(self, observation: Batch, deterministic: bool = True) -> Tensor:  # type: ignore[override]
        """[B, n, K, 4] int64 decisions; not deterministic: a sample at temperature 1."""
        return self.actor.network.decide(observation, 0.0 if deterministic else 1.0)
