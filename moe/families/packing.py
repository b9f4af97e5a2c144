"""Where the texts of a packed batch lie.

A packed batch of texts with 3 and 2 tokens is ``[a0 a1 a2 b0 b1]`` with lengths ``[3, 2]``; its positions are
``[0 1 2 0 1]``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Packing:
    """Lengths of the packed texts, and index tensors derived from them when first asked for."""

    __slots__ = ("_ends", "_positions", "lengths", "longest", "total")

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = lengths
        self.longest = max(lengths)
        self.total = sum(lengths)
        self._positions: Tensor | None = None
        self._ends: Tensor | None = None

    @property
    def texts(self) -> int:
        return len(self.lengths)

    @property
    def even(self) -> bool:
        """All texts are equally long, so the packed batch is an ordinary one."""
        return self.longest * len(self.lengths) == self.total

    @property
    def positions(self) -> Tensor:
        """``[T]`` int64: place of each token in its own text."""
        if self._positions is None:
            parts = [torch.arange(length) for length in self.lengths]
            self._positions = parts[0] if len(parts) == 1 else torch.cat(parts)
        return self._positions

    @property
    def ends(self) -> Tensor:
        """``[B]`` int64: index of each text's last token."""
        if self._ends is None:
            self._ends = torch.cumsum(torch.tensor(self.lengths), 0) - 1
        return self._ends
