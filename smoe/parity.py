"""Compares a running pipeline with the model it was split from: its answers, and its latency without other load.

Answers over HTTP against the whole model in this process, and the seconds of single passes once both are warm. The
first passes after a start are slower: workers touch their weights for the first time, connections are made. So texts
are sent in rounds, and passes are measured only when rounds have stopped getting faster (:func:`is_warm`).
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from gateway.client.client import GatewayClient
from gateway.client.errors import GatewayRefusedError
from moe.reference import WholeModel
from moe.threads import computing_threads

ROUNDS = 5
"""Rounds that are measured."""
STEADY_ROUNDS = 2
"""A pipeline is warm after so many rounds in a row that were no faster than the ones before."""
FASTER = 0.9
"""A round counts as faster when its median is below this fraction of the least so far."""
MOST_ROUNDS = 20
"""Most rounds of warm-up; the next ones are measured even if it was not enough."""


@dataclass(frozen=True)
class Parity:
    """``max_rel_err``: largest difference over the largest magnitude of the whole model's answers, in any pass."""

    texts: int
    max_rel_err: float
    unloaded_p50_s: float
    """Median of single requests, one at a time, over HTTP, warm."""
    whole_p50_s: float
    """Median of the whole model on one thread of this process, warm."""
    cold_p50_s: float
    """Median of the first round over HTTP."""
    warm_up_passes: int
    measured_passes: int
    warm: bool
    """False where passes were still getting faster after ``MOST_ROUNDS`` rounds."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def compare_with_whole_model(client: GatewayClient, name: str, directory: Path, texts: Sequence[str]) -> Parity:
    """Send ``texts`` one at a time and compare embeddings. Raises GatewayRefusedError when one is refused."""
    with computing_threads(1):
        whole = WholeModel(directory)
        return compare(lambda text: _embedding(client, name, text), lambda text: whole.embed([text])[0], texts)


def compare(
    served: Callable[[str], torch.Tensor],
    whole: Callable[[str], torch.Tensor],
    texts: Sequence[str],
    clock: Callable[[], float] = time.perf_counter,
) -> Parity:
    """Rounds of ``texts`` until both are warm, then ``ROUNDS`` that are measured; all answers are compared.

    ``served`` and ``whole`` give a text's embedding [d].
    """
    served_s: list[list[float]] = []
    whole_s: list[list[float]] = []
    worst = 0.0

    def measure_round() -> None:
        nonlocal worst
        served_s.append([])
        whole_s.append([])
        for text in texts:
            begun_s = clock()
            answer = served(text)
            between_s = clock()
            expected = whole(text)
            served_s[-1].append(between_s - begun_s)
            whole_s[-1].append(clock() - between_s)
            difference = (answer - expected).abs().max() / expected.abs().max()
            worst = max(worst, float(difference))

    medians_s: list[float] = []
    while not is_warm(medians_s) and len(medians_s) < MOST_ROUNDS:
        measure_round()
        medians_s.append(statistics.median(served_s[-1]))
    for _ in range(ROUNDS):
        measure_round()
    return Parity(
        texts=len(texts),
        max_rel_err=worst,
        unloaded_p50_s=statistics.median(chain.from_iterable(served_s[-ROUNDS:])),
        whole_p50_s=statistics.median(chain.from_iterable(whole_s[-ROUNDS:])),
        cold_p50_s=medians_s[0],
        warm_up_passes=len(medians_s) * len(texts),
        measured_passes=ROUNDS * len(texts),
        warm=is_warm(medians_s),
    )


def is_warm(medians_s: Sequence[float]) -> bool:
    """Whether each of the last ``STEADY_ROUNDS`` rounds was no faster than the fastest before it.

    ``medians_s``: of the rounds so far. Worked example: 300, 140, 120 and 118 ms are not warm, as 120 is below nine
    tenths of 140; after another round of 115 ms they are.
    """
    last = range(len(medians_s) - STEADY_ROUNDS, len(medians_s))
    return last.start > 0 and all(medians_s[at] >= FASTER * min(medians_s[:at]) for at in last)


def send(client: GatewayClient, name: str, text: str) -> None:
    """``text`` sent and answered. Raises GatewayRefusedError when it is refused."""
    _embedding(client, name, text)


def _embedding(client: GatewayClient, name: str, text: str) -> torch.Tensor:
    body = json.dumps({"inputs": text}).encode()
    response = client.invoke(name, body, "application/json", 60.0)
    if response.status_code != 200:
        raise GatewayRefusedError(
            f"{name} answered {response.status_code}: {response.text[:300]}", response.status_code
        )
    return torch.tensor(response.json()["embeddings"][0])
