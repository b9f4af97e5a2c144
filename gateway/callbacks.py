"""Callbacks of asynchronous calls: where they may go, and the pool that sends them.

The pool is apart from the queue's workers: a receiver that is slow or never ends its answer takes a place here for a
bounded time, a receiver and its host have a bounded number of them, some are kept for receivers that answer soon, and
calls go on.
"""

from __future__ import annotations

import asyncio
import fnmatch
import logging
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import aiohttp

from gateway.held import HeldBytes, TooMuchHeldError
from gateway.metrics import GatewayMetrics
from gateway.names import Names, owner_of
from gateway.turns import Known, Party, Turns

log = logging.getLogger(__name__)

TRIES = 3
FIRST_PAUSE_S = 0.2
"""Wait before the second try of a callback; the wait before the third is four times as long."""
AT_ONCE = 128
AT_ONCE_PER_OWNER = 16
"""To receivers of one host or domain; a receiver has half of them."""
KEPT = 32
"""Places for receivers whose last answer came soon."""
SOON = 0.1
"""Part of the deadline."""
MAX_WAITING = 2000
"""Callbacks that wait or are sent; the first receiver alone has half of them."""
PIECE_BYTES = 64 * 1024
_PATTERN = re.compile(r"(\*\.)?[A-Za-z0-9_.-]+(:\d{1,5})?|\[[0-9A-Fa-f:.]+\](:\d{1,5})?")


@dataclass(frozen=True)
class Callback:
    """A POST of a function's reply."""

    call_id: str
    url: str
    headers: dict[str, str]
    body: bytes

    @property
    def size(self) -> int:
        """Bytes that are held while it waits."""
        return len(self.body) + sum(len(name) + len(value) for name, value in self.headers.items())

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def target(self) -> str:
        """The receiver: host and port."""
        parts = urlsplit(self.url)
        return f"{self.host}:{parts.port or (443 if parts.scheme == 'https' else 80)}"


class CallbackTargets:
    """Receivers that callbacks may go to: ``HOST``, ``HOST:PORT`` or ``*.DOMAIN``; none given: any."""

    def __init__(self, patterns: Sequence[str]) -> None:
        """Raises ValueError for what is no such pattern."""
        for pattern in patterns:
            if not _PATTERN.fullmatch(pattern):
                raise ValueError(f"{pattern[:80]!r} is not of the form HOST, HOST:PORT or *.DOMAIN")
        self._patterns = tuple(pattern.lower() for pattern in patterns)

    def refusal(self, url: str) -> str:
        """Why a callback may not go to ``url``; empty where it may."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:  # a port that is no number
            host, port, parts = None, 0, urlsplit("")
        if parts.scheme not in ("http", "https") or not host:
            return "X-Callback-Url takes an http or https address"
        host = f"[{host}]" if ":" in host else host
        if self._patterns and not any(_matches(pattern, host, port) for pattern in self._patterns):
            return f"callbacks to {host[:80]}:{port} are not allowed here"
        return ""


class Callbacks:
    """Sends callbacks: so many at once, a few of them to one receiver, each within a deadline for all of it.

    Receivers that answer soon have places kept and count by themselves, all others with their host or domain.
    """

    def __init__(self, metrics: GatewayMetrics, *, timeout_s: float, held: HeldBytes) -> None:
        self._metrics = metrics
        self._timeout_s = timeout_s
        self._held = held
        self.pause: Callable[[float], Awaitable[None]] = asyncio.sleep
        self.clock: Callable[[], float] = time.monotonic
        self.names = Names()
        self._places = Turns(AT_ONCE, each=AT_ONCE_PER_OWNER, kept=KEPT)
        self._known = Known()
        self._waiting: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, callback: Callback) -> asyncio.Task[None] | None:
        """Begin to send; the task ends when the callback was delivered or given up. None: too many wait, it is given
        up."""
        owner = self._party(callback).owner
        try:
            if self._waiting[owner] >= MAX_WAITING - len(self._tasks):
                raise TooMuchHeldError(
                    f"{self._waiting[owner]} others of {owner[:80]} and {len(self._tasks)} in all wait"
                )
            self._held.take(callback.size)
        except TooMuchHeldError as error:
            self._give_up(callback, str(error))
            return None
        self._waiting[owner] += 1
        task = asyncio.create_task(self._send(callback))
        self._tasks.add(task)
        task.add_done_callback(lambda ended: self._over(ended, owner, callback.size))
        return task

    async def close(self, timeout_s: float) -> None:
        """Send what waits, at most ``timeout_s`` long; logs how many were dropped."""
        if not self._tasks:
            return
        _, late = await asyncio.wait(set(self._tasks), timeout=max(0.0, timeout_s))
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        if late:
            log.warning("%d callbacks were dropped at shutdown", len(late))

    def _over(self, task: asyncio.Task[None], owner: str, size: int) -> None:
        self._tasks.discard(task)
        self._held.give(size)
        self._waiting[owner] -= 1
        if not self._waiting[owner]:
            del self._waiting[owner]

    def _party(self, callback: Callback) -> Party:
        trusted = callback.target in self._known
        return Party(callback.target if trusted else owner_of(callback.host), callback.target, trusted)

    async def _send(self, callback: Callback) -> None:
        for attempt in range(TRIES):
            if attempt:
                await self.pause(FIRST_PAUSE_S * 4 ** (attempt - 1))
            party = await self._placed(callback)
            try:
                if await self._delivered(callback):
                    return
            finally:
                self._places.give(party)
        self._give_up(callback, f"{TRIES} tries")

    async def _placed(self, callback: Callback) -> Party:
        """Wait for a place; as whom it was taken. How its receiver counts may change meanwhile."""
        while True:
            party = self._party(callback)
            await self._places.take(party)
            if party == self._party(callback):
                return party
            self._places.give(party)

    async def _delivered(self, callback: Callback) -> bool:
        begun_s, soon = self.clock(), False
        try:
            status = await self._post(callback)
            soon = self.clock() - begun_s <= SOON * self._timeout_s
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:  # ValueError: an address it cannot encode
            log.warning("callback of call %s failed (%s)", callback.call_id[:64], type(error).__name__)
            return False
        finally:
            self._known.note(callback.target, well=soon)
        return status < 500

    async def _post(self, callback: Callback) -> int:
        """Status of the answer, whose head has to be there within one deadline from the look-up of the name on."""
        timeout = aiohttp.ClientTimeout(total=self._timeout_s)
        async with (
            aiohttp.ClientSession(
                timeout=timeout, connector=aiohttp.TCPConnector(resolver=self.names, use_dns_cache=False)
            ) as session,
            session.post(
                callback.url,
                data=callback.body if len(callback.body) <= PIECE_BYTES else _pieces(callback.body),
                headers={**callback.headers, "Content-Length": str(len(callback.body))},
                allow_redirects=False,
                skip_auto_headers=("Content-Type",),
            ) as reply,
        ):
            return reply.status

    def _give_up(self, callback: Callback, why: str) -> None:
        self._metrics.callback_failures += 1
        log.error("callback of call %s was given up (%s)", callback.call_id[:64], why)


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    """A whole body would be copied to be sent."""
    for start in range(0, len(body), PIECE_BYTES):
        yield body[start : start + PIECE_BYTES]


def _matches(pattern: str, host: str, port: int) -> bool:
    name, colon, number = pattern.rpartition(":") if not pattern.endswith("]") else (pattern, "", "")
    if not colon:
        name = pattern
    elif int(number) != port:
        return False
    return fnmatch.fnmatchcase(host.rstrip("."), name) if name.startswith("*.") else host.rstrip(".") == name
