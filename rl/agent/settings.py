"""Sizes of the networks, and which arm of the ablation they are."""

from __future__ import annotations

from dataclasses import dataclass

from rl.agent.contract import CONFIGURATION_FEATURES
from rl.agent.errors import NetworkError

ARMS = ("full", "no-dagnn", "no-pointer", "ddpg-only", "no-concurrency", "full-joint")
"""``full`` is the paper's agent with junction-tree scores; the others take one part away (``docs/agent.md``)."""


@dataclass(frozen=True)
class NetworkSettings:
    """Sizes of actor and critic. Nothing here depends on a pipeline, except in the variant ``ddpg-only``."""

    node_features: int
    """F."""
    pipeline_features: int
    """G."""
    configuration_features: int = len(CONFIGURATION_FEATURES)
    """C."""
    arm: str = "full"
    """One of ``ARMS``."""
    width: int = 48
    """d: numbers of an embedding."""
    dagnn_layers: int = 2
    """L of section 4.2."""
    heads: int = 4
    """Attention heads of the Transformer encoder; they divide the width."""
    hidden: int = 64
    """Units of the hidden layers of all small networks."""
    rank: int = 32
    """Rank of the bilinear scores of a clique."""
    joint_hidden: int = 32
    """Hidden units of the full-joint score."""
    candidates: int = 64
    """Configurations drawn per expert for the gradient of the full-joint score."""
    known_cost: bool = True
    """Whether the critic adds the provisioned cost of an action in closed form and learns the rest."""
    layers: int = 0
    """Most MoE layers of a pipeline; of the arm ``ddpg-only`` alone, whose input is flat."""
    experts: int = 0
    """Most experts of a layer; of the arm ``ddpg-only`` alone."""

    def __post_init__(self) -> None:
        if self.arm not in ARMS:
            raise NetworkError(f"arm is {self.arm!r}; it is one of {', '.join(ARMS)}")
        least = dict.fromkeys(("node_features", "pipeline_features", "width", "dagnn_layers", "heads", "hidden"), 1)
        least |= dict.fromkeys(("rank", "joint_hidden", "candidates"), 1)
        flat = int(self.arm == "ddpg-only")
        least |= {"configuration_features": len(CONFIGURATION_FEATURES), "layers": flat, "experts": flat}
        for name, lowest in least.items():
            if getattr(self, name) < lowest:
                raise NetworkError(f"{name} of the networks is {getattr(self, name)}; it is at least {lowest}")
        if self.width % self.heads:
            raise NetworkError(f"width of the networks is {self.width}; it is a multiple of heads, {self.heads}")
