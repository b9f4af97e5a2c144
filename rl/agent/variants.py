"""Actor and critic of an arm of the ablation; all behind the protocols of ``rl.agent.contract``."""

from __future__ import annotations

from rl.agent.actor import Actor, SisoActor
from rl.agent.critic import Critic
from rl.agent.flat import FlatActor, FlatCritic
from rl.agent.settings import ARMS, NetworkSettings

__all__ = ["ARMS", "actor", "critic"]


def actor(settings: NetworkSettings) -> SisoActor:
    """A new actor of ``settings.arm``."""
    return FlatActor(settings) if settings.arm == "ddpg-only" else Actor(settings)


def critic(settings: NetworkSettings) -> Critic | FlatCritic:
    """A new critic of ``settings.arm``, with an encoder of its own."""
    return FlatCritic(settings) if settings.arm == "ddpg-only" else Critic(settings)
