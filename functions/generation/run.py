"""The generation loop of one instance: continuous batching, one iteration at a time.

An iteration is one pass: first every text that has a token to go on from (decode), then parts of prompts (prefill) up
to ``chunk_tokens`` together. Texts join and leave between iterations.

Pages: a text is admitted when those of all its tokens are free. Where a growing text finds none, the text that arrived
last gives its pages back and waits at the head of the queue; it is computed again from its beginning, and what it wrote
stays written. Pages of finished texts are kept for texts that begin like them, and given up before anybody waits. One
that is alone always fits, or was refused before it began.

With a scheduler of phases (:mod:`functions.generation.phases`) each instance has a queue of prompts of its own, and a
text whose prompt is computed goes on where the scheduler sends it: here, or at an instance that pulls its pages.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from functions.generation.draining import Drain
from functions.generation.instance import Answer, Instance
from functions.generation.measures import Measures
from functions.generation.migration import Arrival, Migrations
from functions.generation.prefixes import KEEP_S, Prefixes
from functions.generation.scoring import score
from functions.generation.texts import Finish, Text, Waiting
from functions.ingress.calls import PassContext
from functions.scheduling.settings import CHUNK_TOKENS
from functions.wire.arrays import Array, as_float32
from functions.wire.errors import (
    BadInputError,
    CallError,
    DeadlineError,
    KvFullError,
    KvLostError,
    NodeRefusedError,
)

if TYPE_CHECKING:
    from functions.generation.phases import Phases

log = logging.getLogger(__name__)

MAX_RUNNING = 128
"""Texts of an instance at once."""
IDLE_S = 100.0
"""Time without a pass after which a text begins again: less than that after which workers free it."""
PAUSE_S = 0.05
"""Before an iteration that failed is repeated."""

Iteration = list[tuple[Text, int]]
"""Texts and how many of their tokens are computed next."""


class InstanceRun:
    """Runs iterations on an instance until it is gone, or has drained."""

    def __init__(
        self,
        instance: Instance,
        waiting: Waiting,
        measures: Measures,
        timeout_s: float,
        computed: Callable[[int], object],
        place: Callable[[], object],
        monitor: Phases | None = None,
        drain: Drain | None = None,
        chunk_tokens: int = CHUNK_TOKENS,
    ) -> None:
        """``timeout_s``: time for each next token of a text, or part of its prompt; ``computed`` hears how many tokens
        each iteration had; ``place`` lets waiting texts in, before each; ``chunk_tokens``: those of an iteration, as
        far as prompts are in it."""
        self.instance = instance
        self.prefixes = Prefixes(instance.page_tokens)
        self.texts: list[Text] = []
        """Those that run here, in order of arrival."""
        self.over = False
        """Whether it has ended: a text that is admitted after that would wait for ever."""
        self.queue: deque[Text] = deque()
        """Texts whose prompts are to be computed here, once there is room."""
        self.leaving: list[Text] = []
        """Texts as they were when they went to another instance, which has not got all their pages yet."""
        self.migrations = Migrations(instance, measures, timeout_s, self._arrived, self._begin_again)
        self.drain = drain or Drain()
        self._monitor = monitor
        self._chunk_tokens = chunk_tokens
        self._waiting = waiting
        self._measures = measures
        self._timeout_s = timeout_s
        self._computed = computed
        self._place = place
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._failure: CallError | None = None
        """Why the last iteration failed, which is repeated for texts whose time is not spent."""

    @property
    def open(self) -> bool:
        """Whether it takes texts."""
        return not self.over and self.instance.whole()

    @property
    def pages(self) -> int:
        """Pages that its texts take up, those that they share with kept ones counted there."""
        moving = self.migrations.moving
        held = [*self.texts, *self.leaving, *([moving.text] if moving else [])]
        return sum(map(self._pages_of, held))

    @property
    def room(self) -> int:
        """Tokens of all its texts together."""
        return self.instance.pages * self.instance.page_tokens

    @property
    def queued(self) -> list[Text]:
        """Texts that wait for this instance."""
        return [*self.queue, *self.migrations.texts]

    @property
    def stuck(self) -> bool:
        """Whether nothing goes on here but texts that leave, which hold the room that its first arrival needs."""
        return not self.texts and self.migrations.moving is None and self.migrations.waits(self.fits)

    @property
    def _free_pages(self) -> int:
        return self.instance.pages - self.pages - self.prefixes.pages

    def wake(self) -> None:
        """A text was given up, or the table of replicas has changed."""
        self._wake.set()

    async def run(self) -> None:
        """Until a replica is gone or it has drained; texts that it still has go to the head of the queue, in order."""
        try:
            while self.instance.reachable():
                if not self.instance.whole() and self.drain.over(self, self._loop.time()):
                    break
                self._end_those_given_up()
                self._begin_idle_ones_again()
                self._place()
                self._take_in()
                self._make_room()
                iteration = self._next_iteration()
                if iteration:
                    await self._iterate(iteration)
                else:
                    self._wake.clear()
                    await self._wake.wait()
        except KvLostError as error:
            log.warning("an instance ends, its %d texts are computed again: %s", len(self.texts), error)
            await asyncio.sleep(PAUSE_S)  # what fails at once is not tried in a circle
        except Exception as error:
            log.exception("the loop of an instance failed")
            for text in list(self.texts):
                self._fail(text, CallError(repr(error)))
        finally:
            self.over = True
            if self._monitor is not None:
                self._monitor.lost(self)
            await self.migrations.close()
            self._empty_queue()
            self._measures.lost(self.texts)
            for text in reversed(list(self.texts)):
                self._put_back(text)
            self.instance.free(self.prefixes.all_ids())
            await self.instance.close()

    async def _iterate(self, iteration: Iteration) -> None:
        """Raises KvLostError."""
        begun_s = self._loop.time()
        context = PassContext(",".join(text.request_id for text, _ in iteration)[:256], begun_s + self._timeout_s)
        try:
            logits, experts = await self.instance.run(iteration, context)
        except KvFullError:  # another ingress has texts there too, or what was freed here is still on its way
            if not await self.instance.settled() and not self._give_up_kept():
                self._preempt()
                self._failure = DeadlineError("the request's time was spent waiting for pages")
                await asyncio.sleep(PAUSE_S)
        except NodeRefusedError as error:
            for text, _ in iteration:
                self._fail(text, error)
        except CallError as error:
            self._failure = error
            await asyncio.sleep(PAUSE_S)
        else:
            self._failure = None
            self._computed(sum(count for _, count in iteration))
            self._take(iteration, logits, experts, begun_s)

    def refusal(self, text: Text) -> CallError | None:
        """Why a text can never run here; None where it can."""
        limit = self.room
        wanted = text.last if text.bounded else len(text.tokens) + 1
        if wanted <= limit:
            return None
        return BadInputError(
            f"the prompt and max_tokens are {wanted} tokens together; the segments keep at most {limit} (--kv-tokens)"
        )

    def fits(self, text: Text) -> bool:
        """Whether there is room for it now; kept texts that nobody under way began with make room."""
        held = self.pages + self.prefixes.pinned(one.parent for one in (*self.texts, *self.leaving))
        return len(self.texts) + len(self.leaving) < MAX_RUNNING and held + self._pages_of(text) <= self.instance.pages

    def admit(self, text: Text) -> None:
        """Run a text that fits from the next iteration on."""
        text.longest = min(text.longest, self.room)
        self._share(text)
        self._measures.admitted(text, self._loop.time())
        self.texts.append(text)
        self._wake.set()

    def expect(self, text: Text) -> None:
        """Compute a text's prompt when there is room: in order, those that had begun elsewhere first."""
        if text.written:
            self.queue.appendleft(text)
        else:
            self.queue.append(text)
        self._wake.set()

    def _take_in(self) -> None:
        """Texts that come from other instances, and prompts that wait for this one; each in order. Prompts wait while
        a text that comes needs room: it has pages elsewhere, and small ones would overtake it without end."""
        self.migrations.begin(self.fits)
        if self.stuck:
            self.migrations.untie()
        while self.queue and (
            self.queue[0].cancelled or (self.fits(self.queue[0]) and not self.migrations.waits(self.fits))
        ):
            text = self.queue.popleft()
            if text.cancelled:
                self._ended(text, "abort")
            else:
                self.admit(text)

    def retire(self) -> None:
        """It is scaled away: what waits for it waits for any."""
        if self._monitor is not None:
            self._monitor.retire(self)
        self.migrations.give_up_waiting()
        self._empty_queue()

    def _empty_queue(self) -> None:
        while self.queue:
            self._begin_again(self.queue.pop())

    def send(self, text: Text, to: InstanceRun, now_s: float) -> None:
        """Another instance goes on with a text; its pages stay until they are there."""
        self.texts.remove(text)
        arrival = Arrival(text, self, now_s)
        self.leaving.append(arrival.left)
        to.take_over(arrival)

    def take_over(self, arrival: Arrival) -> None:
        """Go on with another instance's text when its turn has come and there is room."""
        self.migrations.queue.append(arrival)
        self.migrations.begin(self.fits)
        self._wake.set()

    def sent(self, left: Text) -> None:
        """The pages of a text that went are not wanted for it any more; they stay for texts that begin like it."""
        self.leaving.remove(left)
        if self.over or not self.prefixes.keep(left):
            self.instance.free([left.kv_id])
        self._wake.set()

    def _arrived(self, text: Text) -> None:
        """Another instance's text is here."""
        text.longest, text.passed_s = min(text.longest, self.room), self._loop.time()
        self.texts.append(text)
        self.migrations.begin(self.fits)
        self._wake.set()

    def _begin_again(self, text: Text) -> None:
        """A text that waited for this instance waits for any."""
        self._leave(text)
        text.forget()
        self._waiting.texts.appendleft(text)
        self._wake.set()

    def _leave(self, text: Text) -> None:
        if self._monitor is not None:
            self._monitor.left(text)

    def _share(self, text: Text) -> None:
        """Begin with a kept text's pages, where that leaves room for the rest."""
        if text.scoring:  # the pages have no logits of the tokens in them
            return
        now_s = self._loop.time()
        parent, pages = self.prefixes.find(text.tokens, now_s)
        pinned = self.prefixes.pinned([parent, *(one.parent for one in (*self.texts, *self.leaving))])
        if pages and self.pages + pinned + self._pages_of(text) - pages <= self.instance.pages:
            self.prefixes.use(text, parent, pages)

    def _make_room(self) -> None:
        while self._give_up_kept(self._loop.time() - KEEP_S):
            pass
        while self._free_pages < 0 and (self._give_up_kept() or self._preempt()):
            pass
        if (
            self._free_pages < 0 and self.texts
        ):  # a text alone, with the rest of one that it began with: both go, and it begins again
            self._put_back(self.texts[0])
            while self._give_up_kept():
                pass
            self._place()

    def _give_up_kept(self, before_s: float = float("inf")) -> bool:
        """Free the kept text that was used longest ago; False where there is none."""
        kv_id = self.prefixes.oldest(before_s)
        if kv_id is not None:
            self.instance.free([kv_id])
        return kv_id is not None

    def _preempt(self) -> bool:
        """Put the text back that arrived last; False where there is one alone."""
        if len(self.texts) < 2:
            return False
        self._measures.preemptions += 1
        self._put_back(max(self.texts, key=lambda text: text.arrived_s))
        return True

    def _put_back(self, text: Text) -> None:
        self._remove(text)
        text.forget()
        self._waiting.texts.appendleft(text)

    def _park(self, text: Text) -> None:
        """Its reader is behind: others may have its pages until it has caught up."""
        self._keep(text)
        text.forget()
        self._waiting.parked.append(text)

    def _keep(self, text: Text) -> None:
        """It goes, and its pages stay for those that begin like it."""
        self.texts.remove(text)
        self._leave(text)
        if not self.prefixes.keep(text):
            self.instance.free([text.kv_id])

    def _remove(self, text: Text) -> None:
        self.texts.remove(text)
        self._leave(text)
        self._give_up(text)

    def _give_up(self, text: Text) -> None:
        self.prefixes.leave(text)
        self.instance.free([text.kv_id])  # also where its first iteration failed: some segments were through with it

    def _next_iteration(self) -> Iteration:
        iteration = [(text, 1) for text in self.texts if len(text.tokens) - text.kept == 1]
        prompts = [text for text in self.texts if len(text.tokens) - text.kept > 1]
        half_s = self._loop.time() - self._timeout_s / 2
        # Otherwise a long prompt could use up the time of those behind it.
        prompts.sort(key=lambda text: text.progress_s > half_s)
        room = max(self._chunk_tokens - len(iteration), 1)  # as long as texts write, prompts go on, too
        if self._monitor is not None and prompts:
            prompts, room = self._monitor.pace(self, [text for text, _ in iteration], prompts, room, self._loop.time())
        for text in prompts:
            left = len(text.tokens) - text.kept
            if room > 0:
                most = min(room, self.instance.scored_tokens) if text.scoring else room
                iteration.append((text, min(left, most)))
                room -= left
        return iteration

    def _take(self, iteration: Iteration, logits: Sequence[Answer], experts: Array | None, begun_s: float) -> None:
        """Choose each text's next token from its ``logits``, where all of it has been computed; with
        ``experts [B, layers, k]`` where one wants them. ``begun_s``: when the iteration began."""
        now_s = self._loop.time()
        for place, ((text, count), answer) in enumerate(zip(iteration, logits, strict=True)):
            rows = answer if isinstance(answer, int) else torch.from_numpy(as_float32(answer))
            if text.scoring and not isinstance(rows, int):
                score(text, rows)
            text.passed_s = begun_s
            self.prefixes.renew(text)
            text.computed(count, now_s)
            if text.kept < len(text.tokens) or text.cancelled:
                continue
            if not text.max_tokens:
                self._measures.prompt_only(text)
                self._finish(text, "length")
                continue
            try:
                chosen = text.sampler.choose(rows if isinstance(rows, int) else rows[-1])
                if text.routed and experts is not None:
                    chosen = replace(chosen, experts=experts[place].tolist())
            except (RuntimeError, ValueError, IndexError) as err:  # one text's own settings; the others go on
                self._fail(text, CallError(f"the next token could not be chosen: {err}"))
                continue
            self._measures.token(text, now_s)
            reason = text.choose(chosen, now_s)
            if reason is not None:
                self._finish(text, reason)
            elif text.sink.full():
                self._park(text)
            elif self._monitor is not None:
                to = self._monitor.token(self, text, now_s, begun_s)
                if to is not self:
                    self.send(text, to, now_s)

    def _finish(self, text: Text, reason: Finish) -> None:
        self._keep(text)
        self._measures.finished(text, reason, self._loop.time())
        text.sink.finished(reason)

    def _fail(self, text: Text, error: CallError) -> None:
        self._remove(text)
        self._measures.finished(text, "abort", self._loop.time())
        text.sink.failed(error)

    def _ended(self, text: Text, reason: str) -> None:
        """A text that nobody wants ended before it was here."""
        self._leave(text)
        self._measures.finished(text, reason, self._loop.time())

    def give_up_waiting(self, text: Text, error: CallError) -> None:
        """The time of a text that waits for this instance is spent; one that is being pulled is let through."""
        if text in self.queue:
            self.queue.remove(text)
        elif not self.migrations.drop(text):
            return
        self._ended(text, "abort")
        if not text.cancelled:
            text.sink.failed(error)

    def _end_those_given_up(self) -> None:
        now_s = self._loop.time()
        for text in list(self.texts):
            if text.cancelled:
                self._remove(text)
                self._measures.finished(text, "abort", now_s)
            elif text.deadline_s is not None and text.deadline_s <= now_s:
                self._fail(text, DeadlineError("the request's time was spent before its text was complete"))
            elif text.progress_s + self._timeout_s <= now_s:
                late = DeadlineError(f"the text has not gone on for {self._timeout_s:g} s (smoe_timeout)")
                self._fail(text, self._failure or late)

    def _begin_idle_ones_again(self) -> None:
        """Segments free texts that no pass was for, and what one is to begin with: a prompt that was put off, passes
        that failed."""
        before_s = self._loop.time() - IDLE_S
        for text in self.texts:
            if text.kept and text.passed_s < before_s:
                self._give_up(text)
                text.forget()

    def _pages_of(self, text: Text) -> int:
        return -(-len(text.tokens) // self.instance.page_tokens) - text.shared_pages
