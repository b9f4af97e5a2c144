"""A function that is not ready yet: it reports the reason, serves nothing, and tries again until what it needs is
there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from functions.serving.rehearsal import rehearse
from functions.serving.server import FunctionServer
from functions.serving.settings import FunctionSettings, SettingsError
from functions.serving.weights import provide
from functions.wire.messages import Application, Reply, Request, error_reply
from moe.errors import MoeError

log = logging.getLogger(__name__)

WAITS_S = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Waits between tries; the last one repeats."""


class Starting:
    """The application of a server until the real one is there: 503 with the reason, for everything."""

    def __init__(self, server: Callable[[], FunctionServer]) -> None:
        self._server = server

    def submit(self, request: Request, answer: Callable[[Reply], None]) -> None:
        reason = self._server().reason or "starting"
        answer(error_reply(503, "starting", reason, platform=True, retry_after_s=2))

    def metrics(self) -> bytes:
        return b""

    def close(self) -> None:
        """Nothing is held."""


async def become_ready(
    server: FunctionServer,
    settings: FunctionSettings,
    build: Callable[[FunctionSettings], Application],
) -> None:
    """Fetch and prove the files, build and rehearse the application, make ``server`` ready with it; tries until it
    succeeds.

    ``server.reason`` states meanwhile what is being done or what is wrong.
    """
    loop = asyncio.get_running_loop()

    def progress(words: str) -> None:
        loop.call_soon_threadsafe(setattr, server, "reason", words)

    tries = 0
    while True:
        try:
            provided = await loop.run_in_executor(None, lambda: provide(settings, progress, prove=True))
            application = build(provided)
            await rehearse(application)
        except Exception as error:
            if not isinstance(error, SettingsError | MoeError | OSError):
                log.exception("this function cannot be built")  # a fault of the image, which must be seen somewhere
            wait_s = WAITS_S[min(tries, len(WAITS_S) - 1)]
            tries += 1
            await asyncio.sleep(0)  # the last reason the thread reported comes before the error
            log.error("not ready: %s; the next try is in %g s", error, wait_s)
            server.reason = str(error)
            await asyncio.sleep(wait_s)
            continue
        server.application, server.reason, server.ready = application, "", True
        return
