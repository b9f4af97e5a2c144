"""The converted BERT encoder as one trainable model: dense weights frozen, the adapter's tensors learnt.

All experts are computed densely and multiplied with their gates, so that the router learns also from experts
it did not choose. With every expert chosen and no change it is the dense model itself, so it is its own
teacher (``Student.dense``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from moe.convert import Groups

MATRICES = ("attention.qkv", "attention.out", "ffn.w_in", "ffn.w_out")
"""Matrices with a low-rank change."""
SHIFTS = ("attention.qkv.bias", "attention.out.bias", "attention.norm.weight", "attention.norm.bias",
          "ffn.w_in.bias", "finish.bias", "finish.norm.weight", "finish.norm.bias")  # fmt: skip
"""Vectors with an added change."""


DenseLayer = Mapping[str, Tensor]
"""Frozen tensors of one layer under the adapter's names: ``attention.…``, ``ffn.…``, ``finish.…``."""


@dataclass(frozen=True)
class DenseEncoder:
    """A dense BERT encoder. ``words [V, d]``, ``positions [P, d]`` (token type included), norm of both."""

    words: Tensor
    positions: Tensor
    norm_weight: Tensor
    norm_bias: Tensor
    layers: Sequence[DenseLayer]
    heads: int
    eps: float

    @property
    def width(self) -> int:
        return int(self.words.shape[1])


@dataclass(frozen=True)
class Batch:
    """Padded texts: ``ids [B, L] int64``, ``attended [B, L] bool`` (True for tokens)."""

    ids: Tensor
    attended: Tensor

    @staticmethod
    def of(texts: Sequence[Sequence[int]]) -> Batch:
        longest = max(len(text) for text in texts)
        ids = torch.zeros(len(texts), longest, dtype=torch.int64)
        attention_mask = torch.zeros(len(texts), longest, dtype=torch.bool)
        for row, text in enumerate(texts):
            ids[row, : len(text)] = torch.tensor(text)
            attention_mask[row, : len(text)] = True
        return Batch(ids, attention_mask)


@dataclass(frozen=True)
class Pass:
    """What a pass yields: ``embedding [B, d]`` of unit length, ``hidden`` after each layer ``[B, L, d]``, and
    of the mixture also ``chosen`` and ``desired`` per layer ``[B*L, E]`` (0/1, and router probabilities).
    """

    embedding: Tensor
    hidden: list[Tensor]
    chosen: list[Tensor]
    desired: list[Tensor]


class StudentLayer(nn.Module):
    """One layer's learnt tensors, named as in the adapter file with dots as underscores."""

    membership: Tensor

    def __init__(self, dense: DenseLayer, groups: Groups, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        self.dense, self.groups = dense, groups
        width, count = dense["ffn.w_in.weight"].shape[1], len(groups.experts)
        self.low_rank = nn.ParameterDict()
        for name in MATRICES:
            rows, columns = dense[f"{name}.weight"].shape
            down = torch.randn(rank, columns, generator=generator) / columns**0.5
            self.low_rank[_key(name + ".down")] = nn.Parameter(down)
            self.low_rank[_key(name + ".up")] = nn.Parameter(torch.zeros(rows, rank))
        self.shift = nn.ParameterDict({_key(name): nn.Parameter(torch.zeros_like(dense[name])) for name in SHIFTS})
        self.router_weight = nn.Parameter(torch.zeros(count, width))
        self.router_bias = nn.Parameter(torch.zeros(count))
        self.expert_bias = nn.Parameter(torch.zeros(count, width))
        owner = groups.of_neurons().long()  # [F]
        owner = torch.where(owner < 0, count, owner)
        self.register_buffer("membership", F.one_hot(owner, count + 1).t().float().contiguous())  # [E+1, F]

    def linear(self, x: Tensor, name: str) -> Tensor:
        """Dense product plus the low-rank change, ``[T, in]`` to ``[T, out]``; ffn.w_out's bias comes later."""
        bias = None if name == "ffn.w_out" else self.vector(f"{name}.bias")
        y = F.linear(x, self.dense[f"{name}.weight"], bias)  # [T, out]
        low: Tensor = F.linear(x, self.low_rank[_key(name + ".down")])  # [T, r]
        return y + F.linear(low, self.low_rank[_key(name + ".up")])

    def vector(self, name: str) -> Tensor:
        """The dense vector ``[d]`` plus its change."""
        change: Tensor = self.shift[_key(name)]
        return self.dense[name] + change

    def adapter(self, layer: int) -> dict[str, Tensor]:
        """Tensors under the names of ``moe.convert``, float32, ``[shapes stated there]``."""
        prefix = f"layers.{layer}."
        tensors = {f"{prefix}{_name(key)}": value for key, value in self.low_rank.items()}
        tensors |= {f"{prefix}{_name(key)}": value for key, value in self.shift.items()}
        tensors |= {
            f"{prefix}router.weight": self.router_weight,
            f"{prefix}router.bias": self.router_bias,
            f"{prefix}expert.bias": self.expert_bias,
        }
        detached = {name: value.detach().clone() for name, value in tensors.items()}
        return detached | {f"{prefix}groups": self.groups.of_neurons()}


class Student(nn.Module):
    """The mixture. ``groups`` per layer; all changes start at zero, routers at zero."""

    def __init__(self, dense: DenseEncoder, groups: Sequence[Groups], top_k: int, rank: int, seed: int) -> None:
        super().__init__()
        self.encoder, self.top_k = dense, top_k
        generator = torch.Generator().manual_seed(seed)
        self.layers = nn.ModuleList(
            StudentLayer(layer, group, rank, generator) for layer, group in zip(dense.layers, groups, strict=True)
        )

    def forward(self, batch: Batch) -> Pass:
        """The mixture's pass; gradients reach routers through every expert (straight-through)."""
        size = batch.ids.shape
        mask = batch.attended[:, None, None, :]  # [B, 1, 1, L]
        h = embed(self.encoder, batch)  # [T, d]
        hidden, chosen, desired = [], [], []
        for module in self.layers:
            layer: StudentLayer = module  # type: ignore[assignment]
            attended = attention(layer.linear(h, "attention.qkv"), size, mask, self.encoder.heads)
            a = self._norm(layer.linear(attended, "attention.out") + h, layer, "attention.norm")  # [T, d]
            hard, soft = self.gates(layer, a)
            gate = hard + soft - soft.detach()  # [T, E]
            every = F.pad(gate, (0, 1), value=1.0) @ layer.membership  # [T, F]
            inner = F.gelu(layer.linear(a, "ffn.w_in")) * every  # [T, F]
            y = layer.linear(inner, "ffn.w_out") + gate @ layer.expert_bias  # [T, d]
            bias = layer.vector("finish.bias")
            h = self._norm(a + y + bias, layer, "finish.norm")  # [T, d]
            hidden.append(h.view(*size, -1))
            chosen.append(hard)
            desired.append(soft / self.top_k)
        return Pass(sentence(hidden[-1], batch.attended), hidden, chosen, desired)

    def gates(self, layer: StudentLayer, a: Tensor) -> tuple[Tensor, Tensor]:
        """1 for the ``top_k`` chosen experts and 0 else, and the router's probabilities times ``top_k``.

        ``a``: ``[tokens, d]``; both results ``[tokens, experts] float32``.
        """
        logits = F.linear(a, layer.router_weight, layer.router_bias)  # [T, E]
        best = logits.topk(self.top_k, -1).indices
        hard = torch.zeros_like(logits).scatter_(1, best, 1.0)
        return hard, logits.softmax(-1) * self.top_k

    def _norm(self, x: Tensor, layer: StudentLayer, name: str) -> Tensor:
        return F.layer_norm(
            x, x.shape[-1:], layer.vector(f"{name}.weight"), layer.vector(f"{name}.bias"), self.encoder.eps
        )

    def adapter(self) -> dict[str, Tensor]:
        """Every learnt tensor under its name in the adapter file ``[shapes in moe.convert]``."""
        tensors: dict[str, Tensor] = {}
        for index, module in enumerate(self.layers):
            layer: StudentLayer = module  # type: ignore[assignment]
            tensors |= layer.adapter(index)
        return tensors


def dense_pass(dense: DenseEncoder, batch: Batch, inner: list[tuple[Tensor, Tensor]] | None = None) -> Pass:
    """The teacher's pass. ``inner``: gets each layer's (expert input ``[T, d]``, activations ``[T, F]``)."""
    size, mask = batch.ids.shape, batch.attended[:, None, None, :]
    h = embed(dense, batch)  # [T, d]
    hidden = []
    for t in dense.layers:
        qkv = F.linear(h, t["attention.qkv.weight"], t["attention.qkv.bias"])
        attended = attention(qkv, size, mask, dense.heads)
        out = F.linear(attended, t["attention.out.weight"], t["attention.out.bias"])
        a = F.layer_norm(out + h, h.shape[-1:], t["attention.norm.weight"], t["attention.norm.bias"], dense.eps)
        active = F.gelu(F.linear(a, t["ffn.w_in.weight"], t["ffn.w_in.bias"]))  # [T, F]
        if inner is not None:
            inner.append((a, active))
        y = F.linear(active, t["ffn.w_out.weight"], t["finish.bias"])  # [T, d]
        h = F.layer_norm(a + y, h.shape[-1:], t["finish.norm.weight"], t["finish.norm.bias"], dense.eps)
        hidden.append(h.view(*size, -1))
    return Pass(sentence(hidden[-1], batch.attended), hidden, [], [])


def embed(dense: DenseEncoder, batch: Batch) -> Tensor:
    """Word and position embeddings, normalised: ``[B*L, d]``."""
    h = F.embedding(batch.ids, dense.words) + dense.positions[: batch.ids.shape[1]]  # [B, L, d]
    h = F.layer_norm(h, h.shape[-1:], dense.norm_weight, dense.norm_bias, dense.eps)
    return h.view(-1, dense.width)


def attention(qkv: Tensor, size: torch.Size, mask: Tensor, heads: int) -> Tensor:
    """``qkv [B*L, 3d]`` to ``[B*L, d]``; ``mask [B, 1, 1, L]`` True for tokens."""
    q, k, v = qkv.view(*size, 3, heads, -1).permute(2, 0, 3, 1, 4)  # [B, H, L, D] each
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # [B, H, L, D]
    return y.transpose(1, 2).reshape(size[0] * size[1], -1)


def sentence(hidden: Tensor, attended: Tensor) -> Tensor:
    """Mean over tokens, unit length: ``[B, L, d]``, ``[B, L]`` to ``[B, d]``."""
    weights = attended.to(hidden.dtype)[..., None]  # [B, L, 1]
    return F.normalize((hidden * weights).sum(1) / weights.sum(1), dim=-1)


def _key(name: str) -> str:
    return name.replace(".", "-")  # parameter names hold no dots


def _name(key: str) -> str:
    return key.replace("-", ".")
