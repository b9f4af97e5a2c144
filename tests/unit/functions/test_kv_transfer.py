"""Pages of texts move between real workers of a segment, and what cannot move is refused in a sentence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from functions.device.tensors import open_device
from functions.dispatch import client
from functions.serving.kept_pages import KeptPages
from functions.serving.node_host import NodeHost
from functions.serving.settings import DeviceSettings
from functions.wire import format as wire
from functions.wire.messages import KV_SOURCE
from moe.cache import PAGE_TOKENS, PageCache
from moe.errors import CacheFullError, CacheMissError
from moe.manifest import load
from moe.runtime import NodeProgram, load_node
from tests.unit.functions.conftest import Held, Running, post

TOKENS = 3 * PAGE_TOKENS + 5
NODE = "segment-1"


def program_of(directory: Path) -> NodeProgram:
    return load_node(directory, load(directory), NODE)


async def worker(
    start: Any, program: NodeProgram, pages: int = 20, key: str = "", silence_s: float = 0.0
) -> tuple[Running, PageCache]:
    loop = asyncio.get_running_loop()
    size = program.open_cache(1 << 20).bytes_per_token * PAGE_TOKENS
    cache = program.open_cache(pages * size)
    kept = KeptPages({NODE: program}, pages * size, loop, key, silence_s)
    host = NodeHost({NODE: program}, loop, open_device(DeviceSettings()), kept=kept)
    return await start(host, caller_key=key), cache


def fill(cache: PageCache, sequence: int, tokens: int) -> None:
    """A text of random keys and values."""
    data = cache.read(_begun(cache, sequence, tokens), 0, -(-tokens // PAGE_TOKENS))
    cache.free([sequence])
    cache.write(sequence, 0, tokens, torch.randint_like(data, 1 << 30))


def _begun(cache: PageCache, sequence: int, tokens: int) -> int:
    cache.begin([sequence], [0], [tokens], [-1])
    return sequence


async def pull(running: Running, sequence: int, source: str, tokens: int = TOKENS) -> tuple[int, bytes]:
    body = wire.encode_bytes({"sequences": torch.tensor([sequence]), "tokens": torch.tensor([tokens])})
    ((status, _, reply),) = await running.send(post("/kv/pull", bytes(body), f"{KV_SOURCE}: {source}\r\n"))
    return status, reply


async def test_a_call_that_came_through_a_gateway_takes_no_pages(
    start: Any, pipeline_of: Callable[[str], Path]
) -> None:
    running, cache = await worker(start, program_of(pipeline_of("mixtral")))
    body = bytes(wire.encode_bytes({"sequences": torch.tensor([7])}))
    ((status, _, reply),) = await running.send(post("/", body, "X-Start-Time: 1\r\n"))
    assert (status, cache.texts) == (403, 0) and b"came through a gateway" in reply


async def test_a_worker_that_drains_stays_for_texts_that_go_on_and_for_no_others(
    start: Any, pipeline_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    running, cache = await worker(start, program_of(pipeline_of("mixtral")))
    holds = running.server.application.holds  # type: ignore[attr-defined]
    assert not holds()
    fill(cache, 7, TOKENS)
    assert holds()
    cache.free([7])
    assert not holds()
    fill(cache, 8, TOKENS)
    monkeypatch.setattr("functions.serving.kept_pages.LEFT_S", -1.0)  # its last call is longer ago than that
    assert not holds() and cache.used_pages == 0


async def test_a_text_that_was_pulled_is_the_same_bytes_and_goes_on(
    start: Any, pipeline_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = program_of(pipeline_of("mixtral")), program_of(pipeline_of("mixtral"))
    (_, ours), (running, theirs) = await worker(start, there), await worker(start, here)
    monkeypatch.setattr("functions.serving.kv_transfer.PART_BYTES", ours.bytes_per_token * PAGE_TOKENS * 2)
    (source, ours) = await worker(start, there)
    fill(ours, 7, TOKENS)
    status, reply = await pull(running, 7, source.address)
    assert (status, reply) == (200, b'{"bytes":%d}' % (4 * PAGE_TOKENS * ours.bytes_per_token))
    assert torch.equal(theirs.read(7, 0, 4), ours.read(7, 0, 4))
    theirs.begin([7], [TOKENS], [1], [-1])
    assert theirs.used_pages == 4


async def test_what_cannot_be_pulled_is_refused_and_nothing_else_changes(
    start: Any, pipeline_of: Callable[[str], Path]
) -> None:
    here, there = program_of(pipeline_of("mixtral")), program_of(pipeline_of("mixtral"))
    (source, ours), (running, theirs) = await worker(start, there), await worker(start, here, pages=3)
    fill(ours, 7, TOKENS)
    assert (await pull(running, 8, source.address))[0] == 410
    assert (await pull(running, 7, "127.0.0.1:1"))[0] == 410
    assert (await pull(running, 7, source.address))[0] == 507
    for wrong, why in (("192.0.2.1:80", b"without a key"), ("nowhere", b"host:port")):
        status, reply = await pull(running, 7, wrong)
        assert status == 400 and why in reply
    assert (await pull(running, 7, source.address, tokens=0))[0] == 400
    assert theirs.used_pages == 0 and ours.used_pages == 4


async def test_a_pull_from_a_machine_that_falls_silent_is_given_up(
    start: Any, pipeline_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client.liveness, "silent_s", lambda _: 600.0)
    silent = await start(Held())
    running, _ = await worker(start, program_of(pipeline_of("mixtral")), silence_s=1e-3)
    status, reply = await asyncio.wait_for(pull(running, 7, silent.address), 20)
    assert (status, b"has acknowledged nothing" in reply) == (410, True), reply


async def test_with_a_key_only_those_who_show_it_may_read(start: Any, pipeline_of: Callable[[str], Path]) -> None:
    there = program_of(pipeline_of("mixtral"))
    source, ours = await worker(start, there, key="k")
    fill(ours, 7, TOKENS)
    body = bytes(wire.encode_bytes({"sequences": torch.tensor([7]), "pages": torch.tensor([0, 1])}))
    ((refused, _, _),) = await source.send(post(f"/kv/read/{NODE}", body))
    assert refused in (401, 403)


def test_pages_are_written_only_where_they_follow(pipeline_of: Callable[[str], Path]) -> None:
    program = program_of(pipeline_of("mixtral"))
    cache = program.open_cache(3 * PAGE_TOKENS * program.open_cache(1 << 20).bytes_per_token)
    fill(cache, 1, 2 * PAGE_TOKENS)
    data = cache.read(1, 0, 2)
    for sequence, first, error in ((1, 0, CacheMissError), (2, 1, CacheMissError), (2, 0, CacheFullError)):
        with pytest.raises(error):
            cache.write(sequence, first, (first + 2) * PAGE_TOKENS, data)
    with pytest.raises(ValueError, match="no pages of shape"):
        cache.write(1, 2, 3 * PAGE_TOKENS, data)
    with pytest.raises(CacheMissError):
        cache.read(1, 1, 2)
    assert cache.used_pages == 2
