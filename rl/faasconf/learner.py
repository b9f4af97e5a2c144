"""DDPG of all agents at once: one actor and one critic, shared; numbers as in FaaSConf's public repository.

Gradients at the actor's outputs are inverted (Hausknecht and Stone, "Deep Reinforcement Learning in Parameterized
Action Space", 2016): through the sigmoid's own slope, outputs near 0 or 1 would stay there whatever the critic states.
Batch normalisation uses a batch's own statistics where a network is fitted, and running ones where it only judges.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from rl.faasconf.agent import Agent
from rl.faasconf.networks import Actor, Critic
from simulation.arrays import Singles


@dataclass(frozen=True, eq=False)
class Sample:
    """``states``, ``following`` [B, N, S]; ``actions`` [B, N, A]; ``rewards`` [B]; float32."""

    states: Tensor
    actions: Tensor
    rewards: Tensor
    following: Tensor


class Buffer:
    """A ring of the last ``capacity`` transitions. Axes: transition, agent, feature or output; rewards [transition]."""

    def __init__(self, capacity: int, agents: int, features: int, outputs: int) -> None:
        self.arrays: dict[str, Singles] = {
            "states": np.zeros((capacity, agents, features), np.float32),
            "actions": np.zeros((capacity, agents, outputs), np.float32),
            "rewards": np.zeros(capacity, np.float32),
            "following": np.zeros((capacity, agents, features), np.float32),
        }
        self.added = 0
        """Transitions ever added."""

    def __len__(self) -> int:
        return min(self.added, len(self.arrays["rewards"]))

    def add(self, states: Singles, actions: Singles, reward: float, following: Singles) -> None:
        at = self.added % len(self.arrays["rewards"])
        for name, value in (("states", states), ("actions", actions), ("rewards", reward), ("following", following)):
            self.arrays[name][at] = value
        self.added += 1

    def sample(self, count: int, rng: np.random.Generator) -> Sample:
        """Drawn evenly, with repetition."""
        chosen = rng.integers(len(self), size=count)
        return Sample(**{name: torch.from_numpy(values[chosen]) for name, values in self.arrays.items()})


FIRST_WEIGHTS = 0.1
"""What is left of the last layer's drawn weights where the actor is to begin near given outputs."""
EDGE = 0.003
"""Nearest that such outputs come to 0 or 1: half a part of the finest axis."""


@dataclass(frozen=True)
class LearnerSettings:
    """Numbers of the update."""

    learning_rate: float = 1e-3
    """FaaSConf's is 1e-4, for many more updates than are made here."""
    gamma: float = 0.9
    tau: float = 0.01
    """Part of the way that targets go towards the networks at each update."""
    batch: int = 64


class Learner:
    """Networks, their targets and optimisers. Same ``seed`` and samples, same weights."""

    def __init__(self, adjacency: Tensor, features: int, outputs: int, settings: LearnerSettings, seed: int) -> None:
        self.settings = settings
        self._adjacency = adjacency
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.actor, self.critic = Actor(features, outputs), Critic(features, outputs)
        self.targets = nn.ModuleList([copy.deepcopy(self.actor), copy.deepcopy(self.critic)]).requires_grad_(False)
        rate = settings.learning_rate
        self.actor_optimiser = torch.optim.Adam(self.actor.parameters(), lr=rate)
        self.critic_optimiser = torch.optim.Adam(self.critic.parameters(), lr=rate)
        self.mean, self.spread = torch.zeros(features), torch.ones(features)

    @property
    def agent(self) -> Agent:
        """The present actor; it goes on changing."""
        return Agent(self.actor, self.mean, self.spread)

    def begin_at(self, outputs: Tensor) -> None:
        """Let the actor's outputs be near these [outputs] for every state at first."""
        last = self.actor.layers[-1]
        assert isinstance(last, nn.Linear)
        with torch.no_grad():
            last.weight.mul_(FIRST_WEIGHTS)
            last.bias.copy_(torch.logit(outputs, eps=EDGE))
        self.targets[0].load_state_dict(self.actor.state_dict())

    def scale_to(self, states: Tensor) -> None:
        """Standardise by these [transitions, agents, features] from now on."""
        self.mean = states.mean(dim=(0, 1))
        self.spread = states.std(dim=(0, 1)).clamp(min=1e-3)

    def update(self, sample: Sample) -> tuple[float, float]:
        """One step of critic and actor; their losses."""
        states, following = ((part - self.mean) / self.spread for part in (sample.states, sample.following))
        self.actor.train()
        self.critic.train()
        self.targets.eval()
        target_actor, target_critic = self.targets
        with torch.no_grad():
            best = target_actor(following, self._adjacency)
            value = target_critic(following, best, self._adjacency)  # [B, N]
            wanted = sample.rewards[:, None] + self.settings.gamma * value
        critic_loss = (wanted - self.critic(states, sample.actions, self._adjacency)).square().mean()
        self.critic_optimiser.zero_grad()
        critic_loss.backward()
        self.critic_optimiser.step()
        self.critic.eval()  # a batch's own statistics would hide a shift that all actions have in common
        logits = self.actor.logits(states, self._adjacency)
        outputs = torch.sigmoid(logits.detach()).requires_grad_()
        actor_loss = -self.critic(states, outputs, self._adjacency).mean()
        (slope,) = torch.autograd.grad(actor_loss, outputs)
        self.actor_optimiser.zero_grad()
        logits.backward(slope * room(outputs.detach(), slope))  # type: ignore[no-untyped-call]
        self.actor_optimiser.step()
        self._follow()
        return float(critic_loss.detach()), float(actor_loss.detach())

    def _follow(self) -> None:
        with torch.no_grad():
            for target, network in zip(self.targets, (self.actor, self.critic), strict=True):
                for parameter, other in zip(target.parameters(), network.parameters(), strict=True):
                    parameter.lerp_(other, self.settings.tau)
                for kept, fresh in zip(target.buffers(), network.buffers(), strict=True):
                    kept.copy_(fresh)


def room(outputs: Tensor, slope: Tensor) -> Tensor:
    """How far ``outputs`` may still go where the loss falls: to 1 where its ``slope`` is negative, else to 0.
    ``outputs`` and ``slope`` [...]."""
    return torch.where(slope < 0, 1.0 - outputs, outputs)
