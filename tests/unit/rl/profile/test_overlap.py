"""Requests that meet: how volleys are sent and counted, and what the profile makes of them."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from rl.profile import load, overlap
from rl.profile.counters import Counted
from rl.profile.plan import ProfileSettings
from rl.profile.rows import Row
from tests.unit.rl.profile.truth import BLANK

SETTINGS = ProfileSettings(seconds_per_point=0.3, surface_tokens=12)
LONE_S, BESIDE_S = 0.004, 0.005
"""What the pipeline below says that its requests cost."""


class Hurried(asyncio.SelectorEventLoop):
    """Its time goes on only when there is nothing else to do, and then at once to what comes next."""

    now_s = 0.0

    def time(self) -> float:
        return self.now_s

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self.now_s = max(self.now_s, self._scheduled[0].when())  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


class Pipeline:
    """A request takes 20 ms; one that begins beside another costs more."""

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails
        self.now = self.most = 0
        self.used_s = 0.0

    async def call(self) -> bool:
        self.now += 1
        self.most = max(self.most, self.now)
        self.used_s += LONE_S if self.now == 1 else BESIDE_S
        await asyncio.sleep(0.02)
        self.now -= 1
        return not self.fails

    def read(self) -> Counted:
        return Counted(self.used_s, None, None, None, None)


def measured(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> list[Row]:
    loop = Hurried()
    monkeypatch.setattr(load, "_clock", loop.time)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return overlap.measure_volleys([pipeline.call] * 3, 1, [pipeline], SETTINGS, runner)


def test_volleys_have_their_size_and_their_cost_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = Pipeline()
    rows = measured(pipeline, monkeypatch)
    assert pipeline.most == 3
    assert sorted((row.repeat, row.concurrency) for row in rows) == [(r, size) for r in (3, 4, 5) for size in (1, 2, 3)]
    assert all(row.n == 3 * row.concurrency and row.mean_s == pytest.approx(0.02) for row in rows)
    costs = {size: [row.cpu_s_per_call for row in rows if row.concurrency == size] for size in (1, 2, 3)}
    assert costs[1] == pytest.approx([LONE_S] * 3)
    assert costs[2] == pytest.approx([(LONE_S + BESIDE_S) / 2] * 3)
    assert costs[3] == pytest.approx([(LONE_S + 2 * BESIDE_S) / 3] * 3)
    assert overlap.overlap(rows) == pytest.approx((0.0045 + 0.014 / 3) / 2 / 0.004)


def test_a_refused_request_gives_an_infeasible_row(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = measured(Pipeline(fails=True), monkeypatch)
    assert {(row.feasible, row.n) for row in rows} == {(False, 0)}
    assert overlap.overlap(rows) == 1.0


def test_rounds_are_compared_with_themselves() -> None:
    """The machine was half as fast in the second round, which says nothing about requests that meet."""
    costs = {(0, 1): 0.04, (0, 2): 0.044, (1, 1): 0.08, (1, 2): 0.088, (2, 2): 0.5}
    rows = [
        replace(BLANK, family=overlap.FAMILY, repeat=repeat, concurrency=size, cpu_s_per_call=cost)
        for (repeat, size), cost in costs.items()
    ]
    assert overlap.overlap(rows) == pytest.approx(1.1)


def test_profiles_without_volleys_know_nothing_of_overlap() -> None:
    assert overlap.overlap([replace(BLANK, family="pass", cpu_s_per_call=0.1)]) == 1.0
