"""Rules of :mod:`benchmarks.arrow.planners` on a running decoder: what they see, how the controller takes them, and
instances that take as long to start as the rules are to reckon with.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from autoscaler.contract import Configuration, Memory, Observation, Platform, Proposal
from autoscaler.errors import PlatformError
from benchmarks.arrow.planners import FrontEnd
from benchmarks.harness.streams import samples_of
from functions.scheduling.cluster import Role
from functions.scheduling.predictor import least_squares
from functions.serving import generation_metric_names as names
from simulation.generation.scaled import Means

Counts = Mapping[str, float]
"""Samples of an ingress by name, summed over their labels."""


def counts_of(address: str) -> Counts:
    """What an ingress has counted of its texts. Raises requests.RequestException."""
    summed = defaultdict[str, float](float)
    for sample in samples_of(address, ("vllm:", "smoe_kv", "smoe_recomputed")):
        summed[sample.name] += sample.value
    return dict(summed)


class Look(NamedTuple):
    """Counts since the ingress began. Seconds."""

    at_s: float
    arrived: float
    ended: int
    first_tokens: float
    ttft_s: float
    """Summed over first tokens."""
    later_tokens: float
    tpot_s: float
    """Summed over later tokens."""

    @classmethod
    def of(cls, at_s: float, counts: Counts) -> Look:
        ended = int(counts.get(names.ENDED, 0))
        first, later = names.TTFT_SECONDS, names.TPOT_SECONDS
        sums = [counts.get(f"{name}_{what}", 0.0) for name in (first, later) for what in ("count", "sum")]
        return cls(at_s, ended + counts[names.TEXTS_RUNNING] + counts[names.TEXTS_WAITING], ended, *sums)


@dataclass
class LiveFrontEnd:
    """The ingress as it was at each :meth:`look`; all texts have the same lengths. What came before the first look does
    not count."""

    prompt: int
    answer: int
    read: Callable[[], Counts]
    ready: Callable[[], int]
    """Instances that take texts."""
    looks: list[Look] = field(default_factory=list)

    def look(self, at_s: float) -> None:
        self.looks.append(Look.of(at_s, self.read()))

    @property
    def ended(self) -> int:
        return self.looks[-1].ended - self.looks[0].ended

    def arrived(self, now_s: float) -> int:
        """Between two looks in proportion."""
        counts = np.interp(now_s, [one.at_s for one in self.looks], [one.arrived for one in self.looks])
        return round(float(counts) - self.looks[0].arrived)

    def means(self, since: int) -> Means | None:
        """From the last look at which no more had ended."""
        if self.ended <= since:
            return None
        until = self.looks[-1]
        before = [one for one in self.looks if one.ended - self.looks[0].ended <= since][-1]
        first, later = until.first_tokens - before.first_tokens, until.later_tokens - before.later_tokens
        ttft_s = (until.ttft_s - before.ttft_s) / max(1.0, first)
        return Means(self.prompt, self.answer, ttft_s, (until.tpot_s - before.tpot_s) / max(1.0, later))

    def instances(self, role: Role | None = None) -> int:
        """All compute both phases."""
        return self.ready()


class Rule(Protocol):
    """One of :mod:`benchmarks.arrow.planners`."""

    def wanted(self, now_s: float, world: FrontEnd) -> Mapping[Role | None, int]: ...


@dataclass(frozen=True)
class Together:
    """As many instances of any role as a rule wants of all roles together, at most ``most``."""

    rule: Rule
    most: int

    def wanted(self, now_s: float, world: FrontEnd) -> Mapping[Role | None, int]:
        wanted = self.rule.wanted(now_s, world)
        return {None: min(self.most, sum(wanted.values()))} if wanted else {}


class RulePolicy:
    """A rule as the controller's policy: its instances are replicas of ``function``."""

    def __init__(self, name: str, rule: Together, front_end: LiveFrontEnd, function: str, begun_s: float) -> None:
        self.name = name
        self._rule, self._front_end, self._function, self._begun_s = rule, front_end, function, begun_s
        self._count: int | None = None
        self.decided: list[tuple[float, int]] = []
        """(Seconds, instances) whenever the rule decided on a number."""

    def propose(self, observation: Observation, now_s: float, memory: Memory) -> Proposal:
        """``begun_s``, like ``now_s``, is Unix time."""
        at_s = now_s - self._begun_s
        if at_s >= 0:
            self._front_end.look(at_s)
            wanted = self._rule.wanted(at_s, self._front_end)
            if wanted:
                self._count = wanted[None]
                self.decided.append((round(at_s, 1), wanted[None]))
        present = next((one.configuration for one in observation.nodes if one.function == self._function), None)
        if present is None or self._count is None:
            return Proposal({}, {self._function: "nothing wanted yet"})
        return Proposal({self._function: present.with_replicas(self._count)}, {self._function: self.name})


class SlowStarts:
    """``platform`` with ``start_s`` between the order of a replica of ``function`` and its start, as long as the block
    lasts: what is ordered counts at once, those that have not started are given up first."""

    def __init__(
        self, platform: Platform, function: str, start_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._platform, self._function, self._start_s, self._clock = platform, function, start_s, clock
        self._ordered_s: list[float] = []
        self._lock, self._over = threading.RLock(), threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self.waits: list[tuple[float, float]] = []
        """(Ordered, started or given up) of each, in seconds of the clock."""

    def __enter__(self) -> SlowStarts:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        with self._lock:
            self.waits += [(ordered_s, self._clock()) for ordered_s in self._ordered_s]
            self._ordered_s.clear()

    def configurations(self) -> Mapping[str, Configuration]:
        with self._lock:
            present = dict(self._platform.configurations())
            one = present[self._function]
            return {**present, self._function: one.with_replicas(one.replicas + len(self._ordered_s))}

    def apply(self, function: str, present: Configuration, target: Configuration) -> None:
        """``function`` alone is scaled, and its replicas alone are changed."""
        with self._lock:
            now_s, started = self._clock(), present.replicas - len(self._ordered_s)
            self._ordered_s += [now_s] * (target.replicas - present.replicas)
            given_up = self._ordered_s[max(0, target.replicas - started) :]
            del self._ordered_s[max(0, target.replicas - started) :]
            self.waits += [(ordered_s, now_s) for ordered_s in given_up]
            if target.replicas < started:
                self._platform.apply(function, present.with_replicas(started), target)
            self.start_due()

    def start_due(self) -> None:
        """Those whose time has come."""
        with self._lock:
            now_s = self._clock()
            due = [ordered_s for ordered_s in self._ordered_s if ordered_s + self._start_s <= now_s]
            if due:
                present = self._platform.configurations()[self._function]
                more = present.with_replicas(present.replicas + len(due))
                self._platform.apply(self._function, present, more)
                del self._ordered_s[: len(due)]
                self.waits += [(ordered_s, now_s) for ordered_s in due]

    def _follow(self) -> None:
        while not self._over.wait(0.1):
            with suppress(PlatformError):  # tried again at the next look
                self.start_due()


def line(values: Sequence[float], times: Sequence[float]) -> tuple[float, float]:
    """(Level at 0, slope) of least squares."""
    slope, level = least_squares(values, times, 1)
    return level, slope
