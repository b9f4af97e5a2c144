"""Which model layers a decoder's segments compute whole, by the architecture in the manifest; needs no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def dense_layers_before(architecture: Mapping[str, Any], index: int) -> list[int]:
    """Model layers that segment ``index`` computes whole, ahead of MoE layer ``index`` (or of the head). Without
    ``moe_layers`` all have experts."""
    moe_layers: Sequence[int] = architecture.get("moe_layers", range(architecture["layers"]))
    start = moe_layers[index - 1] + 1 if index else 0
    end = moe_layers[index] if index < len(moe_layers) else architecture["layers"]
    return list(range(start, end))


def attentions(architecture: Mapping[str, Any], index: int) -> int:
    """How many attentions segment ``index`` has: one a dense layer, and its MoE layer's where it is not the last."""
    moe_layers: Sequence[int] = architecture.get("moe_layers", range(architecture["layers"]))
    return len(dense_layers_before(architecture, index)) + (index < len(moe_layers))
