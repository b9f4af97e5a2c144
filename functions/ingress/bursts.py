"""Burst activation: the ingress sees a request's tokens before any layer does, and has standbys of all layers opened.

A request only counts its tokens here, which takes microseconds, and never waits. One task reports levels to the gateway
whenever they change: one request for all functions, one at a time, so that what changes meanwhile goes with the next.
Its reply names the replicas that may be called from then on. Where the gateway fails, requests are served by the
replicas that there are, and the levels are reported again a little later.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import orjson

from functions.dispatch.activation import MEASURE_S, Burst, MeasuredWork, burst_from
from functions.dispatch.client import ConnectionPool, TransportError, request_head
from functions.dispatch.dispatcher import Dispatcher
from functions.dispatch.levels import Levels
from functions.dispatch.replicas import FunctionReplicas, Opening
from functions.dispatch.resolvers import table_of

log = logging.getLogger(__name__)

DEADLINE_S = 1.0
"""Time that a report to the gateway may take."""
RETRY_S = 0.5
"""After a report that failed."""
LEASE_S = 30.0
"""For which a report holds; it is repeated after a third of it while standbys are activated."""
KEPT = 1000
"""Activations whose times are kept."""


class WorkMeter:
    """Replica-seconds that a token of the pipeline costs each function: what the controller knows of its CPU time, or
    else what is measured.
    """

    def __init__(self, dispatcher: Dispatcher, functions: Iterable[str], now_s: float) -> None:
        self._dispatcher = dispatcher
        self._names = tuple(functions)
        self._seen_s = np.zeros(len(self._names))
        self._work = MeasuredWork(len(self._names))
        self._new_tokens = 0
        self._next_s = now_s + MEASURE_S
        self._measured: dict[str, float] = {}
        self._given: dict[str, float] = {}
        self.seconds_per_token: dict[str, float] = {}
        """Functions that were measured, or whose cost is known; another object after each change."""

    def know(self, given: Mapping[str, float]) -> None:
        """The costs that the controller states for some functions, in place of those measured."""
        if given != self._given:
            self._given = dict(given)
            self.seconds_per_token = self._measured | self._given

    def answered(self, tokens: int) -> None:
        self._new_tokens += tokens

    def measure(self, now_s: float) -> None:
        """Measure if it is time to, and tokens were answered since the last time."""
        if now_s < self._next_s or not self._new_tokens:
            return
        self._next_s = now_s + MEASURE_S
        busy_s = np.array([self._dispatcher.busy_s(name) for name in self._names])
        new_s, self._seen_s = np.maximum(0.0, busy_s - self._seen_s), busy_s
        self._work.add(new_s, self._new_tokens)
        self._new_tokens = 0
        self._measured = dict(zip(self._names, self._work.seconds_per_token.tolist(), strict=True))
        self.seconds_per_token = self._measured | self._given


class Gateway:
    """Reports levels where the replica feed is."""

    def __init__(self, feed_url: str, token_file: Path | None, namespace: str) -> None:
        """Raises ValueError for what is no address."""
        parts = urlsplit(feed_url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"smoe_feed_url is {feed_url!r}; it takes http://HOST:PORT/PATH")
        self._host, self._path = f"{parts.hostname}:{parts.port or 80}", parts.path or "/"
        self._token_file, self._namespace = token_file, namespace
        self._sender = uuid.uuid4().hex
        self._pool = ConnectionPool(self._host)

    async def report(self, levels: Mapping[str, int]) -> dict[str, FunctionReplicas]:
        """Ready replicas of these functions from now on. Raises OSError, TransportError, ValueError, KeyError,
        TypeError."""
        functions = {f"{name}.{self._namespace}": count for name, count in levels.items()}
        body = orjson.dumps({"sender": self._sender, "lease_s": LEASE_S, "functions": functions})
        token = self._token_file.read_text().strip() if self._token_file else ""
        headers = [("authorization", f"Bearer {token}")] if token else []
        head = request_head(self._path, self._host, "application/json", len(body), headers)
        reply = await self._pool.call(head, [body], DEADLINE_S)
        if reply.status != 200:
            raise ValueError(f"it answered {reply.status}: {bytes(reply.body[:200]).decode('utf-8', 'replace')}")
        return table_of(orjson.loads(reply.body), self._namespace)

    def close(self) -> None:
        self._pool.close()


class BurstActivation:
    """Levels of one pipeline's functions, as they are and as the gateway knows them."""

    def __init__(
        self,
        functions: Iterable[str],
        dispatcher: Dispatcher,
        gateway: Gateway,
        loop: asyncio.AbstractEventLoop,
        *,
        sleepless: bool = False,
    ) -> None:
        """``sleepless``: nothing falls asleep, as replicas hold what texts under way need."""
        self._functions = frozenset(functions)
        self._dispatcher = dispatcher
        self._gateway = gateway
        self._loop = loop
        self._levels = Levels({})
        self._counts: dict[str, int] = {}
        self._reported: Mapping[str, int] = {}
        """The levels that a gateway has taken."""
        self._reported_s = 0.0
        """When they were sent: after ``LEASE_S`` it has taken the standbys back."""
        self._begun_s: float | None = None
        """When the first request came that found too little and is not reported yet."""
        self._changed = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._under_way = 1 if sleepless else 0
        self._meter = WorkMeter(dispatcher, self._functions, loop.time())
        self._refused: set[str] = set()
        self.openings: deque[Opening] = deque(maxlen=KEPT)

    def update(self, table: Mapping[str, FunctionReplicas]) -> None:
        """Rules of the feed's functions; a rule that cannot be read is none, and is reported once."""
        rules: dict[str, tuple[Burst, int]] = {}
        given: dict[str, float] = {}
        for name in self._functions & table.keys():
            text = table[name].burst
            if not text:
                continue
            try:
                rule = burst_from(text)
            except ValueError as error:
                if text not in self._refused:
                    log.warning("the standbys of %s are not used: %s", name, error)
                self._refused.add(text)
                continue
            # Functions with the same rule are counted together, whatever a token costs each.
            rules[name] = replace(rule, token_s=None), table[name].desired
            if rule.token_s is not None:
                given[name] = rule.token_s
        self._meter.know(given)
        if rules != self._levels.rules:
            self._levels = Levels(rules, self._levels)
            if self._under_way:  # a rule that lets replicas sleep finds them awake
                self._levels.arrived(self._loop.time(), 0, {})
            self._refresh(self._loop.time())

    def opened(self, table: Mapping[str, FunctionReplicas]) -> dict[str, FunctionReplicas]:
        """``table`` with as many replicas taking calls as a gateway has activated for this ingress: of several gateways
        the one whose feed is followed need not be the one that was asked."""
        if self._loop.time() - self._reported_s > LEASE_S:
            return dict(table)
        return {name: _opened(replicas, self._reported.get(name, 0)) for name, replicas in table.items()}

    @contextmanager
    def serving(self, tokens: int) -> Iterator[None]:
        """A request of ``tokens``, from its arrival to its answer: no replica falls asleep meanwhile."""
        self.arrived(tokens)
        self._under_way += 1
        try:
            yield
            self.answered(tokens)
        finally:
            if self._levels.sleep:
                self._refresh(self._loop.time())  # what serves it stays from now on
            self._under_way -= 1

    def arrived(self, tokens: int) -> None:
        """A request of ``tokens`` is about to be served."""
        now_s = self._loop.time()
        self._meter.measure(now_s)
        if self._levels.rules:
            self._levels.arrived(now_s, tokens, self._meter.seconds_per_token)
            self._refresh(now_s)

    def answered(self, tokens: int) -> None:
        """A request of ``tokens`` was served."""
        self._meter.answered(tokens)

    async def run(self) -> None:
        """Report until cancelled."""
        failed = False
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LEASE_S / 3 if self._counts else None):
                    await self._changed.wait()
            self._changed.clear()
            levels, begun_s, self._begun_s = self._counts, self._begun_s, None
            opening = None if begun_s is None else Opening(begun_s)
            self._dispatcher.opening = opening  # the feed may be faster than the reply
            sent_s = self._loop.time()
            try:
                ready = await self._gateway.report(levels)
            except (OSError, TransportError, ValueError, KeyError, TypeError) as error:
                if not failed:
                    log.warning("standbys cannot be activated (%s); requests are served without them", error)
                failed = True
                self._begun_s = begun_s if begun_s is not None else self._begun_s
                self._changed.set()
                await asyncio.sleep(RETRY_S)
                continue
            failed = False
            self._reported, self._reported_s = levels, sent_s
            self._dispatcher.merge(ready)
            self._dispatcher.opening = None
            if opening is not None:
                opening.open_s = self._loop.time() - opening.begun_s
                self.openings.append(opening)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._gateway.close()

    def _refresh(self, now_s: float) -> None:
        """Have the levels reported if they changed, and look again when the next standby is no longer wanted."""
        if self._under_way and self._levels.sleep:
            self._levels.stay(now_s)
        counts = self._levels.counts(now_s)
        if counts != self._counts:
            if self._begun_s is None and any(count > self._counts.get(name, 0) for name, count in counts.items()):
                self._begun_s = now_s
            self._counts = counts
            self._changed.set()
        if self._timer is not None:
            self._timer.cancel()
        end_s = self._levels.next_release_s(now_s)
        self._timer = None if end_s is None else self._loop.call_at(end_s + 0.001, self._look_again)

    def _look_again(self) -> None:
        self._timer = None
        self._refresh(self._loop.time())


def _opened(function: FunctionReplicas, level: int) -> FunctionReplicas:
    """The first standbys take calls, too, until there are ``level`` next to those that always run."""
    if not level or not function.standbys:
        return function
    try:
        running = burst_from(function.burst).running(function.desired)
    except ValueError:
        return function
    more = max(0, running + level - len(function.replicas))
    return replace(
        function,
        replicas=(*function.replicas, *function.standbys[:more]),
        standbys=function.standbys[more:],
    )
