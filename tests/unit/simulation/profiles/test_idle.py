"""Requests after pauses: how they are sent, and what the profile makes of them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from simulation.profiles.fit.rows import Row
from simulation.profiles.measure import idle_gap as idle
from simulation.profiles.measure import load
from simulation.profiles.measure.counters import Counted
from simulation.profiles.measure.measurement_plan import ProfileSettings
from tests.unit.simulation.profiles import truth
from tests.unit.simulation.profiles.hurried import Hurried

SETTINGS = ProfileSettings(seconds_per_point=0.3, surface_tokens=12, idle_rounds=3)
POWER = 0.02


class Pipeline:
    """A request takes 20 ms and more, the longer ago the last answer is."""

    def __init__(self, clock: Hurried, fails: bool = False) -> None:
        self.clock, self.fails = clock, fails
        self.answered_s = 0.0
        self.texts = [0, 0]

    async def call(self, text: int) -> bool:
        self.texts[text] += 1
        pause_s = max(0.01, self.clock.time() - self.answered_s)
        await asyncio.sleep(0.02 * (pause_s / 0.01) ** POWER)
        self.answered_s = self.clock.time()
        return not self.fails

    def read(self) -> Counted:
        return Counted(0.0, None, None, None, None)


def measured(monkeypatch: pytest.MonkeyPatch, fails: bool = False) -> tuple[Pipeline, list[Row]]:
    loop = Hurried()
    pipeline = Pipeline(loop, fails)
    monkeypatch.setattr(load, "_clock", loop.time)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        calls = [lambda: pipeline.call(0), lambda: pipeline.call(1)]
        return pipeline, idle.measure_idle(calls, 1, [pipeline], SETTINGS, runner)


def test_every_round_has_every_pause_and_the_law_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline, rows = measured(monkeypatch)
    assert sorted((row.repeat, row.pause_s) for row in rows) == [(r, p) for r in (3, 4, 5) for p in idle.PAUSES_S]
    assert all(row.n == 3 and row.feasible for row in rows)
    assert min(pipeline.texts) >= 20
    calm = [replace(row, others_cores=0.0) for row in rows]  # whatever else this machine does
    cooling = idle.cooling(calm)
    assert cooling is not None and cooling.power == pytest.approx(POWER, abs=1e-6) and cooling.error < 1e-6
    times = idle.idle_times(calm)
    assert times[0] == (0.01, 1.0) and dict(times)[1.0] == pytest.approx(100**POWER, abs=1e-4)


def test_a_refused_request_gives_infeasible_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    _, rows = measured(monkeypatch, fails=True)
    assert {(row.feasible, row.n) for row in rows} == {(False, 0)}
    assert idle.cooling(rows) is None and idle.idle_times(rows) == ()


def rounds(powers: list[float], others_cores: float = 0.0) -> list[Row]:
    """Of a machine that is half as fast in every other round."""
    return [
        replace(
            truth.BLANK,
            family=idle.FAMILY,
            repeat=number,
            pause_s=pause_s,
            p50_s=0.04 * (1 + number % 2) * pause_s**power,
            others_cores=others_cores,
        )
        for number, power in enumerate(powers)
        for pause_s in idle.PAUSES_S
    ]


def test_rounds_are_compared_with_themselves() -> None:
    cooling = idle.cooling(rounds([0.01, 0.03, 0.02, 0.02]))
    assert cooling is not None and cooling.power == pytest.approx(0.02)
    assert cooling.error == pytest.approx(np.sqrt(2 * 0.01**2 / 3 / 4))
    assert dict(idle.idle_times(rounds([0.01, 0.03, 0.02, 0.02])))[1.0] == pytest.approx(100**0.02)


@pytest.mark.parametrize("powers", [[0.02], [0.02, -0.02, 0.03, -0.01], [-0.02, -0.02, -0.021]])
def test_what_is_not_certain_or_makes_no_sense_is_nothing(powers: list[float]) -> None:
    assert idle.idle_times(rounds(powers)) == ()


def test_disturbed_rounds_are_left_out_where_there_are_quieter_ones() -> None:
    disturbed = [replace(row, repeat=row.repeat + 9) for row in rounds([0.5, 0.5], others_cores=1.0)]
    cooling = idle.cooling([*rounds([0.02, 0.02]), *disturbed])
    assert cooling is not None and cooling.power == pytest.approx(0.02)
