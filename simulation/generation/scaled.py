"""Text generation while instances start and leave: the events of :mod:`simulation.generation.engine`, and a scaler.

An instance is paid from the moment it is ordered; it takes requests once it has started. One that is given up takes
none any more and leaves when what it has is done, looked at once every update.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from functions.scheduling.cluster import Role, Scheduler
from functions.scheduling.pacing import Pacing
from functions.scheduling.predictor import Profile
from simulation.generation.engine import GenerationSimulation, Request, _Instance
from simulation.generation.hardware import Times


class Means(NamedTuple):
    """What requests that have ended had on average: tokens, and seconds of TTFT and TPOT."""

    prompt: float
    output: float
    ttft_s: float
    tpot_s: float


class Scaler(Protocol):
    """How many instances there are to be."""

    def wanted(self, now_s: float, world: ScaledSimulation) -> Mapping[Role | None, int]:
        """By role, or of any role under None, at one update; empty: as before."""


class ScaledSimulation(GenerationSimulation):
    """``scheduler``'s instances have started at time 0; all others are of ``profile`` and take ``start_s``."""

    def __init__(
        self,
        requests: Sequence[Request],
        scheduler: Scheduler,
        hardware: Times,
        scaler: Scaler,
        profile: Profile,
        start_s: float,
        pacing: Pacing | None = None,
    ) -> None:
        super().__init__(requests, scheduler, hardware, pacing=pacing)
        self._scaler, self._profile, self._start_s = scaler, profile, start_s
        self._arrivals = [one.arrival_s for one in requests]
        self._starting: dict[int, Role | None] = {}
        self._leaving: set[int] = set()
        self._ordered: dict[int, float] = dict.fromkeys(scheduler.instances, 0.0)
        self._names = len(self._ordered)
        self.paid: list[tuple[float, float]] = []
        """(Ordered, left) of the instances that have left, in seconds."""
        self.completed: list[int] = []
        """Requests in the order in which they ended."""

    @property
    def scheduler(self) -> Scheduler:
        return self._scheduler

    def arrived(self, now_s: float) -> int:
        """Requests that had come by then."""
        return bisect_right(self._arrivals, now_s)

    @property
    def ended(self) -> int:
        """Requests that have ended."""
        return len(self.completed)

    def means(self, since: int) -> Means | None:
        """Means of those that have ended, without the first ``since`` of them; None where there are none."""
        ended = self.completed[since:]
        if not ended:
            return None
        of = [self._requests[at] for at in ended]
        ttft_s = [(self._first[at] or 0.0) - self._arrivals[at] for at in ended]
        rows = [one.prompt for one in of], [one.output for one in of], ttft_s, [self._tpot(at) or 0.0 for at in ended]
        return Means(*(float(np.mean(row)) for row in rows))

    def replica_s(self, until_s: float) -> float:
        """Time for which instances were paid until then, together."""
        spans = [*self.paid, *((since, until_s) for since in self._ordered.values())]
        return sum(max(0.0, min(left, until_s) - since) for since, left in spans)

    def instances(self, role: Role | None = None) -> int:
        """Instances that have started and stay, of a role or all."""
        return len(self._scheduler.instances if role is None else self._scheduler.having(role))

    def _update(self) -> None:
        for name in sorted(self._leaving):
            if self._empty(self._instances[name]):
                self._scheduler.lose(name)
                self._leaving.remove(name)
                self._left(name)
        for role, count in self._scaler.wanted(self._now, self).items():
            self._reach(role, count)
        super()._update()

    def _left(self, name: int) -> None:
        self.paid.append((self._ordered.pop(name), self._now))

    def _empty(self, instance: _Instance) -> bool:
        busy = instance.running or instance.prompts or instance.arriving or instance.joining
        return not busy and instance.free_kv == self._hardware[instance.name].kv_tokens

    def _reach(self, role: Role | None, count: int) -> None:
        starting = [name for name, other in self._starting.items() if other is role]
        present = self.instances(role) + len(starting)
        for _ in range(present, count):
            self._ordered[self._names] = self._now
            self._starting[self._names] = role
            self._at(self._now + self._start_s, "started", self._names)
            self._names += 1
        for _ in range(count, present):
            if starting:
                name = starting.pop()
                del self._starting[name]
                self._left(name)
            elif self.instances(role) > 1:
                self._give_up_one(role)

    def _give_up_one(self, role: Role | None) -> None:
        """The instance with the least to do."""
        having = list(self._scheduler.instances.values()) if role is None else self._scheduler.having(role)
        if self._scheduler.roles and role is None:  # one of each role stays
            having = [one for one in having if len(self._scheduler.having(one.role)) > 1]
        if having:
            name = min(having, key=lambda one: (one.decode_tokens + one.prefill_tokens, -one.name)).name
            self._scheduler.retire(name)
            self._leaving.add(name)

    def _started(self, name: int) -> None:
        if name not in self._starting:
            return  # given up before
        self._instances[name] = _Instance(name, self._hardware[name].kv_tokens)
        self._scheduler.add(name, self._profile, self._starting.pop(name))

    def _ended(self, instance: _Instance, at: int) -> None:
        super()._ended(instance, at)
        self.completed.append(at)
