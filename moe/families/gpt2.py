"""GPT-2: pre-norm decoder layers with learnt positions.

Layer: ``r = h + Attn(LN1(h))``, ``h' = r + b_out + FFN(LN2(r))``. The experts read ``x = LN2(r)``; ``r +
b_out`` is the residual they are added to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from moe.families.attention import attend
from moe.families.bert import plain_ffn
from moe.families.experts import PlainFfn
from moe.families.linear import LayerNorm, Linear, Norm
from moe.families.packing import Packing
from moe.families.routing import RouterProgram
from moe.families.segment import Place, Segment
from moe.families.weights import Weights
from moe.manifest import Router

Numbers = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Embedding:
    """Token plus learnt position."""

    words: Tensor  # [vocab, d]
    positions: Tensor  # [max_positions, d]

    def __call__(self, token_ids: Tensor, packing: Packing) -> Tensor:
        words = F.embedding(token_ids, self.words)  # [T, d]
        if packing.texts == 1:
            return words + self.positions[packing.first[0] : packing.reach]  # [T, d]
        return words + F.embedding(packing.positions, self.positions)  # [T, d]


@dataclass(frozen=True, slots=True)
class Begin:
    """Attention, its residual, and the norm before the experts."""

    norm: LayerNorm
    qkv: Linear
    out: Linear
    expert_norm: LayerNorm
    output_bias: Tensor  # [d]
    shared: PlainFfn | None
    heads: int
    scale: float

    def __call__(self, h: Tensor, place: Place) -> tuple[Tensor, Tensor]:
        q, k, v = self.qkv(self.norm(h)).view(h.shape[0], 3, self.heads, -1).unbind(1)  # [T, H, D] each
        y = attend(q, k, v, place.packing, place.packing, causal=True, scale=self.scale)  # [T, d]
        r = self.out(y).add_(h)  # [T, d]
        x = self.expert_norm(r)  # [T, d]
        r = r + self.output_bias  # [T, d]
        return (r, x) if self.shared is None else (r + self.shared(x), x)


@dataclass(frozen=True, slots=True)
class LanguageHead:
    """Last norm and vocabulary; shared with the families whose norm is another."""

    norm: Norm
    vocabulary: Linear

    def __call__(self, hidden: Tensor, packing: Packing, all_logits: bool) -> dict[str, Tensor]:
        if not all_logits:
            hidden = hidden.index_select(0, packing.ends)  # [B, d]
        return {"logits": self.vocabulary(self.norm(hidden))}  # [B or T, vocab]


def _begin(weights: Weights, n: Numbers, layer: int) -> Begin:
    d = n["hidden_size"]
    scale = (d // n["heads"]) ** -0.5 if n["scale_attention"] else 1.0
    return Begin(
        norm=weights.layer_norm("attention.norm", d, n["eps"]),
        qkv=weights.linear("attention.qkv", d, 3 * d),
        out=weights.linear("attention.out", d, d),
        expert_norm=weights.layer_norm("expert_norm", d, n["eps"]),
        output_bias=weights.tensor("output_bias", d),
        shared=plain_ffn(weights, "shared.", d, n["activation"]) if weights.has_linear("shared.w_in") else None,
        heads=n["heads"],
        scale=scale / (layer + 1) if n["scale_by_layer"] else scale,
    )


def segment(weights: Weights, architecture: Numbers, settings: Router, index: int) -> Segment:
    """Segment ``index`` of 0…layers from its tensors. Raises ManifestError where they do not fit."""
    n, d = architecture, architecture["hidden_size"]
    last = index == n["layers"]
    embed = head = None
    if index == 0:
        embed = Embedding(
            weights.tensor("embed.words", n["vocab_size"], d),
            weights.tensor("embed.positions", n["max_positions"], d),
        )
    if last:
        head = LanguageHead(
            weights.layer_norm("head.norm", d, n["eps"]),
            weights.linear("head.vocabulary", d, n["vocab_size"]),
        )
    return Segment(
        embed=embed,
        begin=None if last else _begin(weights, n, index),
        router=None if last else RouterProgram(weights.linear("router", d, -1), settings),
        head=head,
    )


def expert(weights: Weights, architecture: Numbers, layer: int) -> PlainFfn:
    return plain_ffn(weights, "", architecture["hidden_size"], architecture["activation"])
