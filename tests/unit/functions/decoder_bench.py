"""A tiny decoder in this process under the loop that generates text: what tests of the loop share."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from functions.dispatch.replicas import ReplicaAddress
from functions.generation.measures import Measures
from functions.generation.run import InstanceRun
from functions.generation.sampling import Chosen, Sampler, Sampling
from functions.generation.texts import Finish, Text, Waiting
from functions.ingress.calls import PassContext
from functions.scheduling.settings import CHUNK_TOKENS
from functions.wire.arrays import Array
from functions.wire.errors import CallError, KvFullError, KvLostError
from moe.cache import PAGE_TOKENS
from moe.errors import CacheFullError, CacheMissError
from moe.reference import WholeModel, pack
from moe.split import split
from tests.unit.moe import tiny

POSITIONS = 640


def tiny_decoder(root: Path) -> WholeModel:
    checkpoint = tiny.store(tiny.build("mixtral", max_position_embeddings=POSITIONS), root / "checkpoint")
    split(checkpoint, root / "pipeline", "tiny", 4, None)
    return WholeModel(root / "pipeline")


class InProcess:
    """An instance whose segments are programs of this process, each with room for ``pages``."""

    def __init__(self, model: WholeModel, pages: int, stated_pages: int | None = None) -> None:
        self.pages, self.page_tokens = stated_pages or pages, PAGE_TOKENS
        self.model = model
        self.replicas = defaultdict(lambda: ReplicaAddress("this process", "127.0.0.1:1"))
        self.iterations: list[list[tuple[str, int]]] = []
        self.before: Callable[[int], Awaitable[None] | None] = lambda number: None
        """Called with each iteration's number; may raise or wait."""
        self.lost = self.draining = False
        self.scored_tokens = 1000
        for segment in model.manifest.segments:
            program = model.programs[segment.id]
            bytes_per_token = program.open_cache(1 << 20).bytes_per_token
            program.open_cache(pages * PAGE_TOKENS * bytes_per_token)

    def whole(self) -> bool:
        return not self.lost and not self.draining

    def reachable(self) -> bool:
        return not self.lost

    async def run(self, parts: Sequence[tuple[Text, int]], context: PassContext) -> tuple[list[Array], None]:
        self.iterations.append([(text.request_id, count) for text, count in parts])
        waiting = self.before(len(self.iterations))
        if waiting is not None:
            await waiting
        await asyncio.sleep(0)
        tensors = pack([text.tokens[text.kept : text.kept + count] for text, count in parts])
        tensors["sequences"] = torch.tensor([text.kv_id for text, _ in parts])
        tensors["starts"] = torch.tensor([text.kept for text, _ in parts])
        tensors["parents"] = torch.tensor([text.parent for text, _ in parts])
        try:
            logits = self.model.forward(tensors, all_logits=True)["logits"].numpy()
        except CacheFullError as error:
            raise KvFullError(str(error)) from None
        except CacheMissError as error:
            raise KvLostError(str(error)) from None
        rows = np.split(logits, np.cumsum([count for _, count in parts])[:-1])
        return [row if text.scoring else row[-1:] for (text, _), row in zip(parts, rows, strict=True)], None

    def free(self, kv_ids: Sequence[int]) -> None:
        for segment in self.model.manifest.segments:
            cache = self.model.programs[segment.id].cache
            assert cache is not None
            cache.free(kv_ids)

    async def settled(self) -> bool:
        return False

    async def close(self) -> None:
        """Nothing is open."""

    @property
    def used_pages(self) -> int:
        caches = [self.model.programs[segment.id].cache for segment in self.model.manifest.segments]
        return max(cache.used_pages for cache in caches if cache is not None)


@dataclass
class Collected:
    """A sink that keeps what it gets."""

    tokens: list[int] = field(default_factory=list)
    scored: list[Chosen] = field(default_factory=list)
    finish: Finish | None = None
    error: CallError | None = None
    over: asyncio.Event = field(default_factory=asyncio.Event)
    behind: bool = False
    stop_at: int | None = None

    def prompt(self, scored: Sequence[Chosen]) -> None:
        self.scored += scored

    def token(self, chosen: Chosen) -> bool:
        assert not self.over.is_set()
        self.tokens.append(chosen.token)
        return chosen.token == self.stop_at

    def full(self) -> bool:
        return self.behind

    def finished(self, reason: Finish) -> None:
        self.finish = reason
        self.over.set()

    def failed(self, error: CallError) -> None:
        self.error = error
        self.over.set()


@dataclass
class Bench:
    """A run on an instance, and texts given to it."""

    instance: InProcess
    timeout_s: float = 60.0
    waiting: Waiting = field(default_factory=Waiting)
    measures: Measures = field(default_factory=Measures)
    computed: list[int] = field(default_factory=list)
    chunk_tokens: int = CHUNK_TOKENS

    def __post_init__(self) -> None:
        self.run = InstanceRun(
            self.instance,  # type: ignore[arg-type]
            self.waiting,
            self.measures,
            self.timeout_s,
            self.computed.append,
            self.place,
            chunk_tokens=self.chunk_tokens,
        )
        self.task = asyncio.get_running_loop().create_task(self.run.run())

    def place(self) -> None:
        while self.waiting.texts and self.run.fits(self.waiting.texts[0]):
            self.run.admit(self.waiting.texts.popleft())

    def text(self, name: str, prompt: list[int], max_tokens: int, **options: object) -> Text:
        sampler = options.pop("sampler", None) or Sampler(Sampling())
        now_s = asyncio.get_running_loop().time()
        return Text(
            list(prompt),
            max_tokens,
            sampler,
            Collected(),
            frozenset(),
            name,
            POSITIONS,
            now_s,
            **options,  # type: ignore[arg-type]
        )

    def add(self, text: Text) -> Collected:
        self.waiting.texts.append(text)
        self.place()
        self.run.wake()
        assert isinstance(text.sink, Collected)
        return text.sink

    async def over(self, *sinks: Collected) -> None:
        async with asyncio.timeout(600):
            for sink in sinks:
                await sink.over.wait()

    async def end(self) -> None:
        self.instance.lost = True
        self.run.wake()
        await self.task
        assert self.instance.used_pages == 0


def recomputed(model: WholeModel, prompt: list[int], written: list[int]) -> list[int]:
    """What greedy recomputation writes where it wrote ``written`` so far, at each place."""
    logits = model.logits_ids([[*prompt, *written[:-1]]], all_tokens=True)
    return logits.argmax(-1)[len(prompt) - 1 :].tolist()
