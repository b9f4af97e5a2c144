"""Measure a running decoder as its clients see it: streamed completions, alone and together.

A lone prompt's first token gives the time of its prefill. Texts that are asked for at once decode together once the
last of them has its first token; from then on the time between two pieces of a stream is one iteration, with as many
texts, and a context that is known. Prompts are drawn at random, so that nothing of them is kept from another one.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import aiohttp
import numpy as np
import requests

from functions.scheduling.settings import CHUNK_TOKENS
from moe.manifest import Manifest
from platform_words.headers import CALLER_KEY
from simulation.generation.measured import Sample
from simulation.profiles.model.errors import ProfileError


@dataclass(frozen=True)
class Settings:
    """What is measured, ``repeats`` times in a new random order each."""

    prompts: tuple[int, ...] = (1, 8, 32, 64, 128, 256, 512, 1024)
    """Tokens of lone prompts."""
    decodes: tuple[tuple[int, int], ...] = ((1, 16), (1, 512), (2, 64), (4, 64), (4, 384), (8, 64), (16, 32), (16, 128))
    """Texts together, and tokens of each one's prompt."""
    tokens: int = 16
    """Written by each text after all of them decode."""
    repeats: int = 3
    timeout_s: float = 300.0
    seed: int = 0


QUICK = Settings((1, 32, 128, 256), ((1, 16), (4, 64), (8, 32)), 8, 1)


@dataclass(frozen=True)
class Decoder:
    """Where it is, and what it takes."""

    url: str
    """Address of the function, at a gateway or of its ingress itself: ``/v1/completions`` lies under it."""
    model: str
    vocabulary: int
    context: int

    @classmethod
    def of(cls, manifest: Manifest, url: str) -> Decoder:
        """The pipeline of ``manifest`` behind ``url``."""
        numbers = manifest.architecture.get("decoder", manifest.architecture)
        return cls(url, manifest.name, int(numbers["vocab_size"]), int(numbers["max_positions"]))


def measure(
    decoder: Decoder, settings: Settings, step: Callable[[str, float], object] = lambda what, seconds: None
) -> list[Sample]:
    """All samples. ``step`` hears what is measured next and about how many tokens that takes.

    Raises ProfileError where it does not answer as it should."""
    try:
        return asyncio.run(_measure(decoder, settings, step))
    except (TimeoutError, aiohttp.ClientError, ValueError, KeyError, IndexError, TypeError) as error:
        raise ProfileError(f"{decoder.url} cannot be measured: {type(error).__name__} {str(error)[:200]}") from error


def warm_up(decoder: Decoder, settings: Settings) -> None:
    """Have one short text written, after which the ingress knows its instances.

    Raises ProfileError where it does not answer as it should."""
    measure(decoder, replace(settings, prompts=(), decodes=()))


def points(decoder: Decoder, settings: Settings) -> list[tuple[int, int]]:
    """(texts, tokens of each prompt) that fit the context; 0 texts: a lone prompt."""
    wanted = [(0, tokens) for tokens in settings.prompts] + list(settings.decodes)
    return [(texts, tokens) for texts, tokens in wanted if tokens + 2 * settings.tokens <= decoder.context]


async def _measure(decoder: Decoder, settings: Settings, step: Callable[[str, float], object]) -> list[Sample]:
    drawn = np.random.default_rng(settings.seed)
    samples: list[Sample] = []
    limit = aiohttp.ClientTimeout(total=settings.timeout_s)
    async with aiohttp.ClientSession(timeout=limit, connector=aiohttp.TCPConnector(limit=0)) as session:
        wanted = points(decoder, settings)
        await _stream(session, decoder, _prompt(drawn, decoder, 32), 4)  # what is made at the first call is made
        for repeat in range(settings.repeats):
            for place in drawn.permutation(len(wanted)):
                texts, tokens = wanted[place]
                what = f"{texts} texts of {tokens} tokens" if texts else f"a prompt of {tokens} tokens"
                step(f"{what}, {repeat + 1} of {settings.repeats}", max(texts, 1) * tokens)
                prompts = [_prompt(drawn, decoder, tokens) for _ in range(max(texts, 1))]
                if not texts:
                    at_s = await _stream(session, decoder, prompts[0], 1)
                    samples.append(Sample(0, tokens, at_s[0]))
                else:
                    samples += await _together(session, decoder, prompts, settings.tokens)
    return samples


async def _together(
    session: aiohttp.ClientSession, decoder: Decoder, prompts: Sequence[list[int]], tokens: int
) -> list[Sample]:
    """Iterations in which all of these texts decode. Texts that come first write more, until the last one is there."""
    length = len(prompts[0])
    iterations = -(-length * len(prompts) // CHUNK_TOKENS)
    most = min(tokens + 2 * iterations + 2, decoder.context - length)
    begun_s = time.perf_counter()
    streams = await asyncio.gather(*(_stream(session, decoder, prompt, most, begun_s) for prompt in prompts))
    from_s, until_s = max(pieces[0] for pieces in streams), min(pieces[-1] for pieces in streams)
    # The stream with the most pieces: one whose token completed no character sent none for it.
    inside = max(([at for at in pieces if from_s <= at <= until_s] for pieces in streams), key=len)
    written = [sum(at <= from_s for at in pieces) for pieces in streams]
    context = len(prompts) * length + sum(written)
    return [
        Sample(len(prompts), context + place * len(prompts), later - earlier)
        for place, (earlier, later) in enumerate(pairwise(inside))
    ]


async def _stream(
    session: aiohttp.ClientSession, decoder: Decoder, prompt: list[int], tokens: int, begun_s: float | None = None
) -> list[float]:
    """When each piece of an answer came, in seconds since the request or ``begun_s``."""
    body: dict[str, Any] = {"model": decoder.model, "prompt": prompt, "max_tokens": tokens}
    body |= {"temperature": 0, "stream": True}
    begun_s = time.perf_counter() if begun_s is None else begun_s
    pieces: list[float] = []
    first_s: float | None = None
    async with session.post(f"{decoder.url}/v1/completions", json=body) as reply:
        if reply.status != 200:
            raise ProfileError(f"{decoder.url} answered {reply.status}: {(await reply.text())[:200]}")
        async for line in reply.content:
            if line.startswith(b"data: {"):
                document = json.loads(line[6:])
                if "error" in document:
                    raise ProfileError(f"{decoder.url}: {document['error']['message']}")
                now_s = time.perf_counter() - begun_s
                first_s = now_s if first_s is None else first_s
                if document["choices"][0]["text"]:  # the end may come in an event of its own
                    pieces.append(now_s)
    if first_s is None:
        raise ProfileError(f"{decoder.url} ended a stream without a token")
    return pieces or [first_s]


def _prompt(drawn: np.random.Generator, decoder: Decoder, tokens: int) -> list[int]:
    return drawn.integers(0, decoder.vocabulary, tokens).tolist()  # type: ignore[no-any-return]


def kv_tokens(url: str, page_tokens: int, key: str = "") -> int:
    """Tokens whose keys and values an instance keeps, the fewest of all as the ingress at ``url`` knows them (a gateway
    does not pass the question on). ``key``: what the ingress takes calls with. Raises ProfileError where none is there
    yet, as before the first text."""
    try:
        with requests.Session() as session:
            session.trust_env = False
            document = session.get(f"{url}/statistics", headers={CALLER_KEY: key}, timeout=30).json()
        return int(min(one["pages"] for one in document["generation"]["instances"]) * page_tokens)
    except (requests.RequestException, ValueError, KeyError, TypeError) as error:
        raise ProfileError(f"{url}/statistics lists no instance: {error}") from error
