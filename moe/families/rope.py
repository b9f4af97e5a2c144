"""Llama and its kin, dense and mixtures: pre-norm decoders with rotary positions, grouped heads and gated experts.

Layer: ``r = h + Attn(RMS(h))``, ``h' = r + Σ gate · expert(RMS(r))``. They differ in the norm of queries and
keys (``qk_norm``: none, per head, over all heads), a bound on queries, keys and values (``clip_qkv``), a
sliding window, and in which layers are dense; those layers are blocks of the segment before the next MoE
layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from moe.dense_layers import dense_layers_before
from moe.families.attention import Rotary, attend, plain_frequencies, rotate, slowed
from moe.families.experts import ClampedFfn, GatedFfn
from moe.families.gpt2 import LanguageHead
from moe.families.latent import LatentAttention, latent_attention
from moe.families.linear import ACTIVATIONS, Linear, Norm, RmsNorm
from moe.families.packing import Packing
from moe.families.routing import RouterProgram
from moe.families.segment import Place, Segment
from moe.families.weights import Weights
from moe.manifest import Router

Numbers = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Embedding:
    words: Tensor  # [vocab, d]

    def __call__(self, token_ids: Tensor, packing: Packing) -> Tensor:
        return F.embedding(token_ids, self.words)  # [T, d]


@dataclass(frozen=True, slots=True)
class Attention:
    """``h + W_o Attn(RMS(h))``."""

    norm: Norm
    qkv: Linear
    out: Linear
    q_norm: RmsNorm | None
    k_norm: RmsNorm | None
    norm_each_head: bool
    clip: float | None
    rotary: Rotary
    heads: int
    kv_heads: int
    head_dim: int
    window: int | None
    sinks: Tensor | None  # [H]

    def __call__(self, h: Tensor, packing: Packing) -> Tensor:
        sizes = (self.heads * self.head_dim, self.kv_heads * self.head_dim, self.kv_heads * self.head_dim)
        q, k, v = self.qkv(self.norm(h)).split_with_sizes(sizes, -1)  # [T, H*D], [T, Hk*D], [T, Hk*D]
        if self.q_norm is not None and self.k_norm is not None and not self.norm_each_head:
            q, k = self.q_norm(q), self.k_norm(k)
        if self.clip is not None:
            q, k, v = (part.clamp(-self.clip, self.clip) for part in (q, k, v))
        q = q.view(-1, self.heads, self.head_dim)  # [T, H, D]
        k = k.view(-1, self.kv_heads, self.head_dim)  # [T, Hk, D]
        v = v.view(-1, self.kv_heads, self.head_dim)  # [T, Hk, D]
        if self.q_norm is not None and self.k_norm is not None and self.norm_each_head:
            q, k = self.q_norm(q), self.k_norm(k)
        tables = self.rotary.tables(packing)
        q, k = rotate(q, tables), rotate(k, tables)
        y = attend(q, k, v, packing, packing, causal=True, window=self.window, sinks=self.sinks)  # [T, H*D]
        return self.out(y).add_(h)  # [T, d]


@dataclass(frozen=True, slots=True)
class DenseBlock:
    """A layer without experts."""

    attention: Attention | LatentAttention
    norm: Norm
    ffn: GatedFfn

    def __call__(self, h: Tensor, place: Place) -> Tensor:
        r = self.attention(h, place.packing)  # [T, d]
        return r + self.ffn(self.norm(r))  # [T, d]


@dataclass(frozen=True, slots=True)
class Begin:
    """The part of a MoE layer before its experts. In pipelines of version 1 with the expert that every token meets:
    ``r + shared(x)``, with a gate ``r + σ(x w) shared(x)``."""

    attention: Attention | LatentAttention
    norm: Norm
    shared: GatedFfn | None
    shared_gate: Linear | None

    def __call__(self, h: Tensor, place: Place) -> tuple[Tensor, Tensor]:
        r = self.attention(h, place.packing)  # [T, d]
        x = self.norm(r)  # [T, d]
        if self.shared is None:
            return r, x
        y = self.shared(x)  # [T, d]
        return r + (y if self.shared_gate is None else torch.sigmoid(self.shared_gate(x)) * y), x


def _attention(weights: Weights, name: str, n: Numbers, rotary: Rotary, layer: int) -> Attention | LatentAttention:
    """Attention of model layer ``layer``."""
    if "latent_attention" in n:
        return latent_attention(weights, name, n, rotary)
    d, heads, kv_heads, head_dim = n["hidden_size"], n["heads"], n["kv_heads"], n["head_dim"]
    q_norm = k_norm = None
    if n["qk_norm"] != "none":
        each = n["qk_norm"] == "head"
        q_norm = weights.rms_norm(f"{name}.q_norm", head_dim if each else heads * head_dim, n["eps"])
        k_norm = weights.rms_norm(f"{name}.k_norm", head_dim if each else kv_heads * head_dim, n["eps"])
    return Attention(
        norm=weights.norm(f"{name}.norm", d, n["eps"]),
        qkv=weights.linear(f"{name}.qkv", d, (heads + 2 * kv_heads) * head_dim),
        out=weights.linear(f"{name}.out", heads * head_dim, d),
        q_norm=q_norm,
        k_norm=k_norm,
        norm_each_head=n["qk_norm"] == "head",
        clip=n["clip_qkv"],
        rotary=rotary,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        window=n["sliding_window"] if layer in n.get("window_layers", (layer,)) else None,
        sinks=weights.tensor(f"{name}.sinks", heads) if weights.has(f"{name}.sinks") else None,
    )


def _gated(weights: Weights, name: str, n: Numbers, inner: int = -1) -> GatedFfn:
    """Tensors ``NAMEgate_up`` and ``NAMEdown``; ``inner`` -1: the inner size is the file's."""
    d = n["hidden_size"]
    gate_up = weights.linear(f"{name}gate_up", d, 2 * inner if inner > 0 else -1)
    down = weights.linear(f"{name}down", gate_up.matrix.shape[1] // 2, d)
    activation = ACTIVATIONS[n["activation"]]
    if "swiglu_limit" in n:
        return ClampedFfn(gate_up, down, activation, n["swiglu_alpha"], n["swiglu_limit"])
    return GatedFfn(gate_up, down, activation)


def _begin(weights: Weights, n: Numbers, rotary: Rotary, layer: int) -> Begin:
    d = n["hidden_size"]
    shared = weights.has_linear("shared.down")
    return Begin(
        attention=_attention(weights, "attention", n, rotary, layer),
        norm=weights.norm("expert_norm", d, n["eps"]),
        shared=_gated(weights, "shared.", n) if shared else None,
        shared_gate=_shared_gate(weights, d) if shared else None,
    )


def _shared_gate(weights: Weights, hidden_size: int) -> Linear | None:
    return weights.linear("shared.gate", hidden_size, 1) if weights.has_linear("shared.gate") else None


def _rotary(weights: Weights, n: Numbers) -> Rotary:
    if "rope_frequencies" in n:
        frequencies = torch.tensor(n["rope_frequencies"])  # [R/2]
    else:
        frequencies = plain_frequencies(n["head_dim"], n["rope_theta"])  # [D/2]
        if "rope_scaling" in n:
            frequencies = slowed(frequencies, n["rope_scaling"])
    some = next(iter(weights.tensors.values())) if weights.tensors else torch.empty(0)
    return Rotary(frequencies, some.dtype, some.device, n.get("rope_amplitude", 1.0))


def segment(weights: Weights, architecture: Numbers, settings: Router, index: int) -> Segment:
    """Segment ``index`` of 0…n from its tensors. Raises ManifestError where they do not fit."""
    n, d = architecture, architecture["hidden_size"]
    last = index == len(n["moe_layers"])
    words = Embedding(weights.tensor("embed.words", n["vocab_size"], d)) if index == 0 else None
    rotary = _rotary(weights, n)
    blocks = []
    for place, layer in enumerate(dense_layers_before(n, index)):
        name = f"dense.{place}"
        blocks.append(
            DenseBlock(
                _attention(weights, f"{name}.attention", n, rotary, layer),
                weights.norm(f"{name}.expert_norm", d, n["eps"]),
                _gated(weights, f"{name}.", n, n["dense_ffn_size"]),
            )
        )
    begin = router = head = None
    if last:
        vocabulary = weights.linear("head.vocabulary", d, n["vocab_size"])
        head = LanguageHead(weights.norm("head.norm", d, n["eps"]), vocabulary)
    else:
        begin = _begin(weights, n, rotary, n["moe_layers"][index])
        linear = weights.linear("router", d, -1)
        corrected = weights.has("router.correction")
        correction = weights.tensor("router.correction", linear.matrix.shape[1]) if corrected else None
        router = RouterProgram(
            linear, settings, correction, None if settings.shared is None else _shared_gate(weights, d)
        )
    return Segment(embed=words, blocks=blocks, begin=begin, router=router, head=head)


def expert(weights: Weights, architecture: Numbers, layer: int) -> GatedFfn:
    """An expert of MoE layer ``layer``; of a dense model's it holds only some neurons, so its size is the file's."""
    return _gated(weights, "", architecture)
