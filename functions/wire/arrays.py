"""The wire's messages as NumPy arrays, for the ingress: its sums are small, and NumPy's calls cost a tenth of torch's.

NumPy has no bfloat16; such tensors are ``uint16`` arrays of their bits here (uint16 itself is not on the wire), and
``as_float32`` and ``from_float32`` convert, rounding to nearest even as torch does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from functions.wire.layout import Chunk, Part, assemble, describe

Array = NDArray[Any]
Arrays = dict[str, Array]

_DTYPES: tuple[np.dtype[Any], ...] = tuple(np.dtype(name) for name in ("<f4", "<u2", "<f2", "<i8", "<i4"))
_CODES: Mapping[np.dtype[Any], int] = {dtype: code for code, dtype in enumerate(_DTYPES)}


def encode(arrays: Mapping[str, Array | Part]) -> list[Chunk]:
    """As ``wire.encode``: chunks of a message; payloads are views. Raises WireError."""
    return assemble([array if isinstance(array, Part) else part(name, array) for name, array in arrays.items()])


def part(name: str, array: Array) -> Part:
    """One array ``[any shape]`` as :func:`encode` sends it, for what goes into several messages."""
    return Part(name, _CODES.get(array.dtype, -1), array.shape, _bytes_of(array))


def decode(buffer: bytes | bytearray | memoryview) -> Arrays:
    """The arrays of a message, views of ``buffer``. Raises WireError."""
    view = memoryview(buffer)
    return {
        name: np.frombuffer(view, _DTYPES[code], size // _DTYPES[code].itemsize, start).reshape(shape)
        for name, code, shape, start, size in describe(view)
    }


def as_float32(array: Array) -> NDArray[np.float32]:
    """A floating array ``[any shape]`` of the wire as float32, itself where it is one."""
    if array.dtype == np.uint16:
        return (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return array.astype(np.float32, copy=False)


def from_float32(array: NDArray[np.float32], dtype: np.dtype[Any]) -> Array:
    """The inverse of ``as_float32`` for ``dtype``, ``[same shape]``, rounded to nearest even."""
    if dtype != np.uint16:
        return array.astype(dtype, copy=False)
    bits = np.ascontiguousarray(array).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(array), np.uint32(0x7FC0), rounded).astype(np.uint16)


def _bytes_of(array: Array) -> memoryview:
    if not array.size:
        return memoryview(b"")
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    return array.data.cast("B")
