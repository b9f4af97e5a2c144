"""What an expert computes: a feed-forward network, plain or gated."""

from __future__ import annotations

import torch
from torch import Tensor

from moe.families.linear import Activation, Linear


class PlainFfn:
    """``act(x W_in + b_in) W_out``; the output's bias, if any, is the segment's business."""

    __slots__ = ("activation", "w_in", "w_out")

    def __init__(self, w_in: Linear, w_out: Linear, activation: Activation) -> None:
        self.w_in, self.w_out, self.activation = w_in, w_out, activation

    def __call__(self, x: Tensor) -> Tensor:
        inner = self.activation(self.w_in(x))  # [m, F]
        return self.w_out(inner)  # [m, d]


class GatedFfn:
    """``(act(x W_gate) * (x W_up)) W_down`` with gate and up in one product."""

    __slots__ = ("activation", "down", "gate_up")

    def __init__(self, gate_up: Linear, down: Linear, activation: Activation) -> None:
        self.gate_up, self.down, self.activation = gate_up, down, activation

    def __call__(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, -1)  # [m, F] each
        return self.down(self.activation(gate) * up)  # [m, d]


class ClampedFfn(GatedFfn):
    """``((up + 1) gate σ(α gate)) W_down``, gate at most ``limit`` and up within ``±limit`` (GPT-OSS)."""

    __slots__ = ("alpha", "limit")

    def __init__(self, gate_up: Linear, down: Linear, activation: Activation, alpha: float, limit: float) -> None:
        super().__init__(gate_up, down, activation)
        self.alpha, self.limit = alpha, limit

    def __call__(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, -1)  # [m, F] each
        gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return self.down((up + 1) * gate * torch.sigmoid(gate * self.alpha))  # [m, d]
