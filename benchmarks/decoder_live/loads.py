"""What the policies meet: a decoder, and token traces that move within minutes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.streams import Stream, read, session
from traces import catalog, loading
from traces.completions import lengths_of
from traces.scale import thin

WORDS = 512
SHAPE: dict[str, Any] = {
    "vocab_size": WORDS, "hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 1536, "moe_intermediate_size": 3072,
    "num_experts": 4, "num_experts_per_tok": 2, "mlp_only_layers": [0, 1, 3, 4], "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}  # fmt: skip
"""Three segments and two layers of four experts, top-2: a call takes milliseconds of a core, so that a limit of a tenth
of one slows it evenly."""
CONTEXT = 512
PART_S = 210.0
"""Seconds of a trace between the parts of two seeds."""
TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Load:
    """Requests of a trace, kept with a probability; lengths of prompts and answers are divided apart, as prompts would
    otherwise be nearly all that is computed."""

    trace: str
    keep: float
    prompt_divisor: float
    answer_divisor: float
    period_s: float = 0.0
    """Length of a synthetic day: requests are kept by a cosine between ``LEAST`` and 1 times ``keep``; 0: none."""
    together: int = 0
    """Texts at once, the next as soon as one ends; 0: by the trace's times."""


LEAST = 0.15
LOADS: Mapping[str, Load] = {
    "conversation": Load("llm-conv", 0.45, 64.0, 8.0, 120.0),
    "code": Load("llm-code", 0.15, 64.0, 1.0),
    "batch": Load("llm-conv", 1.0, 64.0, 8.0, together=8),
}


@dataclass(frozen=True)
class Request:
    at_s: float
    prompt: tuple[int, ...]
    answer: int
    """Tokens to write."""


def requests_of(load: Load, data: Path | None, seed: int, seconds: float) -> list[Request]:
    """The requests of a part of the trace, in order of arrival; parts of different seeds share none."""
    part = loading.load(
        catalog.resolve(load.trace, catalog.data_folder(data)), start_s=seed * PART_S, duration_s=seconds
    )
    if load.period_s:
        day = (1 + LEAST - (1 - LEAST) * np.cos(2 * np.pi * part.arrival_s / load.period_s)) / 2
        chosen = np.random.default_rng(seed).random(part.requests) < load.keep * day
        part = part.select(chosen, "kept by the time of a synthetic day")
    else:
        part = thin(part, load.keep, seed)
    prompts = lengths_of(part, load.prompt_divisor, CONTEXT).prompt
    answers = lengths_of(part, load.answer_divisor, CONTEXT).answer
    rng = np.random.default_rng((seed, 1))
    return [
        Request(float(at), tuple(rng.integers(0, WORDS - 1, int(prompt)).tolist()), int(answer))
        for at, prompt, answer in zip(part.arrival_s, prompts, answers, strict=True)
    ]


def send(url: str, model: str, requests: Sequence[Request], begun_s: float) -> list[Stream]:
    """All requests at their times after ``begun_s`` (monotonic), whether or not earlier ones are answered."""

    async def one(shared: Any, request: Request, stream: Stream) -> None:
        await asyncio.sleep(max(0.0, stream.due_s - time.monotonic()))
        await read(shared, url, _body(model, request), stream)

    async def every() -> list[Stream]:
        streams = [Stream(begun_s + request.at_s, request.answer) for request in requests]
        async with session(TIMEOUT_S) as shared:
            await asyncio.gather(*(one(shared, *pair) for pair in zip(requests, streams, strict=True)))
        return streams

    return asyncio.run(every())


def keep_up(
    url: str, model: str, requests: Sequence[Request], begun_s: float, together: int, seconds: float
) -> list[Stream]:
    """``together`` texts at once from ``begun_s`` on, each followed by the next request as long as ``seconds`` are not
    over; those that were sent, in the order of the requests."""
    streams: list[Stream] = []

    async def client(shared: Any) -> None:
        await asyncio.sleep(max(0.0, begun_s - time.monotonic()))
        while time.monotonic() < begun_s + seconds and len(streams) < len(requests):
            request = requests[len(streams)]
            streams.append(Stream(time.monotonic(), request.answer))
            await read(shared, url, _body(model, request), streams[-1])

    async def every() -> None:
        async with session(TIMEOUT_S) as shared:
            await asyncio.gather(*(client(shared) for _ in range(together)))

    asyncio.run(every())
    return streams


def _body(model: str, request: Request) -> dict[str, Any]:
    return {"model": model, "prompt": request.prompt, "max_tokens": request.answer, "ignore_eos": True}
