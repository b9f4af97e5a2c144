"""Followed lines of pods whose containers end while nobody takes lines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.backends.kubernetes import logs
from gateway.backends.kubernetes.logs import PodLogs


class Log:
    """A pod's log as the API server gives it: each time it is asked for all that there is from ``sinceTime`` on."""

    def __init__(self) -> None:
        self.times = [1, 2]
        self.asked: list[str] = []

    async def lines(self, path: str, params: dict[str, str], accept: str) -> AsyncIterator[bytes]:
        since = params.get("sinceTime", "")
        if "follow" in params:
            self.asked.append(since)
        for time in self.times:
            stamp = f"2026-11-30T10:00:0{time}Z"
            if stamp >= since:
                yield f"{stamp} {time}".encode()


async def test_lines_that_wait_for_the_client_do_not_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "AGAIN_S", 0.0)
    log, pods, news = Log(), ["f-1"], asyncio.Semaphore(0)
    api: Any = log
    changed: Any = news.acquire
    follower = PodLogs(api, "pods", "f", "fn", lambda: pods or None, changed).read(None, None, 0, follow=True)
    taken = [(await anext(follower)).text for _ in range(2)]
    log.times += [3, 4]
    news.release()
    taken.append((await anext(follower)).text)
    while len(log.asked) < 4:  # the container ended twice while "4" waited
        news.release()
        await asyncio.sleep(0.01)
    pods.clear()
    news.release()
    taken += [line.text async for line in follower]
    assert taken == ["1", "2", "3", "4"]
    assert log.asked[-1].startswith("2026-11-30T10:00:04")
