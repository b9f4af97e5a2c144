"""Attention within each text of a packed batch, and rotary positions.

One text, or texts of equal length: a view and one product. Unequal texts: padded into one product while that
wastes little, otherwise text by text.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from moe.families.packing import Packing

MAX_WASTE = 1.3
"""Pad while padded scores (queries x keys) exceed the real ones by at most this factor; measured on CPU."""


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    queries: Packing,
    keys: Packing,
    *,
    causal: bool,
    scale: float | None = None,
    window: int | None = None,
) -> Tensor:
    """Softmax attention of every text with itself (or, with other ``keys``, with its memory).

    ``q: [T, heads, head_dim]``, ``k, v: [S, kv_heads, head_dim]``; kv heads are shared by groups of query
    heads.
    ``scale`` None: 1/sqrt(head_dim). ``window``: a token sees itself and the ``window - 1`` tokens before it.
    Returns ``[T, heads * head_dim]``.
    """
    if window is not None and window >= keys.longest:
        window = None
    if queries.even and keys.even:
        texts = queries.texts
        y = _product(
            q.view(texts, queries.longest, *q.shape[1:]),  # [B, L, H, D]
            k.view(texts, keys.longest, *k.shape[1:]),
            v.view(texts, keys.longest, *v.shape[1:]),
            _band(queries.longest, window) if window is not None else None,
            causal and window is None,
            scale,
        )
        return y.reshape(q.shape[0], -1)  # [T, H*D]
    real = sum(a * b for a, b in zip(queries.lengths, keys.lengths, strict=True))
    if queries.texts * queries.longest * keys.longest <= MAX_WASTE * real:
        return _padded(q, k, v, queries, keys, causal, scale, window)
    return _one_by_one(q, k, v, queries, keys, causal, scale, window)


def _one_by_one(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    queries: Packing,
    keys: Packing,
    causal: bool,
    scale: float | None,
    window: int | None,
) -> Tensor:
    lists = zip(
        q.split_with_sizes(queries.lengths),
        k.split_with_sizes(keys.lengths),
        v.split_with_sizes(keys.lengths),
        strict=True,
    )
    parts = []
    for one_q, one_k, one_v in lists:
        band = _band(one_q.shape[0], window) if window is not None else None
        y = _product(one_q[None], one_k[None], one_v[None], band, causal and band is None, scale)  # [1, t, H, D]
        parts.append(y.reshape(one_q.shape[0], -1))  # [t, H*D]
    return torch.cat(parts)  # [T, H*D]


def _padded(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    queries: Packing,
    keys: Packing,
    causal: bool,
    scale: float | None,
    window: int | None,
) -> Tensor:
    seen = torch.arange(keys.longest) < torch.tensor(keys.lengths)[:, None]  # [B, S]
    mask = seen[:, None, None, :]  # [B, 1, 1, S]
    if window is not None:
        mask = mask & _band(queries.longest, window)  # [B, 1, L, S]
    elif causal:
        mask = mask & _band(queries.longest, queries.longest)  # [B, 1, L, S]
    y = _product(_pad(q, queries), _pad(k, keys), _pad(v, keys), mask, False, scale)  # [B, L, H, D]
    return y.reshape(queries.texts * queries.longest, -1).index_select(0, queries.slots)  # [T, H*D]


def _pad(x: Tensor, packing: Packing) -> Tensor:
    """``[T, H, D]`` packed to ``[B, longest, H, D]`` with zeros behind each text."""
    padded = x.new_zeros((packing.texts * packing.longest, *x.shape[1:]))
    padded.index_copy_(0, packing.slots, x)
    return padded.view(packing.texts, packing.longest, *x.shape[1:])


def _band(length: int, window: int) -> Tensor:
    """``[length, length]`` bool: query i may see key j when ``i - window < j <= i``."""
    full = torch.ones(length, length, dtype=torch.bool)
    return full.tril() & full.triu(1 - window)


def _product(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float | None) -> Tensor:
    """``q: [B, L, H, D]``, ``k, v: [B, S, Hk, D]`` to ``[B, L, H, D]``."""
    grouped = q.shape[2] != k.shape[2]
    y = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=mask,
        is_causal=causal,
        scale=scale,
        enable_gqa=grouped,
    )  # [B, H, L, D]
    return y.transpose(1, 2)  # [B, L, H, D]


class Rotary:
    """Rotary position tables, grown to the longest text seen so far."""

    __slots__ = ("_cos", "_sin", "dtype", "frequencies")

    def __init__(self, head_dim: int, theta: float, dtype: torch.dtype) -> None:
        self.frequencies = 1.0 / (theta ** (torch.arange(0, head_dim, 2).float() / head_dim))  # [D/2]
        self.dtype = dtype
        self._cos = self._sin = torch.empty(0, head_dim, dtype=dtype)  # [longest, D]

    def tables(self, packing: Packing) -> tuple[Tensor, Tensor]:
        """Cosine and sine for each packed token, ``[T, 1, D]``; sine's first half carries the minus sign."""
        if packing.longest > self._cos.shape[0]:
            length = max(64, 2 ** (packing.longest - 1).bit_length())
            angles = torch.arange(length).float()[:, None] * self.frequencies  # [length, D/2]
            sin = angles.sin()
            self._cos = torch.cat((angles.cos(), angles.cos()), -1).to(self.dtype)  # [length, D]
            self._sin = torch.cat((-sin, sin), -1).to(self.dtype)  # [length, D]
        if packing.texts == 1:
            return self._cos[: packing.total, None], self._sin[: packing.total, None]
        return self._cos[packing.positions, None], self._sin[packing.positions, None]


def rotate(x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    """Turn each pair (i, i + D/2) of ``x: [T, heads, D]`` by its position's angle."""
    cos, sin = tables
    return x * cos + torch.roll(x, x.shape[-1] // 2, -1) * sin  # [T, heads, D]
