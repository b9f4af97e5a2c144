"""Messages of several experts' tokens in one: what an ingress and a relaying worker send each other.

To the worker: a wire message of ``x [u, d]`` (each token's row once), ``rows [r] int32`` (which rows the groups have,
one group after another) and ``edges [g + 1] int32`` (group i has ``rows[edges[i]:edges[i + 1]]``), and the header
``X-Smoe-Groups`` with g targets separated by commas: ``/PATH`` of the worker itself or ``HOST:PORT/PATH`` of a sibling.

Back: little endian, magic ``SMOB``, u8 version 1, u8 0, u16 count; for each group u32 HTTP status (0: no reply came),
u32 0, u64 payload bytes; then the payloads (what the group's function answered, byte for byte), each starting at a
multiple of 8 bytes. Everything is checked before a payload is used.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from functions.wire.arrays import Array, Arrays
from functions.wire.layout import WireError
from functions.wire.messages import Body

RELAY_PATH = "/relay"
GROUPS = "x-smoe-groups"
CONTENT_TYPE = "application/vnd.smoe.bundle"
MAX_GROUPS = 256
_HEAD = struct.Struct("<4sBBH")
_PART = struct.Struct("<IIQ")
_PADDING = bytes(8)
_FLOATS = (np.dtype("<f4"), np.dtype("<u2"), np.dtype("<f2"))
_INT = np.dtype("<i4")


class Part(NamedTuple):
    """One group's answer: HTTP status, and the body's chunks."""

    status: int
    chunks: Sequence[Body]


class Answer(NamedTuple):
    """One group's answer as received: HTTP status and the body, a view of the message."""

    status: int
    body: memoryview


def gather_rows(x: Array, groups: Sequence[NDArray[np.intp]]) -> Arrays:
    """The tensors of a message: of ``x [T, d]`` the rows that the groups' tokens name, each once."""
    tokens = np.concatenate(groups) if groups else np.empty(0, np.intp)
    wanted = np.zeros(len(x), bool)
    wanted[tokens] = True
    place = np.cumsum(wanted, dtype=np.int32) - 1
    edges = np.zeros(len(groups) + 1, np.int32)
    np.cumsum([len(group) for group in groups], out=edges[1:])
    return {"x": x[wanted], "rows": place[tokens].astype(np.int32), "edges": edges}


def split_rows(tensors: Arrays, count: int) -> list[Array]:
    """``x [m, d]`` of each of ``count`` groups. Raises WireError for tensors that are not those of a message."""
    if count == 0 and set(tensors) == {"x"}:
        return []
    if set(tensors) != {"x", "rows", "edges"}:
        raise WireError(f"a message of groups has the tensors x, rows and edges, not {', '.join(sorted(tensors))}")
    x, rows, edges = tensors["x"], tensors["rows"], tensors["edges"]
    if x.ndim != 2 or x.dtype not in _FLOATS:
        raise WireError(f"x is {list(x.shape)} {x.dtype}; it must be [tokens, d] of a floating dtype")
    if rows.dtype != _INT or edges.dtype != _INT or rows.ndim != 1 or edges.shape != (count + 1,):
        raise WireError(f"rows and edges must be [r] and [{count + 1}] int32 for {count} groups")
    if edges[0] != 0 or edges[-1] != len(rows) or (edges[1:] < edges[:-1]).any():
        raise WireError(f"edges must rise from 0 to {len(rows)}, the number of rows")
    if len(rows) and (rows.min() < 0 or rows.max() >= len(x)):
        raise WireError(f"rows are 0 to {len(x) - 1}, got {rows.min()} to {rows.max()}")
    return [x[rows[low:high]] for low, high in pairwise(edges)]


def targets(text: str) -> list[tuple[str, str]]:
    """(address, path) of each group; an empty address is the worker itself. Raises WireError."""
    if not text:
        return []
    pairs = []
    for target in text.split(",", MAX_GROUPS):
        address, slash, path = target.partition("/")
        path = slash + path
        if not (path in ("/", RELAY_PATH) or path.startswith("/stage/")) or (address and not _is_address(address)):
            raise WireError(f"target {target[:80]!r} is neither /PATH nor HOST:PORT/PATH")
        pairs.append((address, path))
    if len(pairs) > MAX_GROUPS:
        raise WireError(f"the message has more than {MAX_GROUPS} groups")
    return pairs


def assemble(parts: Sequence[Part]) -> list[Body]:
    """The answer to a message as chunks."""
    sizes = [sum(map(len, part.chunks)) for part in parts]
    head = _HEAD.pack(b"SMOB", 1, 0, len(parts))
    head += b"".join(_PART.pack(part.status, 0, size) for part, size in zip(parts, sizes, strict=True))
    chunks: list[Body] = [head]
    for part, size in zip(parts, sizes, strict=True):
        chunks += part.chunks
        if size % 8:
            chunks.append(_PADDING[: -size % 8])
    return chunks


def parse(body: bytes | bytearray, count: int) -> list[Answer]:
    """The answers of ``count`` groups. Raises WireError."""
    view = memoryview(body)
    position = _HEAD.size + count * _PART.size
    if len(view) < position:
        raise WireError(f"the answer has {len(view)} bytes, fewer than the {position} of its header")
    magic, version, reserved, answer_count = _HEAD.unpack_from(view)
    if (magic, version, reserved, answer_count) != (b"SMOB", 1, 0, count):
        raise WireError(f"the answer is not one to {count} groups in version 1")
    answers = []
    for number in range(count):
        status, reserved, size = _PART.unpack_from(view, _HEAD.size + number * _PART.size)
        if reserved or position + size > len(view):
            raise WireError(f"group {number} needs {size} bytes from byte {position}; the answer ends at {len(view)}")
        answers.append(Answer(status, view[position : position + size]))
        position += size + -size % 8
    if position != len(view):
        raise WireError(f"the answer has {len(view)} bytes; its groups end at {position}")
    return answers


def _is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and port.isascii() and port.isdigit() and 0 < int(port) < 65536
