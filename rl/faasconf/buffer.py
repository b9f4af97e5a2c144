"""Transitions of whole pipelines: every agent's state, action and next state, and the reward that all share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

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
