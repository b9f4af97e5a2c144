"""Open-loop replays from a process of their own: threads of the benchmark would hold up a client next to them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence

from evaluation.processes import worker_processes
from traces.model import Trace
from traces.replay import ReplayResult, ReplaySettings, replay

TIMEOUT_S = 60.0


class ReplayProcess:
    """Replays traces against one URL."""

    def __init__(self, url: str, seed: int = 11) -> None:
        self._url, self._seed = url, seed
        self._pool = worker_processes(1)
        self.pid = self._pool.submit(os.getpid).result()

    def __enter__(self) -> ReplayProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def replay(self, trace: Trace, texts: Sequence[str]) -> tuple[float, ReplayResult]:
        """(Unix time of the beginning, what became of every request)."""
        return self._pool.submit(_replay, trace, list(texts), self._url, self._seed).result()


def _replay(trace: Trace, texts: list[str], url: str, seed: int) -> tuple[float, ReplayResult]:
    begun_s = time.time()
    settings = ReplaySettings(url=url, timeout_s=TIMEOUT_S, seed=seed)
    return begun_s, asyncio.run(replay(trace, texts, settings))
