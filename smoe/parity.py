"""Is the running pipeline the model it was split from? Answers over HTTP against the whole model in this process."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from moe.reference import WholeModel
from smoe.errors import GatewayRefusedError
from smoe.gateway_client import GatewayClient

ROUNDS = 3


@dataclass(frozen=True)
class Parity:
    """``max_rel_err``: largest difference over the largest magnitude of the whole model's answers."""

    texts: int
    max_rel_err: float
    unloaded_p50_s: float
    """Median of single requests, one at a time, over HTTP."""
    whole_p50_s: float
    """Median of the whole model on one thread of this process."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def compare_with_whole_model(client: GatewayClient, name: str, directory: Path, texts: Sequence[str]) -> Parity:
    """Send ``texts`` one at a time and compare embeddings. Raises GatewayRefusedError when one is refused."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        whole = WholeModel(directory)
        served_s: list[float] = []
        whole_s: list[float] = []
        worst = 0.0
        for _ in range(ROUNDS):
            for text in texts:
                begun_s = time.perf_counter()
                answer = _embedding(client, name, text)
                served_s.append(time.perf_counter() - begun_s)
                begun_s = time.perf_counter()
                expected = whole.embed([text])[0]
                whole_s.append(time.perf_counter() - begun_s)
                difference = (answer - expected).abs().max() / expected.abs().max()
                worst = max(worst, float(difference))
    finally:
        torch.set_num_threads(threads)
    return Parity(len(texts), worst, statistics.median(served_s), statistics.median(whole_s))


def _embedding(client: GatewayClient, name: str, text: str) -> torch.Tensor:
    body = json.dumps({"inputs": text}).encode()
    response = client.invoke(name, body, "application/json", 60.0)
    if response.status_code != 200:
        raise GatewayRefusedError(
            f"{name} answered {response.status_code}: {response.text[:300]}", response.status_code
        )
    return torch.tensor(response.json()["embeddings"][0])
