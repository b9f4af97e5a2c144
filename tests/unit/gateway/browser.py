"""A headless Chromium driven by its DevTools protocol, for pages that somebody uses."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")
LOOK_S = 0.05


class Tab:
    """One page."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._sent = 0
        self.exceptions: list[str] = []
        """What the page's scripts did not catch."""

    async def command(self, method: str, **parameters: Any) -> Any:
        self._sent += 1
        await self._socket.send_json({"id": self._sent, "method": method, "params": parameters})
        while True:
            message = json.loads((await self._socket.receive()).data)
            if message.get("method") == "Runtime.exceptionThrown":
                self.exceptions.append(json.dumps(message["params"])[:500])
            if message.get("id") == self._sent:
                return message.get("result") or {"result": {}}  # what ran when the tab left its page has no answer

    async def open(self, url: str) -> None:
        await self.command("Runtime.enable")
        await self.command("Page.navigate", url=url)

    async def script(self, expression: str) -> Any:
        reply = await self.command("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        return reply["result"].get("value")

    async def until(self, expression: str, limit_s: float = 300.0) -> None:
        """Until it is true in the page."""
        async with asyncio.timeout(limit_s):
            while not await self.script(f"Boolean({expression})"):
                await asyncio.sleep(LOOK_S)


@asynccontextmanager
async def browser(folder: Path) -> AsyncIterator[Tab]:
    """A tab of a Chromium whose profile is in ``folder``."""
    assert CHROMIUM is not None
    command = [CHROMIUM, *OPTIONS, f"--user-data-dir={folder}", "--remote-debugging-port=0", "about:blank"]
    silent = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*command, stdout=silent, stderr=silent)
    try:
        address = folder / "DevToolsActivePort"
        async with asyncio.timeout(100):
            while not (address.exists() and len(address.read_text().split()) == 2):
                await asyncio.sleep(LOOK_S)
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{address.read_text().split()[0]}/json") as reply:
                page = next(one for one in await reply.json() if one["type"] == "page")
            async with session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                yield Tab(socket)
    finally:
        process.terminate()
        await process.wait()
