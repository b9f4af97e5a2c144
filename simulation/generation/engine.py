"""The events: arrivals, ends of iterations, ends of transfers, and the scheduler's monitoring loop.

A request's room for keys and values (prompt and output) is reserved when its prefill begins, and on another instance
when its transfer begins; the scheduler does not know the output's length. Transfers to an instance go one at a time,
first come first served.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from functions.scheduling.cluster import Scheduler
from functions.scheduling.pacing import Pacing, Prompt
from functions.scheduling.settings import Targets
from simulation.generation.hardware import ALONE, Part, Times, beside


@dataclass(frozen=True)
class Request:
    """Raises ValueError without a prompt or an output."""

    arrival_s: float
    prompt: int
    output: int

    def __post_init__(self) -> None:
        if self.prompt < 1 or self.output < 1:
            raise ValueError(f"a request needs a prompt and an output, got {self.prompt} and {self.output} tokens")


@dataclass
class Outcome:
    """By request; None for one that never got so far."""

    ttft_s: list[float | None]
    tpot_s: list[float | None]
    """0 for an output of one token."""
    flips: int = 0
    transfers: int = 0

    @property
    def lost(self) -> int:
        """Requests that never ended."""
        return sum(value is None for value in self.tpot_s)

    def attainment(self, ttft_s: float, tpot_s: float) -> float:
        """Share of all requests within both targets."""
        pairs = zip(self.ttft_s, self.tpot_s, strict=True)
        kept = sum(a is not None and b is not None and a <= ttft_s and b <= tpot_s for a, b in pairs)
        return kept / len(self.ttft_s)


@dataclass
class _Instance:
    name: int
    free_kv: int
    prompts: deque[list[int]] = field(default_factory=deque)
    """[request, tokens computed], -1: has no room yet."""
    joining: list[int] = field(default_factory=list)
    ends: list[tuple[int, int]] = field(default_factory=list)
    """Heap of (iteration that ends it, request) of the batch."""
    context: int = 0
    iteration: int = 0
    running: bool = False
    arriving: deque[tuple[int, int]] = field(default_factory=deque)
    """(request, source) of transfers that wait."""
    receiving: bool = False
    prompt_share: float = 0.0
    """Part of the running iteration's tokens that are prompts'."""
    changed: bool = True
    """Whether prompts have come or gone since they were put in order."""
    due: list[tuple[float, int]] = field(default_factory=list)
    """(When its next token would have been due at iteration 0, request) of the batch, in order."""


class _Each(dict[int, Times]):
    """The same for every instance, whenever it comes."""

    def __init__(self, hardware: Times) -> None:
        super().__init__()
        self._all = hardware

    def __missing__(self, name: int) -> Times:
        return self._all


class GenerationSimulation:
    """One run of one scheduler; ``run`` may be called once. ``requests`` in order of arrival."""

    def __init__(
        self,
        requests: Sequence[Request],
        scheduler: Scheduler,
        hardware: Times | Mapping[int, Times],
        update_s: float = 1.0,
        pacing: Pacing | None = None,
        give_up: tuple[Targets, int] | None = None,
    ):
        """``hardware``: of all instances, or of each by its name. ``pacing``: how instances share an iteration; None:
        prompts as they came, in parts of one size. ``give_up``: stop once more than so many requests have missed these
        targets, as what is left does not matter then."""
        self._pacing, self._give_up = pacing, give_up
        self._missed: set[int] = set()
        self._requests, self._scheduler, self._update_s = requests, scheduler, update_s
        self._hardware: Mapping[int, Times] = hardware if isinstance(hardware, Mapping) else _Each(hardware)
        self._instances = {name: _Instance(name, self._hardware[name].kv_tokens) for name in scheduler.instances}
        self._first: list[float | None] = [None] * len(requests)
        self._end: list[float | None] = [None] * len(requests)
        self._events: list[tuple[float, int, str, tuple[int, ...]]] = []
        self._number = 0
        self._now = 0.0
        self._transfers = 0
        self._chunks: dict[int, list[int]] = {}

    def run(self) -> Outcome:
        for at, request in enumerate(self._requests):
            self._at(request.arrival_s, "arrival", at)
        self._at(self._update_s, "update")
        while self._events:
            self._now, _, kind, what = heapq.heappop(self._events)
            getattr(self, f"_{kind}")(*what)
        arrivals = [request.arrival_s for request in self._requests]
        front_s = max((self._hardware[name].front_s for name in self._instances), default=0.0)
        ttft = [None if first is None else first - a + front_s for first, a in zip(self._first, arrivals, strict=True)]
        return Outcome(ttft, [self._tpot(at) for at in range(len(arrivals))], self._scheduler.flips, self._transfers)

    def _tpot(self, at: int) -> float | None:
        first, end, output = self._first[at], self._end[at], self._requests[at].output
        if first is None or end is None:
            return None
        return (end - first) / (output - 1) if output > 1 else 0.0

    def _at(self, time_s: float, kind: str, *what: int) -> None:
        self._number += 1
        heapq.heappush(self._events, (time_s, self._number, kind, what))

    def _update(self) -> None:
        self._scheduler.update(self._now)
        if self._events:  # nothing else to come: all is done, or what is left can never be
            self._at(self._now + self._update_s, "update")

    def _arrival(self, at: int) -> None:
        request = self._requests[at]
        if self._give_up is not None:
            self._at(self._now + self._give_up[0].ttft_s * (1 + 1e-9), "due", at)
        if request.prompt + request.output > min(self._hardware[name].kv_tokens for name in self._instances):
            return  # fits not on all instances: lost
        instance = self._instances[self._scheduler.prefill(at, request.prompt, self._now)]
        instance.prompts.append([at, -1])
        instance.changed = True
        self._begin(instance)

    def _due(self, at: int) -> None:
        if self._first[at] is None:
            self._miss(at)

    def _miss(self, at: int) -> None:
        self._missed.add(at)
        if self._give_up is not None and len(self._missed) > self._give_up[1]:
            self._events.clear()

    def _begin(self, instance: _Instance) -> None:
        """The next iteration: decodes first, then prompts in order."""
        if instance.running:
            return
        for at in instance.joining:
            heapq.heappush(instance.ends, (instance.iteration + self._requests[at].output - 1, at))
            instance.context += self._requests[at].prompt + 1
            if self._pacing is not None:
                insort(instance.due, (self._due_at_0_s(at, instance.iteration, self._pacing), at))
        instance.joining.clear()
        batch = len(instance.ends)
        parts, ended = self._chunk(instance, self._room(instance, batch))
        if batch == 0 and not parts:
            return
        instance.running = True
        self._chunks[instance.name] = ended
        hardware = self._hardware[instance.name]
        seconds = hardware.iteration(batch, instance.context, parts)
        if hardware.slowdown != ALONE:
            prompts = sum(tokens for _, tokens in parts)
            instance.prompt_share = prompts / (prompts + batch)
            others = (one.prompt_share for one in self._instances.values() if one.running and one is not instance)
            seconds *= beside(hardware.slowdown, instance.prompt_share, others)
        self._at(self._now + seconds, "iterated", instance.name, batch, round(seconds * 1e9))

    def _room(self, instance: _Instance, batch: int) -> int:
        """Tokens of prompts in the next iteration, whose prompts are put in order."""
        most = max(self._hardware[instance.name].chunk_tokens - batch, 0)
        pacing = self._pacing
        if pacing is None or not instance.prompts:
            return most
        if instance.changed:
            waiting = {head[0]: head for head in instance.prompts}
            ordered = pacing.order(
                (
                    Prompt(
                        at,
                        self._requests[at].arrival_s + pacing.targets.ttft_s,
                        pacing.work_s(max(head[1], 0), self._requests[at].prompt),
                    )
                    for at, head in waiting.items()
                ),
                self._now,
            )
            instance.prompts = deque(waiting[one.name] for one in ordered)
            instance.changed = False
        if not batch:
            return most
        since_s = (instance.iteration + 1) * pacing.interval_s - self._now
        first = bisect_left(instance.due, (-pacing.late_s - since_s, -1))  # those before it are too late
        slack_s = pacing.tightest_s(due_s + since_s for due_s, _ in instance.due[first : first + 1])
        head = instance.prompts[0]
        return pacing.room(most, instance.context, slack_s, max(head[1], 0))

    def _due_at_0_s(self, at: int, joined: int, pacing: Pacing) -> float:
        """When the next token of a text that joined at iteration ``joined`` would have been due at iteration 0."""
        return (self._first[at] or 0.0) - joined * pacing.interval_s

    def _chunk(self, instance: _Instance, room: int) -> tuple[list[Part], list[int]]:
        """The prompts' parts in one iteration, and the requests whose prompts end."""
        parts: list[Part] = []
        ended = []
        while room > 0 and instance.prompts:
            head = instance.prompts[0]
            request = self._requests[head[0]]
            if head[1] < 0:
                if instance.free_kv < request.prompt + request.output:
                    break
                instance.free_kv -= request.prompt + request.output
                head[1] = 0
            tokens = min(room, request.prompt - head[1])
            parts.append((head[1], tokens))
            head[1] += tokens
            room -= tokens
            if head[1] == request.prompt:
                ended.append(head[0])
                instance.prompts.popleft()
                instance.changed = True
        return parts, ended

    def _iterated(self, name: int, batch: int, nanoseconds: int) -> None:
        instance = self._instances[name]
        instance.running = False
        if batch:
            instance.iteration += 1
            instance.context += batch
            self._scheduler.generated(name, batch, nanoseconds * 1e-9)
        while instance.ends and instance.ends[0][0] <= instance.iteration:
            last, at = heapq.heappop(instance.ends)
            if self._pacing is not None:
                joined = last - self._requests[at].output + 1
                entry = (self._due_at_0_s(at, joined, self._pacing), at)
                del instance.due[bisect_left(instance.due, entry)]
            self._ended(instance, at)
        for at in self._chunks.pop(name):
            self._prefilled(instance, at)
        self._receive(instance)
        self._begin(instance)

    def _ended(self, instance: _Instance, at: int) -> None:
        request = self._requests[at]
        self._end[at] = self._now
        tpot_s = self._tpot(at)
        if self._give_up is not None and tpot_s is not None and tpot_s > self._give_up[0].tpot_s:
            self._miss(at)
        instance.context -= request.prompt + request.output
        instance.free_kv += request.prompt + request.output
        self._scheduler.finish(at, request.output - 1)

    def _prefilled(self, source: _Instance, at: int) -> None:
        request = self._requests[at]
        self._first[at] = self._now
        if request.output == 1:
            self._end[at] = self._now
            source.free_kv += request.prompt + 1
            self._scheduler.abandon(at)
            return
        target = self._instances[self._scheduler.decode(at, self._now)]
        if target is source:
            source.joining.append(at)
            return
        target.arriving.append((at, source.name))
        self._receive(target)

    def _receive(self, target: _Instance) -> None:
        """Begin the next transfer where there is room for it."""
        if target.receiving or not target.arriving:
            return
        at, source = target.arriving[0]
        request = self._requests[at]
        if target.free_kv < request.prompt + request.output:
            return
        target.arriving.popleft()
        target.free_kv -= request.prompt + request.output
        target.receiving = True
        self._transfers += 1
        self._at(
            self._now + self._hardware[target.name].transfer_s(request.prompt), "received", at, source, target.name
        )

    def _received(self, at: int, source_name: int, target_name: int) -> None:
        source, target = self._instances[source_name], self._instances[target_name]
        source.free_kv += self._requests[at].prompt + self._requests[at].output
        target.receiving = False
        target.joining.append(at)
        for instance in (source, target):
            self._receive(instance)
            self._begin(instance)
