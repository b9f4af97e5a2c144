"""Ticks of a controller on the API double with a scripted policy: for clusters that refuse."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from autoscaler.contract import Configuration, Observation, Proposal, TickReport
from autoscaler.decision.limits import LimitSettings
from autoscaler.loop import Controller
from tests.doubles.kubernetes.fixtures import Platforms
from tests.doubles.kubernetes.functions import writes
from tests.doubles.kubernetes.running import Running
from tests.unit.autoscaler.builders import PRICES, configuration, observation, topology

F, G = "m-expert-0-0", "m-expert-0-1"
TICK_S = 5.0
BIG = configuration(memory_mb=1024)
SHARE = configuration(cpu_cores=0.0, gpu_share=0.3)


class Clock:
    """Unix time that a test alone moves on: a busy machine's seconds are no part of a story."""

    def __init__(self) -> None:
        self._begun_s, self.ahead_s = time.time(), 0.0

    def __call__(self) -> float:
        return self._begun_s + self.ahead_s


class Desired:
    """A scripted policy: it desires what a test gives it."""

    name = "scripted"

    def __init__(self) -> None:
        self.now: dict[str, Configuration] = {}

    def propose(self, observation: Observation, now_s: float, memory: object) -> Proposal:
        return Proposal(dict(self.now), dict.fromkeys(self.now, "scripted"))


class Nothing:
    """A metrics source of a pipeline at rest."""

    def observe(self, now_s: float, window_s: float) -> Observation:
        return observation(start_s=now_s - window_s, end_s=now_s)


class Story:
    """Functions at ``configuration()`` in one namespace, desired configurations, and ticks, which move the cluster's
    clock too."""

    def __init__(
        self, double: Running, platforms: Platforms, limits: LimitSettings, moved: Callable[[float], None]
    ) -> None:
        self.double = double
        self._moved = moved
        self.clock = Clock()
        self.platform = platforms(clock=self.clock)
        self.policy = Desired()
        parts = (topology(), Nothing(), self.policy, self.platform, limits, PRICES)
        self.controller = Controller(*parts, wait=lambda _: None, window_s=TICK_S)

    def tick(self, ticks: int = 1) -> TickReport:
        for _ in range(ticks):
            self.clock.ahead_s += TICK_S
            self._moved(self.clock() - time.time())
            report = self.controller.tick(self.clock())
            self.platform.keep()
        return report

    def desired(self, desired: Mapping[str, Configuration]) -> TickReport:
        self.policy.now.update(desired)
        return self.tick()

    def present(self, function: str = F) -> Configuration:
        return self.platform.configurations()[function]

    def kinds(self) -> list[tuple[str, str]]:
        self.platform.configurations()
        return [(one.function, one.kind) for one in self.platform.conditions()]

    def asked(self, what: str = "patch pods/resize") -> int:
        return writes(self.double).count(what)

    def count(self, kind: str, function: str = F) -> int:
        return self.platform.holds.counts[function, kind]


Stories = Callable[..., Story]


def hits(report: TickReport, function: str = F) -> tuple[str, ...]:
    return next(one.limits_hit for one in report.decisions if one.function == function)
