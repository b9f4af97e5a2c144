"""What a served decoder must write: tokens by the whole model in one process, the whole text recomputed for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from moe.reference import WholeModel, choose


@dataclass(frozen=True)
class Continuation:
    """What was added to a text. ``finished``: the model ended it; otherwise the limit did."""

    token_ids: list[int]
    text: str
    finished: bool


def generate(
    model: WholeModel, texts: Sequence[str], limit: int, *, temperature: float = 0.0, top_k: int = 0, seed: int = 0
) -> list[Continuation]:
    """Each text alone, until the end token, ``limit`` new tokens or the longest text."""
    numbers = model.manifest.architecture.get("decoder", model.manifest.architecture)
    special = model.tokenizer.settings.special
    seq2seq = model.manifest.task == "seq2seq-lm"
    continuations = []
    for ids in model.tokenizer.encode_all(texts):
        prefix = [special.get("decoder_start", 0)] if seq2seq else list(ids)
        added: list[int] = []
        finished = False
        generator = torch.Generator().manual_seed(seed)
        while not finished and len(added) < limit and len(prefix) < numbers["max_positions"]:
            logits = model.logits_ids([ids], answers=[prefix]) if seq2seq else model.logits_ids([prefix])
            token = choose(logits[0], temperature, top_k, generator)
            finished = token == special.get("eos")
            if not finished:
                prefix.append(token)
                added.append(token)
        continuations.append(Continuation(added, model.tokenizer.decode(added), finished))
    return continuations
