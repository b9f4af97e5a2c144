"""Bytes of keys and values that a decoder's segment keeps, from the manifest alone: what deployments size memory by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moe.dense_layers import attentions
from moe.manifest import Manifest, Node

PAGE_TOKENS = 16
"""Tokens of one text in a page."""
_NUMBER_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def kv_bytes(manifest: Manifest, segment: Node, tokens: int) -> int:
    """Bytes that a segment keeps for ``tokens`` tokens, in whole pages; 0 where it has no attention."""
    numbers = manifest.architecture
    pages, layers = -(-tokens // PAGE_TOKENS), attentions(numbers, segment.layer)
    return pages * PAGE_TOKENS * layers * _numbers_per_token(numbers) * _NUMBER_BYTES[manifest.dtype]


def _numbers_per_token(numbers: Mapping[str, Any]) -> int:
    """What one attention keeps for a token."""
    if "latent_attention" in numbers:
        return int(numbers["latent_attention"]["latent"] + numbers["head_dim"])
    if "kv_heads" in numbers:
        return int(2 * numbers["kv_heads"] * numbers["head_dim"])
    return int(2 * numbers["hidden_size"])
