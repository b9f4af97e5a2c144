"""What an instance can do, measured when it joins: prefill time by prompt length, interval by tokens in the batch.

Kept on disk, so that a start costs one short check of each instance: where a prompt takes a time that is far from what
was kept, the instance is measured again.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from statistics import median
from typing import Any

import orjson

from functions.generation.instance import Instance
from functions.generation.sampling import Sampler, Sampling
from functions.generation.texts import Gathered, Text
from functions.ingress.calls import PassContext
from functions.scheduling.predictor import DecodeModel, PrefillModel, Profile, fit_decode, fit_prefill
from functions.scheduling.settings import CHUNK_TOKENS, SchedulingError
from functions.wire.errors import CallError, KvError
from moe.manifest import Manifest

log = logging.getLogger(__name__)

PROMPTS = (8, 32, 128, 256, 512)
"""Tokens of the prompts that are measured."""
BATCHES = ((1, 0.0), (2, 1.0), (4, 0.5), (4, 1.0), (8, 1.0))
"""(texts, part of the longest measured prompt that each has) of the batches whose token interval is measured."""
ROUNDS = 3
BUDGET_S = 4.0
"""Time after which the least that a profile needs is measured once; so it is from the beginning where texts wait."""
NEAR = 1.5
"""A kept profile is used again where a prompt takes at most so many times what it predicts, at least the inverse."""


class ProfileError(Exception):
    """An instance cannot be measured now."""


class Profiler:
    """Measures instances one after the other and keeps what it found in ``folder``; None: nowhere."""

    def __init__(
        self,
        manifest: Manifest,
        folder: Path | None,
        timeout_s: float,
        awaited: Callable[[], bool] = lambda: False,
        chunk_tokens: int = CHUNK_TOKENS,
    ) -> None:
        """``awaited``: whether texts wait for an instance to be measured, which then takes the least time;
        ``chunk_tokens``: in parts of how many tokens prompts are computed."""
        self._folder, self._timeout_s, self._awaited = folder, timeout_s, awaited
        self._chunk_tokens = chunk_tokens
        self._latest: Profile | None = None
        architecture = manifest.architecture.get("decoder", manifest.architecture)
        self._vocabulary, self._longest = int(architecture["vocab_size"]), int(architecture["max_positions"])
        self._pipeline = manifest.name
        made_of = manifest if chunk_tokens == CHUNK_TOKENS else (manifest, chunk_tokens)
        self._weights = blake2b(repr(made_of).encode(), digest_size=8).hexdigest()
        self._one_at_a_time = asyncio.Lock()

    async def profile(self, instance: Instance, name: int) -> Profile:
        """The ``name``-th instance's, kept or measured. Raises ProfileError."""
        kept = self._kept(name)
        async with self._one_at_a_time:
            kept = kept or self._latest  # replicas are mostly of one kind
            try:
                if kept is not None and await self._holds(kept, instance):
                    self._keep(name, kept)
                    return kept
                profile = self._latest = await self._measured(instance)
            except (CallError, KvError, SchedulingError) as error:
                raise ProfileError(f"an instance cannot be measured: {error}") from None
        self._keep(name, profile)
        log.info("instance %d: %s", name, profile)
        return profile

    async def _holds(self, kept: Profile, instance: Instance) -> bool:
        tokens = self._lengths(instance)[2]
        rounds = 1 if self._awaited() else ROUNDS
        taken_s = median([await self._prompt_s(instance, self._text(tokens)) for _ in range(rounds)])
        return 1 / NEAR <= taken_s / max(kept.prefill.seconds(tokens), 1e-9) <= NEAR

    async def _measured(self, instance: Instance) -> Profile:
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        lengths: list[int] = []
        prompts_s: list[float] = []
        for tokens in self._lengths(instance):
            if len(lengths) >= 3 and self._over(begun_s):
                break
            taken = [await self._prompt_s(instance, self._text(tokens))]
            while len(taken) < ROUNDS and not self._over(begun_s):
                taken.append(await self._prompt_s(instance, self._text(tokens)))
            lengths.append(tokens)
            prompts_s.append(median(taken))
        whole_pages = lengths[-1] // instance.page_tokens * instance.page_tokens
        intervals = await self._intervals(instance, whole_pages, begun_s)
        return Profile(fit_prefill(lengths, prompts_s), _decode(list(intervals), list(intervals.values())))

    def _lengths(self, instance: Instance) -> list[int]:
        """At least three, all of which fit. Raises SchedulingError."""
        most = min(self._longest - 1 - ROUNDS, instance.pages * instance.page_tokens // 2)
        lengths = [tokens for tokens in PROMPTS if tokens <= most]
        if len(lengths) < 3 and most >= 3:
            lengths = [most // 3, 2 * most // 3, most]
        if len(set(lengths)) < 3:
            raise SchedulingError(f"there is room for {most} tokens, too few to measure prompts")
        return lengths

    async def _prompt_s(self, instance: Instance, text: Text, *, free: bool = True) -> float:
        """Time of a prompt alone, in parts as every prompt."""
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        try:
            while text.kept < len(text.tokens):
                part = min(self._chunk_tokens, len(text.tokens) - text.kept)
                await instance.run([(text, part)], self._context())
                text.kept += part
            return loop.time() - begun_s
        finally:
            if free:
                await self._free(instance, [text])

    def _over(self, begun_s: float) -> bool:
        """Whether a measuring that began then is to end with the least that it needs."""
        return self._awaited() or asyncio.get_running_loop().time() - begun_s > BUDGET_S

    async def _intervals(self, instance: Instance, most: int, begun_s: float) -> dict[int, float]:
        """Tokens in the batch → median time of one token more of each text. All texts of a batch begin with the pages
        of one prompt, so that a batch costs no more than its tokens."""
        prompt = self._text(max(most, 1))
        texts: list[Text] = []
        intervals: dict[int, float] = {}
        try:
            await self._prompt_s(instance, prompt, free=False)
            for count, share in BATCHES:
                if self._over(begun_s) and (count, share) not in (BATCHES[0], BATCHES[-1]):
                    continue
                tokens = int(most * share) // instance.page_tokens * instance.page_tokens
                texts = [self._text(tokens) for _ in range(count)]
                for text in texts:
                    text.kept, text.parent = tokens, prompt.kv_id if tokens else -1
                intervals[count * tokens + count] = await self._interval_s(
                    instance, texts, 1 if self._over(begun_s) else ROUNDS
                )
                await self._free(instance, texts)
                texts = []
        finally:
            await self._free(instance, [prompt, *texts])
        return intervals

    async def _interval_s(self, instance: Instance, texts: Sequence[Text], rounds: int) -> float:
        loop, taken = asyncio.get_running_loop(), []
        for _ in range(rounds):
            begun_s = loop.time()
            for text in texts:
                text.tokens.append(1)
            await instance.run([(text, 1) for text in texts], self._context())
            for text in texts:
                text.kept += 1
            taken.append(loop.time() - begun_s)
        return median(taken)

    def _context(self) -> PassContext:
        return PassContext("profile", asyncio.get_running_loop().time() + self._timeout_s)

    @staticmethod
    async def _free(instance: Instance, texts: Sequence[Text]) -> None:
        instance.free([text.kv_id for text in texts])
        await instance.settled()

    def _text(self, tokens: int) -> Text:
        ids = [(1 + 7919 * place) % self._vocabulary for place in range(tokens)]
        sampler = Sampler(Sampling(temperature=0.0))
        return Text(ids, 1, sampler, Gathered(), frozenset(), "profile", self._longest, 0.0)

    def _path(self, name: int) -> Path | None:
        return None if self._folder is None else self._folder / f"{self._pipeline}-{self._weights}-{name}.json"

    def _kept(self, name: int) -> Profile | None:
        path = self._path(name)
        try:
            return None if path is None else _profile(orjson.loads(path.read_bytes()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("%s is no profile and is measured again: %s", path, error)
            return None

    def _keep(self, name: int, profile: Profile) -> None:
        path = self._path(name)
        if path is None:
            return
        part = path.with_suffix(f".{os.getpid()}.part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            part.write_bytes(orjson.dumps(asdict(profile)))
            part.replace(path)
        except OSError as error:
            log.warning("the profile of instance %d is not kept: %s", name, error)


def _decode(tokens: Sequence[int], seconds: Sequence[float]) -> DecodeModel:
    """Fitted; where the interval does not grow with the tokens, as with a tiny model, the largest one whatever they
    are."""
    try:
        return fit_decode(tokens, seconds)
    except SchedulingError:
        if not seconds:
            raise
        return DecodeModel(max(seconds), 1e-9)


def _profile(document: Any) -> Profile:
    """Raises ValueError, KeyError, TypeError."""
    profile = Profile(PrefillModel(**document["prefill"]), DecodeModel(**document["decode"]))
    numbers = [*document["prefill"].values(), *document["decode"].values()]
    if not all(isinstance(one, (int, float)) and math.isfinite(one) for one in numbers) or profile.decode.linear_s <= 0:
        raise ValueError("a number is not finite, or the interval does not grow")
    return profile
