"""Incremental decoding from kept keys and values writes what recomputing the whole text writes."""

from __future__ import annotations

from mmap import PAGESIZE
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from moe.cache import PAGE_TOKENS, KvShape, PageCache
from moe.errors import CacheFullError, CacheMissError, ProgramInputError
from moe.kv_bytes import kv_bytes
from moe.reference import WholeModel, pack
from moe.split import split
from tests.parameters import some_fast
from tests.unit.moe import tiny

ENOUGH = 8 << 20


def model_of(kind: str, folder: Path, limit_bytes: int = ENOUGH) -> WholeModel:
    """A tiny random decoder whose segments keep at most ``limit_bytes`` each."""
    family = kind.removesuffix("-window")
    positions = {"n_positions" if family == "gpt2" else "max_position_embeddings": 640}
    checkpoint = tiny.store(tiny.build(family, **positions, **tiny.DECODERS[kind]), folder / "checkpoint")
    split(checkpoint, folder / "pipeline", "tiny", 4, None if family in tiny.NATIVE else 2)
    model = WholeModel(folder / "pipeline")
    for segment in model.manifest.segments:
        model.programs[segment.id].open_cache(limit_bytes)
    return model


def step(model: WholeModel, parts: dict[int, tuple[int, list[int]]], parents: dict[int, int] | None = None) -> Tensor:
    """Logits ``[B, vocab]`` of some sequences' next tokens: id → (tokens it has, new tokens)."""
    tensors = pack([new for _, new in parts.values()])
    tensors["sequences"] = torch.tensor(list(parts))
    tensors["starts"] = torch.tensor([start for start, _ in parts.values()])
    tensors["parents"] = torch.tensor([(parents or {}).get(one, -1) for one in parts])
    return model.forward(tensors)["logits"]


def close(ours: Tensor, theirs: Tensor) -> None:
    assert float((ours - theirs).abs().max()) <= 1e-4


@pytest.fixture(
    scope="module", params=some_fast(tiny.DECODERS, ("gpt2", "llama", "mixtral-window", "gpt_oss", "deepseek_v3"))
)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> WholeModel:
    return model_of(request.param, tmp_path_factory.mktemp(request.param))


def test_the_manifest_alone_states_what_segments_keep(model: WholeModel) -> None:
    for segment in model.manifest.segments:
        cache = model.programs[segment.id].cache
        assert cache is not None
        assert kv_bytes(model.manifest, segment, 2 * PAGE_TOKENS - 1) == 2 * PAGE_TOKENS * cache.bytes_per_token


def test_greedy_steps_equal_recomputation_with_neighbours_and_chunks(model: WholeModel) -> None:
    steps = 40
    prompt = tiny.texts((23,))[0]
    text, starts = list(prompt), 0
    for chunk in (prompt[:9], prompt[9:10]):  # a prompt in parts
        step(model, {1: (starts, chunk)})
        starts += len(chunk)
    new = prompt[10:]
    neighbour = tiny.texts((5,), seed=7)[0]
    before = 0
    for number in range(steps):
        parts = {1: (starts, new)}
        if number % 3:  # a neighbour that comes and goes
            parts[2] = (before, neighbour[before:] if before < len(neighbour) else [number % 99])
        logits = step(model, parts)
        if 2 in parts:
            before += len(parts[2][1])
        if number % 32 == 0 or number == steps - 1:
            close(logits[0], model.logits_ids([text])[0])
        starts += len(new)
        new = [int(logits[0].argmax())]
        text += new
    whole = model.logits_ids([text[:-1]], all_tokens=True)  # one pass over all: what greedy recomputation chose
    assert whole.argmax(-1)[len(prompt) - 1 :].tolist() == text[len(prompt) :]
    for segment in model.manifest.segments:
        cache = model.programs[segment.id].cache
        assert cache is not None
        cache.free([1, 2])
        assert cache.used_pages == 0
        assert cache.texts == 0


def test_a_text_that_is_taken_back_to_an_earlier_place_goes_on_from_there(model: WholeModel) -> None:
    text = tiny.texts((40,))[0]
    step(model, {5: (0, text)})
    again = [*text[:19], 3, 4]
    close(step(model, {5: (19, [3, 4])})[0], model.logits_ids([again])[0])
    close(step(model, {5: (0, text)})[0], model.logits_ids([text])[0])
    for segment in model.manifest.segments:
        cache = model.programs[segment.id].cache
        assert cache is not None
        assert cache.free([5]) == 1


def test_a_text_that_begins_like_another_shares_its_pages(model: WholeModel) -> None:
    first = tiny.texts((45,), seed=4)[0]
    second = first[:32] + tiny.texts((9,), seed=6)[0]
    step(model, {1: (0, first)})
    close(step(model, {2: (32, second[32:])}, {2: 1})[0], model.logits_ids([second])[0])
    close(step(model, {2: (32, second[32:])}, {2: 1})[0], model.logits_ids([second])[0])  # repeated: it has its own
    caches = [cache for one in model.manifest.segments if (cache := model.programs[one.id].cache) and cache.pages]
    assert {cache.used_pages for cache in caches} == {4}
    for cache in caches:
        assert cache.free([1]) == 1
        assert cache.used_pages == 3
    close(step(model, {2: (41, [7])})[0], model.logits_ids([[*second, 7]])[0])
    for start, parent in ((32, 1), (31, 2), (48, 2), (32, -1)):  # gone, no whole page, too much, none
        with pytest.raises(CacheMissError):
            step(model, {3: (start, [1])}, {3: parent})
    step(model, {3: (16, [1])}, {3: 2})
    with pytest.raises(CacheMissError):  # what two texts share is written by neither
        step(model, {2: (8, [1])})
    for cache in caches:
        assert cache.free([2, 3]) == 2
        assert cache.used_pages == 0


def test_what_is_not_here_and_what_does_not_fit_is_refused_whole(tmp_path: Path) -> None:
    model = model_of("mixtral", tmp_path)
    first = model.programs["segment-0"]
    numbers = model.manifest.architecture
    per_token = 2 * 4 * numbers["kv_heads"] * numbers["head_dim"]
    cache = first.open_cache(4 * PAGE_TOKENS * per_token + 1)
    assert (cache.pages, cache.bytes_per_token) == (4, per_token)

    def call(sequences: list[int], starts: list[int], texts: list[list[int]]) -> Any:
        ids = {"sequences": torch.tensor(sequences), "starts": torch.tensor(starts)}
        return first.run({**pack(texts), **ids, "parents": torch.full((len(sequences),), -1)})

    text = tiny.texts((64,))[0]
    call([1], [0], [text[:33]])
    assert cache.used_pages == 3
    with pytest.raises(CacheFullError, match="2 more pages are needed, 1 of 4 are free"):
        call([1, 2], [33, 0], [text[33:34], text[:17]])
    with pytest.raises(CacheMissError, match="1 of 2"):
        call([1, 2], [33, 4], [text[33:34], text[:1]])
    assert (cache.used_pages, cache.texts) == (3, 1)
    call([1, 2], [0, 0], [text[:1], text[:48]])  # a text that shrinks makes room for one that grows
    assert (cache.used_pages, cache.texts) == (4, 2)
    assert cache.free([1, 2, 3]) == 2
    assert cache.used_pages == 0
    for sequences, starts, texts, word in (
        ([1, 1], [0, 0], [[1], [2]], "names one twice"),
        ([1], [-1], [[1]], "0 or more"),
        ([1], [600], [text], "at most 640"),
        ([1, 2], [0], [[1], [2]], "starts is"),
    ):
        with pytest.raises(ProgramInputError, match=word):
            call(sequences, starts, texts)


def test_compressed_keys_and_values_are_kept_once_and_compressed(tmp_path: Path) -> None:
    model = model_of("deepseek_v3", tmp_path)
    kept = [cache.bytes_per_token for one in model.manifest.segments if (cache := model.programs[one.id].cache)]
    per_layer = 4 * (tiny.DEEPSEEK["kv_lora_rank"] + tiny.DEEPSEEK["qk_rope_head_dim"])
    assert kept == [2 * per_layer, per_layer, 0]  # the first layer is dense, in the segment of the second


def test_only_segments_of_decoders_keep_anything(tmp_path: Path) -> None:
    model = model_of("olmoe", tmp_path)
    with pytest.raises(ProgramInputError, match="no segment of a decoder"):
        model.programs["expert-0-0"].open_cache(ENOUGH)
    fresh = WholeModel(model.directory).programs["segment-0"]
    with pytest.raises(ProgramInputError, match="no keys and values are kept here"):
        ids = {name: torch.tensor([0]) for name in ("sequences", "starts", "parents")}
        fresh.run({**pack([[1]]), **ids})


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGESIZE


def test_the_memory_of_pages_that_stay_free_is_given_back() -> None:
    """A page of 96 bytes a token in each of two attentions, so that two of them share a page of the system's."""
    now_s, shape = 0.0, KvShape((3, 8), None, torch.float32)
    cache = PageCache([shape, shape], 64 << 20, clock=lambda: now_s)
    texts, kept = range(8), (2, 5)
    pages = cache.pages // len(texts)
    rows = torch.arange(pages * PAGE_TOKENS * 24, dtype=torch.float32).view(pages, -1)

    def fill(text: int) -> None:
        data = (rows + text).view(torch.int32)
        cache.write(text, 0, pages * PAGE_TOKENS, torch.cat([data, data], 1))

    empty = resident_bytes()
    for text in texts:
        fill(text)
    full = resident_bytes()
    assert full - empty > 60 << 20
    cache.free([text for text in texts if text not in kept])
    now_s = 29.0
    assert cache.release(30.0, 1 << 30) == 0  # they may come back soon
    fill(0)
    cache.free([0])
    now_s = 31.0
    assert cache.release(30.0, 8 << 20) == pages
    assert cache.release(30.0, 1 << 30) == 4 * pages  # but not those of the text that came and went
    assert full - resident_bytes() > 36 << 20
    now_s = 60.0
    assert [cache.release(30.0, 1 << 30) for _ in range(2)] == [pages, 0]
    fill(7)
    for text in (*kept, 7):
        for half in cache.read(text, 0, pages).view(torch.float32).chunk(2, 1):
            assert torch.equal(half, rows + text)


@pytest.mark.parametrize("attentions", [0, 1])
def test_texts_that_nobody_asks_for_are_freed(attentions: int) -> None:
    now_s = 0.0
    cache = PageCache([KvShape((1, 2), (1, 2), torch.float32)] * attentions, ENOUGH, clock=lambda: now_s)
    cache.begin([1], [0], [20], [-1])
    now_s = 50.0
    cache.begin([2], [0], [1], [-1])
    now_s = 70.0
    assert cache.free_unused(60.0) == 1
    assert (cache.texts, cache.used_pages) == (1, attentions)
    assert cache.free([2]) == 1 and cache.texts == 0
