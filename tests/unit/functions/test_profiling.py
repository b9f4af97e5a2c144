"""How much is measured of an instance that joins, on a clock of its own: 10 ms a call and 1 ms a token."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from functions.generation import profiling
from functions.generation.profiling import Profiler
from functions.generation.texts import Text

MANIFEST: Any = SimpleNamespace(architecture={"vocab_size": 100, "max_positions": 2048}, name="p")


class Clocked:
    """An instance, and the clock that its calls move."""

    page_tokens, pages = 16, 100

    def __init__(self, slower: float = 1.0) -> None:
        self.now_s, self.slower = 0.0, slower
        self.calls: list[int] = []

    def time(self) -> float:
        return self.now_s

    async def run(self, parts: Sequence[tuple[Text, int]], context: object) -> tuple[list[object], None]:
        self.calls.append(sum(count for _, count in parts))
        kept = sum(text.kept for text, _ in parts)
        self.now_s += self.slower * (0.01 + 1e-3 * self.calls[-1] + 1e-6 * kept)
        return [], None

    def free(self, ids: Sequence[int]) -> None: ...

    async def settled(self) -> bool:
        return False


@pytest.fixture
def clocked(monkeypatch: pytest.MonkeyPatch) -> Clocked:
    instance = Clocked()
    shim = SimpleNamespace(get_running_loop=lambda: instance, Lock=asyncio.Lock)
    monkeypatch.setattr(profiling, "asyncio", shim)
    return instance


async def calls_of(profiler: Profiler, instance: Any, name: int) -> tuple[int, float]:
    """Calls that a profile took, and the seconds that it predicts of 100 tokens."""
    before = len(instance.calls)
    profile = await profiler.profile(instance, name)
    return len(instance.calls) - before, profile.prefill.seconds(100)


async def test_an_instance_that_texts_wait_for_is_measured_by_the_least_that_a_profile_needs(
    clocked: Clocked,
) -> None:
    most, predicted_s = await calls_of(Profiler(MANIFEST, None, 60.0), clocked, 0)
    least, hurried_s = await calls_of(Profiler(MANIFEST, None, 60.0, lambda: True), clocked, 0)
    assert least == 6 < most / 3  # three prompts, the one that batches begin with, two batches
    assert predicted_s == pytest.approx(0.11, rel=0.05) and hurried_s == pytest.approx(0.11, rel=0.05)


@pytest.mark.parametrize(("slower", "again"), [(1.0, False), (3.0, True)])
async def test_the_next_instance_is_only_compared_where_it_is_as_fast(
    clocked: Clocked, tmp_path: Path, slower: float, again: bool
) -> None:
    waits: Callable[[], bool] = lambda: True  # noqa: E731
    profiler = Profiler(MANIFEST, tmp_path, 60.0, waits)
    await profiler.profile(clocked, 0)  # type: ignore[arg-type]
    clocked.slower = slower
    calls, _ = await calls_of(profiler, clocked, 1)
    assert calls == (7 if again else 1)
    assert len(list(tmp_path.glob("p-*.json"))) == 2  # each is kept under its own number


async def test_prompts_are_measured_in_the_parts_that_are_set_and_kept_apart(clocked: Clocked, tmp_path: Path) -> None:
    for parts in (256, 64):
        profiler = Profiler(MANIFEST, tmp_path, 60.0, chunk_tokens=parts)
        profile = await profiler.profile(clocked, 0)  # type: ignore[arg-type]
        assert max(clocked.calls) == parts
        assert profile.prefill.seconds(512) == pytest.approx(0.512 + 0.01 * 512 / parts, rel=0.1)
        clocked.calls.clear()
    assert len(list(tmp_path.glob("p-*.json"))) == 2
