"""Bert2Bert: a BERT encoder, then a BERT decoder with causal self-attention and cross-attention, in one
chain.

With m encoder layers and n decoder layers, segment m finishes the encoder and embeds the decoder's tokens;
segment m + n holds the language head.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moe.families import bert
from moe.families.experts import PlainFfn
from moe.families.linear import ACTIVATIONS
from moe.families.segment import Segment
from moe.families.weights import Weights
from moe.manifest import Router

Numbers = Mapping[str, Any]


def stack_of(architecture: Numbers, layer: int) -> Numbers:
    """The numbers of the stack (encoder or decoder) that MoE layer ``layer`` belongs to."""
    encoder: Numbers = architecture["encoder"]
    decoder: Numbers = architecture["decoder"]
    return encoder if layer < encoder["layers"] else decoder


def segment(weights: Weights, architecture: Numbers, settings: Router, index: int) -> Segment:
    """Segment ``index`` of 0…m+n from its tensors. Raises ManifestError where they do not fit."""
    encoder, decoder = architecture["encoder"], architecture["decoder"]
    bridge, end = encoder["layers"], encoder["layers"] + decoder["layers"]
    here = stack_of(architecture, index)
    embed = head = None
    if index in (0, bridge):
        embed = bert.embedding(weights, here)
    if index == end:
        d = decoder["hidden_size"]
        head = bert.LanguageHead(
            weights.linear("head.dense", d, d),
            ACTIVATIONS[decoder["activation"]],
            weights.layer_norm("head.norm", d, decoder["eps"]),
            weights.linear("head.vocabulary", d, decoder["vocab_size"]),
        )
    return Segment(
        finish=bert.finish(weights, stack_of(architecture, index - 1)) if index else None,
        embed=embed,
        begin=None if index == end else bert.begin(weights, here, decoder=index >= bridge),
        router=None if index == end else bert.router(weights, here, settings),
        head=head,
    )


def expert(weights: Weights, architecture: Numbers, layer: int) -> PlainFfn:
    return bert.expert(weights, stack_of(architecture, layer), layer)
