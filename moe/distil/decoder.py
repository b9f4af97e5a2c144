"""A dense decoder for distillation: the families' own programs, block by block, with feed-forward parts to exchange."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from moe.checkpoints.llama import LlamaReader
from moe.checkpoints.reader import DenseFfn
from moe.families import rope
from moe.families.gpt2 import LanguageHead
from moe.families.packing import Packing
from moe.families.rope import DenseBlock, Embedding
from moe.families.segment import Place
from moe.families.weights import Weights
from moe.manifest import Router

Ffn = Callable[[Tensor], Tensor]
"""A feed-forward part: normalised states ``[T, d]`` to what is added to the residual ``[T, d]``."""


@dataclass(frozen=True)
class DenseDecoder:
    """Embedding, blocks and head of a dense checkpoint, in float32. A batch ``[B, L] int64`` holds texts of one
    length."""

    embed: Embedding
    blocks: Sequence[DenseBlock]
    head: LanguageHead
    ffns: Sequence[DenseFfn] = field(repr=False)

    @classmethod
    def of(cls, reader: LlamaReader) -> DenseDecoder:
        """Raises CheckpointError."""
        layers = reader.architecture["layers"]
        reader.put_experts(range(layers))
        ffns = [reader.ffn(layer) for layer in range(layers)]
        reader.architecture["moe_layers"], reader.layers = [], 0
        tensors = {name: tensor.float() for name, tensor in reader.segment(0).items()}
        segment = rope.segment(Weights(tensors, "the dense model"), reader.architecture, Router(1, "ones"), 0)
        reader.put_experts(range(layers))
        assert isinstance(segment.embed, Embedding) and isinstance(segment.head, LanguageHead)
        blocks = [block for block in segment.blocks if isinstance(block, DenseBlock)]
        return cls(segment.embed, blocks, segment.head, ffns)

    def residuals(self, ids: Tensor, first: int = 0) -> list[Tensor]:
        """State before the feed-forward part of each layer from ``first`` on, ``[B·L, d]``, and after the last.

        ``ids [B, L]``."""
        place = place_of(ids)
        hidden, residuals = self.embed(ids.flatten(), place.packing), []
        for layer, block in enumerate(self.blocks):
            residual = block.attention(hidden, place.packing)  # [T, d]
            if layer >= first:
                residuals.append(residual)
            hidden = residual + block.ffn(block.norm(residual))
        return [*residuals, hidden]

    def onward(self, ids: Tensor, layer: int, residual: Tensor, ffns: Mapping[int, Ffn] | None = None) -> Tensor:
        """Last state ``[T, d]`` from the ``residual [T, d]`` before the feed-forward part of ``layer``."""
        place = place_of(ids)
        hidden = residual + self.ffn(layer, ffns)(self.blocks[layer].norm(residual))
        for later in range(layer + 1, len(self.blocks)):
            block = self.blocks[later]
            residual = block.attention(hidden, place.packing)
            hidden = residual + self.ffn(later, ffns)(block.norm(residual))
        return hidden

    def ffn(self, layer: int, ffns: Mapping[int, Ffn] | None) -> Ffn:
        dense: Ffn = self.blocks[layer].ffn
        return dense if ffns is None else ffns.get(layer, dense)

    def logits(self, hidden: Tensor) -> Tensor:
        """``[T, vocab]`` of last states ``[T, d]``."""
        return self.head.vocabulary(self.head.norm(hidden))

    def loss(self, ids: Tensor, hidden: Tensor) -> Tensor:
        """Mean cross entropy of each next token, in nats, from the last states ``[B·L, d]`` of ``ids [B, L]``."""
        states = hidden.view(*ids.shape, -1)[:, :-1].reshape(-1, hidden.shape[-1])
        return F.cross_entropy(self.logits(states), ids[:, 1:].flatten())


def place_of(ids: Tensor) -> Place:
    """Where the texts of ``ids [B, L]`` lie when packed."""
    return Place(Packing([ids.shape[1]] * ids.shape[0], torch.device("cpu")))
