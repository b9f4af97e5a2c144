"""What the ingress computes itself: grouping a layer's tokens by expert, and the weighted sum of what comes back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from functions.wire.arrays import Array, as_float32, from_float32


@dataclass(frozen=True, slots=True)
class Exchange:
    """Tokens of a layer grouped by expert. Rows are the T·k pairs (token, choice) by expert, then token.

    ``experts``: those that got tokens, ascending; ``edges``: expert i has the rows ``edges[i]`` to ``edges[i + 1]``;
    ``tokens [T·k]``: each row's token; ``gates [T·k, 1]``; ``places [T, k]``: each token's rows, ascending.

    ``expert_ids`` ``[[1, 0], [1, 2]]`` gives experts (0, 1, 2), edges (0, 1, 3, 4), tokens ``[0 0 1 1]`` and places
    ``[[0 1], [2 3]]``.

    ``alone``: the gates of a lone token's experts, in place of ``gates`` and ``places``, which are empty then.
    """

    experts: tuple[int, ...]
    edges: tuple[int, ...]
    tokens: NDArray[np.intp]
    gates: NDArray[np.float32]
    places: NDArray[np.intp]
    alone: tuple[float, ...] = ()

    def scatter(self, x: Array) -> list[Array]:
        """``x [T, d]`` to one ``[m, d]`` for each of ``experts``."""
        if self.alone:
            return [x] * len(self.experts)
        rows = x[self.tokens]
        return [rows[low:high] for low, high in zip(self.edges, self.edges[1:], strict=False)]

    def combine(self, residual: Array, outputs: Sequence[Array]) -> Array:
        """``residual [T, d]`` plus each token's outputs times their gates, in expert order, summed in float32."""
        if self.alone:
            sums = as_float32(residual)
            for output, gate in zip(outputs, self.alone, strict=True):
                sums = sums + as_float32(output) * gate  # a float that float32 holds: the product is float32's
            return from_float32(sums, residual.dtype)
        rows = np.empty((len(self.tokens), residual.shape[1]), np.float32)
        for low, high, output in zip(self.edges, self.edges[1:], outputs, strict=False):
            np.multiply(as_float32(output), self.gates[low:high], out=rows[low:high])
        total = as_float32(residual) + rows[self.places[:, 0]]
        for choice in range(1, self.places.shape[1]):
            total += rows[self.places[:, choice]]
        return from_float32(total, residual.dtype)


def exchange(expert_ids: NDArray[np.int64], gates: NDArray[np.float32]) -> Exchange:
    """Group by expert: ``expert_ids [T, k] int64`` (0 or more), ``gates [T, k] float32``."""
    tokens, choices = expert_ids.shape
    if tokens == 1 and len(set(ids := expert_ids[0].tolist())) == choices and min(ids) >= 0:
        return _of_one_token(ids, gates[0].tolist())
    flat = expert_ids.ravel()
    order = flat.argsort(kind="stable")
    counts = np.bincount(flat).tolist()
    experts, edges = [], [0]
    for expert, count in enumerate(counts):
        if count:
            experts.append(expert)
            edges.append(edges[-1] + count)
    places = np.empty(tokens * choices, np.intp)
    places[order] = np.arange(tokens * choices)
    places = places.reshape(tokens, choices)
    places.sort(axis=1)
    return Exchange(tuple(experts), tuple(edges), order // choices, gates.ravel()[order][:, None], places)


def _of_one_token(ids: list[int], gates: list[float]) -> Exchange:
    """As ``exchange``, for a token decoded alone: that comes once a layer, and NumPy's sorting costs more than its
    sums."""
    experts, alone = zip(*sorted(zip(ids, gates, strict=True)), strict=True)
    edges, tokens = _rows_of_one_token(len(experts))
    return Exchange(experts, edges, tokens, _NO_GATES, _NO_PLACES, alone)


@lru_cache(maxsize=256)
def _rows_of_one_token(choices: int) -> tuple[tuple[int, ...], NDArray[np.intp]]:
    """Edges and tokens: a row for each choice."""
    return tuple(range(choices + 1)), np.zeros(choices, np.intp)


_NO_GATES, _NO_PLACES = np.empty((0, 1), np.float32), np.empty((0, 0), np.intp)
