"""Sizes of the networks, and which arm of the ablation they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from autoscaler.checked import Checked, FromOne, FromZero, Rule
from rl.agent.contract import CONFIGURATION_FEATURES
from rl.agent.errors import NetworkError

Arm = Literal["full", "no-dagnn", "no-pointer", "ddpg-only", "no-concurrency", "full-joint"]
ARMS: tuple[Arm, ...] = get_args(Arm)
"""``full`` is the paper's agent with junction-tree scores; the others take one part away (``docs/agent.md``)."""
RETIRED = frozenset(("known_cost", "judge", "credit", "gradient"))
"""Settings of networks and learner that are no longer there; files of actors and checkpoints may still name them."""


@dataclass(frozen=True)
class NetworkSettings(Checked):
    """Sizes of actor and critic. Nothing here depends on a pipeline, except in the variant ``ddpg-only``."""

    title = "networks"
    error = NetworkError
    node_features: FromOne
    """F."""
    pipeline_features: FromOne
    """G."""
    configuration_features: Annotated[int, Field(ge=len(CONFIGURATION_FEATURES))] = len(CONFIGURATION_FEATURES)
    """C."""
    arm: Arm = "full"
    width: FromOne = 48
    """d: numbers of an embedding."""
    dagnn_layers: FromOne = 2
    """L of section 4.2."""
    heads: FromOne = 4
    """Attention heads of the Transformer encoder; they divide the width."""
    hidden: FromOne = 64
    """Units of the hidden layers of all small networks."""
    rank: FromOne = 32
    """Rank of the bilinear scores of a clique."""
    joint_hidden: FromOne = 32
    """Hidden units of the full-joint score."""
    candidates: FromOne = 64
    """Configurations drawn per expert for the gradient of the full-joint score."""
    direct: bool = True
    """Whether an expert's own features also go to its query directly, past DAGNN and pointer."""
    layers: FromZero = 0
    """Most MoE layers of a pipeline; of the arm ``ddpg-only`` alone, whose input is flat."""
    experts: FromZero = 0
    """Most experts of a layer; of the arm ``ddpg-only`` alone."""

    def rules(self) -> Iterable[Rule]:
        least = int(self.arm == "ddpg-only")
        return (
            ("layers", self.layers >= least, f"{least} or more"),
            ("experts", self.experts >= least, f"{least} or more"),
            ("width", self.width % self.heads == 0, f"a multiple of heads, {self.heads}"),
        )


def without_retired(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of networks or learner as a file has them, but for those in ``RETIRED``."""
    return {name: value for name, value in stored.items() if name not in RETIRED}
