"""The sMoE paper's agent as it is written, for stable-baselines3's own ``DDPG(...).learn()``.

No teacher, no known cost, no counterfactual branches, no shaped penalty. DAGNN (section
4.2) and the layer-wise pointer (Eq. 10, 11) embed the experts, the score of section 4.3 looks at every configuration
of Φ, arg max (Eq. 12) decides one layer a step, the reward is Eq. (13), the critic is Q(s_i, a_i) with TD targets,
and the actor follows the deterministic policy gradient of Eq. (14). What the paper leaves open, and what is taken
here, is in ``docs/decisions/0015-the-paper-agent.md``.

    env = Stepwise(gymnasium.make("rl.env:smoe/Pipeline-v0", workload="bert-4", world="cores-only"))
    model = DDPG(PaperPolicy, env, policy_kwargs=paper_networks(env), gamma=0.95)
    model.learn(4000)

The library hands actions around as vectors of numbers within -1 and 1. Here these are the features of a layer's
configurations: the actor gives those of its arg max with the gradient of the expected ones (straight-through), so
that Eq. (14) is the library's own ``-critic(s, actor(s)).mean()``, and the environment takes the nearest
configuration of Φ, which is that arg max itself unless the library adds noise to explore.
"""

from __future__ import annotations

from typing import Any, SupportsFloat, cast

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.policies import ContinuousCritic
from stable_baselines3.common.type_aliases import Schedule
from stable_baselines3.td3.policies import Actor, TD3Policy
from torch import Tensor, nn

from rl.agent import actor as actors
from rl.agent.configuration_table import CONCURRENCY, REPLICAS
from rl.agent.contract import CONFIGURATION_FEATURES, Batch, Floats32, Space
from rl.agent.critic import Critic
from rl.agent.settings import NetworkSettings
from rl.env import Observed, PipelineEnv
from rl.features import NODE_FEATURES, PIPELINE_FEATURES

POSITIONS = 1000.0
"""No axis of Φ has more positions."""
Observations = dict[str, Tensor]
NUMBERS = len(CONFIGURATION_FEATURES)


class Stepwise(gymnasium.Wrapper[Observed, Any, Observed, Any]):
    """:class:`rl.env.PipelineEnv` for an algorithm whose actions are vectors within -1 and 1.

    An action is [K · C]: the features of the configurations of the layer's experts (``CONFIGURATION_FEATURES``); the
    nearest position on each axis of Φ is taken. An observation has all that :class:`rl.agent.contract.Batch` holds.
    """

    def __init__(self, env: gymnasium.Env[Observed, NDArray[np.int64]]) -> None:
        super().__init__(env)
        self._plain = cast(PipelineEnv, env.unwrapped)
        self.graph: Space = self._plain.encoder.space
        layers, width = self.graph.mask.shape
        given = cast(spaces.Dict, env.observation_space)
        shapes = {"present": layers * width * 4, "decided": layers * width * 4}
        shapes["least_memory"] = layers * width * self.graph.sizes[2]
        self.observation_space = spaces.Dict(
            {name: given[name] for name in ("segments", "experts", "pipeline", "layer")}
            | {name: spaces.Box(0.0, POSITIONS, (size,), np.float32) for name, size in shapes.items()}
        )
        self.action_space = spaces.Box(-1.0, 1.0, (width * NUMBERS,), np.float32)
        table = self.graph.resource_memory
        self._memory, self._resources = table[:, 0, 0].numpy(), table[0, :, 1:4].numpy()

    def positions(self, action: Floats32) -> NDArray[np.int64]:
        """[K · 4]: the configurations of Φ that are nearest to ``action`` [K · C], by axis."""
        features = np.asarray(action, dtype=np.float32).reshape(-1, NUMBERS)
        memory = np.abs(features[:, :1] - self._memory).argmin(-1)
        resource = np.square(features[:, None, 1:4] - self._resources).sum(-1).argmin(-1)
        replicas = np.abs(features[:, REPLICAS, None] - self.graph.replicas.numpy()).argmin(-1)
        concurrency = np.abs(features[:, CONCURRENCY, None] - self.graph.concurrencies.numpy()).argmin(-1)
        return np.stack((memory, resource, replicas, concurrency), -1).ravel().astype(np.int64)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observed, dict[str, Any]]:
        observed, info = self.env.reset(seed=seed, options=options)
        return self._whole(observed), info

    def step(self, action: Floats32) -> tuple[Observed, SupportsFloat, bool, bool, dict[str, Any]]:
        observed, reward, terminated, truncated, info = self.env.step(self.positions(action))
        return self._whole(observed), reward, terminated, truncated, info

    def _whole(self, observed: Observed) -> Observed:
        state, decided, _ = self._plain.deciding
        places = {"present": state.present, "decided": decided, "least_memory": state.least_memory}
        return {name: observed[name] for name in ("segments", "experts", "pipeline", "layer")} | {
            name: value.astype(np.float32).ravel() for name, value in places.items()
        }


def paper_networks(env: Stepwise, **sizes: int) -> dict[str, Any]:
    """``policy_kwargs`` of :class:`PaperPolicy`; ``sizes``: of :class:`rl.agent.settings.NetworkSettings`."""
    networks = NetworkSettings(len(NODE_FEATURES), len(PIPELINE_FEATURES), arm="full-joint", direct=False, **sizes)
    return {"graph": env.graph, "networks": networks}


def batch_of(graph: Space, observed: Observations) -> tuple[Batch, Tensor, Tensor]:
    """The states [B], what was decided in the layers before [B, n, K, 4], and each state's layer [B]."""
    layers, width = graph.mask.shape

    def view(name: str, *shape: int) -> Tensor:
        return observed[name].view(-1, *shape)

    batch = Batch(
        graph,
        view("segments", layers + 1, len(NODE_FEATURES)),
        view("experts", layers, width, len(NODE_FEATURES)),
        view("pipeline", len(PIPELINE_FEATURES)),
        view("present", layers, width, 4).long(),
        view("least_memory", layers, width, graph.sizes[2]).long(),
    )
    return batch, view("decided", layers, width, 4).long(), view("layer", layers).argmax(-1)


class PaperActor(Actor):
    """π_θ: features of the arg max over Φ of the layer to be decided, [B, K · C]."""

    def __init__(self, observed: spaces.Space[Any], action: spaces.Space[Any], graph: Space, networks: NetworkSettings):
        super().__init__(observed, action, [], nn.Identity(), 1)  # type: ignore[arg-type]
        self.mu = nn.Sequential()
        self.graph, self.network = graph, actors.Actor(networks)

    def forward(self, obs: Observations) -> Tensor:  # type: ignore[override]
        batch, decided, layer = batch_of(self.graph, obs)
        features = self.network.relaxed(batch, decided)
        return features[torch.arange(len(layer)), layer].flatten(1).clamp(-1.0, 1.0)


class PaperCritic(ContinuousCritic):
    """Q_ω(s_i, a_i), [B, 1]; one, as in DDPG."""

    def __init__(self, observed: spaces.Space[Any], action: spaces.Space[Any], graph: Space, networks: NetworkSettings):
        none = nn.Identity()
        super().__init__(observed, action, [], none, 1, n_critics=1)  # type: ignore[arg-type]
        self.graph, self.qf0 = graph, Critic(networks)

    def forward(self, obs: Observations, actions: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        return (self.q1_forward(obs, actions),)

    def q1_forward(self, obs: Observations, actions: Tensor) -> Tensor:  # type: ignore[override]
        batch, decided, layer = batch_of(self.graph, obs)
        at = torch.arange(len(layer))
        features = torch.zeros(*decided.shape[:3], NUMBERS)
        features[at, layer] = actions.view(len(actions), -1, NUMBERS)
        value: Tensor = self.qf0(batch, features, decided)[at, layer].unsqueeze(-1)
        return value


class PaperPolicy(TD3Policy):
    """The library's actor and critic, each with its target, with the paper's networks in them."""

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Box,
        lr_schedule: Schedule,
        graph: Space,
        networks: NetworkSettings,
        **kwargs: Any,
    ) -> None:
        self.graph, self.networks = graph, networks
        super().__init__(observation_space, action_space, lr_schedule, net_arch=[], **kwargs)

    def make_actor(self, features_extractor: object = None) -> PaperActor:
        return PaperActor(self.observation_space, self.action_space, self.graph, self.networks).to(self.device)

    def make_critic(self, features_extractor: object = None) -> PaperCritic:
        return PaperCritic(self.observation_space, self.action_space, self.graph, self.networks).to(self.device)
