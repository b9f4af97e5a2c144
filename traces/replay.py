"""Open-loop replay: every request leaves at its time in the trace, whether or not earlier answers are back.

A closed loop (next request after the last answer) slows down with the server and hides its queue; here the only
brake is the bound on connections, and a request that has to wait for one is on record as late. The client measures
its own lateness too, so a result made by a client that could not keep up shows it. No retries unless asked for.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import numpy as np

from traces.completions import Completions, StreamError, read_stream
from traces.errors import ReplayError
from traces.model import Trace
from traces.results import Outcome, RequestRecord, describe, percentiles, summarise
from traces.scale import compress
from traces.token_results import summarise_tokens

TOKENS_FIELD = re.compile(rb'"tokens"\s*:\s*(\d{1,12})')
KEEPALIVE_S = 4.0
"""Below the five seconds after which common servers close an idle connection, so that a POST does not meet a
closing one.
"""
MAX_RETRY_WAIT_S = 2.0
RECENT = 20_000


@dataclass(frozen=True)
class ReplaySettings:
    """How to replay. Checked by :func:`check`."""

    url: str
    """Address of the function, e.g. ``http://127.0.0.1:8080/function/minilm``, for completions with
    ``/v1/completions`` behind it."""
    speed: float = 1.0
    """Trace seconds per second of the clock."""
    connections: int = 256
    timeout_s: float = 30.0
    """From sending until the whole answer; also the longest wait for a free connection."""
    retries: int = 0
    """Further tries after a 429 or when no connection could be made (the work was not begun)."""
    slo_s: float | None = None
    seed: int = 0
    grace_s: float = 5.0
    """After a stop: how long answers under way are waited for."""
    headers: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the JSON body besides ``inputs``."""


@dataclass(frozen=True)
class ReplayResult:
    """``records`` in order of the trace; ``summary`` is JSON-ready."""

    records: list[RequestRecord]
    summary: dict[str, Any]


@dataclass(frozen=True)
class _Attempt:
    """One try; ``pause_s`` is what the server asks to wait, ``first_s`` when the first token's event came."""

    outcome: Outcome
    status: int | None = None
    tokens: int | None = None
    pause_s: float | None = None
    first_s: float | None = None
    tpot_s: float | None = None


class Progress:
    """Counters to look at while a replay runs."""

    def __init__(self, planned: int) -> None:
        self.planned = planned
        self.begun = 0
        self.done = 0
        self.in_flight = 0
        self.peak_in_flight = 0
        self.waited_for_connection = 0
        self.outcomes: Counter[Outcome] = Counter()
        self.elapsed_s = 0.0
        self._recent: deque[tuple[float, float]] = deque(maxlen=RECENT)

    @property
    def failed(self) -> int:
        return self.done - self.outcomes["ok"] - self.outcomes["cancelled"]

    def add(self, record: RequestRecord) -> None:
        self.done += 1
        self.outcomes[record.outcome] += 1
        if record.outcome == "ok" and record.sent_s is not None and record.latency_s is not None:
            self._recent.append((record.sent_s + record.latency_s, record.latency_s))

    def recent_latency_s(self, last_s: float) -> dict[str, float] | None:
        """Percentiles of the ok answers that came in the last ``last_s`` seconds (at most 20,000 of them)."""
        since = self.elapsed_s - last_s
        return percentiles(latency for moment, latency in self._recent if moment >= since)


def check(settings: ReplaySettings) -> None:
    """Raises ReplayError with the field, the rule and the value."""
    if not re.match(r"https?://[^/\s]+", settings.url):
        raise ReplayError(f"url must start with http:// or https:// and name a host, got {settings.url!r}")
    for name in ("speed", "timeout_s", "grace_s"):
        value = getattr(settings, name)
        if not (math.isfinite(value) and value > 0):
            raise ReplayError(f"{name} must be a positive number, got {value!r}")
    if settings.slo_s is not None and not (math.isfinite(settings.slo_s) and settings.slo_s > 0):
        raise ReplayError(f"slo_s must be a positive number of seconds, got {settings.slo_s!r}")
    if not 1 <= settings.connections <= 10_000:
        raise ReplayError(f"connections must be 1 to 10000, got {settings.connections}")
    if not 0 <= settings.retries <= 10:
        raise ReplayError(f"retries must be 0 to 10, got {settings.retries}")
    if "inputs" in settings.fields:
        raise ReplayError("fields must not hold 'inputs': the texts of the replay go there")


async def replay(
    trace: Trace,
    texts: Sequence[str] | Completions,
    settings: ReplaySettings,
    *,
    on_record: Callable[[RequestRecord], None] | None = None,
    on_start: Callable[[Progress], None] | None = None,
    stop: asyncio.Event | None = None,
) -> ReplayResult:
    """Send text ``i`` (texts are used in turn) at arrival ``i`` of ``trace``, replayed at ``settings.speed``.

    With :class:`Completions` request ``i`` is its body ``i``, and the answer is read as server-sent events. Returns
    when every answer is there or timed out, or ``grace_s`` after ``stop`` was set: then with the records
    so far. Raises ReplayError for bad settings. Failures of requests are records, not exceptions.
    """
    check(settings)
    if not isinstance(texts, Completions) and not texts:
        raise ReplayError("a replay needs at least one text")
    if isinstance(texts, Completions) and texts.lengths.prompt.size != trace.requests:
        raise ReplayError(f"{texts.lengths.prompt.size} completions for {trace.requests} arrivals; one each is needed")
    runner = _Runner(compress(trace, settings.speed), texts, settings, on_record)
    if on_start is not None:
        on_start(runner.progress)
    return await runner.run(stop or asyncio.Event())


class _Runner:
    """State of one replay."""

    def __init__(
        self,
        trace: Trace,
        texts: Sequence[str] | Completions,
        settings: ReplaySettings,
        on_record: Callable[[RequestRecord], None] | None,
    ) -> None:
        self._trace = trace
        self._settings = settings
        self._on_record = on_record
        self._completions = texts if isinstance(texts, Completions) else None
        self._bodies = [
            (json.dumps({**settings.fields, "inputs": text}).encode(), len(text.split()))
            for text in (() if isinstance(texts, Completions) else texts)
        ]
        self._free = asyncio.Semaphore(settings.connections)
        self._run_id = f"{trace.sha256[:8]}-{settings.seed}"
        self._records: list[RequestRecord] = []
        self._begun_s = 0.0
        self._unix_s = 0.0
        self.progress = Progress(trace.requests)

    async def run(self, stop: asyncio.Event) -> ReplayResult:
        connector = aiohttp.TCPConnector(limit=self._settings.connections, keepalive_timeout=KEEPALIVE_S)
        cpu_s = time.process_time()
        async with aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=self._settings.timeout_s),
            headers={"Content-Type": "application/json", **self._settings.headers},
        ) as session:
            self._begun_s, self._unix_s = time.perf_counter(), time.time()
            tasks = await self._send_all(session, stop)
            await self._finish(tasks, stop)
        records = sorted(self._records, key=lambda record: record.index)
        return ReplayResult(records, self._summary(records, time.process_time() - cpu_s))

    async def _send_all(self, session: aiohttp.ClientSession, stop: asyncio.Event) -> set[asyncio.Task[None]]:
        """Start every request at its time. Tasks that are done leave the returned set by themselves."""
        tasks: set[asyncio.Task[None]] = set()
        stopped = asyncio.ensure_future(stop.wait())
        try:
            for index, due_s in enumerate(self._trace.arrival_s.tolist()):
                wait_s = due_s - self._now_s()
                if wait_s > 0:
                    await asyncio.wait((stopped,), timeout=wait_s)
                elif index % 64 == 0:
                    await asyncio.sleep(0)  # overdue in a row: let answers and the stop in
                if stop.is_set():
                    break
                self.progress.begun += 1
                task = asyncio.create_task(self._one(session, index, due_s))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
        finally:
            stopped.cancel()
        return tasks

    async def _finish(self, tasks: set[asyncio.Task[None]], stop: asyncio.Event) -> None:
        """Wait for what is under way; after a stop no longer than the grace."""
        stopped = asyncio.ensure_future(stop.wait())
        try:
            while tasks and not stop.is_set():
                await asyncio.wait((stopped, *tasks), return_when=asyncio.FIRST_COMPLETED, timeout=0.25)
                self.progress.elapsed_s = self._now_s()
            if tasks:
                await asyncio.wait(tuple(tasks), timeout=self._settings.grace_s)
        finally:
            stopped.cancel()
            left = tuple(tasks)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    async def _one(self, session: aiohttp.ClientSession, index: int, due_s: float) -> None:
        """One request from its due time to its record."""
        request_id = f"replay-{self._run_id}-{index}"
        attempt = _Attempt("cancelled")
        sent_s: float | None = None
        tries = 0
        self.progress.in_flight += 1
        self.progress.peak_in_flight = max(self.progress.peak_in_flight, self.progress.in_flight)
        try:
            if not await self._take_connection():
                attempt = _Attempt("no_connection")
            else:
                try:
                    body = self._body(index)
                    sent_s = self._now_s()
                    for tries in range(1, self._settings.retries + 2):
                        attempt = _Attempt("cancelled")
                        attempt = await self._try(session, body, request_id)
                        if attempt.outcome not in ("rejected", "connect") or tries > self._settings.retries:
                            break
                        await asyncio.sleep(min(attempt.pause_s or 0.05 * 2**tries, MAX_RETRY_WAIT_S))
                finally:
                    self._free.release()
        finally:
            self.progress.in_flight -= 1
            self._record(index, due_s, sent_s, attempt, tries, request_id)

    def _body(self, index: int) -> bytes:
        if self._completions is not None:
            return self._completions.body(index)
        return self._bodies[index % len(self._bodies)][0]

    async def _take_connection(self) -> bool:
        if not self._free.locked():
            await self._free.acquire()
            return True
        self.progress.waited_for_connection += 1
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                await self._free.acquire()
        except TimeoutError:
            return False
        return True

    async def _try(self, session: aiohttp.ClientSession, body: bytes, request_id: str) -> _Attempt:
        status: int | None = None
        try:
            async with session.post(
                self._settings.url, data=body, headers={"X-Request-Id": request_id}, allow_redirects=False
            ) as response:
                status = response.status
                outcome = judge(status)
                if self._completions is not None and outcome == "ok":
                    streamed = await read_stream(response.content, self._now_s)
                    return _Attempt(outcome, status, streamed.tokens, None, streamed.first_s, streamed.tpot_s)
                answer = await response.read()
                tokens = _tokens(answer) if self._completions is None else None
                return _Attempt(outcome, status, tokens, _seconds(response.headers.get("Retry-After")))
        except TimeoutError:
            return _Attempt("timeout", status)
        except StreamError as error:
            return _Attempt(error.outcome, status)
        except aiohttp.ClientConnectorError:
            return _Attempt("connect")
        except (aiohttp.ClientError, ConnectionError, ValueError):
            return _Attempt("broken", status)

    def _record(
        self, index: int, due_s: float, sent_s: float | None, attempt: _Attempt, tries: int, request_id: str
    ) -> None:
        now_s = self._now_s()
        self.progress.elapsed_s = now_s
        lengths = self._completions.lengths if self._completions is not None else None
        record = RequestRecord(
            index=index,
            scheduled_s=due_s,
            sent_s=sent_s,
            latency_s=None if sent_s is None else now_s - sent_s,
            outcome=attempt.outcome,
            status=attempt.status,
            tokens=attempt.tokens,
            words=0 if lengths is not None else self._bodies[index % len(self._bodies)][1],
            tries=tries,
            request_id=request_id,
            sent_unix_s=None if sent_s is None else self._unix_s + sent_s,
            prompt_tokens=None if lengths is None else int(lengths.prompt[index]),
            max_tokens=None if lengths is None else int(lengths.answer[index]),
            ttft_s=None if sent_s is None or attempt.first_s is None else attempt.first_s - sent_s,
            tpot_s=attempt.tpot_s,
        )
        self._records.append(record)
        self.progress.add(record)
        if self._on_record is not None:
            self._on_record(record)

    def _now_s(self) -> float:
        return time.perf_counter() - self._begun_s

    def _summary(self, records: list[RequestRecord], cpu_s: float) -> dict[str, Any]:
        settings, completions = self._settings, self._completions
        summary = summarise(records, self._trace.requests, settings.slo_s)
        if completions is not None:
            tokens = summarise_tokens(records, summary["span_s"], completions.targets)
            cut = completions.lengths.cut
            summary["generation"] = {**tokens, "cut_to_context": cut, **completions.facts}
        return {
            **summary,
            "started_unix_s": self._unix_s,
            "peak_in_flight": self.progress.peak_in_flight,
            "waited_for_connection": self.progress.waited_for_connection,
            "client_cpu_s": cpu_s,
            "url": settings.url,
            "speed": settings.speed,
            "connections": settings.connections,
            "timeout_s": settings.timeout_s,
            "retries": settings.retries,
            "seed": settings.seed,
            "trace": describe(self._trace),
        }


def judge(status: int) -> Outcome:
    """The outcome an answer's status means."""
    if 200 <= status < 300:
        return "ok"
    if status == 429:
        return "rejected"
    if 400 <= status < 500:
        return "client_error"
    return "server_error" if status >= 500 else "unexpected_status"


def _tokens(answer: bytes) -> int | None:
    numbers = TOKENS_FIELD.findall(answer[-200:]) or TOKENS_FIELD.findall(answer[:200])
    return int(numbers[-1]) if numbers else None


def _seconds(text: str | None) -> float | None:
    """``Retry-After`` in seconds; its date form and nonsense count as not given."""
    try:
        value = float(text) if text is not None else np.nan
    except ValueError:
        return None
    return value if 0 <= value < 86_400 else None
