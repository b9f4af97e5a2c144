"""When a standby's CPU limit goes down: at once where it never served, else when its calls have ended."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.backends.process import standing_by
from gateway.backends.process.cgroup.limits import quota
from gateway.backends.process.quantities import Limits
from gateway.backends.process.standing_by import StandingBy, looking

FLOOR_CORES, PERIOD_S = 0.05, 0.01


async def at_once(seconds: float) -> None:
    """For ``asyncio.sleep``."""


@dataclass
class Record:
    state: str
    turn: int = 0
    id: str = "a"
    slot: str = "a"
    low: bool = False


@dataclass
class Launcher:
    """Limits that were set, and the CPU seconds that a replica has used whenever somebody looks."""

    cpu_s: list[float]
    limits: list[float | None] = field(default_factory=list)
    looks: int = 0

    def limit_cpu(self, slot: str, cores: float | None) -> None:
        self.limits.append(cores)

    def measure(self, slot: str) -> Any:
        self.looks += 1
        return SimpleNamespace(cpu_seconds_total=self.cpu_s.pop(0) if len(self.cpu_s) > 1 else self.cpu_s[0])


async def lowered(record: Record, launcher: Launcher, monkeypatch: pytest.MonkeyPatch, cpu_scale: float = 1.0) -> None:
    """Close the replica to calls, and run what lowers its limit to its end."""
    monkeypatch.setattr(standing_by.asyncio, "sleep", at_once)
    settings = SimpleNamespace(
        settle_s=0.0, standby_floor_cores=FLOOR_CORES, cpu_scale=cpu_scale, cpu_period_s=PERIOD_S
    )
    spawned: list[Coroutine[Any, Any, None]] = []
    standby = StandingBy(settings, launcher, spawned.append)  # type: ignore[arg-type]
    assert standby.assign([record], (), Limits(cpu_cores=1.0), 60.0)  # type: ignore[list-item]
    (lowering,) = spawned
    await lowering


async def test_one_that_served_keeps_its_limit_while_it_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = Launcher([0.0, 0.5, 0.5, 0.9, 0.9])
    record = Record("ready", turn=3)
    await lowered(record, launcher, monkeypatch)
    assert launcher.looks == 6, "busy in two looks, idle in the third"
    assert (record.state, record.low, launcher.limits) == ("standby", True, [FLOOR_CORES])


@pytest.mark.parametrize(
    ("cores", "floor", "period_us"),
    [(1.0, 0.05, 20_000), (0.1, 0.05, 20_000), (0.04, 0.04, 25_000), (0.012, 0.012, 83_333)],
)
async def test_a_standbys_period_ends_soon_so_that_its_limit_can_be_raised(
    monkeypatch: pytest.MonkeyPatch, cores: float, floor: float, period_us: int
) -> None:
    """Real cores of the function and of its standbys, and the period of these."""
    launcher = Launcher([0.0])
    await lowered(Record("ready"), launcher, monkeypatch, cpu_scale=cores)
    (configured,) = launcher.limits
    assert configured is not None and configured * cores == pytest.approx(floor)
    assert quota(configured * cores, PERIOD_S)[1] == period_us


async def test_one_with_little_cpu_keeps_its_limit_while_it_uses_what_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.012 cores are a millisecond in every 83: less than a replica with a whole core uses at rest."""
    launcher = Launcher([0.0, 0.001, 0.001, 0.002, 0.002, 0.00205])
    record = Record("ready", turn=3)
    await lowered(record, launcher, monkeypatch, cpu_scale=0.012)
    assert launcher.looks == 6, "busy in two looks, idle in the third"
    assert record.low


@given(st.floats(1e-3, 64.0))
def test_one_that_computes_all_the_time_uses_more_than_one_at_rest_wherever_the_look_begins(cores: float) -> None:
    look_s, idle_s = looking(cores, PERIOD_S)
    quota_us, period_us = quota(cores, PERIOD_S)
    whole_periods = int(look_s * 1e6 / period_us + 1e-6) - 1
    assert whole_periods >= 1 and idle_s < whole_periods * quota_us / 1e6
    assert looking(None, PERIOD_S) == looking(64.0, PERIOD_S)


async def test_one_that_has_just_started_gets_a_standbys_limit_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = Launcher([0.0, 0.5])
    record = Record("standby")
    await lowered(record, launcher, monkeypatch)
    assert launcher.looks == 0
    assert (record.state, record.low, launcher.limits) == ("standby", True, [FLOOR_CORES])
