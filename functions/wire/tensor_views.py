"""Tensors of a safetensors file as views of memory that holds the whole file, wherever that memory is."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from functions.wire.places import HeaderError, Place, places, read_places

__all__ = ["DTYPES", "HeaderError", "Place", "places", "read_places", "views"]

DTYPES: Mapping[str, torch.dtype] = {
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
}
"""The dtypes of pipelines (``moe.runtime.DTYPES``)."""


def views(whole: Tensor, places: Mapping[str, Place], prefix: str = "") -> dict[str, Tensor]:
    """Tensors whose names start with ``prefix``, without it, as views of ``whole`` (uint8 ``[bytes of the file]``).

    A tensor that does not lie on a multiple of its items' size is copied, to the same device.
    """
    return {name.removeprefix(prefix): _view(whole, place) for name, place in places.items() if name.startswith(prefix)}


def _view(whole: Tensor, place: Place) -> Tensor:
    part, dtype = whole[place.begin : place.end], DTYPES[place.dtype]
    if part.data_ptr() % dtype.itemsize or part.storage_offset() % dtype.itemsize:
        part = part.clone()
    return part.view(dtype).view(place.shape)
