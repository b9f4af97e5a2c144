"""Texts written to their end, for an answer that is sent whole."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from functions.generation.generator import Generator
from functions.generation.sampling import Sampler, Sampling
from functions.generation.texts import Gathered, Text


async def write(
    generator: Generator,
    prompts: Sequence[Sequence[int]],
    *,
    max_tokens: int,
    sampling: Sampling,
    end: frozenset[int],
    longest: int,
    request_id: str,
    deadline_s: float,
) -> list[tuple[list[int], bool]]:
    """Each prompt's new tokens, and whether the model ended them; prompts that fill the context get none. When one
    fails the others are given up. Raises CallError."""
    now_s = asyncio.get_running_loop().time()
    sinks = [Gathered() for _ in prompts]
    texts = [
        Text(
            list(prompt),
            max_tokens,
            Sampler(sampling),
            sink,
            end,
            request_id,
            longest,
            now_s,
            bounded=False,
            deadline_s=deadline_s,
        )
        for prompt, sink in zip(prompts, sinks, strict=True)
    ]
    try:
        for text, sink in zip(texts, sinks, strict=True):
            if len(text.tokens) < longest:
                generator.add(text)
            else:
                sink.finished("length")
        reasons = await asyncio.gather(*(sink.over for sink in sinks))
    except BaseException:
        for text, sink in zip(texts, sinks, strict=True):
            generator.cancel(text)
            sink.over.cancel()
        raise
    return [(sink.tokens, reason == "stop") for sink, reason in zip(sinks, reasons, strict=True)]
