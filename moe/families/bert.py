"""BERT: post-norm encoder layers, and the same layers with causal and cross attention as a decoder.

Layer: ``a = LN(h + Attn(h))``, (decoder: ``a = LN(a + Cross(a, memory))``), ``h' = LN(a + FFN(a))``. The
experts read ``a`` and the sum starts from ``a``; the FFN's output bias and the last norm come after the sum, in the
next segment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from moe.families.attention import attend
from moe.families.experts import PlainFfn
from moe.families.linear import ACTIVATIONS, Activation, LayerNorm, Linear
from moe.families.packing import Packing
from moe.families.routing import RouterProgram
from moe.families.segment import Place, Segment
from moe.families.weights import Weights
from moe.manifest import Router

Numbers = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Embedding:
    """Word and position embeddings and a norm; the type embedding of type 0 is already in the positions.

    With a ``padding`` token (RoBERTa) positions count a text's other tokens, from 1, and place 0 is padding's.
    """

    words: Tensor  # [vocab, d]
    positions: Tensor  # [max_positions, d], one more with padding
    norm: LayerNorm
    padding: int | None = None

    def __call__(self, token_ids: Tensor, packing: Packing) -> Tensor:
        words = F.embedding(token_ids, self.words)  # [T, d]
        if self.padding is not None:
            real = token_ids != self.padding  # [T]
            counts = torch.cat([text.cumsum(0) for text in real.split_with_sizes(packing.lengths)])  # [T]
            return self.norm(words + F.embedding(counts * real, self.positions))  # [T, d]
        if packing.texts == 1:
            return self.norm(words + self.positions[: packing.total])  # [T, d]
        return self.norm(words + F.embedding(packing.positions, self.positions))  # [T, d]


@dataclass(frozen=True, slots=True)
class SelfAttention:
    """``LN(h + W_o Attn(h))``."""

    qkv: Linear
    out: Linear
    norm: LayerNorm
    heads: int
    causal: bool

    def __call__(self, h: Tensor, packing: Packing) -> Tensor:
        q, k, v = self.qkv(h).view(h.shape[0], 3, self.heads, -1).unbind(1)  # [T, H, D] each
        y = attend(q, k, v, packing, packing, causal=self.causal)  # [T, d]
        return self.norm(self.out(y).add_(h))  # [T, d]


@dataclass(frozen=True, slots=True)
class CrossAttention:
    """``LN(h + W_o Attn(h, memory))``."""

    q: Linear
    kv: Linear
    out: Linear
    norm: LayerNorm
    heads: int

    def __call__(self, h: Tensor, packing: Packing, memory: Tensor, memory_packing: Packing) -> Tensor:
        q = self.q(h).view(h.shape[0], self.heads, -1)  # [T, H, D]
        k, v = self.kv(memory).view(memory.shape[0], 2, self.heads, -1).unbind(1)  # [S, H, D] each
        y = attend(q, k, v, packing, memory_packing, causal=False)  # [T, d]
        return self.norm(self.out(y).add_(h))  # [T, d]


@dataclass(frozen=True, slots=True)
class Begin:
    """Attention of a layer; a shared expert's output joins the residual."""

    attention: SelfAttention
    cross: CrossAttention | None
    shared: PlainFfn | None

    def __call__(self, h: Tensor, place: Place) -> tuple[Tensor, Tensor]:
        a = self.attention(h, place.packing)  # [T, d]
        if self.cross is not None and place.memory is not None and place.memory_packing is not None:
            a = self.cross(a, place.packing, place.memory, place.memory_packing)  # [T, d]
        return (a, a) if self.shared is None else (a + self.shared(a), a)


@dataclass(frozen=True, slots=True)
class Finish:
    """``LN(sum + b_out)``: the end of the layer whose experts were just summed."""

    bias: Tensor  # [d]
    norm: LayerNorm

    def __call__(self, hidden: Tensor) -> Tensor:
        return self.norm(hidden + self.bias)  # [T, d]


@dataclass(frozen=True, slots=True)
class EmbeddingHead:
    """Sentence embeddings by mean or first token, and the states they come from."""

    pooling: str
    normalise: bool

    def __call__(self, hidden: Tensor, packing: Packing, all_logits: bool) -> dict[str, Tensor]:
        if self.pooling == "cls":
            embedding = hidden.index_select(0, packing.starts)  # [B, d]
        elif packing.even:
            embedding = hidden.view(packing.texts, packing.longest, -1).mean(1)  # [B, d]
        else:
            embedding = torch.stack([text.mean(0) for text in hidden.split_with_sizes(packing.lengths)])  # [B, d]
        if self.normalise:
            embedding = F.normalize(embedding, dim=-1)
        return {"embedding": embedding, "states": hidden}


@dataclass(frozen=True, slots=True)
class LanguageHead:
    """BERT's masked-language head used as a decoder's: dense, activation, norm, then the vocabulary."""

    dense: Linear
    activation: Activation
    norm: LayerNorm
    vocabulary: Linear

    def __call__(self, hidden: Tensor, packing: Packing, all_logits: bool) -> dict[str, Tensor]:
        if not all_logits:
            hidden = hidden.index_select(0, packing.ends)  # [B, d]
        inner = self.norm(self.activation(self.dense(hidden)))  # [B or T, d]
        return {"logits": self.vocabulary(inner)}  # [B or T, vocab]


def plain_ffn(weights: Weights, name: str, hidden_size: int, activation: str) -> PlainFfn:
    """Tensors ``NAMEw_in`` and ``NAMEw_out``; the inner size is the file's."""
    w_in = weights.linear(f"{name}w_in", hidden_size, -1)
    w_out = weights.linear(f"{name}w_out", w_in.matrix.shape[1], hidden_size)
    return PlainFfn(w_in, w_out, ACTIVATIONS[activation])


def embedding(weights: Weights, n: Numbers) -> Embedding:
    d, padding = n["hidden_size"], n.get("padding_id")
    return Embedding(
        weights.tensor("embed.words", n["vocab_size"], d),
        weights.tensor("embed.positions", n["max_positions"] + (padding is not None), d),
        weights.layer_norm("embed.norm", d, n["eps"]),
        padding,
    )


def begin(weights: Weights, n: Numbers, *, decoder: bool) -> Begin:
    d, heads, eps = n["hidden_size"], n["heads"], n["eps"]
    attention = SelfAttention(
        weights.linear("attention.qkv", d, 3 * d),
        weights.linear("attention.out", d, d),
        weights.layer_norm("attention.norm", d, eps),
        heads,
        decoder,
    )
    cross = None
    if decoder:
        cross = CrossAttention(
            weights.linear("cross.q", d, d),
            weights.linear("cross.kv", d, 2 * d),
            weights.linear("cross.out", d, d),
            weights.layer_norm("cross.norm", d, eps),
            heads,
        )
    shared = plain_ffn(weights, "shared.", d, n["activation"]) if weights.has_linear("shared.w_in") else None
    return Begin(attention, cross, shared)


def finish(weights: Weights, n: Numbers) -> Finish:
    d = n["hidden_size"]
    return Finish(weights.tensor("finish.bias", d), weights.layer_norm("finish.norm", d, n["eps"]))


def router(weights: Weights, n: Numbers, settings: Router) -> RouterProgram:
    return RouterProgram(weights.linear("router", n["hidden_size"], -1), settings)


def segment(weights: Weights, architecture: Numbers, settings: Router, index: int) -> Segment:
    """Segment ``index`` of 0…layers from its tensors. Raises ManifestError where they do not fit."""
    last = index == architecture["layers"]
    return Segment(
        finish=finish(weights, architecture) if index else None,
        embed=None if index else embedding(weights, architecture),
        begin=None if last else begin(weights, architecture, decoder=False),
        router=None if last else router(weights, architecture, settings),
        head=EmbeddingHead(architecture["pooling"], architecture["normalise_embedding"]) if last else None,
    )


def expert(weights: Weights, architecture: Numbers, layer: int) -> PlainFfn:
    return plain_ffn(weights, "", architecture["hidden_size"], architecture["activation"])
