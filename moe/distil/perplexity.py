"""Perplexity of a sparse decoder next to the dense model it came from, by kind of text, and its experts' load."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from tokenizers import Tokenizer
from torch import Tensor

from moe.distil.decoder import DenseDecoder
from moe.distil.measure import LoadMeter, busiest_over_mean
from moe.distil.prose import blocks
from moe.reference import WholeModel

LENGTH = 256
SEED = 20


def compare(
    pipeline: str | Path,
    dense: DenseDecoder,
    tokenizer: Tokenizer,
    texts: Mapping[str, Sequence[str]],
    *,
    tokens: int,
    progress: Callable[[float], None] = lambda done: None,
) -> dict[str, Any]:
    """Both models on the same windows of LENGTH tokens, about ``tokens`` tokens of each kind of ``texts``.

    Keys: ``kinds`` (per kind ``dense`` and ``sparse`` perplexity, ``ratio``, ``ratio_low`` and ``ratio_high``, a 95 %
    interval over windows, ``tokens``), ``ratio`` (the worst kind's), ``skew`` (mean over layers of busiest/mean load
    in tokens), ``skew_per_layer``.
    """
    meter = LoadMeter()
    model = WholeModel(pipeline, trace=meter)
    windows = {kind: blocks(some, tokenizer, LENGTH, tokens, SEED) for kind, some in texts.items()}
    count, done = sum(len(rows) for rows in windows.values()), 0
    kinds: dict[str, dict[str, Any]] = {}
    for kind, rows in windows.items():
        pairs = []
        for row in rows:
            with torch.inference_mode():
                whole = float(dense.loss(row[None], dense.residuals(row[None], first=len(dense.blocks))[-1]))
                pairs.append((whole, sparse_loss(model, row)))
            done += 1
            progress(done / count)
        kinds[kind] = summary(torch.tensor(pairs, dtype=torch.float64)) | {"tokens": rows.numel()}
    skews = [busiest_over_mean(layer) for layer in meter.loads(model.manifest.layers)]
    return {
        "kinds": kinds,
        "ratio": max(row["ratio"] for row in kinds.values()),
        "skew": round(sum(skews) / len(skews), 3),
        "skew_per_layer": [round(skew, 2) for skew in skews],
    }


def sparse_loss(model: WholeModel, row: Tensor) -> float:
    """Mean cross entropy of each next token of ``row [L]``, in nats."""
    logits = model.logits_ids([row.tolist()], all_tokens=True)[:-1]  # [L - 1, vocab]
    return float(F.cross_entropy(logits.float(), row[1:]))


def summary(losses: Tensor) -> dict[str, Any]:
    """Perplexities and their ratio from mean losses of each window, ``[windows, 2]``: dense, sparse."""
    dense, sparse = (math.exp(value) for value in losses.mean(0).tolist())
    grown = losses[:, 1] - losses[:, 0]  # [windows]
    half = 1.96 * float(grown.std() / len(grown) ** 0.5) if len(grown) > 1 else math.inf
    mean = float(grown.mean())
    return {
        "dense": round(dense, 3),
        "sparse": round(sparse, 3),
        "ratio": round(sparse / dense, 4),
        "ratio_low": round(math.exp(mean - half), 4),
        "ratio_high": round(math.exp(mean + half), 4),
    }
