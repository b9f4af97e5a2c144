"""What routing did over a sliding window: tokens of each expert and co-activations, for placement.

An expert is *activated* by a token that chooses it; two experts are *co-activated* by a token that chooses both. A pass
only keeps its choices; they are summed a few thousand tokens at a time, so that counting costs a pass about a
microsecond a layer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

PERIODS = 10
"""Parts of the window; it moves on by one part at a time."""
FOLD_TOKENS = 16_384
"""Choices of so many tokens are kept before they are summed."""


@dataclass(slots=True)
class _Period:
    """Sums of one part of the window."""

    number: int
    tokens: Ints
    together: NDArray[np.int32]


class ActivationWindow:
    """Sums of the last ``window_s`` seconds, moving on a tenth of it at a time."""

    def __init__(self, experts: Sequence[int], window_s: float) -> None:
        """``experts``: of each layer."""
        self.window_s = window_s
        self._period_s = window_s / PERIODS
        self._shape = (len(experts), max(experts, default=0))
        self._pending: list[list[NDArray[np.int32]]] = [[] for _ in experts]
        self._pending_tokens = 0
        self._pending_until_s = 0.0
        self._periods: deque[_Period] = deque()

    def add(self, layer: int, expert_ids: Ints, now_s: float) -> None:
        """Choices of a layer's tokens, [T, k] of experts the layer has."""
        if now_s >= self._pending_until_s or self._pending_tokens >= FOLD_TOKENS:
            self._fold()
            self._pending_until_s = (now_s // self._period_s + 1) * self._period_s
        self._pending[layer].append(expert_ids.astype(np.int32))
        self._pending_tokens += len(expert_ids)

    def totals(self, now_s: float) -> tuple[Ints, Ints]:
        """``tokens [layers, experts]`` and ``together [layers, experts, experts]`` (symmetric, zero diagonal).

        A layer with fewer experts than the widest has zeros at the end.
        """
        self._fold()
        layers, experts = self._shape
        tokens, together = np.zeros(self._shape, np.int64), np.zeros((layers, experts, experts), np.int64)
        for period in self._periods:
            if period.number > now_s // self._period_s - PERIODS:
                tokens += period.tokens
                together += period.together
        return tokens, together

    def _fold(self) -> None:
        """Sum what is kept into the period it is of."""
        if not self._pending_tokens:
            return
        period = self._period(round(self._pending_until_s / self._period_s) - 1)
        experts = self._shape[1]
        for layer, kept in enumerate(self._pending):
            for ids in _by_width(kept):
                period.tokens[layer] += np.bincount(ids.ravel(), minlength=experts)
                period.together[layer] += coactivations(ids, experts).astype(np.int32)
            kept.clear()
        self._pending_tokens = 0

    def _period(self, number: int) -> _Period:
        if not self._periods or self._periods[-1].number != number:
            layers, experts = self._shape
            together = np.zeros((layers, experts, experts), np.int32)
            self._periods.append(_Period(number, np.zeros(self._shape, np.int64), together))
        while self._periods[0].number <= number - PERIODS:
            self._periods.popleft()
        return self._periods[-1]


def coactivations(ids: NDArray[np.integer], experts: int) -> Ints:
    """[experts, experts]: tokens of ``ids`` [tokens, k] that chose both experts; symmetric, zero diagonal.

    A pair is one number, so one pass of bincount counts all pairs of all tokens; choices lie slot by slot, so that the
    numbers of all pairs with one slot are one addition without a gather.
    """
    tokens, width = ids.shape
    slots = np.ascontiguousarray(ids.T, dtype=np.intp)
    rows = slots[:-1] * experts
    pairs = np.empty((width * (width - 1) // 2, tokens), dtype=np.intp)
    begin = 0
    for slot in range(width - 1):
        end = begin + width - 1 - slot
        np.add(rows[slot], slots[slot + 1 :], out=pairs[begin:end])
        begin = end
    counts = np.bincount(pairs.ravel(), minlength=experts * experts).reshape(experts, experts)
    both: Ints = counts + counts.T
    np.fill_diagonal(both, 0)
    return both


def _by_width(kept: Sequence[NDArray[np.int32]]) -> list[NDArray[np.int32]]:
    """Choices with as many experts a token each, as one array."""
    widths = {ids.shape[1] for ids in kept}
    return [np.concatenate([ids for ids in kept if ids.shape[1] == width]) for width in widths]


def entropy_bits(tokens: Ints) -> NDArray[np.float64]:
    """[layers]: Shannon entropy of each layer's activations in bits; 0 where there are none."""
    total = tokens.sum(axis=1, keepdims=True)
    share = tokens / np.maximum(total, 1)
    bits: NDArray[np.float64] = -(share * np.log2(np.where(share > 0, share, 1.0))).sum(axis=1)
    return bits
