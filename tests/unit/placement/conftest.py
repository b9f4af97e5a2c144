"""Statistics of made tokens for tests of placement."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.placement.activations import Activations, activations_of

Known = Callable[..., Activations]


@pytest.fixture
def known() -> Known:
    """Activations of tokens whose experts are skewed and come in pairs."""

    def make(layers: int, experts: int, k: int = 2, tokens: int = 300, seed: int = 0) -> Activations:
        rng = np.random.default_rng(seed)
        taste = rng.standard_normal((4, layers, experts)) + rng.standard_normal((layers, experts))
        score = taste[rng.integers(4, size=tokens)] + rng.gumbel(size=(tokens, layers, experts))
        return activations_of(np.argsort(-score, axis=2)[:, :, :k], experts)

    return make
