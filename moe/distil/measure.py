"""How close a finished pipeline is to the dense model, and how skewed its experts' load is.

The pipeline runs through ``moe.reference.WholeModel``, the dense model through transformers: two independent
implementations. transformers is imported only when something is measured.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from moe.distil.texts import Texts, gather
from moe.preset import minilm_folder
from moe.reference import Tensors, WholeModel

TEXTS_PER_KIND = 150
MAX_TOKENS = 128
BATCH = 16
SEED = 20


def busiest_over_mean(loads: Tensor) -> float:
    """Largest load over the mean load of ``loads [E]``; 1 is even, E is everything on one expert."""
    return float(loads.max() / loads.float().mean())


def evaluate(
    pipeline_dir: str | Path,
    texts: str | Path | None = None,
    *,
    dense: str | Path | None = None,
    per_kind: int = TEXTS_PER_KIND,
) -> dict[str, Any]:
    """Measure the pipeline on texts nothing was trained on.

    ``texts``: folder of prompts (default: the one next to the project, if any); ``dense``: folder of the dense
    model (default: the installed MiniLM). Keys: ``cosine_mean`` (mean over held-out texts of the kinds
    trained on) and ``cosine_p5``, ``cosine_foreign`` (the worst foreign kind's mean), ``kinds`` (per kind
    ``mean``, ``p5``, ``texts``, ``foreign``, ``source``), ``skew`` (mean over layers of busiest/mean expert
    load in tokens, all kinds), ``skew_per_layer``, ``loads`` (tokens, ``[layers][experts]``), ``texts``,
    ``tokens``, ``folder`` (whether the folder of prompts was there).
    """
    folder = minilm_folder() if dense is None else Path(dense)
    gathered = gather(None if texts is None else Path(texts))
    meter = LoadMeter()
    model, teacher = WholeModel(pipeline_dir, trace=meter), DenseModel(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)
    kinds: dict[str, dict[str, Any]] = {}
    values: dict[str, Tensor] = {}
    tokens = 0
    for kind, chosen, foreign in chosen_texts(gathered, per_kind):
        # By length: a batch is padded to its longest text.
        ids = sorted((encoding.ids for encoding in tokenizer.encode_batch(chosen)), key=len)
        values[kind] = cosines(model, teacher, ids)
        tokens += sum(len(text) for text in ids)
        kinds[kind] = summary(values[kind]) | {"foreign": foreign, "source": gathered.sources[kind]}
    overall = summary(torch.cat([values[kind] for kind, row in kinds.items() if not row["foreign"]]))
    return {
        "cosine_mean": overall["mean"],
        "cosine_p5": overall["p5"],
        "cosine_foreign": min(row["mean"] for row in kinds.values() if row["foreign"]),
        "kinds": kinds,
        **skewness(meter.loads(model.manifest.layers)),
        "texts": sum(row["texts"] for row in kinds.values()),
        "tokens": tokens,
        "folder": any(kind in gathered.training for kind in ("encyclopedia", "school", "tasks", "chat")),
    }


def cosines(model: WholeModel, teacher: DenseModel, ids: Sequence[list[int]]) -> Tensor:
    """[texts]: cosine of both embeddings of each text of ``ids``, in batches."""
    parts = [list(ids[begin : begin + BATCH]) for begin in range(0, len(ids), BATCH)]
    return torch.cat([(model.embed_ids(part) * teacher.embed_ids(part)).sum(1) for part in parts])


def skewness(loads: Sequence[Tensor]) -> dict[str, Any]:
    """``skew``, ``skew_per_layer`` and ``loads`` of tokens by layer and expert, each layer's ``[E]``."""
    skews = [busiest_over_mean(layer) for layer in loads]
    return {
        "skew": round(sum(skews) / len(skews), 4),
        "skew_per_layer": [round(skew, 4) for skew in skews],
        "loads": [[int(value) for value in layer] for layer in loads],
    }


def chosen_texts(texts: Texts, per_kind: int) -> list[tuple[str, list[str], bool]]:
    """Kind, at most ``per_kind`` of its unseen texts drawn with a fixed seed, and whether it is foreign."""
    rows: list[tuple[str, list[str], bool]] = []
    sides: tuple[tuple[Mapping[str, Sequence[str]], bool], ...] = (
        (texts.held_out, False),
        (texts.foreign, True),
    )
    for side, foreign in sides:
        for kind, documents in sorted(side.items()):
            if documents:
                drawn = random.Random(SEED).sample(list(documents), min(per_kind, len(documents)))
                rows.append((kind, drawn, foreign))
    return rows


def summary(cosine: Tensor) -> dict[str, Any]:
    """Mean, 5th percentile and number of cosines ``[texts]``."""
    return {
        "mean": round(float(cosine.mean()), 4),
        "p5": round(float(cosine.quantile(0.05)), 4),
        "texts": cosine.shape[0],
    }


class LoadMeter:
    """Counts tokens per expert from the calls of a pass."""

    def __init__(self) -> None:
        self.tokens: dict[str, int] = {}

    def __call__(self, node_id: str, inputs: Tensors, reply: Tensors) -> None:
        if node_id.startswith("expert-"):
            self.tokens[node_id] = self.tokens.get(node_id, 0) + inputs["x"].shape[0]

    def loads(self, layers: int) -> list[Tensor]:
        """Tokens of each expert per layer, ``[E]`` int64; an expert that was never called counts 0."""
        experts = 1 + max(int(node.split("-")[2]) for node in self.tokens)
        return [
            torch.tensor([self.tokens.get(f"expert-{layer}-{expert}", 0) for expert in range(experts)])
            for layer in range(layers)
        ]


class DenseModel:
    """The dense model by transformers: mean over tokens, unit length."""

    def __init__(self, folder: Path) -> None:
        from transformers import BertModel

        self.model = BertModel.from_pretrained(str(folder), local_files_only=True)
        self.model.train(False)

    def embed_ids(self, ids: Sequence[Sequence[int]]) -> Tensor:
        """``[B, d]`` of tokenised texts."""
        longest = max(len(text) for text in ids)
        padded = torch.tensor([[*text, *[0] * (longest - len(text))] for text in ids])  # [B, L]
        attention_mask = torch.tensor([[1] * len(text) + [0] * (longest - len(text)) for text in ids])  # [B, L]
        with torch.inference_mode():
            states = self.model(input_ids=padded, attention_mask=attention_mask).last_hidden_state  # [B, L, d]
        weights = attention_mask[..., None].float()
        return torch.nn.functional.normalize((states * weights).sum(1) / weights.sum(1), dim=-1)
