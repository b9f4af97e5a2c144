"""Tensors as bytes: the body of every call between functions, version 1.

Little endian. Header: magic ``SMOE``, u8 version, u8 tensor count, u16 reserved (0). Then for each tensor: u8 length
of its name, the name (``[a-z_]+``), u8 dtype code, u8 number of dimensions (at most 8), u32 for each dimension, u64
payload bytes. Then the payloads in the same order, each starting at a multiple of 8 bytes from the message's start.

Everything is checked against the buffer before a tensor is made. This module imports no torch: tensors of messages are
made by ``functions.wire.format``, arrays by ``functions.wire.arrays``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

CONTENT_TYPE = "application/vnd.smoe.tensors"
MAGIC = b"SMOE"
VERSION = 1
MAX_DIMS = 8
MAX_BYTES = 64 * 1024 * 1024
MAX_TENSORS = 16
ALIGNMENT = 8

DTYPE_NAMES = ("float32", "bfloat16", "float16", "int64", "int32")
"""By code."""
ITEM_BYTES: Mapping[int, int] = {0: 4, 1: 2, 2: 2, 3: 8, 4: 4}
_NAME_BYTES = frozenset(b"abcdefghijklmnopqrstuvwxyz_")
_PADDING = bytes(ALIGNMENT)
_MOST_NUMBERS = 2**40
"""Bound of an empty tensor's other dimensions, well inside what strides can express."""
_HEAD = struct.Struct("<4sBBH")
_DIMS = tuple(struct.Struct(f"<{n}IQ") for n in range(MAX_DIMS + 1))
_MOST_KNOWN = 1024
_KNOWN: dict[int, tuple[bytes, list[Entry]]] = {}
"""Length of a message → the header of the last good one of that length, and where its tensors lie."""
_LARGEST_ENTRY = 1 + 255 + 2 + _DIMS[MAX_DIMS].size

Chunk = bytes | memoryview


class WireError(ValueError):
    """A message that breaks the format; the message names the place. Answered with 400."""


class Part(NamedTuple):
    """A tensor to be sent: its payload as bytes."""

    name: str
    code: int
    shape: tuple[int, ...]
    payload: memoryview


class Entry(NamedTuple):
    """A tensor found in a message: its payload is ``[start, start + size)``."""

    name: str
    code: int
    shape: tuple[int, ...]
    start: int
    size: int


def assemble(parts: Iterable[Part]) -> list[Chunk]:
    """The message of some parts as chunks. Raises WireError for a name or dtype that the format does not carry."""
    described, payloads = [], []
    for part in parts:
        described.append(part[:3])
        payloads.append(part.payload)
    head = _head(tuple(described))
    chunks: list[Chunk] = [head]
    position = len(head)
    for payload in payloads:
        gap = -position % ALIGNMENT
        if gap:
            chunks.append(_PADDING[:gap])
        if payload:
            chunks.append(payload)
        position += gap + len(payload)
    return chunks


@lru_cache(maxsize=4096)
def _head(described: tuple[tuple[str, int, tuple[int, ...]], ...]) -> bytes:
    """Header and descriptions; the same shapes come again and again. Raises WireError."""
    head = bytearray(_HEAD.pack(MAGIC, VERSION, len(described), 0))
    for name, code, shape in described:
        raw_name = name.encode("ascii", "replace")
        if code not in ITEM_BYTES or len(shape) > MAX_DIMS:
            raise WireError(
                f"tensor {name!r} with shape {list(shape)} has a dtype or shape that the wire does not carry"
            )
        if not 0 < len(raw_name) < 256 or not _NAME_BYTES.issuperset(raw_name):
            raise WireError(f"tensor name {name!r} is not made of a-z and _")
        head.append(len(raw_name))
        head += raw_name
        head += bytes((code, len(shape)))
        head += _DIMS[len(shape)].pack(*shape, prod(shape) * ITEM_BYTES[code])
    return bytes(head)


def describe(view: memoryview) -> list[Entry]:
    """Check a whole message and say where its tensors lie, without reading the payloads. Raises WireError.

    The same shapes come again and again: messages whose length and first bytes were understood before are not read
    again.
    """
    length = len(view)
    kind = _KNOWN.get(length)
    if kind is not None and length <= MAX_BYTES:
        head, entries = kind
        if view[: len(head)] == head and len(entries) <= MAX_TENSORS:
            return entries
    if length > MAX_BYTES:
        raise WireError(f"the message has {length} bytes; at most {MAX_BYTES} are allowed")
    head = bytes(view[: _HEAD.size + MAX_TENSORS * _LARGEST_ENTRY])
    count = _check_head(head)
    tensors, position = _descriptions(head, count)
    described = position
    entries = []
    for name, code, shape, size in tensors:
        position += -position % ALIGNMENT
        if position + size > length:
            raise WireError(f"tensor {name!r} needs {size} bytes from byte {position}; the message ends at {length}")
        entries.append(Entry(name, code, shape, position, size))
        position += size
    if position != length:
        raise WireError(f"{length - position} bytes follow the last tensor")
    if len(_KNOWN) >= _MOST_KNOWN:
        _KNOWN.clear()
    _KNOWN[length] = (head[:described], entries)
    return entries


def _check_head(head: bytes) -> int:
    if len(head) < _HEAD.size:
        raise WireError(f"the message has {len(head)} bytes, fewer than its header of {_HEAD.size}")
    magic, version, count, reserved = _HEAD.unpack_from(head)
    if magic != MAGIC:
        raise WireError("the message does not start with SMOE")
    if version != VERSION:
        raise WireError(f"the message has version {version}; this end speaks version {VERSION}")
    if reserved:
        raise WireError("the reserved bytes of the header are not zero")
    if count > MAX_TENSORS:
        raise WireError(f"the message announces {count} tensors; at most {MAX_TENSORS} are allowed")
    return int(count)


def _descriptions(head: bytes, count: int) -> tuple[list[tuple[str, int, tuple[int, ...], int]], int]:
    position = _HEAD.size
    entries: list[tuple[str, int, tuple[int, ...], int]] = []
    names: set[str] = set()
    try:
        for _ in range(count):
            name_end = position + 1 + head[position]
            raw_name = head[position + 1 : name_end]
            code, dims = head[name_end], head[name_end + 1]
            if not raw_name or not _NAME_BYTES.issuperset(raw_name):
                raise WireError(f"tensor {len(entries)} has the name {raw_name!r}; allowed are a-z and _")
            name = raw_name.decode("ascii")
            if name in names:
                raise WireError(f"tensor {name!r} comes twice")
            if code not in ITEM_BYTES or dims > MAX_DIMS:
                raise WireError(
                    f"tensor {name!r} has dtype code {code} and {dims} dimensions; one of them is not known"
                )
            *shape, size = _DIMS[dims].unpack_from(head, name_end + 2)
            if prod(shape) * ITEM_BYTES[code] != size:
                raise WireError(f"tensor {name!r} is {shape} {DTYPE_NAMES[code]}, which is not {size} bytes")
            if size == 0 and prod(max(1, n) for n in shape) > _MOST_NUMBERS:
                raise WireError(f"tensor {name!r} is empty with the shape {shape}, too large to be described")
            names.add(name)
            entries.append((name, code, tuple(shape), size))
            position = name_end + 2 + _DIMS[dims].size
    except (IndexError, struct.error):
        raise WireError(f"the message ends within the description of tensor {len(entries)}") from None
    return entries, position


def total_bytes(chunks: Sequence[Chunk]) -> int:
    """Length of an encoded message."""
    return sum(len(chunk) for chunk in chunks)
