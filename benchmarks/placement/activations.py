"""Activation and co-activation statistics of some tokens: what placement is computed from.

An expert is *activated* by a token that chooses it; two experts are *co-activated* by a token that chooses both.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placement.errors import PlacementError
from placement.layout import Floats, Singles


@dataclass(frozen=True, eq=False)
class Activations:
    """Sums over some tokens."""

    tokens: Floats
    """[layers, experts] float64: tokens that chose the expert."""
    together: Singles
    """[layers, experts, experts] float32: tokens that chose both; zero diagonal, symmetric."""


def activations_of(choices: NDArray[np.integer], experts: int) -> Activations:
    """Sums over ``choices`` [tokens, layers, k], each token's experts. Raises PlacementError for an unknown expert."""
    if choices.ndim != 3 or (choices.size and (choices.min() < 0 or choices.max() >= experts)):
        raise PlacementError(f"choices must be [tokens, layers, k] of experts 0 to {experts - 1}")
    count, layers, _ = choices.shape
    tokens = np.empty((layers, experts))
    together = np.empty((layers, experts, experts), dtype=np.float32)
    for layer in range(layers):
        chosen = np.zeros((count, experts), dtype=np.float32)
        np.put_along_axis(chosen, choices[:, layer].astype(np.int64), 1.0, axis=1)
        tokens[layer] = chosen.sum(axis=0, dtype=np.float64)
        together[layer] = chosen.T @ chosen
    together[:, range(experts), range(experts)] = 0.0
    return Activations(tokens, together)
