"""Standbys of one function: replicas that are started, hardly get any CPU and take no calls until they are activated.

Activating one is two writes to a cgroup and a word in the replica feed; its process, weights and connections are there
already. One that is released keeps its limit until the calls that it still has are answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Protocol

from gateway.activations import ActivatedTime
from gateway.backends.process.cgroup.limits import MIN_QUOTA_US, quota
from gateway.backends.process.quantities import Limits
from gateway.backends.process.replica_changes import STARTED
from gateway.backends.process.settings import ProcessSettings
from gateway.backends.process.workers.launcher import Launcher
from gateway.contract import ReplicaState

FLOOR_PERIOD_US = 20_000
"""Longest CFS period of a standby's limit, where its function's has no longer one. A limit that is raised gets its new
period when the old one ends: from 1 ms in each second, the least that the kernel knows, to 1 ms in each 83, the second
call on a replica just opened waited for up to 0.83 s."""
IDLE_LOOK_S = 0.1
IDLE_CPU_S = 0.002
"""CPU time within ``IDLE_LOOK_S`` below which a replica with much CPU has no call."""
PERIODS = 2.0
"""CFS periods that are looked at least: a throttled replica uses nothing for most of one."""
IDLE_PART = 0.25
"""Part of its limit below which a replica with little CPU has no call; one that computes uses all of it."""


class Standing(Protocol):
    """What is read and written of a replica's record."""

    id: str
    slot: str
    state: ReplicaState
    low: bool
    """Its CPU limit is the standbys'."""
    turn: int
    """Grows with each activation and release."""


class StandingBy:
    """Opens and closes replicas to calls. ``spawn`` runs a coroutine for as long as the backend."""

    def __init__(self, settings: ProcessSettings, launcher: Launcher, spawn: Callable[..., object]) -> None:
        self._settings = settings
        self._launcher = launcher
        self._spawn = spawn
        self._loop = asyncio.get_running_loop()
        self.time = ActivatedTime(self._loop.time)
        self.asked = 0
        """Standbys that are to be activated."""

    def limits(self, record: Standing, limits: Limits) -> Limits:
        """Those of a replica whose function has ``limits``."""
        if not record.low or limits.cpu_cores is None:
            return limits
        return replace(limits, cpu_cores=min(limits.cpu_cores, self._floor(limits.cpu_cores)))

    def _floor(self, cores: float) -> float:
        """Configured cores of a standby whose function has ``cores``: as few as the settings have, and no fewer than
        the kernel's least quota in a period of :data:`FLOOR_PERIOD_US`, or of the function's own limit."""
        _, period_us = quota(self._real(cores), self._settings.cpu_period_s)
        least = MIN_QUOTA_US / max(FLOOR_PERIOD_US, period_us) / self._settings.cpu_scale
        return max(self._settings.standby_floor_cores, least)

    def assign(self, records: Iterable[Standing], opened: Collection[str], limits: Limits, drain_s: float) -> bool:
        """Let ``opened`` (ids) take calls and the other started ones stand by; whether that changed anything."""
        changed = False
        for record in records:
            if record.state == "standby" and record.id in opened:
                self._open(record, limits)
                changed = True
            elif record.state in STARTED and record.id not in opened and (record.state == "ready" or not record.turn):
                served = record.state == "ready"
                record.state = "standby"
                record.turn += 1
                self._spawn(self._lower(record, record.turn, limits, drain_s if served else 0.0))
                changed = True
        return changed

    def raise_limit(self, record: Standing, limits: Limits) -> None:
        """Give a replica its function's CPU limit again."""
        if record.low:
            record.low = False
            self._launcher.limit_cpu(record.slot, limits.cpu_cores)

    def _open(self, record: Standing, limits: Limits) -> None:
        record.state = "ready"
        record.turn += 1
        self.raise_limit(record, limits)

    async def _lower(self, record: Standing, turn: int, limits: Limits, drain_s: float) -> None:
        """Lower the limit once callers have turned away and no call is left, after ``drain_s`` in any case."""
        if drain_s:
            until_s = self._loop.time() + drain_s
            await asyncio.sleep(self._settings.settle_s)
            look_s, idle_s = looking(limits.cpu_cores and self._real(limits.cpu_cores), self._settings.cpu_period_s)
            while self._loop.time() < until_s and await self._busy(record.slot, look_s, idle_s):
                pass
        if record.turn == turn and record.state == "standby":
            record.low = True
            self._launcher.limit_cpu(record.slot, self.limits(record, limits).cpu_cores)

    def _real(self, cores: float) -> float:
        return cores * self._settings.cpu_scale

    async def _busy(self, slot: str, look_s: float, idle_s: float) -> bool:
        before_s = self._launcher.measure(slot).cpu_seconds_total
        await asyncio.sleep(look_s)
        after_s = self._launcher.measure(slot).cpu_seconds_total
        return before_s is not None and after_s is not None and after_s - before_s > idle_s


def looking(cores: float | None, period_s: float) -> tuple[float, float]:
    """How long to look at a replica limited to so many real cores (None: not limited), and the CPU seconds up to which
    it has no call then. ``period_s``: the desired CFS period."""
    if cores is None:
        return IDLE_LOOK_S, IDLE_CPU_S
    _, period_us = quota(cores, period_s)
    look_s = max(IDLE_LOOK_S, PERIODS * period_us / 1e6)
    return look_s, min(IDLE_CPU_S, IDLE_PART * cores * look_s)
