"""Tokens that an ingress has on their way at once: what its memory and its functions' were sized for."""

from __future__ import annotations

import asyncio
from collections import deque

from functions.serving.token_bound import TokenBound
from functions.wire.errors import DeadlineError, OverloadedError


class TokenRoom:
    """Room for tokens as far as ``bound`` goes; who finds none waits in order of arrival, at most ``queue_limit`` of
    them."""

    def __init__(self, bound: TokenBound, queue_limit: int) -> None:
        self._bound = bound
        self._queue_limit = queue_limit
        self._taken = 0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()

    async def take(self, tokens: int, deadline_s: float) -> int:
        """Wait for room, until ``deadline_s`` on the loop's clock; returns what to give back. What is larger than all
        the room waits until it is alone. Raises OverloadedError, DeadlineError."""
        most = self._bound.most
        tokens = min(tokens, most)
        if not self._waiting and self._taken + tokens <= most:
            self._taken += tokens
            return tokens
        if len(self._waiting) >= self._queue_limit:
            raise OverloadedError(f"{self._queue_limit} passes wait for room for their tokens; try again later")
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        place = (turn, tokens)
        self._waiting.append(place)
        timer = loop.call_at(deadline_s, _expire, turn)
        try:
            await turn
        except BaseException:
            if place in self._waiting:
                self._waiting.remove(place)
                self._grant()  # those behind it may be smaller
            elif turn.done() and not turn.cancelled() and turn.exception() is None:  # granted as it was cancelled
                self.give(tokens)
            raise
        finally:
            timer.cancel()
        return tokens

    def give(self, tokens: int) -> None:
        """Give back what :meth:`take` returned."""
        self._taken -= tokens
        self._grant()

    def _grant(self) -> None:
        while self._waiting:
            turn, tokens = self._waiting[0]
            if not turn.done():
                if self._taken and self._taken + tokens > self._bound.most:
                    return
                self._taken += tokens
                turn.set_result(None)
            self._waiting.popleft()


def _expire(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_exception(DeadlineError("the request's time was spent waiting for room for its tokens"))
