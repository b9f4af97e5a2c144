"""What workers keep of keys and values is what their deployment is sized for."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from functions.serving import kept_pages as module
from functions.serving.kept_pages import KeptPages
from moe.cache import PAGE_TOKENS
from moe.manifest import load
from platform_words.memory import MIB
from smoe.deployment import KV_TOKENS, DeploymentSettings, function_deployments
from tests.unit.functions.test_node_host import programs


@pytest.mark.parametrize("functions", [0, 4])
@pytest.mark.parametrize("asked", [None, 16_000])
async def test_all_segments_keep_the_tokens_asked_for_whoever_serves_them(
    pipeline_of: Callable[[str], Path], functions: int, asked: int | None
) -> None:
    """Two, two and one attention: in one worker, none of them may take the room of another."""
    folder, loop = pipeline_of("qwen3_moe"), asyncio.get_running_loop()
    settings = DeploymentSettings(max_functions=functions, kv_tokens=asked)
    kept_bytes, wanted = 0, asked or KV_TOKENS[0]
    for deployment in function_deployments(load(folder), settings)[1:]:
        segments = [node for node in deployment["envVars"]["smoe_nodes"].split(",") if node.startswith("segment")]
        mib = int(deployment["envVars"].get("smoe_kv_mb", 0))
        assert bool(mib) == bool(segments)
        held = programs(folder, *segments)
        kept = KeptPages(held, mib * MIB, loop)
        for program in held.values():
            cache = kept.open(program)
            assert wanted <= cache.pages * PAGE_TOKENS < 1.1 * wanted
            kept_bytes += wanted * cache.bytes_per_token
        kept.close()
        kept_bytes -= mib * MIB
    assert -4 * MIB < kept_bytes <= 0  # less than one MiB a function is left over


async def test_pages_that_stay_free_are_released_bit_by_bit(
    pipeline_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    monkeypatch.setattr(module, "RELEASE_S", 0.01)
    monkeypatch.setattr(module, "RELEASE_BYTES", 1)
    held = programs(pipeline_of("qwen3_moe"), "segment-0", "segment-1")
    kept = KeptPages(held, 4 * MIB, asyncio.get_running_loop())
    caches = [kept.open(program) for program in held.values()]
    for cache in caches:
        cache.begin([1], [0], [3 * PAGE_TOKENS], [-1])
        cache.free([1])
    async with asyncio.timeout(30):
        while any(time != math.inf for cache in caches for time in cache._freed_s):
            await asyncio.sleep(0.01)
    kept.close()
