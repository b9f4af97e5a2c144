"""Layer-wise pointer network (paper, section 4.3, Eq. 10 and 11): experts of a layer as each other's context.

A Transformer encoder without positions refines the embeddings of a layer's experts, so permuting experts permutes its
output; additive attention then weighs them, and the weighted sum is the context of the layer.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

SMALL_INIT = 0.3
"""Part of the usual size that weights of what experts share begin with."""


class Pointed(NamedTuple):
    """What the pointer states of each layer."""

    experts: Tensor
    """[B, n, K, d] ĥ: refined embeddings; padding is meaningless."""
    context: Tensor
    """[B, n, d] c of Eq. (11)."""
    weights: Tensor
    """[B, n, K] softmax of u of Eq. (10); padding 0."""


class TransformerLayer(nn.Module):
    """Self-attention over the experts of a layer and a feed-forward network, each behind a norm, each added."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.joined = small_init(nn.Linear(width, width))
        self.before_feed = nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), small_init(nn.Linear(2 * width, width)))

    def forward(self, experts: Tensor, mask: Tensor | None) -> Tensor:
        """``experts`` [N, K, d]; ``mask`` [N, 1, 1, K] bool, None where nothing is padding → [N, K, d]."""
        rows, count, width = experts.shape
        parts = self.queries_keys_values(self.before_attention(experts))
        parts = parts.view(rows, count, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], attn_mask=mask)
        experts = experts + self.joined(attended.transpose(1, 2).reshape(rows, count, width))
        refined: Tensor = experts + self.feed(self.before_feed(experts))
        return refined


class Pointer(nn.Module):
    """Eq. (10) and (11) behind one Transformer layer, for all MoE layers at once."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.encoder = TransformerLayer(width, heads)
        self.of_expert = nn.Linear(width, width, bias=False)
        self.of_layer = nn.Linear(width, width)
        self.score = nn.Linear(width, 1, bias=False)

    def forward(self, experts: Tensor, mask: Tensor | None) -> Pointed:
        """``experts`` [B, n, K, d], ``mask`` [n, K] bool, None where nothing is padding."""
        batch, layers, count, width = experts.shape
        keys = None if mask is None else mask.repeat(batch, 1)[:, None, None]
        refined = self.encoder(experts.flatten(0, 1), keys).view(batch, layers, count, width)
        summary = masked_mean(refined, mask)  # [B, n, d] ĥ_i
        scores = self.score((self.of_expert(refined) + self.of_layer(summary).unsqueeze(2)).tanh()).squeeze(-1)
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        weights = scores.softmax(-1)
        return Pointed(refined, (weights.unsqueeze(-2) @ refined).squeeze(-2), weights)


def small_init(layer: nn.Linear) -> nn.Linear:
    """``layer`` with weights that are small at first. What all experts of a layer share is added to each of them again
    and again on its way; at its usual size it drowned what they differ in (:mod:`rl.agent.probe`)."""
    with torch.no_grad():
        layer.weight.mul_(SMALL_INIT)
        if layer.bias is not None:
            layer.bias.mul_(SMALL_INIT)
    return layer


def even(mask: Tensor) -> Tensor:
    """[n, K]: the same weight for all experts of a layer, padding 0."""
    return mask / mask.sum(-1, keepdim=True)


def masked_mean(experts: Tensor, mask: Tensor | None) -> Tensor:
    """Mean over the experts that there are: [B, n, K, d] and [n, K] → [B, n, d]."""
    return experts.mean(-2) if mask is None else torch.einsum("bnkd,nk->bnd", experts, even(mask))


def masked_max(experts: Tensor, mask: Tensor | None) -> Tensor:
    """Largest over the experts that there are: [B, n, K, d] and [n, K] → [B, n, d]."""
    return (experts if mask is None else experts.masked_fill(~mask.unsqueeze(-1), -torch.inf)).amax(-2)
