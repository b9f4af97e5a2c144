"""A segment: what lies between two rows of experts, put together from a family's parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from moe.families.packing import Packing, Past
from moe.families.routing import RouterProgram

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Place:
    """What surrounds the tokens in a call: their packing, and the memory that cross-attention reads."""

    packing: Packing
    memory: Tensor | None = None
    memory_packing: Packing | None = None


Embed = Callable[[Tensor, Packing], Tensor]
"""``token_ids [T]`` to ``hidden [T, d]``."""
Finish = Callable[[Tensor], Tensor]
"""``hidden [T, d]`` as the experts' sum left it, to the state the next layer reads."""
Block = Callable[[Tensor, Place], Tensor]
"""A whole dense layer, ``[T, d]`` to ``[T, d]``."""
Begin = Callable[[Tensor, Place], tuple[Tensor, Tensor]]
"""The part of a MoE layer before its experts: ``[T, d]`` to ``residual [T, d]`` and ``x [T, d]``."""
Head = Callable[[Tensor, Packing, bool], dict[str, Tensor]]
"""The end of a stack: ``[T, d]``, packing, all_logits, to the answer's tensors."""


@dataclass(frozen=True, slots=True)
class Segment:
    """``finish`` → (``embed``) → ``blocks`` → ``begin`` and ``router``, or ``head``. Without its ``router`` it ends
    with ``begin``: whoever serves the experts computes it.

    A segment with both ``finish`` and ``embed`` ends an encoder and starts its decoder: ``hidden`` is the
    encoder's, packed by ``memory_lengths``, and becomes ``memory``.
    """

    finish: Finish | None = None
    embed: Embed | None = None
    blocks: Sequence[Block] = ()
    begin: Begin | None = None
    router: RouterProgram | None = None
    head: Head | None = None

    def __call__(self, tensors: Tensors, all_logits: bool = False, past: Past | None = None) -> dict[str, Tensor]:
        """``lengths`` and ``memory_lengths`` are read on the host; everything else lies where the weights do. ``past``:
        keys and values that the texts' earlier tokens left."""
        reply: dict[str, Tensor] = {}
        memory = tensors.get("memory")
        hidden = tensors.get("hidden")
        device = (tensors["token_ids"] if hidden is None else hidden).device
        packing = Packing(tensors["lengths"].tolist(), device, past)
        if hidden is not None and self.finish is not None:
            hidden = self.finish(hidden)  # [T, d], or [S, d] where an encoder ends
        if self.embed is not None:
            if hidden is not None:
                memory = reply["memory"] = hidden  # [S, d]
            hidden = self.embed(tensors["token_ids"], packing)  # [T, d]
        if hidden is None:
            raise ValueError("A segment starts from token ids or from hidden states; this one got neither.")
        place = Place(packing)
        if memory is not None:
            place = Place(packing, memory, Packing(tensors["memory_lengths"].tolist(), device))
        for block in self.blocks:
            hidden = block(hidden, place)  # [T, d]
        if self.begin is None:
            return reply | (self.head(hidden, packing, all_logits) if self.head else {})
        residual, x = self.begin(hidden, place)  # [T, d], [T, d]
        reply["residual"] = residual
        if x is not residual:
            reply["x"] = x
        if self.router is not None:
            reply["expert_ids"], reply["gates"] = self.router(x)  # [T, k], [T, k]
        return reply
