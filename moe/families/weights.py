"""A node's tensors by name, with shapes proved as they are taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from moe.errors import ManifestError
from moe.families.linear import LayerNorm, Linear, Norm, RmsNorm

FLOAT32 = frozenset(("router.correction",))
"""Tensors of this type whatever the manifest's: half precision would change which experts are chosen."""


@dataclass
class Weights:
    """``where`` names the file in messages. Matrices may be stored ``NAME.weight [out, in]`` or, where that
    is faster to multiply with, transposed as ``NAME.weight_t [in, out]``. All raise ManifestError.
    """

    tensors: Mapping[str, Tensor]
    where: str
    taken: set[str] = field(default_factory=set)

    def has(self, name: str) -> bool:
        return name in self.tensors

    def has_linear(self, name: str) -> bool:
        return self.has(f"{name}.weight") or self.has(f"{name}.weight_t")

    def tensor(self, name: str, *shape: int) -> Tensor:
        """The tensor ``name`` of exactly this shape ``[*shape]``; -1 allows any size on that axis."""
        try:
            tensor = self.tensors[name]
        except KeyError:
            raise ManifestError(f"{self.where}: tensor {name!r} is missing.") from None
        if tensor.dim() != len(shape) or any(w not in (-1, s) for w, s in zip(shape, tensor.shape, strict=True)):
            wanted = ["any" if size == -1 else size for size in shape]
            raise ManifestError(f"{self.where}: tensor {name!r} has shape {list(tensor.shape)}, not {wanted}.")
        self.taken.add(name)
        return tensor

    def linear(self, name: str, inputs: int, outputs: int) -> Linear:
        """The matrix ``name`` and its bias, where the file holds one. ``outputs`` or ``inputs`` -1: any."""
        if self.has(f"{name}.weight_t"):
            matrix = self.tensor(f"{name}.weight_t", inputs, outputs)  # [in, out]
        else:
            matrix = self.tensor(f"{name}.weight", outputs, inputs).t()  # [in, out], a view
        bias = self.tensor(f"{name}.bias", matrix.shape[1]) if self.has(f"{name}.bias") else None
        return Linear(matrix, bias)

    def layer_norm(self, name: str, size: int, eps: float) -> LayerNorm:
        return LayerNorm(self.tensor(f"{name}.weight", size), self.tensor(f"{name}.bias", size), eps)

    def rms_norm(self, name: str, size: int, eps: float) -> RmsNorm:
        return RmsNorm(self.tensor(f"{name}.weight", size), eps)

    def norm(self, name: str, size: int, eps: float) -> Norm:
        """The norm ``name``: LayerNorm where the file holds a bias, else RmsNorm."""
        return self.layer_norm(name, size, eps) if self.has(f"{name}.bias") else self.rms_norm(name, size, eps)

    def finish(self) -> None:
        """Everything in the file must have been taken: a tensor nobody uses means that file and family
        disagree.
        """
        left = sorted(set(self.tensors) - self.taken)
        if left:
            raise ManifestError(f"{self.where}: tensor {left[0]!r} belongs to nothing this family computes.")
