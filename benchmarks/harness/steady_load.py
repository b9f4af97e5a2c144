"""A steady load of requests on a function, from a process of its own, and what the clients saw of it.

``SteadyLoad`` starts ``python -m benchmarks.harness.steady_load``: closed-loop clients (or, with a rate, arrivals at
even intervals) that never retry, compare every answer with the whole model's, and note when each request began and
ended.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp
import numpy as np
import orjson
import uvloop

from gateway.backends.process import kernel

TOLERANCE = 1e-4
"""Largest relative difference of a right answer: batches of different requests round differently."""
WRONG = 1
"""Noted in place of the status of an answer that is not the whole model's."""
BROKEN = 0
"""Noted in place of the status where no answer came."""
REQUEST_TIMEOUT_S = 60.0
HEADERS = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Answers:
    """Requests in order of their end. Seconds of the monotonic clock, which all processes of a machine share."""

    began_s: np.ndarray
    """[requests] float64."""
    ended_s: np.ndarray
    """[requests] float64."""
    status: np.ndarray
    """[requests] int64: HTTP status, or WRONG, or BROKEN."""

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


class SteadyLoad:
    """Runs the clients while the ``with`` block lasts; ``answers`` is there afterwards."""

    def __init__(
        self, url: str, texts: list[str], expected: np.ndarray, folder: Path, *, clients: int, rate: float = 0.0
    ) -> None:
        """``expected`` [texts, d]: the whole model's embeddings. ``rate`` 0: each client waits for its answer."""
        self._task = folder / "load.json"
        self._out = folder / "load.bin"
        np.save(folder / "load.npy", expected)
        task = {"url": url, "texts": texts, "expected": str(folder / "load.npy"), "clients": clients, "rate": rate}
        self._task.write_text(json.dumps(task))
        self._process: subprocess.Popen[bytes] | None = None
        self.answers = Answers(np.empty(0), np.empty(0), np.empty(0, dtype=np.int64))

    def __enter__(self) -> SteadyLoad:
        self._out.unlink(missing_ok=True)
        command = [sys.executable, "-m", "benchmarks.harness.steady_load", str(self._task), str(self._out)]
        command += ["--parent", str(os.getpid())]
        self._process = subprocess.Popen(command)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(REQUEST_TIMEOUT_S + 10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        if self._out.exists():
            rows = np.fromfile(self._out, dtype=np.float64).reshape(-1, 3)
            rows = rows[np.argsort(rows[:, 1], kind="stable")]
            self.answers = Answers(rows[:, 0], rows[:, 1], rows[:, 2].astype(np.int64))


class _Clients:
    """The process's work: requests until SIGTERM, then one file of rows."""

    def __init__(self, task: dict[str, Any]) -> None:
        self._url = task["url"]
        self._bodies = [orjson.dumps({"inputs": text}) for text in task["texts"]]
        self._expected = np.load(task["expected"])
        self._clients = int(task["clients"])
        self._rate = float(task["rate"])
        self.rows: list[tuple[float, float, float]] = []
        self._stop = asyncio.Event()

    async def run(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._stop.set)
        timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            if self._rate:
                await self._arrivals(session)
            else:
                await asyncio.gather(*(self._client(session, number) for number in range(self._clients)))

    async def _client(self, session: aiohttp.ClientSession, number: int) -> None:
        while not self._stop.is_set():
            await self._one(session, number)
            number += self._clients

    async def _arrivals(self, session: aiohttp.ClientSession) -> None:
        """One request each 1/rate seconds, however long answers take."""
        under_way: set[asyncio.Task[None]] = set()
        begun_s, number = time.monotonic(), 0
        while not self._stop.is_set():
            task = asyncio.create_task(self._one(session, number))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
            number += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), max(0.0, begun_s + number / self._rate - time.monotonic()))
        await asyncio.gather(*under_way)

    async def _one(self, session: aiohttp.ClientSession, number: int) -> None:
        index = number % len(self._bodies)
        began_s = time.monotonic()
        try:
            async with session.post(self._url, data=self._bodies[index], headers=HEADERS) as reply:
                body = await reply.read()
                status = reply.status if reply.status != 200 or self._right(body, index) else WRONG
        except (aiohttp.ClientError, TimeoutError):
            status = BROKEN
            await asyncio.sleep(0.01)
        self.rows.append((began_s, time.monotonic(), float(status)))

    def _right(self, body: bytes, index: int) -> bool:
        answer = np.asarray(orjson.loads(body)["embeddings"][0])
        expected = self._expected[index]
        return bool(np.abs(answer - expected).max() <= TOLERANCE * np.abs(expected).max())


def main() -> None:
    """The load process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", type=Path, help="JSON file: what to send")
    parser.add_argument("out", type=Path, help="file to write: rows of float64, one a request")
    parser.add_argument("--parent", type=int, required=True, help="Process whose death ends this one.")
    options = parser.parse_args()
    kernel.die_with_parent(options.parent)
    clients = _Clients(json.loads(options.task.read_text()))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(clients.run())
    np.array(clients.rows, dtype=np.float64).tofile(options.out)


if __name__ == "__main__":
    main()
