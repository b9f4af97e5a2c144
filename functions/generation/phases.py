"""Prefill and decode of each text on instances of their own: a scheduler of :mod:`functions.scheduling` over the runs.

What the scheduler knows comes from the texts that pass here and from their tokens; instances report nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar

from functions.generation.run import InstanceRun
from functions.generation.texts import Text
from functions.scheduling.arrow import Arrow
from functions.scheduling.cluster import Scheduler
from functions.scheduling.deadline import Deadline
from functions.scheduling.pacing import Pacing, Prompt
from functions.scheduling.peers import MinimalLoad, RoundRobin
from functions.scheduling.predictor import Profile
from functions.serving.settings import ScheduleSettings

log = logging.getLogger(__name__)
Result = TypeVar("Result")

REMEMBERED_FLIPS = 2000
REMEMBERED_DECISIONS = 10_000


@dataclass(frozen=True)
class Flip:
    """An instance's role has changed."""

    instance: int
    to: str
    took_s: float
    """The whole decision that it was part of; from then on texts of the new role go there."""


@dataclass
class _Dispatched:
    """A text that the scheduler has: its number there, and how many of its tokens it heard of while it decoded."""

    request: int
    decoding: bool = False
    generated: int = 0
    first_s: float = 0.0
    """When its prompt was computed."""
    last_s: float = 0.0
    """When its last token here was chosen."""


@dataclass
class Phases:
    """Dispatches texts and hears of their tokens."""

    scheduler: Scheduler
    update_s: float
    paced: bool = False
    """Whether prompts are computed by when they are due, in the room that decodes leave."""
    runs: dict[int, InstanceRun] = field(default_factory=dict)
    flips: deque[Flip] = field(default_factory=lambda: deque(maxlen=REMEMBERED_FLIPS))
    decisions_s: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED_DECISIONS))
    """How long the scheduler took for each of the latest texts' prefill or decode."""
    reserved: set[int] = field(default_factory=set)
    """Numbers of instances that will join."""
    _held: dict[Text, _Dispatched] = field(default_factory=dict)
    _names: dict[InstanceRun, int] = field(default_factory=dict)
    _numbers: count[int] = field(default_factory=count)

    def reserve(self) -> int:
        """The lowest number that no instance has."""
        name = next(number for number in count() if number not in self.runs and number not in self.reserved)
        self.reserved.add(name)
        return name

    def join(self, name: int, run: InstanceRun, profile: Profile) -> None:
        """An instance can be given texts."""
        self.reserved.discard(name)
        self.scheduler.add(name, profile)
        self.runs[name], self._names[run] = run, name

    def dispatch(self, text: Text, now_s: float) -> InstanceRun:
        """Who prefills a text. Raises SchedulingError where there is no instance."""
        dispatched = _Dispatched(next(self._numbers))
        name = self._decide(lambda: self.scheduler.prefill(dispatched.request, len(text.tokens), now_s))
        self._held[text] = dispatched
        return self.runs[name]

    def token(self, run: InstanceRun, text: Text, now_s: float, since_s: float) -> InstanceRun:
        """A text goes on after a token; where. The interval of the first token that an instance decodes is its
        iteration alone: waiting and transfer are not the instance's speed."""
        held = self._held[text]
        if not held.decoding and not self.scheduler.instances:  # all drain, so it ends where it is
            return run
        if not held.decoding:
            held.decoding, held.first_s = True, now_s
            return self.runs[self._decide(lambda: self.scheduler.decode(held.request, now_s))]
        begun_s = held.last_s if held.generated else since_s
        held.generated, held.last_s = held.generated + 1, now_s
        self.scheduler.generated(self._names[run], 1, now_s - begun_s)
        return run

    def pace(
        self, run: InstanceRun, decodes: Sequence[Text], prompts: list[Text], room: int, now_s: float
    ) -> tuple[list[Text], int]:
        """In which order an instance computes its ``prompts`` next to ``decodes``, and how many tokens of them in the
        next iteration, at most ``room``."""
        instance = self.scheduler.instances.get(self._names[run])
        if not self.paced or instance is None:  # one that drains has nothing to put off
            return prompts, room
        targets = self.scheduler.targets
        pacing = Pacing(instance.profile, targets)
        waiting = (
            Prompt(place, text.moved_s + targets.ttft_s, pacing.work_s(text.kept, len(text.tokens)))
            for place, text in enumerate(prompts)
        )
        ordered = [prompts[one.name] for one in pacing.order(waiting, now_s)]
        if not decodes:
            return ordered, room
        slack_s = pacing.tightest_s(self._due_s(text, pacing.interval_s) - now_s for text in decodes)
        context = sum(len(text.tokens) for text in decodes)
        return ordered, pacing.room(room, context, slack_s, ordered[0].kept)

    def _due_s(self, text: Text, interval_s: float) -> float:
        """When a text's next token is due."""
        held = self._held[text]
        if not held.decoding:
            return text.moved_s + self.scheduler.targets.ttft_s
        return held.first_s + (held.generated + 1) * interval_s

    def left(self, text: Text) -> None:
        """A text has ended, or begins again."""
        held = self._held.pop(text, None)
        if held is None:
            return
        if held.decoding:
            self.scheduler.finish(held.request, held.generated)
        else:
            self.scheduler.abandon(held.request)

    def retire(self, run: InstanceRun) -> None:
        """An instance gets nothing new; texts that are decoded there go on."""
        self.scheduler.retire(self._names[run])

    def lost(self, run: InstanceRun) -> None:
        """An instance is gone; the texts that it had begin again."""
        name = self._names.pop(run, None)
        if name is None:
            return
        del self.runs[name]
        gone = set(self.scheduler.lose(name))
        for text in [text for text, held in self._held.items() if held.request in gone]:
            del self._held[text]

    async def watch(self) -> None:
        """The monitoring loop (Algorithm 2), until cancelled."""
        while True:
            await asyncio.sleep(self.update_s)
            self._noting_flips(lambda: self.scheduler.update(asyncio.get_running_loop().time()))

    def document(self) -> dict[InstanceRun, dict[str, Any]]:
        """Each instance's role and what the scheduler knows of it; of one that drains its number alone."""
        scheduled = {
            self.runs[one.name]: {
                "instance": one.name,
                "role": one.role.value if self.scheduler.roles else "both",
                "prefills": len(one.prefills),
                "prefill_s": one.prefill_s,
                "decodes": len(one.decodes),
                "decode_tokens": one.decode_tokens,
                "interval_s": one.interval_s,
            }
            for one in self.scheduler.instances.values()
        }
        return {run: {"instance": name, "role": "draining"} for run, name in self._names.items()} | scheduled

    def _decide(self, choose: Callable[[], Result]) -> Result:
        begun_s = time.perf_counter()
        result = self._noting_flips(choose)
        self.decisions_s.append(time.perf_counter() - begun_s)
        return result

    def _noting_flips(self, act: Callable[[], Result]) -> Result:
        flips, begun_s = self.scheduler.flips, time.perf_counter()
        before = {one.name: one.role for one in self.scheduler.instances.values()}
        result = act()
        if self.scheduler.flips != flips:
            took_s = time.perf_counter() - begun_s
            for one in self.scheduler.instances.values():
                if before.get(one.name) is not one.role:
                    self.flips.append(Flip(one.name, one.role.value, took_s))
                    log.info("instance %d is for %s now", one.name, one.role.value)
        return result


def phases_of(settings: ScheduleSettings) -> Phases | None:
    """By ``smoe_schedule``; None where texts stay where they begin."""
    if settings.rule == "colocated":
        return None
    scheduler: Scheduler
    if settings.rule == "arrow":
        scheduler = Arrow({}, settings.targets, settings.prefill, settings.arrow)
    elif settings.rule == "deadline":
        return Phases(Deadline({}, settings.targets), settings.arrow.update_s, paced=True)
    else:
        rule = MinimalLoad if settings.rule == "minimal-load" else RoundRobin
        scheduler = rule({}, settings.targets, settings.prefill)
    return Phases(scheduler, settings.arrow.update_s)
