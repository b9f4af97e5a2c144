"""An event loop for measurements that wait: it never does."""

from __future__ import annotations

import asyncio


class Hurried(asyncio.SelectorEventLoop):
    """Its time goes on only when there is nothing else to do, and then at once to what comes next."""

    now_s = 0.0

    def time(self) -> float:
        return self.now_s

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self.now_s = max(self.now_s, self._scheduled[0].when())  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]
