"""Lines of a function's pods, merged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime

from gateway.backends.kubernetes.api import Api, ApiError, UnreachableError
from gateway.contract import LogLine

_QUEUE_LINES = 1000
AGAIN_S = 1.0
"""Pause before a log that has ended, or had not begun, is asked for again."""


class PodLogs:
    """Reads ``pods/log``. ``pods`` gives the function's pods now, None once it is deleted; ``changed`` awaits news."""

    def __init__(
        self,
        api: Api,
        path: str,
        name: str,
        namespace: str,
        pods: Callable[[], list[str] | None],
        changed: Callable[[], Awaitable[None]],
    ) -> None:
        self._api = api
        self._path = path
        self._name = name
        self._namespace = namespace
        self._pods = pods
        self._changed = changed

    async def read(
        self, instance: str | None, since_s: float | None, tail: int, follow: bool
    ) -> AsyncIterator[LogLine]:
        """What there is, in order of time; with ``follow`` then what comes, of pods that come later too."""
        pods = self._chosen(instance) or []
        lines = [line for pod in pods for line in await self._now(pod, since_s, tail)]
        lines.sort(key=lambda line: line.timestamp_s)
        for line in lines[-tail:] if tail > 0 else lines:
            yield line
        if not follow:
            return
        given_s = {line.instance: line.timestamp_s for line in lines}
        async for line in self._following(instance, since_s, given_s):
            yield line

    async def _following(
        self, instance: str | None, since_s: float | None, given_s: dict[str, float]
    ) -> AsyncIterator[LogLine]:
        """``given_s``: pod → time of its last line that was given or is in the queue. A log ends with its container and
        is refused before that has started, so it is asked for again at the next change."""
        queue: asyncio.Queue[LogLine | None] = asyncio.Queue(_QUEUE_LINES)
        readers: dict[str, asyncio.Task[None]] = {}

        async def attend() -> None:
            while (pods := self._chosen(instance)) is not None:
                for pod in pods:
                    if pod not in readers or readers[pod].done():
                        readers[pod] = asyncio.create_task(self._stream(pod, since_s, given_s, queue))
                await self._changed()
                await asyncio.sleep(AGAIN_S)
            await asyncio.wait(readers.values(), timeout=5.0) if readers else None
            await queue.put(None)

        attending = asyncio.create_task(attend())
        try:
            while (line := await queue.get()) is not None:
                yield line
        finally:
            for task in (attending, *readers.values()):
                task.cancel()
            await asyncio.gather(attending, *readers.values(), return_exceptions=True)

    async def _now(self, pod: str, since_s: float | None, tail: int) -> list[LogLine]:
        params = self._params(since_s)
        if tail > 0:
            params["tailLines"] = str(tail)
        return [line async for line in self._lines(pod, params)]

    async def _stream(
        self, pod: str, since_s: float | None, given_s: dict[str, float], queue: asyncio.Queue[LogLine | None]
    ) -> None:
        last_s = given_s.get(pod)
        begun_s = since_s if last_s is None else last_s
        async for line in self._lines(pod, {**self._params(begun_s), "follow": "true"}):
            if last_s is None or line.timestamp_s > last_s:
                await queue.put(line)
                given_s[pod] = line.timestamp_s

    async def _lines(self, pod: str, params: dict[str, str]) -> AsyncIterator[LogLine]:
        """A pod that has no log (not started, gone) has no lines."""
        try:
            async for raw in self._api.lines(f"{self._path}/{pod}/log", params, "*/*"):
                stamp, _, text = raw.decode(errors="replace").partition(" ")
                try:
                    time_s = datetime.fromisoformat(stamp).timestamp()
                except ValueError:
                    continue
                yield LogLine(self._name, self._namespace, pod, time_s, text)
        except (ApiError, UnreachableError):
            return

    def _params(self, since_s: float | None) -> dict[str, str]:
        params = {"timestamps": "true", "container": self._name}  # others may have been added to the pod
        if since_s is not None:
            params["sinceTime"] = datetime.fromtimestamp(since_s, UTC).isoformat().replace("+00:00", "Z")
        return params

    def _chosen(self, instance: str | None) -> list[str] | None:
        pods = self._pods()
        return pods if pods is None or instance is None else [pod for pod in pods if pod == instance]
