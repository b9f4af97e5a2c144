"""A decoder's recipe: choose layers by measured sensitivity, make their experts, train them, write the adapter file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from torch import Tensor

from moe.checkpoints.llama import LlamaReader
from moe.checkpoints.open import open_source
from moe.checkpoints.source import FolderSource
from moe.distil.adapter import save_adapter
from moe.distil.decoder import DenseDecoder
from moe.distil.layers import (
    DecoderRecipe,
    LayerStep,
    expert_inputs,
    maker,
    sensitivity,
    train_jointly,
    train_layer,
)
from moe.distil.mixture import Mixture
from moe.distil.prose import mixed, training_texts
from moe.distil.texts import SYSTEM
from moe.errors import CheckpointError
from moe.manifest_proof import sha256_of
from moe.tokenize import TOKENIZER_FILE, HasTokenizer

START_TOKENS = 2048
"""States that groups and routers come from where layers are chosen."""
CHOOSING_TOKENS = 1024
"""Held-out tokens that a layer's sensitivity is measured on."""


def distil_decoder(
    source: Path,
    out: Path,
    recipe: DecoderRecipe,
    texts: Path | None = None,
    system: Path = SYSTEM,
    *,
    stage: Callable[[str], None] = lambda name: None,
    progress: Callable[[LayerStep], None] = lambda step: None,
) -> dict[str, Any]:
    """Train an adapter for the dense decoder ``source``, a folder or a GGUF file, and write it to ``out``.

    Returns the adapter's metadata with its size in ``bytes``. Raises CheckpointError, TextError.
    """
    stage("texts")
    dense, tokenizer, digest = opened(source)
    if recipe.at and not set(recipe.at) <= set(range(len(dense.blocks))):
        raise CheckpointError(
            f"{source}: layers {recipe.at} were asked for, and there are 0 to {len(dense.blocks) - 1}."
        )
    if not 1 <= recipe.layers <= len(dense.blocks) or recipe.top_k > recipe.experts:
        raise CheckpointError(
            f"{source}: {recipe.layers} layers with top-{recipe.top_k} of {recipe.experts} experts do not fit a model "
            f"of {len(dense.blocks)} layers."
        )
    training, held_out = training_texts(texts, system)
    ids = mixed(training, tokenizer, recipe.length, recipe.tokens, recipe.seed)
    chosen, grown = sorted(set(recipe.at)), dict[int, float]()
    if not chosen:
        stage("layers")
        chosen, grown = choose_layers(dense, ids, mixed(held_out, tokenizer, recipe.length, CHOOSING_TOKENS, 1), recipe)
    stage("train")
    mixtures = trained(dense, ids, chosen, recipe, progress)
    tensors = {name: t for place, layer in enumerate(chosen) for name, t in mixtures[layer].adapter(place).items()}
    info = {
        "base_sha256": digest,
        "router": {"top_k": recipe.top_k, "gates": "ones", "normalise": False, "scale": 1.0},
        "layers": chosen,
        "recipe": asdict(recipe),
        "texts": {kind: len(some) for kind, some in sorted(training.items())},
        "sensitivity": {str(layer): round(value, 4) for layer, value in grown.items()},
    }
    size = save_adapter(out, tensors, info)
    return {**info, "bytes": size}


def opened(source: Path) -> tuple[DenseDecoder, Tokenizer, str]:
    """The dense model, its tokenizer, and the sha256 of its weights' file. Raises CheckpointError."""
    checkpoint = open_source(source)
    dense = DenseDecoder.of(LlamaReader(checkpoint))
    if isinstance(checkpoint, FolderSource):
        tokenizer = Tokenizer.from_file(str(checkpoint.folder / TOKENIZER_FILE))
        return dense, tokenizer, sha256_of(checkpoint.folder / "model.safetensors")
    assert isinstance(checkpoint, HasTokenizer)
    return dense, checkpoint.tokenizer, sha256_of(source)


def choose_layers(
    dense: DenseDecoder, ids: Tensor, held_out: Tensor, recipe: DecoderRecipe
) -> tuple[list[int], dict[int, float]]:
    """The layers whose experts cost least, ascending, and what each costs: ``sensitivity`` on ``held_out [B, L]``."""
    first = ids[: -(-START_TOKENS // recipe.length)]
    states = expert_inputs(dense, first, range(len(dense.blocks)))
    grown = sensitivity(dense, held_out, states, maker(dense, recipe))
    return sorted(sorted(grown, key=grown.__getitem__)[: recipe.layers]), grown


def trained(
    dense: DenseDecoder,
    ids: Tensor,
    chosen: list[int],
    recipe: DecoderRecipe,
    progress: Callable[[LayerStep], None] = lambda step: None,
) -> Mapping[int, Mixture]:
    """Experts of the ``chosen`` layers: made from what the dense network does, trained alone, then together.

    ``ids``: ``[texts, length]``.
    """
    states, mixtures, make = expert_inputs(dense, ids, chosen), {}, maker(dense, recipe)
    alone = 1.0 if recipe.joint == 0 else 0.5
    for place, layer in enumerate(chosen):
        state = states.pop(layer)
        mixtures[layer] = make(layer, dense.blocks[layer].norm(state))
        begin, share = alone * place / len(chosen), alone / len(chosen)
        train_layer(mixtures[layer], dense, layer, state, recipe, part_of(progress, begin, share))
    if recipe.joint:
        train_jointly(mixtures, dense, ids, recipe, part_of(progress, alone, 1.0 - alone))
    progress(LayerStep(1.0, 0.0))
    return mixtures


def part_of(progress: Callable[[LayerStep], None], begin: float, share: float) -> Callable[[float, float], None]:
    """Reports a part of the training, from ``begin`` on and ``share`` long, as a share of all of it."""
    return lambda done, loss: progress(LayerStep(begin + share * done, loss))
