"""Requests that a node can answer: real shapes, seeded contents, encoded as the ingress encodes them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from functions.dispatch.client import request_head
from functions.wire import format as wire
from moe.inputs import rules_of
from moe.manifest import Manifest, Node
from moe.runtime import DTYPES

TOKENS_PER_TEXT = 32
"""Length of a text in a packed call of several; a shorter call is one text. About the length of a sentence."""


def texts_of(tokens: int, longest: int) -> list[int]:
    """Lengths of the texts that ``tokens`` packed tokens come from, as equal as can be."""
    count = max(1, math.ceil(tokens / min(TOKENS_PER_TEXT, longest)))
    return [tokens // count + (place < tokens % count) for place in range(count)]


def tensors_of(manifest: Manifest, node: Node, tokens: int, seed: int) -> dict[str, Tensor]:
    """Tensors of a call with ``tokens`` packed tokens (architecture.md, section 2): ``x [T, d]`` for an expert; for a
    segment ``lengths [B]`` and ``token_ids [T]`` or ``hidden [T, d]``, with ``memory [T, d]`` where it attends to one.
    """
    rules = rules_of(manifest, node, DTYPES[manifest.dtype])
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.tensor(texts_of(tokens, min(rules.max_positions, rules.memory_positions)))
    tensors: dict[str, Tensor] = {}
    for name in node.inputs:
        if name in rules.widths:
            tensors[name] = torch.randn(tokens, rules.widths[name], generator=generator).to(rules.dtype)
        elif name == "token_ids":
            tensors[name] = torch.randint(rules.vocab_size, (tokens,), generator=generator)
        else:
            tensors[name] = lengths
    rules.check(tensors)
    return tensors


def request_of(manifest: Manifest, node: Node, tokens: int, seed: int) -> tuple[bytes, bytes]:
    """Head and body of the HTTP request."""
    body = wire.encode_bytes(tensors_of(manifest, node, tokens, seed))
    return request_head("/", "profile", wire.CONTENT_TYPE, len(body), ()), body
