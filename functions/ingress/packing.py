"""Requests that wait together go through the pipeline together: texts of several requests packed into one pass.

With ``smoe_max_passes`` set, at most so many passes run at once; requests that find none free wait, and the next pass
takes its share of them (up to ``MAX_PACKED_TOKENS``): an idle pipeline answers at once, a busy one in larger packs.
On a machine with few cores this multiplies throughput, since a pass costs thirty calls whatever it carries; where every
function has cores of its own, many passes at once are better and the setting stays 0: no limit.

A request of many tokens goes through in parts of at most ``MAX_PACKED_TOKENS``, one after the other, and passes under
way hold at most ``smoe_max_tokens`` together, so that neither a large request nor many of them cost the ingress and the
functions more memory than they have.

Clients that were answered together ask again together, but not in the same instant. So that the first of them does not
get a pass of its own while the others wait for the end of the next, requests fewer than a running pack holds wait up to
``GATHER_S`` for others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np

from functions.ingress.calls import PassContext
from functions.ingress.room import TokenRoom
from functions.serving.token_bound import TokenBound
from functions.wire.arrays import Arrays
from functions.wire.errors import CallError, DeadlineError, NodeRefusedError, OverloadedError
from platform_words.memory import CALL_TOKENS

MAX_PACKED_TOKENS = CALL_TOKENS
"""Most tokens of a pass, but for a longer text, which nothing can divide."""
HELD_PASSES = 16
"""Requests hold at most so many times the tokens of passes under way, those that wait included; further ones get
429."""
GATHER_S = 0.005
"""How long a request may wait for further requests while other passes run: short compared with a pass."""
_PER_TEXT = ("embedding", "logits")

Texts = Sequence[Sequence[int]]
RunPass = Callable[[Arrays, PassContext], Awaitable[Arrays]]


@dataclass(slots=True, eq=False)
class _Member:
    """One request's texts (and the decoder's, for an encoder-decoder), and where its reply goes."""

    ids: Texts
    answers: Texts | None
    context: PassContext
    reply: asyncio.Future[Arrays]
    arrived_s: float

    @property
    def tokens(self) -> int:
        return _tokens(self.ids)


class PassQueue:
    """Runs passes for requests, at most ``limit`` at once (0: each request at once, on its own)."""

    def __init__(self, run: RunPass, limit: int, queue_limit: int, tokens: TokenBound | None = None) -> None:
        """``tokens``: of all passes at once."""
        self._run_pass = run
        self._bound = bound = tokens or TokenBound(0)
        self._most = min(MAX_PACKED_TOKENS, bound.most or MAX_PACKED_TOKENS)
        self._room = TokenRoom(bound, queue_limit) if bound.most else None
        self._held = 0
        self._limit = limit
        self._queue_limit = queue_limit
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Member] = deque()
        self._running: list[int] = []
        """How many requests each running pass carries."""
        self._gathering: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, ids: Texts, answers: Texts | None, context: PassContext) -> Arrays:
        """The last segment's reply for these texts alone. ``answers`` are the decoder's tokens. Raises CallError."""
        size = _tokens(ids) + _tokens(answers or ())
        most = HELD_PASSES * self._bound.most
        if self._held and most and self._held + size > most:
            raise OverloadedError(f"requests of {self._held} tokens wait or are computed; try again later")
        self._held += size
        try:
            replies = [await self._part(*part, context) for part in in_parts(ids, answers, self._most)]
        finally:
            self._held -= size
        if len(replies) == 1:
            return replies[0]
        return {name: np.concatenate([reply[name] for reply in replies]) for name in replies[0]}

    async def _part(self, ids: Texts, answers: Texts | None, context: PassContext) -> Arrays:
        if not self._limit:
            return await self._run(packed(ids, answers), context)
        if len(self._waiting) >= self._queue_limit:
            raise OverloadedError(f"{self._queue_limit} requests wait for the pipeline; try again later")
        member = _Member(ids, answers, context, self._loop.create_future(), self._loop.time())
        self._waiting.append(member)
        self._begin()
        timer = self._loop.call_at(context.deadline_s, _expire, member)
        try:
            return await member.reply
        except (asyncio.CancelledError, CallError):
            with suppress(ValueError):  # a pass has it already
                self._waiting.remove(member)
            raise
        finally:
            timer.cancel()

    async def _run(self, inputs: Arrays, context: PassContext) -> Arrays:
        """A pass, once there is room for its tokens."""
        if self._room is None:
            return await self._run_pass(inputs, context)
        size = sum(len(inputs[name]) for name in ("token_ids", "decoder_token_ids") if name in inputs)
        taken = await self._room.take(size, context.deadline_s)
        try:
            return await self._run_pass(inputs, context)
        finally:
            self._room.give(taken)

    def _begin(self) -> None:
        while self._waiting and len(self._running) < self._limit and not self._waits_for_more():
            members = self._next_pack()
            if members:
                self._running.append(len(members))
                task = self._loop.create_task(self._serve(members))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                for member in members:
                    member.reply.add_done_callback(partial(_give_up, members, task))

    def _waits_for_more(self) -> bool:
        """Fewer wait than the mean running pass carries, and not for long yet: look again when that time is over."""
        if not self._running or len(self._waiting) * len(self._running) >= sum(self._running):
            return False
        until_s = self._waiting[0].arrived_s + GATHER_S
        if until_s <= self._loop.time():
            return False
        if self._gathering is None:
            self._gathering = self._loop.call_at(until_s, self._gathered)
        return True

    def _gathered(self) -> None:
        self._gathering = None
        self._begin()

    def _next_pack(self) -> list[_Member]:
        """The requests that waited longest, an even share of all waiting and running; abandoned ones are dropped."""
        share = -(-(len(self._waiting) + sum(self._running)) // self._limit)
        members: list[_Member] = []
        tokens = 0
        while self._waiting and (
            not members or (len(members) < share and tokens + self._waiting[0].tokens <= MAX_PACKED_TOKENS)
        ):
            member = self._waiting.popleft()
            if not member.reply.done():
                members.append(member)
                tokens += member.tokens
        return members

    async def _serve(self, members: list[_Member]) -> None:
        try:
            await self._serve_together(members)
        finally:
            self._running.remove(len(members))
            self._begin()

    async def _serve_together(self, members: list[_Member]) -> None:
        try:
            replies = await self._together(members)
        except NodeRefusedError as error:
            if len(members) == 1:
                _fail(members, error)
            for member in members if len(members) > 1 else []:  # one of them is to blame, the others are not
                await self._serve_together([member])
        except Exception as error:
            _fail(members, error)
        else:
            for member, reply in zip(members, replies, strict=True):
                if not member.reply.done():
                    member.reply.set_result(reply)

    async def _together(self, members: list[_Member]) -> list[Arrays]:
        """One pass, and each member's part of its reply."""
        if len(members) == 1:
            return [await self._run(packed(members[0].ids, members[0].answers), members[0].context)]
        ids = [text for member in members for text in member.ids]
        answers = [text for member in members for text in member.answers or ()]
        context = PassContext(
            ",".join(member.context.request_id for member in members)[:256],
            max(member.context.deadline_s for member in members),
        )
        reply = await self._run(packed(ids, answers or None), context)
        return unpacked(reply, members)


def in_parts(ids: Texts, answers: Texts | None, most: int) -> Iterator[tuple[Texts, Texts | None]]:
    """The texts in order, in parts of at most ``most`` tokens or of one text."""
    begin = tokens = 0
    for end, text in enumerate(ids):
        size = len(text) + (len(answers[end]) if answers is not None else 0)
        if end > begin and tokens + size > most:
            yield ids[begin:end], None if answers is None else answers[begin:end]
            begin, tokens = end, 0
        tokens += size
    yield ids[begin:], None if answers is None else answers[begin:]


def packed(ids: Texts, answers: Texts | None) -> Arrays:
    """The pass's inputs: ``token_ids [T]`` and ``lengths [B]``, with ``answers`` also the decoder's."""
    arrays = _packed(ids)
    if answers is not None:
        arrays |= {f"decoder_{name}": array for name, array in _packed(answers).items()}
    return arrays


def unpacked(reply: Arrays, members: Sequence[_Member]) -> list[Arrays]:
    """Cut ``embedding`` and ``logits`` ``[B, …]`` by texts and ``states [T, d]`` by tokens."""
    texts = np.cumsum([len(member.ids) for member in members])[:-1]
    tokens = np.cumsum([member.tokens for member in members])[:-1]
    parts: list[Arrays] = [{} for _ in members]
    for name, array in reply.items():
        for part, piece in zip(parts, np.split(array, texts if name in _PER_TEXT else tokens), strict=True):
            part[name] = piece
    return parts


def _tokens(texts: Texts) -> int:
    return sum(map(len, texts))


def _packed(ids: Texts) -> Arrays:
    return {
        "token_ids": np.array([token for text in ids for token in text], np.int64),
        "lengths": np.array([len(text) for text in ids], np.int64),
    }


def _give_up(members: Sequence[_Member], task: asyncio.Task[None], reply: asyncio.Future[Arrays]) -> None:
    """A pass that nobody waits for any more is not worth its calls."""
    if reply.cancelled() and all(member.reply.done() for member in members):
        task.cancel()


def _fail(members: Sequence[_Member], error: Exception) -> None:
    for member in members:
        if not member.reply.done():
            member.reply.set_exception(error if isinstance(error, CallError) else CallError(repr(error)))


def _expire(member: _Member) -> None:
    if not member.reply.done():
        member.reply.set_exception(DeadlineError("the request's time was spent waiting for the pipeline"))
