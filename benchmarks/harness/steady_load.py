"""A steady load of requests on a function, from a process of its own, and what the clients saw of it.

Closed-loop clients (or arrivals at even intervals, or at given times) never retry, compare every answer with the whole
model's, and note when each request began and ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import aiohttp
import numpy as np
import orjson
import uvloop

from benchmarks.harness.answers import TOLERANCE, relative_difference
from evaluation.processes import worker_processes

WRONG = 1
"""Noted in place of the status of an answer that is not the whole model's."""
BROKEN = 0
"""Noted in place of the status where no answer came."""
REQUEST_TIMEOUT_S = 60.0
HEADERS = {"Content-Type": "application/json"}
ROW_BYTES = 24
"""A request in the file: when it began, when it ended, its status; float64."""


@dataclass(frozen=True)
class Answers:
    """Requests in order of their end. Seconds of the monotonic clock, which all processes of a machine share."""

    began_s: np.ndarray
    """[requests] float64."""
    ended_s: np.ndarray
    """[requests] float64."""
    status: np.ndarray
    """[requests] int64: HTTP status, or WRONG, or BROKEN."""

    @classmethod
    def of(cls, rows: np.ndarray) -> Answers:
        """``rows`` [requests, 3] float64, in any order."""
        began_s, ended_s, status = rows[np.argsort(rows[:, 1], kind="stable")].T
        return cls(began_s, ended_s, status.astype(np.int64))

    def between(self, from_s: float, until_s: float) -> Answers:
        """Requests that ended in this time."""
        chosen = (self.ended_s >= from_s) & (self.ended_s < until_s)
        return Answers(self.began_s[chosen], self.ended_s[chosen], self.status[chosen])

    @property
    def failed(self) -> int:
        return int((self.status != 200).sum())

    def per_second(self, from_s: float, until_s: float) -> float:
        """Right answers a second."""
        good = self.between(from_s, until_s)
        return int((good.status == 200).sum()) / (until_s - from_s)

    def longest_gap_s(self, from_s: float, until_s: float) -> float:
        """Longest time without a right answer."""
        good = self.ended_s[(self.status == 200) & (self.ended_s >= from_s) & (self.ended_s < until_s)]
        return float(np.diff(np.concatenate([[from_s], np.sort(good), [until_s]])).max())

    def p95_ms(self, from_s: float, until_s: float) -> float | None:
        """95th percentile of the seconds of requests that ended in this time."""
        chosen = self.between(from_s, until_s)
        if not chosen.ended_s.size:
            return None
        return float(np.quantile(chosen.ended_s - chosen.began_s, 0.95) * 1000)


@dataclass(frozen=True)
class Load:
    """What is sent."""

    url: str
    texts: list[str]
    expected: np.ndarray
    """[texts, d]: the whole model's embeddings."""
    clients: int
    rate: float = 0.0
    """Requests a second; 0: each client waits for its answer."""
    arrival_s: np.ndarray | None = None
    """[requests] float64: seconds from the beginning, in place of clients and rate."""

    @property
    def follows_times(self) -> bool:
        """Requests come when they are due, however long answers take."""
        return bool(self.rate) or self.arrival_s is not None

    def due_s(self, number: int) -> float:
        """Seconds from the beginning; infinite where the given times have ended."""
        if self.arrival_s is None:
            return number / self.rate
        return float(self.arrival_s[number]) if number < len(self.arrival_s) else float("inf")


class SteadyLoad:
    """Runs the clients while the ``with`` block lasts; ``answers`` is there afterwards."""

    def __init__(self, load: Load, folder: Path) -> None:
        self._load, self._file = load, folder / "load.bin"
        self.answers = Answers.of(np.empty((0, 3)))

    @property
    def count(self) -> int:
        """Requests that have ended by now."""
        return self._file.stat().st_size // ROW_BYTES

    def __enter__(self) -> SteadyLoad:
        self._file.unlink(missing_ok=True)
        self._pool = worker_processes(1)
        self._pid = self._pool.submit(os.getpid).result()
        self._sent = self._pool.submit(_send, self._load, self._file)
        while not self._file.exists() and not self._sent.done():
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        os.kill(self._pid, signal.SIGTERM)
        try:
            self._sent.result(REQUEST_TIMEOUT_S + 10)
        finally:
            self._pool.shutdown(wait=False)
        self.answers = Answers.of(np.fromfile(self._file, dtype=np.float64).reshape(-1, 3))


def _send(load: Load, file: Path) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_Clients(load).run(file))


class _Clients:
    """The process's work: requests until SIGTERM, each a row of the file once it has ended."""

    _rows: BinaryIO

    def __init__(self, load: Load) -> None:
        self._load = load
        self._bodies = [orjson.dumps({"inputs": text}) for text in load.texts]
        self._stop = asyncio.Event()

    async def run(self, file: Path) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._stop.set)
        timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            with file.open("wb", buffering=0) as self._rows:  # from here on SIGTERM is waited for
                if self._load.follows_times:
                    await self._arrivals(session)
                else:
                    await asyncio.gather(*(self._client(session, number) for number in range(self._load.clients)))

    async def _client(self, session: aiohttp.ClientSession, number: int) -> None:
        while not self._stop.is_set():
            await self._one(session, number)
            number += self._load.clients

    async def _arrivals(self, session: aiohttp.ClientSession) -> None:
        """Each request when it is due."""
        under_way: set[asyncio.Task[None]] = set()
        begun_s, number = time.monotonic(), 0
        while not self._stop.is_set():
            due_s = begun_s + self._load.due_s(number)
            if due_s == float("inf"):
                await self._stop.wait()
                break
            if due_s > time.monotonic():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), due_s - time.monotonic())
                continue
            task = asyncio.create_task(self._one(session, number))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
            number += 1
            await asyncio.sleep(0)  # late arrivals must not keep answers from being read
        await asyncio.gather(*under_way)

    async def _one(self, session: aiohttp.ClientSession, number: int) -> None:
        index = number % len(self._bodies)
        began_s = time.monotonic()
        try:
            async with session.post(self._load.url, data=self._bodies[index], headers=HEADERS) as reply:
                body = await reply.read()
                status = reply.status if reply.status != 200 or self._right(body, index) else WRONG
        except (aiohttp.ClientError, TimeoutError):
            status = BROKEN
            await asyncio.sleep(0.01)
        self._rows.write(np.array([began_s, time.monotonic(), status]).tobytes())

    def _right(self, body: bytes, index: int) -> bool:
        return relative_difference(orjson.loads(body)["embeddings"][0], self._load.expected[index]) <= TOLERANCE
