"""Where the texts of a packed batch lie.

A packed batch of texts with 3 and 2 tokens is ``[a0 a1 a2 b0 b1]`` with lengths ``[3, 2]``; its positions are
``[0 1 2 0 1]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

HOST = torch.device("cpu")


class Past(Protocol):
    """What the texts of a packed batch had before it: keys and values of ``starts[i]`` tokens of text i."""

    starts: Sequence[int]

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, scale: float | None, window: int | None, sinks: Tensor | None
    ) -> Tensor:
        """Causal attention of the new tokens with all of their text; ``k`` and ``v`` are kept, once where both are one.

        ``q: [T, heads, head_dim]``, ``k, v: [T, kv_heads, head_dim]`` to ``[T, heads * head_dim]``. Called once for
        each attention of the program, in its order.
        """


class Packing:
    """Lengths of the packed texts, and index tensors derived from them when first asked for.

    The index tensors are made on the host and lie on ``device``, next to what they index. With a ``past`` the texts
    begin earlier: only their new tokens are in the batch.
    """

    def __init__(self, lengths: Sequence[int], device: torch.device = HOST, past: Past | None = None) -> None:
        self.lengths = lengths
        self.device = device
        self.past = past
        self.longest = max(lengths)
        self.total = sum(lengths)
        self.first: Sequence[int] = past.starts if past is not None else [0] * len(lengths)
        """[B]: position of each text's first token here."""
        self.reach = max(map(sum, zip(self.first, lengths, strict=True)))
        """One more than the last position."""

    @property
    def texts(self) -> int:
        return len(self.lengths)

    @property
    def even(self) -> bool:
        """All texts are equally long, so the packed batch is an ordinary one."""
        return self.longest * len(self.lengths) == self.total

    @cached_property
    def positions(self) -> Tensor:
        """``[T]`` int64: place of each token in its own text."""
        parts = [torch.arange(first, first + n) for first, n in zip(self.first, self.lengths, strict=True)]
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).to(self.device)

    @cached_property
    def starts(self) -> Tensor:
        """``[B]`` int64: index of each text's first token."""
        lengths = torch.tensor(self.lengths)
        return (torch.cumsum(lengths, 0) - lengths).to(self.device)

    @cached_property
    def ends(self) -> Tensor:
        """``[B]`` int64: index of each text's last token."""
        return (torch.cumsum(torch.tensor(self.lengths), 0) - 1).to(self.device)
