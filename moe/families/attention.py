"""Attention within each text of a packed batch, and rotary positions.

One text, or texts of equal length: a view and one product. Unequal texts: one after another; on CPU that was 1.3 to 3
times faster than padding them into one product with a mask, at any lengths tried.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from moe.families.packing import HOST, Packing


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

    ``q: [T, heads, head_dim]``, ``k, v: [S, kv_heads, head_dim]``; kv heads are shared by groups of query heads.
    ``scale`` None: 1/sqrt(head_dim). ``window``: a token sees itself and the ``window - 1`` tokens before it.
    Causal attention of texts with a past goes on from there. Returns ``[T, heads * head_dim]``.
    """
    if causal and queries.past is not None:
        return queries.past.attend(q, k, v, scale, window)
    if window is not None and window >= keys.longest:
        window = None
    if queries.even and keys.even:
        texts = queries.texts
        y = _product(
            q.view(texts, queries.longest, *q.shape[1:]),  # [B, L, H, D]
            k.view(texts, keys.longest, *k.shape[1:]),
            v.view(texts, keys.longest, *v.shape[1:]),
            _band(queries.longest, window, q.device) if window is not None else None,
            causal and window is None,
            scale,
        )
        return y.reshape(q.shape[0], -1)  # [T, H*D]
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
        band = _band(one_q.shape[0], window, q.device) if window is not None else None
        y = _product(one_q[None], one_k[None], one_v[None], band, causal and band is None, scale)  # [1, t, H, D]
        parts.append(y.reshape(one_q.shape[0], -1))  # [t, H*D]
    return torch.cat(parts)  # [T, H*D]


def _band(length: int, window: int, device: torch.device) -> Tensor:
    """``[length, length]`` bool: query i may see key j when ``i - window < j <= i``."""
    full = torch.ones(length, length, dtype=torch.bool, device=device)
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


def slowed(frequencies: Tensor, scaling: Mapping[str, float]) -> Tensor:
    """Llama 3's scaling of ``frequencies [D/2]``, in radians per token, to texts longer than those of pretraining.

    Waves that turn more than ``high_freq_factor`` times within ``original_max_positions`` tokens stay, those that turn
    less than ``low_freq_factor`` times are slowed by ``factor``, and between the two it changes linearly.
    """
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_positions"] * frequencies / (2 * math.pi)  # [D/2]
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)  # [D/2]
    return kept * frequencies + (1.0 - kept) * frequencies / scaling["factor"]


def plain_frequencies(width: int, theta: float) -> Tensor:
    """Radians per token of each pair of the ``width`` numbers of a head that turn, ``[width/2]``."""
    return 1.0 / (theta ** (torch.arange(0, width, 2).float() / width))


class Rotary:
    """Rotary position tables, grown to the longest text seen so far; made on the host, kept on ``device``."""

    __slots__ = ("_tables", "amplitude", "device", "dtype", "frequencies")

    def __init__(
        self, frequencies: Tensor, dtype: torch.dtype, device: torch.device = HOST, amplitude: float = 1.0
    ) -> None:
        """``frequencies [R/2]``: radians per token, of the first R numbers of a head; ``amplitude`` multiplies them."""
        self.frequencies = frequencies
        self.amplitude = amplitude
        self.dtype = dtype
        self.device = device
        empty = torch.empty(0, 2 * len(frequencies), dtype=dtype, device=device)
        self._tables = (empty, empty)  # [longest, R] each; replaced as one, so that threads never see halves

    def tables(self, packing: Packing) -> tuple[Tensor, Tensor]:
        """Cosine and sine for each packed token, ``[T, 1, R]``; sine's first half carries the minus sign."""
        cos, sin = self._tables
        if packing.reach > cos.shape[0]:
            length = max(64, 2 ** (packing.reach - 1).bit_length())
            angles = torch.arange(length).float()[:, None] * self.frequencies  # [length, R/2]
            half, other = angles.sin() * self.amplitude, angles.cos() * self.amplitude  # [length, R/2]
            cos = torch.cat((other, other), -1).to(self.device, self.dtype)  # [length, R]
            sin = torch.cat((-half, half), -1).to(self.device, self.dtype)  # [length, R]
            self._tables = (cos, sin)
        if packing.texts == 1:
            return cos[packing.first[0] : packing.reach, None], sin[packing.first[0] : packing.reach, None]
        places = packing.positions  # [T]
        return cos.index_select(0, places)[:, None], sin.index_select(0, places)[:, None]


def rotate(x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    """Turn each pair (i, i + R/2) of the first R numbers of ``x: [T, heads, D]`` by its position's angle."""
    cos, sin = tables
    width = cos.shape[-1]
    if width < x.shape[-1]:
        return torch.cat((rotate(x[..., :width], tables), x[..., width:]), -1)  # [T, heads, D]
    return x * cos + torch.roll(x, width // 2, -1) * sin  # [T, heads, D]
