"""The whole recipe: gather texts, start from the dense model, train, write the adapter, measure the pipeline."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from moe.checkpoints.bert import BertReader
from moe.checkpoints.source import FolderSource
from moe.distil.adapter import save_adapter
from moe.distil.measure import evaluate
from moe.distil.mixing import mix
from moe.distil.start import encoder_of, start
from moe.distil.texts import SYSTEM, gather
from moe.distil.train import Recipe, Step, batches, train
from moe.errors import CheckpointError, TextError
from moe.manifest_proof import sha256_of
from moe.preset import minilm_folder
from moe.split import split

SHARES = {
    "encyclopedia": 1600,
    "school": 900,
    "tasks": 2600,
    "chat": 200,
    "questions": 100,
    "dictionary": 9000,
    "quotations": 6000,
    "literature": 6000,
}
"""Most texts taken of each kind, in one round of training; the small kinds are taken whole."""
SYNTHETIC = 0.4
"""Synthetic texts (see ``moe.distil.mixing``) for each real one."""
DRESSED = 0.75
START_BATCHES = 24


def distil(
    source: Path | None,
    out: Path,
    recipe: Recipe,
    texts: Path | None = None,
    system: Path = SYSTEM,
    *,
    stage: Callable[[str], None] = lambda name: None,
    progress: Callable[[Step], None] | None = None,
) -> dict[str, Any]:
    """Train an adapter for ``source`` (None: the installed MiniLM) and write it to ``out``.

    Returns the adapter's metadata with its size in ``bytes``. Raises CheckpointError, TextError.
    """
    folder = source if source is not None else minilm_folder()
    if not recipe.top_k <= recipe.experts:
        raise CheckpointError(f"top-k {recipe.top_k} is more than the {recipe.experts} experts of a layer.")
    stage("texts")
    chosen, counts = training_texts(texts, system, recipe.seed)
    work = batches(ids_of(chosen, folder), recipe, recipe.seed)
    stage("start")
    dense = encoder_of(BertReader(FolderSource(folder)))
    student = start(
        dense,
        work[:START_BATCHES],
        experts=recipe.experts,
        top_k=recipe.top_k,
        shared=recipe.shared,
        rank=recipe.rank,
        seed=recipe.seed,
    )
    stage("train")
    steps = train(student, dense, work, recipe, progress)
    stage("measure")
    info: dict[str, Any] = {
        "base_sha256": sha256_of(folder / "model.safetensors"),
        "router": {"top_k": recipe.top_k, "gates": "ones", "normalise": False, "scale": 1.0},
        "recipe": asdict(recipe),
        "texts": counts,
        "last_cosine": round(sum(step.cosine for step in steps[-50:]) / len(steps[-50:]), 4),
    }
    tensors = student.adapter()
    save_adapter(out, tensors, info)  # the pipeline that is measured is split with this very file
    info["measured"] = measured(folder, out, recipe, texts)
    return {**info, "bytes": save_adapter(out, tensors, info)}


def ids_of(texts: list[str], folder: Path) -> list[list[int]]:
    """Whole texts as the checkpoint's token ids."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return [encoding.ids for encoding in tokenizer.encode_batch(texts)]


def training_texts(folder: Path | None, system: Path, seed: int) -> tuple[list[str], dict[str, int]]:
    """Texts to train on and how many of each kind. Raises TextError where the machine has none."""
    rng = random.Random(seed)
    chosen: list[str] = []
    counts: dict[str, int] = {}
    for kind, texts in sorted(gather(folder, system).training.items()):
        drawn = rng.sample(list(texts), min(SHARES[kind], len(texts)))
        counts[kind] = len(drawn)
        chosen += drawn
    if not chosen:
        raise TextError(
            "There is nothing to train on: give a folder of prompts (--texts), or install the Debian packages "
            "wordnet-base, fortunes and dict-gcide."
        )
    synthetic = mix(chosen, int(SYNTHETIC * len(chosen)), DRESSED, rng)
    counts["made"] = len(synthetic)
    return chosen + synthetic, counts


def measured(folder: Path, adapter: Path, recipe: Recipe, texts: Path | None) -> dict[str, Any]:
    """The adapter's pipeline, split into a temporary folder and evaluated."""
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "pipeline"
        split(folder, out, experts=recipe.experts, top_k=recipe.top_k, adapter=adapter)
        return evaluate(out, texts, dense=folder)
