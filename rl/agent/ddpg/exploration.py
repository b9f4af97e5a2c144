"""Decisions to learn from: drawn from the actor's own softmax, some experts given any valid configuration instead.

Noise on numbers would leave Φ and the mask of Eq. (2), so all exploration happens on Φ itself.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from rl.agent.contract import ActorNetwork, Batch, State


@torch.no_grad()
def decide(actor: ActorNetwork, batch: Batch, temperature: float = 0.0, seed: int = 0) -> NDArray[np.int16]:
    """[B, n, K, 4]; temperature 0: the arg max. The same seed draws the same decisions."""
    generator = torch.Generator().manual_seed(seed) if temperature else None
    return actor.decide(batch, temperature, generator).numpy().astype(np.int16)


def with_random(
    decided: NDArray[np.int16],
    state: State,
    sizes: tuple[int, int, int, int],
    mask: NDArray[np.bool_],
    share: float,
    rng: np.random.Generator,
) -> NDArray[np.int16]:
    """[n, K, 4] ``decided`` with about ``share`` of the experts (``mask`` [n, K]) at a valid configuration drawn.

    Valid is Eq. (2): replicas are drawn among counts for which some memory is enough, then memory among those sizes.
    Where none is enough, the largest memory and the most replicas.
    """
    actions = decided.copy()
    memories, resources, counts, concurrencies = sizes
    for layer, expert in np.argwhere(mask & (rng.random(mask.shape) < share)):
        least = state.least_memory[layer, expert]
        possible = np.flatnonzero(least < memories)
        replicas = int(rng.choice(possible)) if possible.size else counts - 1
        memory = int(rng.integers(least[replicas], memories)) if possible.size else memories - 1
        actions[layer, expert] = (memory, rng.integers(resources), replicas, rng.integers(concurrencies))
    return actions
