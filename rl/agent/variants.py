"""The actor of an arm of the ablation, behind the protocol of ``rl.agent.contract``."""

from __future__ import annotations

from rl.agent.actor import Actor, SisoActor
from rl.agent.flat import FlatActor
from rl.agent.settings import ARMS, NetworkSettings

__all__ = ["ARMS", "actor"]


def actor(settings: NetworkSettings) -> SisoActor:
    """A new actor of ``settings.arm``."""
    return FlatActor(settings) if settings.arm == "ddpg-only" else Actor(settings)
