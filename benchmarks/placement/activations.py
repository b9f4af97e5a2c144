"""Activation and co-activation statistics of some tokens: what placement is computed from.

An expert is *activated* by a token that chooses it; two experts are *co-activated* by a token that chooses both.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from functions.dispatch.activations import coactivations
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
    """Sums over ``choices`` [tokens, layers, k], each token's experts, as a running ingress counts them. Raises
    PlacementError for an unknown expert."""
    if choices.ndim != 3 or (choices.size and (choices.min() < 0 or choices.max() >= experts)):
        raise PlacementError(f"choices must be [tokens, layers, k] of experts 0 to {experts - 1}")
    layers = choices.shape[1]
    together = np.empty((layers, experts, experts), dtype=np.float32)
    for layer in range(layers):
        together[layer] = coactivations(choices[:, layer], experts)
    return Activations(tokens_of(choices, experts), together)


def tokens_of(choices: NDArray[np.integer], experts: int) -> Floats:
    """[layers, experts]: tokens that chose the expert."""
    layers = range(choices.shape[1])
    return np.array([np.bincount(choices[:, at].ravel(), minlength=experts) for at in layers], dtype=np.float64)
