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
    sinks: Tensor | None = None,
) -> Tensor:
    """Softmax attention of every text with itself (or, with other ``keys``, with its memory).

    ``q: [T, heads, head_dim]``, ``k, v: [S, kv_heads, head_dim]``; kv heads are shared by groups of query heads.
    ``scale`` None: 1/sqrt(head_dim). ``window``: a token sees itself and the ``window - 1`` tokens before it.
    ``sinks [heads]``: what each head's softmax counts for nothing (GPT-OSS); these two only where ``causal``, which
    goes on from a text's past. Returns ``[T, heads * head_dim]``.
    """
    if causal and queries.past is not None:
        return queries.past.attend(q, k, v, scale, window, sinks)
    if queries.even and keys.even:
        batches = [
            (
                q.view(queries.texts, queries.longest, *q.shape[1:]),  # [B, L, H, D]
                k.view(queries.texts, keys.longest, *k.shape[1:]),
                v.view(queries.texts, keys.longest, *v.shape[1:]),
            )
        ]
    else:
        parts = (
            q.split_with_sizes(queries.lengths),
            k.split_with_sizes(keys.lengths),
            v.split_with_sizes(keys.lengths),
        )
        batches = [(one_q[None], one_k[None], one_v[None]) for one_q, one_k, one_v in zip(*parts, strict=True)]
    answers = []
    for batch in batches:
        y = (
            attend_causally(*batch, 0, scale, window, sinks) if causal else _product(*batch, None, False, scale)
        )  # [B, L, H, D]
        answers.append(y.reshape(y.shape[0] * y.shape[1], -1))
    return answers[0] if len(answers) == 1 else torch.cat(answers)  # [T, H*D]


def attend_causally(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    start: int,
    scale: float | None,
    window: int | None,
    sinks: Tensor | None,
) -> Tensor:
    """Tokens ``start …`` of equally long texts, ``q [B, t, H, D]``, over all of theirs so far, ``k, v [B, start + t,
    Hk, D]``; ``[B, t, H, D]``. The rest as in ``attend``."""
    count, width = q.shape[1], v.shape[-1]
    first = max(0, start - window + 1) if window is not None else 0  # what lies before, no new token sees
    if first:
        k, v = k[:, first:], v[:, first:]
    narrow = window is not None and window < start + count
    mask = None
    if count > 1 and (start or narrow or sinks is not None):
        place = torch.arange(start, start + count, device=q.device)[:, None]  # [t, 1]
        keys = torch.arange(first, start + count, device=q.device)  # [S]
        mask = keys <= place  # [t, S]
        if window is not None:
            mask &= keys > place - window
    if sinks is not None:
        scale = scale or q.shape[-1] ** -0.5
        q, k, v = _with_sinks(q, k, v, sinks / scale)
        mask = F.pad(mask, (1, 0), value=True) if mask is not None else None
    y = _product(q, k, v, mask, mask is None and count > 1, scale)
    return y if y.shape[-1] == width else y[..., :width]


def _with_sinks(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A key in front of all others whose product with a query of head h is ``sinks[h]`` and whose value is nothing.

    It lies on an axis of its own, so no mask of every head is needed.
    """
    q = torch.cat((q, sinks.to(q.dtype)[:, None].expand(*q.shape[:-1], 1)), -1)  # [B, t, H, D + 1]
    k, v = F.pad(k, (0, 1, 0, 0, 1, 0)), F.pad(v, (0, 1, 0, 0, 1, 0))  # [B, 1 + S, Hk, D + 1]
    k[:, 0, :, -1] = 1.0
    return q, k, v


def _product(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float | None) -> Tensor:
    """``q: [B, L, H, D]``, ``k, v: [B, S, Hk, D]`` to ``[B, L, H, D]``."""
    y = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=mask,
        is_causal=causal,
        scale=scale,
        enable_gqa=q.shape[2] != k.shape[2],
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
