"""Tensors as bytes (:mod:`functions.wire.layout`) and back; tensors of a decoded message are views of the buffer."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from functions.wire.layout import (
    ALIGNMENT,
    CONTENT_TYPE,
    MAGIC,
    MAX_BYTES,
    MAX_DIMS,
    MAX_TENSORS,
    VERSION,
    Chunk,
    Entry,
    Part,
    WireError,
    assemble,
    describe,
    total_bytes,
)

__all__ = [
    "ALIGNMENT",
    "CODE_OF_DTYPE",
    "CONTENT_TYPE",
    "DTYPE_OF_CODE",
    "MAGIC",
    "MAX_BYTES",
    "MAX_DIMS",
    "MAX_TENSORS",
    "VERSION",
    "Chunk",
    "Entry",
    "Part",
    "WireError",
    "assemble",
    "decode",
    "describe",
    "encode",
    "encode_bytes",
    "total_bytes",
]

DTYPE_OF_CODE: Mapping[int, torch.dtype] = {
    0: torch.float32,
    1: torch.bfloat16,
    2: torch.float16,
    3: torch.int64,
    4: torch.int32,
}
CODE_OF_DTYPE: Mapping[torch.dtype, int] = {dtype: code for code, dtype in DTYPE_OF_CODE.items()}


def encode(tensors: Mapping[str, Tensor]) -> list[Chunk]:
    """The message as chunks to be written one after the other; payloads are views of the tensors, not copies.

    Tensors may have any shape ``[…]`` of up to 8 dimensions; non-contiguous ones are copied. Raises WireError for a
    name or dtype that the format does not carry.
    """
    return assemble(
        Part(name, CODE_OF_DTYPE.get(tensor.dtype, -1), tuple(tensor.shape), _bytes_of(tensor))
        for name, tensor in tensors.items()
    )


def encode_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """The message as one piece; tensors as in ``encode``, ``[any shape]``."""
    return b"".join(encode(tensors))


def decode(buffer: bytes | bytearray | memoryview) -> dict[str, Tensor]:
    """The tensors of a message ``[shapes in its header]``, views of ``buffer`` where it is a bytearray (aligned by
    itself), else of a copy.

    Raises WireError. Never allocates more than the message's own size.
    """
    view = memoryview(buffer)
    entries = describe(view)
    if view.readonly or not isinstance(view.obj, bytearray):  # memory that must not change, or may not be aligned
        view = memoryview(bytearray(view))
    return {entry.name: _tensor(view, entry) for entry in entries}


def _tensor(view: memoryview, entry: Entry) -> Tensor:
    dtype = DTYPE_OF_CODE[entry.code]
    if entry.size == 0:
        return torch.empty(entry.shape, dtype=dtype)
    flat = torch.frombuffer(view, dtype=dtype, count=entry.size // dtype.itemsize, offset=entry.start)
    return flat if len(entry.shape) == 1 else flat.view(entry.shape)


def _bytes_of(tensor: Tensor) -> memoryview:
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.contiguous().view(torch.int16)
    array = tensor.numpy()
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    return array.data.cast("B") if array.size else memoryview(b"")
