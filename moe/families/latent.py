"""Attention over compressed keys and values (MLA: DeepSeek-V2, 2024, section 2.1).

A token keeps one latent for all heads, and the numbers of its key that turn with its position, also for all heads.
Each head's keys and values are linear in the latent, so queries are mapped into the latent's space instead, and the sum
of latents out of it (the paper's "absorbed" matrices): what is kept is never expanded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from moe.families.attention import Rotary, attend, rotate
from moe.families.linear import Linear, Norm, RmsNorm
from moe.families.packing import Packing
from moe.families.weights import Weights

INNER_EPS = 1e-6
"""Epsilon of the norms of compressed queries and of latents, whatever the model's other norms have."""


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """``h + W_o Attn(norm(h))``; sizes: latent C, plain numbers of a head N, turning ones R, values V."""

    norm: Norm
    q_down: Linear | None  # compressed queries
    q_norm: RmsNorm | None
    q_up: Linear  # to H * (N + R)
    kv_down: Linear  # d to C + R
    kv_norm: RmsNorm
    keys: Tensor  # [H, N, C]
    values: Tensor  # [H, C, V]
    out: Linear
    rotary: Rotary
    scale: float

    def __call__(self, h: Tensor, packing: Packing) -> Tensor:
        x = self.norm(h)  # [T, d]
        heads, plain, latent = self.keys.shape
        compressed = x if self.q_down is None or self.q_norm is None else self.q_norm(self.q_down(x))
        q = self.q_up(compressed).view(x.shape[0], heads, -1)  # [T, H, N + R]
        shared, turning = self.kv_down(x).tensor_split((latent,), -1)  # [T, C], [T, R]
        tables = self.rotary.tables(packing)
        kept = torch.cat((self.kv_norm(shared)[:, None], rotate(turning[:, None], tables)), -1)  # [T, 1, C + R]
        mapped = torch.bmm(q[..., :plain].transpose(0, 1), self.keys).transpose(0, 1)  # [T, H, C]
        queries = torch.cat((mapped, rotate(q[..., plain:], tables)), -1)  # [T, H, C + R]
        y = attend(queries, kept, kept, packing, packing, causal=True, scale=self.scale)  # [T, H * (C + R)]
        y = y.view(x.shape[0], heads, -1)[..., :latent].transpose(0, 1)  # [H, T, C]
        y = torch.bmm(y, self.values).transpose(0, 1).flatten(1)  # [T, H * V]
        return self.out(y).add_(h)  # [T, d]


def latent_attention(weights: Weights, name: str, n: Mapping[str, Any], rotary: Rotary) -> LatentAttention:
    """From tensors ``NAME.*`` and ``latent_attention`` of the architecture. Raises ManifestError."""
    d, heads, turning = n["hidden_size"], n["heads"], n["head_dim"]
    sizes = n["latent_attention"]
    latent, plain, value, rank = sizes["latent"], sizes["plain"], sizes["value"], sizes.get("queries")
    keys = weights.linear(f"{name}.k_up", latent, heads * plain).matrix.view(latent, heads, plain)
    values = weights.linear(f"{name}.v_up", latent, heads * value).matrix.view(latent, heads, value)
    return LatentAttention(
        norm=weights.norm(f"{name}.norm", d, n["eps"]),
        q_down=None if rank is None else weights.linear(f"{name}.q_down", d, rank),
        q_norm=None if rank is None else weights.rms_norm(f"{name}.q_norm", rank, INNER_EPS),
        q_up=weights.linear(f"{name}.q_up", rank or d, heads * (plain + turning)),
        kv_down=weights.linear(f"{name}.kv_down", d, latent + turning),
        kv_norm=weights.rms_norm(f"{name}.kv_norm", latent, INNER_EPS),
        keys=keys.permute(1, 2, 0),
        values=values.permute(1, 0, 2),
        out=weights.linear(f"{name}.out", heads * value, d),
        rotary=rotary,
        scale=sizes["scale"],
    )
