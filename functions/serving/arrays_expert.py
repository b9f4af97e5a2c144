"""An expert in float32 by NumPy, over weights that are mapped from their file; imports no torch.

The same functions as ``moe.families.experts`` computes with torch, which is their oracle in tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from functions.wire.places import HeaderError, read_places
from moe.errors import ManifestError, ProgramInputError
from moe.manifest import Manifest, Node

Floats = NDArray[np.float32]

BLOCK_NUMBERS = 16384
"""Numbers of an activation computed at a time, so that its steps find them in the cache."""
_ERF_ABOVE = (-2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05,
              -7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02)  # fmt: skip
_ERF_BELOW = (-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03,
              -1.42647390514189e-02)  # fmt: skip
"""erf(z) = z P(z²) / Q(z²) for |z| ≤ 4, beyond which it is ±1 in float32: the rational approximation that Eigen and XLA
use, coefficients of the highest power first."""


def _polynomial(coefficients: tuple[float, ...], x: Floats) -> Floats:
    value = x * np.float32(coefficients[0])
    for coefficient in coefficients[1:-1]:
        value += np.float32(coefficient)
        value *= x
    value += np.float32(coefficients[-1])
    return value


def _gelu(x: Floats) -> None:
    z = np.clip(x * np.float32(0.7071067811865476), np.float32(-4), np.float32(4))
    square = z * z
    z *= _polynomial(_ERF_ABOVE, square)
    z /= _polynomial(_ERF_BELOW, square)
    z += np.float32(1)
    x *= z
    x *= np.float32(0.5)


def _gelu_tanh(x: Floats) -> None:
    inner = x * x
    inner *= np.float32(0.044715)
    inner += np.float32(1)
    inner *= x
    inner *= np.float32(0.7978845608028654)
    np.tanh(inner, out=inner)
    inner += np.float32(1)
    x *= inner
    x *= np.float32(0.5)


def _silu(x: Floats) -> None:
    below = np.negative(x)
    with np.errstate(over="ignore"):  # exp of a large number is infinite, and the quotient zero as it should be
        np.exp(below, out=below)
    below += np.float32(1)
    x /= below


def _clamped(alpha: float, limit: float) -> Callable[[Floats], None]:
    """GPT-OSS's gate: ``x σ(α x)`` of x at most ``limit``."""

    def gate(x: Floats) -> None:
        np.minimum(x, np.float32(limit), out=x)
        below = x * np.float32(-alpha)
        with np.errstate(over="ignore"):  # as in _silu
            np.exp(below, out=below)
        below += np.float32(1)
        x /= below

    return gate


def _relu(x: Floats) -> None:
    np.maximum(x, np.float32(0), out=x)


ACTIVATIONS: Mapping[str, Callable[[Floats], None]] = {
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": _relu,
    "silu": _silu,
}
"""Each in place, on a contiguous array of one dimension."""


@dataclass(frozen=True, slots=True)
class _Linear:
    matrix: Floats  # [in, out]
    bias: Floats | None  # [out]

    def __call__(self, x: Floats) -> Floats:
        y: Floats = x @ self.matrix  # [m, out]
        if self.bias is not None:
            y += self.bias
        return y


@dataclass(frozen=True, slots=True)
class ArraysExpert:
    """An expert, ready to run: plain ``act(x W_in) W_out``, or gated with gate and up in one product."""

    id: str
    first: _Linear
    last: _Linear
    activation: Callable[[Floats], None]
    gated: bool
    limit: float | None = None
    """GPT-OSS: up is clamped to plus and minus this, and one more."""

    def check(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Raises ProgramInputError for anything but ``x [1 or more tokens, d]`` in float32."""
        if tensors.keys() != {"x"}:
            missing, extra = sorted({"x"} - tensors.keys()), sorted(tensors.keys() - {"x"})
            what = f"misses {missing[0]}" if missing else f"has {extra[0]} too much"
            raise ProgramInputError(f"{self.id}: the call {what}; it takes exactly x.")
        x, width = tensors["x"], self.first.matrix.shape[0]
        if x.ndim != 2 or x.shape[1] != width or x.shape[0] < 1 or x.dtype != np.float32:
            raise ProgramInputError(
                f"{self.id}: x is {list(x.shape)} {x.dtype}, allowed is [1 or more, {width}] float32."
            )

    def made_up(self, tokens: int) -> dict[str, Floats]:
        """A call ``x [tokens, d]`` that it accepts, for a rehearsal."""
        return {"x": np.zeros((tokens, self.first.matrix.shape[0]), np.float32)}

    def run(self, x: Floats) -> Floats:
        """``y [m, d]`` of checked tokens ``x [m, d]``."""
        inner = self.first(x)  # [m, F], gated [m, 2 F]
        up = None
        if self.gated:
            size = inner.shape[1] // 2
            inner, up = np.ascontiguousarray(inner[:, :size]), inner[:, size:]
        flat = inner.reshape(-1)
        for begin in range(0, flat.size, BLOCK_NUMBERS):
            self.activation(flat[begin : begin + BLOCK_NUMBERS])
        if up is not None:
            inner *= up if self.limit is None else np.clip(up, -self.limit, self.limit) + np.float32(1)
        return self.last(inner)


def load_expert(directory: Path, manifest: Manifest, node_id: str) -> ArraysExpert:
    """Map an expert's weights, read-only, so that replicas of a machine share their pages. Raises ManifestError."""
    node = manifest.node(node_id)
    path, numbers = directory / node.weights.file, _numbers(manifest, node)
    tensors = _mapped(path, node.weights.prefix)
    if sum(tensor.nbytes for tensor in tensors.values()) != node.parameter_bytes:
        raise ManifestError(f"{path}: does not hold the {node.parameter_bytes} bytes of {node_id}.")
    gated = not any(name.startswith("w_in.") for name in tensors)
    first, last = ("gate_up", "down") if gated else ("w_in", "w_out")
    into = _linear(tensors, first, path)
    out = _linear(tensors, last, path)
    width = numbers["hidden_size"]
    inner = into.matrix.shape[1] // 2 if gated else into.matrix.shape[1]
    if into.matrix.shape[0] != width or out.matrix.shape != (inner, width):
        raise ManifestError(f"{path}: {first} and {last} have other shapes than a node of hidden size {width}.")
    if tensors:
        raise ManifestError(f"{path}: tensor {min(tensors)!r} belongs to nothing this family computes.")
    limit: float | None = numbers.get("swiglu_limit")
    activation = ACTIVATIONS[numbers["activation"]] if limit is None else _clamped(numbers["swiglu_alpha"], limit)
    return ArraysExpert(node_id, into, out, activation, gated, limit)


def _numbers(manifest: Manifest, node: Node) -> Mapping[str, Any]:
    """The architecture's numbers, of an encoder-decoder those of the node's stack."""
    numbers: Mapping[str, Any] = manifest.architecture
    if manifest.family != "bert2bert":
        return numbers
    stack: Mapping[str, Any] = numbers["encoder" if node.layer < numbers["encoder"]["layers"] else "decoder"]
    return stack


def _mapped(path: Path, prefix: str) -> dict[str, Floats]:
    """Tensors whose names start with ``prefix``, without it, ``[shapes in the file]``, as views of the mapped file."""
    try:
        places, _ = read_places(path)
        whole = np.memmap(path, np.uint8, mode="r")
    except (OSError, ValueError, HeaderError) as error:
        raise ManifestError(f"{path}: is not a readable safetensors file ({error}).") from error
    tensors: dict[str, Floats] = {}
    for name, place in places.items():
        if not name.startswith(prefix):
            continue
        if place.dtype != "F32":
            raise ManifestError(f"{path}: tensor {name!r} is {place.dtype}, the manifest's dtype is float32.")
        part = np.asarray(whole)[place.begin : place.end]
        aligned = part if part.ctypes.data % 4 == 0 else part.copy()
        tensors[name.removeprefix(prefix)] = aligned.view(np.float32).reshape(place.shape)
    return tensors


def _linear(tensors: dict[str, Floats], name: str, path: Path) -> _Linear:
    """The matrix ``name``, as it is stored or transposed, and its bias, where there is one; taken out of
    ``tensors``."""
    matrix = tensors.pop(f"{name}.weight_t", None)
    if matrix is None:
        stored = tensors.pop(f"{name}.weight", None)
        matrix = None if stored is None else stored.T
    if matrix is None or matrix.ndim != 2:
        raise ManifestError(f"{path}: the matrix {name!r} is missing.")
    bias = tensors.pop(f"{name}.bias", None)
    if bias is not None and bias.shape != (matrix.shape[1],):
        raise ManifestError(f"{path}: the bias of {name!r} has shape {list(bias.shape)}.")
    return _Linear(matrix, bias)
