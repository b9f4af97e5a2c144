"""Tensors as bytes: the body of every call between functions, version 1.

Little endian. Header: magic ``SMOE``, u8 version, u8 tensor count, u16 reserved (0). Then for each tensor: u8 length
of its name, the name (``[a-z_]+``), u8 dtype code, u8 number of dimensions (at most 8), u32 for each dimension, u64
payload bytes. Then the payloads in the same order, each starting at a multiple of 8 bytes from the message's start.

Everything is checked against the buffer before a tensor is made; tensors of a decoded message are views of the buffer.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

CONTENT_TYPE = "application/vnd.smoe.tensors"
MAGIC = b"SMOE"
VERSION = 1
MAX_DIMS = 8
ALIGNMENT = 8

DTYPE_OF_CODE: Mapping[int, torch.dtype] = {
    0: torch.float32,
    1: torch.bfloat16,
    2: torch.float16,
    3: torch.int64,
    4: torch.int32,
}
CODE_OF_DTYPE: Mapping[torch.dtype, int] = {dtype: code for code, dtype in DTYPE_OF_CODE.items()}
_NAME_BYTES = frozenset(b"abcdefghijklmnopqrstuvwxyz_")
_PADDING = bytes(ALIGNMENT)
_MOST_NUMBERS = 2**40
"""Bound of an empty tensor's other dimensions, well inside what strides can express."""
_HEAD = struct.Struct("<4sBBH")
_DIMS = tuple(struct.Struct(f"<{n}IQ") for n in range(MAX_DIMS + 1))


class WireError(ValueError):
    """A message that breaks the format; the sentence says where. Answered with 400."""


@dataclass(frozen=True)
class WireLimits:
    """Bounds of a message."""

    max_bytes: int = 64 * 1024 * 1024
    max_tensors: int = 16


DEFAULT_LIMITS = WireLimits()


def encode(tensors: Mapping[str, Tensor]) -> list[bytes | memoryview]:
    """The message as chunks to be written one after the other; payloads are views of the tensors, not copies.

    Tensors may have any shape of up to 8 dimensions; non-contiguous ones are copied. Raises WireError for a name or
    dtype the format does not carry.
    """
    head = bytearray(_HEAD.pack(MAGIC, VERSION, len(tensors), 0))
    payloads: list[memoryview] = []
    for name, tensor in tensors.items():
        code = CODE_OF_DTYPE.get(tensor.dtype)
        raw_name = name.encode("ascii", "replace")
        if code is None or tensor.dim() > MAX_DIMS:
            raise WireError(
                f"tensor {name!r} is {tensor.dtype} with {tensor.dim()} dimensions; the wire carries neither"
            )
        if not 0 < len(raw_name) < 256 or not _NAME_BYTES.issuperset(raw_name):
            raise WireError(f"tensor name {name!r} is not made of a-z and _")
        head.append(len(raw_name))
        head += raw_name
        head += bytes((code, tensor.dim()))
        head += _DIMS[tensor.dim()].pack(*tensor.shape, tensor.nbytes)
        payloads.append(_bytes_of(tensor))
    chunks: list[bytes | memoryview] = [bytes(head)]
    position = len(head)
    for payload in payloads:
        gap = -position % ALIGNMENT
        if gap:
            chunks.append(_PADDING[:gap])
        chunks.append(payload)
        position += gap + len(payload)
    return chunks


def encode_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """The message as one piece."""
    return b"".join(encode(tensors))


def decode(buffer: bytes | bytearray | memoryview, limits: WireLimits = DEFAULT_LIMITS) -> dict[str, Tensor]:
    """The tensors of a message, as views of ``buffer`` where it is writable and aligned (else copies).

    Raises WireError. Never allocates more than the message's own size.
    """
    view = memoryview(buffer)
    if len(view) > limits.max_bytes:
        raise WireError(f"the message has {len(view)} bytes; at most {limits.max_bytes} are allowed")
    if view.readonly:  # tensors over memory that must not change would be a trap
        view = memoryview(bytearray(view))
    count = _check_head(view, limits)
    descriptions, position = _descriptions(view, count)
    tensors: dict[str, Tensor] = {}
    for name, dtype, shape, size in descriptions:
        position += -position % ALIGNMENT
        if position + size > len(view):
            raise WireError(f"tensor {name!r} needs {size} bytes from byte {position}; the message ends at {len(view)}")
        tensors[name] = _tensor(view, dtype, shape, position, size)
        position += size
    if position != len(view):
        raise WireError(f"{len(view) - position} bytes follow the last tensor")
    return tensors


def _check_head(view: memoryview, limits: WireLimits) -> int:
    if len(view) < _HEAD.size:
        raise WireError(f"the message has {len(view)} bytes, fewer than its header of {_HEAD.size}")
    magic, version, count, reserved = _HEAD.unpack_from(view)
    if magic != MAGIC:
        raise WireError("the message does not start with SMOE")
    if version != VERSION:
        raise WireError(f"the message has version {version}; this end speaks version {VERSION}")
    if reserved:
        raise WireError("the reserved bytes of the header are not zero")
    if count > limits.max_tensors:
        raise WireError(f"the message announces {count} tensors; at most {limits.max_tensors} are allowed")
    return int(count)


def _descriptions(view: memoryview, count: int) -> tuple[list[tuple[str, torch.dtype, tuple[int, ...], int]], int]:
    position = _HEAD.size
    found: list[tuple[str, torch.dtype, tuple[int, ...], int]] = []
    seen: set[str] = set()
    try:
        for _ in range(count):
            name_end = position + 1 + view[position]
            raw_name = bytes(view[position + 1 : name_end])
            code, dims = view[name_end], view[name_end + 1]
            if not raw_name or not _NAME_BYTES.issuperset(raw_name):
                raise WireError(f"tensor {len(found)} has the name {raw_name!r}; allowed are a-z and _")
            name = raw_name.decode("ascii")
            if name in seen:
                raise WireError(f"tensor {name!r} comes twice")
            dtype = DTYPE_OF_CODE.get(code)
            if dtype is None or dims > MAX_DIMS:
                raise WireError(
                    f"tensor {name!r} has dtype code {code} and {dims} dimensions; one of them is not known"
                )
            *shape, size = _DIMS[dims].unpack_from(view, name_end + 2)
            if prod(shape) * dtype.itemsize != size:
                raise WireError(f"tensor {name!r} is {list(shape)} {dtype}, which is not {size} bytes")
            seen.add(name)
            found.append((name, dtype, tuple(shape), size))
            position = name_end + 2 + _DIMS[dims].size
    except (IndexError, struct.error):
        raise WireError(f"the message ends within the description of tensor {len(found)}") from None
    return found, position


def _tensor(view: memoryview, dtype: torch.dtype, shape: tuple[int, ...], position: int, size: int) -> Tensor:
    if size == 0:
        if prod(max(1, n) for n in shape) > _MOST_NUMBERS:
            raise WireError(f"an empty tensor has the shape {list(shape)}, too large to be described")
        return torch.empty(shape, dtype=dtype)
    flat = torch.frombuffer(view, dtype=dtype, count=size // dtype.itemsize, offset=position)
    if flat.data_ptr() % dtype.itemsize:
        flat = flat.clone()
    return flat.view(shape)


def _bytes_of(tensor: Tensor) -> memoryview:
    tensor = tensor.detach().contiguous()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.view(torch.int16)
    return memoryview(tensor.reshape(-1).numpy().data).cast("B") if tensor.numel() else memoryview(b"")


def total_bytes(chunks: Sequence[bytes | memoryview]) -> int:
    """Length of an encoded message."""
    return sum(len(chunk) for chunk in chunks)
