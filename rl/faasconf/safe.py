"""Safe exploration: an action whose total price is far from what was ever worth paying is not tried.

As in FaaSConf's public repository: where the price falls outside mean ± 2 standard deviations of a history of good
actions, one of them is replayed with a little noise (σ = 0.05).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulation.arrays import Singles

DEVIATIONS = 2.0
REPLAY_NOISE = 0.05


@dataclass(frozen=True, eq=False)
class History:
    """``actions [actions, agents, outputs]`` and the total price of each, ``prices [actions]`` per second."""

    actions: Singles
    prices: NDArray[np.float64]

    @property
    def mean_price(self) -> float:
        return float(self.prices.mean())

    def is_safe(self, price: float) -> bool:
        return bool(abs(price - self.prices.mean()) <= DEVIATIONS * self.prices.std())

    def replay(self, rng: np.random.Generator) -> Singles:
        """[agents, outputs]: an action of the history, with noise, cut to 0 … 1."""
        return noisy(self.actions[rng.integers(len(self.actions))], REPLAY_NOISE, rng)


def noisy(outputs: Singles, deviation: float, rng: np.random.Generator) -> Singles:
    """``outputs`` with normal noise, cut to 0 … 1."""
    drawn = rng.normal(outputs, deviation) if deviation else outputs
    return np.clip(drawn, 0.0, 1.0).astype(np.float32)
