"""Where the texts of a packed batch lie.

A packed batch of texts with 3 and 2 tokens is ``[a0 a1 a2 b0 b1]`` with lengths ``[3, 2]``; its positions are
``[0 1 2 0 1]``. Padded it is ``[[a0 a1 a2], [b0 b1 -]]``, and ``slots`` = ``[0 1 2 3 4]`` says where each
packed token lies in the flattened padded form.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Packing:
    """Lengths of the packed texts, and index tensors derived from them when first asked for."""

    __slots__ = ("_ends", "_positions", "_slots", "lengths", "longest", "total")

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = lengths
        self.longest = max(lengths)
        self.total = sum(lengths)
        self._positions: Tensor | None = None
        self._slots: Tensor | None = None
        self._ends: Tensor | None = None

    @property
    def texts(self) -> int:
        return len(self.lengths)

    @property
    def even(self) -> bool:
        """All texts are equally long, so packed and padded forms are the same memory."""
        return self.longest * len(self.lengths) == self.total

    @property
    def positions(self) -> Tensor:
        """``[T]`` int64: place of each token in its own text."""
        if self._positions is None:
            parts = [torch.arange(length) for length in self.lengths]
            self._positions = parts[0] if len(parts) == 1 else torch.cat(parts)
        return self._positions

    @property
    def slots(self) -> Tensor:
        """``[T]`` int64: index of each token in the flattened padded batch ``[B * longest]``."""
        if self._slots is None:
            starts = torch.arange(len(self.lengths)) * self.longest  # [B]
            counts = torch.tensor(self.lengths)  # [B]
            self._slots = torch.repeat_interleave(starts, counts) + self.positions  # [T]
        return self._slots

    @property
    def ends(self) -> Tensor:
        """``[B]`` int64: index of each text's last token."""
        if self._ends is None:
            self._ends = torch.cumsum(torch.tensor(self.lengths), 0) - 1
        return self._ends
