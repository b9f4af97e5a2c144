"""Where the tensors of a safetensors file lie in it; imports no torch.

The file's format: 8 bytes with the header's length (little-endian), the header (JSON: name → dtype, shape, and first
and last offset behind the header), the tensors' bytes. Everything is proved before a place is given.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LENGTH_BYTES = 8
MAX_HEADER = 100 << 20
"""Bytes; the limit of the safetensors library."""
MAX_NUMBER = 1 << 48
"""Largest number of a shape or an offset; a product of the library's own would overflow beyond."""
METADATA = "__metadata__"
ITEM_BYTES: Mapping[str, int] = {"F32": 4, "BF16": 2, "F16": 2}
"""The dtypes of pipelines, by the names of the format."""


class HeaderError(Exception):
    """A file's header does not describe tensors inside the file; the message names the error."""


@dataclass(frozen=True)
class Place:
    """Where a tensor is: bytes ``begin`` to ``end`` of the file."""

    dtype: str
    """Its name in ``ITEM_BYTES``."""
    shape: tuple[int, ...]
    begin: int
    end: int


def read_places(path: Path) -> tuple[dict[str, Place], int]:
    """Places of a file's tensors by name, and the file's bytes. Raises HeaderError, OSError."""
    with path.open("rb") as file:
        nbytes = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        if nbytes < LENGTH_BYTES or length > min(nbytes - LENGTH_BYTES, MAX_HEADER):
            raise HeaderError(f"its header would have {length} bytes, the file has {nbytes}")
        return places(file.read(length), nbytes), nbytes


def places(header: bytes, nbytes: int) -> dict[str, Place]:
    """Places by name, of a header without its length, in a file of ``nbytes``. Raises HeaderError."""
    try:
        document = json.loads(header)
    except (ValueError, RecursionError):
        raise HeaderError("its header is not JSON") from None
    if not isinstance(document, dict):
        raise HeaderError("its header is not a JSON object")
    start = LENGTH_BYTES + len(header)
    return {name: _place(name, entry, start, nbytes) for name, entry in document.items() if name != METADATA}


def _place(name: str, entry: Any, start: int, nbytes: int) -> Place:
    fields = entry if isinstance(entry, dict) else {}
    dtype = str(fields.get("dtype"))
    shape, offsets = _whole(fields.get("shape")), _whole(fields.get("data_offsets"))
    if dtype not in ITEM_BYTES or shape is None or offsets is None or len(offsets) != 2:
        raise HeaderError(f"tensor {name[:80]!r} is not described by a dtype that is known, a shape and two offsets")
    begin, end = offsets
    if not begin <= end <= nbytes - start:
        raise HeaderError(f"tensor {name[:80]!r} is declared to be at {begin} to {end} of {nbytes - start} bytes")
    if end - begin != math.prod(shape) * ITEM_BYTES[dtype]:
        raise HeaderError(f"tensor {name[:80]!r} has {end - begin} bytes, which its shape {list(shape)} does not make")
    return Place(dtype, shape, start + begin, start + end)


def _whole(numbers: Any) -> tuple[int, ...] | None:
    """Numbers of 0 to MAX_NUMBER, 16 of them at most, or None."""
    if not isinstance(numbers, list) or len(numbers) > 16:
        return None
    if any(not isinstance(n, int) or isinstance(n, bool) or not 0 <= n <= MAX_NUMBER for n in numbers):
        return None
    return tuple(numbers)
