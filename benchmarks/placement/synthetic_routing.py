"""Routing for benchmarks of dispatch and placement: synthetic by a law, or the real one of DeepSeek-V2-Lite.

Synthetic: a token has one of eight topics; a layer's router adds the experts' popularity (Zipf or log-normal, at random
over the experts), the topic's taste and Gumbel noise, and takes the top k. So popularity is skewed and experts of one
topic are activated together, as in real logs."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

Choices = NDArray[np.int64]
Law = Literal["zipf", "lognormal"]
TOPICS, TASTE = 8, 1.0
REAL_LOG = "deepseek_v2_lite_chat_prefill_experts.parquet"
REAL_EXPERTS = 64


def synthetic(law: Law, tokens: int, layers: int, experts: int, k: int, seed: int) -> Choices:
    """[tokens, layers, k] int64, distinct experts per token and layer."""
    rng = np.random.default_rng(seed)
    topic = rng.integers(TOPICS, size=tokens)
    choices = np.empty((tokens, layers, k), dtype=np.int64)
    for layer in range(layers):
        weight = 1.0 / np.arange(1, experts + 1) if law == "zipf" else np.exp(rng.standard_normal(experts))
        taste = TASTE * rng.standard_normal((TOPICS, experts))
        score = (np.log(rng.permutation(weight)) + taste)[topic] + rng.gumbel(size=(tokens, experts))
        choices[:, layer] = np.argpartition(-score, k - 1, axis=1)[:, :k]
    return choices


def real(folder: Path) -> tuple[Choices, NDArray[np.int64]]:
    """[tokens, 26, 6] of the log and [tokens] number of the prompt, in the log's order of prompts and positions."""
    table = pq.read_table(folder / REAL_LOG)
    columns = {name: table[name].to_numpy().astype(np.int64) for name in table.column_names}
    order = np.lexsort((columns["layer"], columns["pos"], columns["prompt"]))
    layers = int(columns["layer"].max() - columns["layer"].min()) + 1
    k = sum(name.startswith("e") for name in columns)
    choices = np.stack([columns[f"e{slot}"][order] for slot in range(k)], axis=1).reshape(-1, layers, k)
    return choices, columns["prompt"][order][::layers]
