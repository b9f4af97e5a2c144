"""Work of a backend that is repeated as long as it runs."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)


async def attempt(work: Callable[[], Awaitable[None]]) -> None:
    """Once. An unexpected error is logged and not raised: it would end the task that repeats ``work``, and nobody would
    hear of it."""
    try:
        await work()
    except Exception:
        log.exception("%s failed; it is tried again", work.__qualname__)
