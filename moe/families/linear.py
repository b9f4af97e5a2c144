"""Linear layers, norms and activations: thin values over tensors, made to cost little Python per call."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

Activation = Callable[[Tensor], Tensor]


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Activation] = {
    "gelu": F.gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": torch.relu,
    "silu": F.silu,
}


class Linear:
    """``y = x @ matrix + bias``. The matrix is kept ``[in, out]``: for few tokens BLAS multiplies that
    faster.
    """

    __slots__ = ("bias", "matrix")

    def __init__(self, matrix: Tensor, bias: Tensor | None) -> None:
        self.matrix = matrix  # [in, out]
        self.bias = bias  # [out]

    def __call__(self, x: Tensor) -> Tensor:
        if self.bias is None:
            return torch.mm(x, self.matrix)  # [T, out]
        return torch.addmm(self.bias, x, self.matrix)  # [T, out]


class LayerNorm:
    """Mean and variance over the last axis, scale and shift."""

    __slots__ = ("bias", "eps", "shape", "weight")

    def __init__(self, weight: Tensor, bias: Tensor, eps: float) -> None:
        self.weight, self.bias, self.eps = weight, bias, eps  # [d], [d]
        self.shape = tuple(weight.shape)

    def __call__(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.shape, self.weight, self.bias, self.eps)  # [T, d]


class RmsNorm:
    """Root mean square over the last axis in float32, rounded to the input's dtype before scaling."""

    __slots__ = ("eps", "shape", "weight")

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight, self.eps = weight, eps  # [d]
        self.shape = tuple(weight.shape)

    def __call__(self, x: Tensor) -> Tensor:
        if x.dtype == torch.float32:
            return F.rms_norm(x, self.shape, self.weight, self.eps)  # [T, d]
        return F.rms_norm(x.float(), self.shape, None, self.eps).to(x.dtype) * self.weight  # [T, d]


Norm = LayerNorm | RmsNorm
