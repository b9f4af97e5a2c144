"""A gated feed-forward network as experts that can be trained: dense weights frozen, the adapter's tensors learnt."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from moe.checkpoints.reader import DenseFfn
from moe.convert import Groups, initial_router, split_neurons

ROUTER_SCALE = 2.0
"""First router logits have this standard deviation over tokens, which leaves its softmax room to learn."""


class Mixture(nn.Module):
    """``experts`` groups of neurons of which a token uses ``top_k``, and neurons that always run.

    All experts are computed and multiplied with their gates, so that the router learns also from those it did not
    choose (straight-through). ``share [E]`` is the mean router probability of the last call.
    """

    membership: Tensor

    def __init__(self, dense: DenseFfn, groups: Groups, top_k: int, rank: int, seed: int) -> None:
        super().__init__()
        assert dense.w_gate is not None
        self.gate_up = torch.cat((dense.w_gate, dense.w_in)).float()  # [2F, d]
        self.down = dense.w_out.float().contiguous()  # [d, F]
        self.groups, self.top_k = groups, top_k
        (rows, width), count = self.gate_up.shape, len(groups.experts)
        generator = torch.Generator().manual_seed(seed)
        self.in_down = nn.Parameter(torch.randn(rank, width, generator=generator) / width**0.5)
        self.in_up = nn.Parameter(torch.zeros(rows, rank))
        self.out_down = nn.Parameter(torch.randn(rank, rows // 2, generator=generator) / (rows // 2) ** 0.5)
        self.out_up = nn.Parameter(torch.zeros(width, rank))
        self.router_weight = nn.Parameter(torch.zeros(count, width))
        self.router_bias = nn.Parameter(torch.zeros(count))
        self.expert_bias = nn.Parameter(torch.zeros(count, width))
        owner = groups.of_neurons().long()  # [F]
        owner = torch.where(owner < 0, count, owner)
        self.register_buffer("membership", F.one_hot(owner, count + 1).t().float().contiguous())  # [E+1, F]
        self.share = torch.zeros(count)

    def active(self, x: Tensor) -> Tensor:
        """What the neurons answer: ``[T, d]`` to ``[T, F]``."""
        gate, up = (F.linear(x, self.gate_up) + F.linear(F.linear(x, self.in_down), self.in_up)).chunk(2, -1)
        return F.silu(gate) * up

    def gates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """1 for the chosen experts and 0 else, and the router's probabilities times ``top_k``, both ``[T, E]``."""
        logits = F.linear(x, self.router_weight, self.router_bias)  # [T, E]
        hard = torch.zeros_like(logits).scatter_(1, logits.topk(self.top_k, -1).indices, 1.0)
        return hard, logits.softmax(-1) * self.top_k

    def forward(self, x: Tensor) -> Tensor:
        """``x [T, d]`` to ``[T, d]``."""
        hard, soft = self.gates(x)
        gate = hard + soft - soft.detach()  # [T, E]
        self.share = soft.mean(0) / self.top_k
        inner = self.active(x) * (F.pad(gate, (0, 1), value=1.0) @ self.membership)  # [T, F]
        y = F.linear(inner, self.down) + F.linear(F.linear(inner, self.out_down), self.out_up)  # [T, d]
        return y + gate @ self.expert_bias

    def begin(self, x: Tensor) -> None:
        """First router and biases from what the dense network does on ``x [T, d]``: a ridge regression of how much each
        expert adds beyond its mean. Experts that a token does not use leave their mean there: its k experts bring the
        means of all others, ``bias_e = Σ mean / k - mean_e``.
        """
        with torch.no_grad():
            active = self.active(x)  # [T, F]
            parts = torch.stack([active[:, g] @ self.down[:, g].t() for g in self.groups.experts], 1)  # [T, E, d]
            weight, bias = initial_router(x, (parts - parts.mean(0)).norm(dim=2))
            scale = ROUTER_SCALE / (x @ weight.t() + bias).std().clamp_min(1e-9)
            self.router_weight.copy_(weight * scale)
            self.router_bias.copy_(bias * scale)
            absent = 1.0 - self.gates(x)[0]  # [T, E]
            means = torch.einsum("te,ted->ed", absent, parts) / absent.sum(0).clamp_min(1.0)[:, None]
            self.expert_bias.copy_(means.sum(0) / self.top_k - means)

    def adapter(self, layer: int) -> dict[str, Tensor]:
        """Tensors under the names of ``moe.convert``, float32, ``[shapes stated there]``."""
        tensors: Mapping[str, Tensor] = {
            "ffn.gate_up.down": self.in_down,
            "ffn.gate_up.up": self.in_up,
            "ffn.w_out.down": self.out_down,
            "ffn.w_out.up": self.out_up,
            "router.weight": self.router_weight,
            "router.bias": self.router_bias,
            "expert.bias": self.expert_bias,
        }
        for name, up in (("ffn.gate_up", self.in_up), ("ffn.w_out", self.out_up)):
            if not bool(up.any()):  # nothing is changed
                tensors = {key: tensor for key, tensor in tensors.items() if not key.startswith(name)}
        named = {f"layers.{layer}.{name}": tensor.detach().clone() for name, tensor in tensors.items()}
        return named | {f"layers.{layer}.groups": self.groups.of_neurons()}


def mixture_of(dense: DenseFfn, x: Tensor, *, experts: int, top_k: int, shared: int, rank: int, seed: int) -> Mixture:
    """The network split by what its neurons do on ``x [T, d]``, ready to be trained."""
    assert dense.w_gate is not None
    with torch.no_grad():
        active = F.silu(x @ dense.w_gate.float().t()) * (x @ dense.w_in.float().t())  # [T, F]
    groups = split_neurons(dense.w_in, dense.b_in, dense.w_out, experts, seed, active, shared)
    mixture = Mixture(dense, groups, top_k, rank, seed)
    mixture.begin(x)
    return mixture
