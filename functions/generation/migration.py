"""Texts that an instance takes over from those that prefilled them: first come, first served, one at a time.

A text's pages stay where they are until all of them are here (or the text is given up), so nothing is lost on the way:
where the source is gone, or does not have them any more, the text is computed again from its tokens. The queue is as
long as the texts that sources hold at most, ``MAX_RUNNING`` each.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from functions.generation.instance import Instance
from functions.generation.measures import Measures
from functions.generation.texts import Text
from functions.wire.errors import KvError, KvFullError

log = logging.getLogger(__name__)

FULL_TRIES = 3
"""Pulls of a text that find too few pages, as others have texts there, before it is computed again elsewhere."""


class Source(Protocol):
    """The run that a text comes from."""

    instance: Instance
    over: bool

    @property
    def stuck(self) -> bool:
        """Whether nothing goes on there but texts that leave, which hold the room that its first arrival needs."""

    def sent(self, left: Text) -> None:
        """Nobody will read the pages of ``left`` here any more."""


@dataclass(eq=False)
class Arrival:
    """A text on its way. ``left``: as it was at its source, where it may share pages with others."""

    text: Text
    source: Source
    queued_s: float
    left: Text = field(init=False)

    def __post_init__(self) -> None:
        self.left = copy.copy(self.text)
        self.left.tokens = list(self.text.tokens)
        self.text.parent, self.text.shared_pages = -1, 0


class Migrations:
    """What one instance takes over."""

    def __init__(
        self,
        instance: Instance,
        measures: Measures,
        timeout_s: float,
        arrived: Callable[[Text], object],
        failed: Callable[[Text], object],
    ) -> None:
        """``timeout_s``: time of one pull; ``arrived`` hears of texts whose pages are here, ``failed`` of those that
        are to be computed again."""
        self.queue: deque[Arrival] = deque()
        self.moving: Arrival | None = None
        self._instance, self._measures, self._timeout_s = instance, measures, timeout_s
        self._arrived, self._failed = arrived, failed
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None

    @property
    def texts(self) -> list[Text]:
        """Those that wait, and the one that is pulled."""
        return [one.text for one in ([self.moving] if self.moving else []) + list(self.queue)]

    def begin(self, fits: Callable[[Text], bool]) -> None:
        """Pull the first that waits, if none is being pulled and there is room for it; texts that were given up and
        those without a source go at once."""
        while self.moving is None and self.queue:
            first = self.queue[0]
            if first.source.over and not first.text.cancelled:
                self._measures.lost_sources += 1
            elif not first.text.cancelled and not fits(first.text):
                return
            self.queue.popleft()
            if first.text.cancelled or first.source.over:
                self._give_up(first)
                continue
            self.moving = first
            self._task = self._loop.create_task(self._pull(first))

    def waits(self, fits: Callable[[Text], bool]) -> bool:
        """Whether the first that waits needs room that is not there."""
        return bool(self.queue) and not fits(self.queue[0].text)

    def untie(self) -> None:
        """Give up the first that waits for an instance that is stuck where its source is, too: texts that leave for
        each other would hold each other's room until their time is spent."""
        if self.queue[0].source.stuck:
            self._give_up(self.queue.popleft())

    def drop(self, text: Text) -> bool:
        """Take a text that waits out of the queue; False where it does not wait here."""
        for arrival in self.queue:
            if arrival.text is text:
                self.queue.remove(arrival)
                arrival.source.sent(arrival.left)
                return True
        return False

    async def close(self) -> None:
        """The instance ends: all are given up, in order."""
        if self._task is not None and self.moving is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self.moving is not None:
            self.queue.appendleft(self.moving)
            self.moving = None
        self.give_up_waiting()

    def give_up_waiting(self) -> None:
        """Those that are not being pulled are given up, in order."""
        for arrival in reversed(self.queue):
            self._give_up(arrival)
        self.queue.clear()

    def _give_up(self, arrival: Arrival) -> None:
        arrival.source.sent(arrival.left)
        self._failed(arrival.text)

    async def _pull(self, arrival: Arrival) -> None:
        text, begun_s = arrival.text, self._loop.time()
        moved = await self._moved_bytes(arrival, begun_s + self._timeout_s)
        self.moving = None
        if moved is None:
            self._instance.free([text.kv_id])  # some segments may have got theirs
            self._measures.lost_sources += 1
            self._give_up(arrival)
            return
        now_s = self._loop.time()
        self._measures.moved(moved, begun_s - arrival.queued_s, now_s - begun_s)
        arrival.source.sent(arrival.left)
        self._arrived(text)

    async def _moved_bytes(self, arrival: Arrival, limit_s: float) -> int | None:
        """None: it cannot be had."""
        for _ in range(FULL_TRIES):
            try:
                return await self._instance.pull(arrival.text, arrival.source.instance, limit_s)
            except KvFullError:
                self._instance.free([arrival.text.kv_id])  # what came of it, as the next pull begins at its first page
                await self._instance.settled()  # what others freed here may still be on its way, too
            except KvError as error:
                log.info("a text is computed again: %s", error)
                return None
            except Exception:
                log.exception("a text is computed again, as it could not be pulled")
                return None
        return None
