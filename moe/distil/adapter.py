"""The adapter file: safetensors, fp16, with the recipe and what was measured in its metadata.

Tensor names and what they do: ``moe.convert``. The metadata's key ``smoe`` is a JSON object: ``version``,
``base_sha256`` (of the dense model.safetensors), ``router`` (settings for the manifest), ``recipe``,
``texts`` and ``measured``. Reading the tensors back for a split: ``moe.dense.load_adapter``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from moe.convert import ADAPTER_VERSION
from moe.errors import CheckpointError

MAX_BYTES = 6_000_000
"""An adapter is a small file next to a big checkpoint; a larger one is refused when written."""


def stored(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors ``[any shape]`` as the file holds them: floating point in fp16, contiguous, in order of name."""
    return {
        name: (tensor.half() if tensor.is_floating_point() else tensor).contiguous()
        for name, tensor in sorted(tensors.items())
    }


def save_adapter(path: str | Path, tensors: Mapping[str, Tensor], info: Mapping[str, Any]) -> int:
    """Write the file of ``tensors`` ``[any shape]``, return its size in bytes; the same content gives the same bytes.

    Raises CheckpointError where a value is not finite in fp16 or the file would pass MAX_BYTES.
    """
    path = Path(path)
    small = stored(tensors)
    for name, tensor in small.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(f"{path}: adapter tensor {name!r} has values that fp16 cannot hold.")
    size = sum(tensor.nbytes for tensor in small.values())
    if size > MAX_BYTES:
        raise CheckpointError(f"{path}: the adapter holds {size} bytes, allowed are {MAX_BYTES}; lower the rank.")
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"version": ADAPTER_VERSION, **info}, sort_keys=True)
    save_file(small, str(path), metadata={"smoe": text})
    path.chmod(0o644)
    return path.stat().st_size
