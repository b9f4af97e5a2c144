"""Live settings that arrive as a changed file."""

from __future__ import annotations

import asyncio
from pathlib import Path

from functions.serving import live_settings
from functions.serving.server import FunctionServer, ServerSettings
from functions.serving.settings import FunctionSettings
from functions.serving.starting import Starting


async def test_the_file_is_read_at_the_start_and_after_each_change(tmp_path: Path) -> None:
    path = tmp_path / "live.json"
    path.write_text('{"max_inflight": 2}')
    server = FunctionServer(Starting(lambda: server), ServerSettings(max_inflight=1))
    settings = FunctionSettings(tmp_path, ("expert-0-0",), live_settings=path, live_period_s=0.001)
    task = asyncio.create_task(live_settings.follow(settings, server))
    async with asyncio.timeout(100):
        for limit in (2, 30, 400):
            part = path.with_suffix(".part")
            part.write_text(f'{{"max_inflight": {limit}}}')
            part.replace(path)
            while server.settings.max_inflight != limit:
                await asyncio.sleep(0.001)
    assert not task.done()
    task.cancel()


async def test_without_a_period_nothing_is_followed(tmp_path: Path) -> None:
    settings = FunctionSettings(tmp_path, ("expert-0-0",), live_settings=tmp_path / "live.json")
    server = FunctionServer(Starting(lambda: server), ServerSettings())
    await asyncio.wait_for(live_settings.follow(settings, server), 100)
    assert server.settings == ServerSettings()
