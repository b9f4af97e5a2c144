"""Live settings that arrive as a changed file."""

from __future__ import annotations

import asyncio
from pathlib import Path

from functions.serving.live_settings import follow


async def test_the_file_is_read_at_the_start_and_after_each_change(tmp_path: Path) -> None:
    path, seen = tmp_path / "live.json", asyncio.Queue[str]()

    def reload() -> None:
        seen.put_nowait(path.read_text() if path.exists() else "nothing")

    task = asyncio.create_task(follow(path, 0.001, reload))
    async with asyncio.timeout(100):
        assert await seen.get() == "nothing"
        for text in ("one", "three"):
            part = path.with_suffix(".part")
            part.write_text(text)
            part.replace(path)
            assert await seen.get() == text
    task.cancel()
    assert seen.empty()
