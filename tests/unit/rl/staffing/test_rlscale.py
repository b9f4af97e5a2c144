"""RLScale-Bench's protocol: what a search finds, what a budget ends, who wins."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.rlscale import contenders
from benchmarks.rlscale.__main__ import PATTERNS, spread
from benchmarks.rlscale.contenders import Pattern, calibrated, make
from benchmarks.rlscale.judged import CALIBRATED, LEARNT, Ran, on_pattern, shifted, verdict
from evaluation.comparison.errors import EvaluationError
from rl.staffing.action import NAMES, action_of
from rl.staffing.features import NODES
from rl.staffing.judge import Judged, everywhere
from rl.staffing.policy import RuleSettings
from rl.staffing.settings import StaffingSettings
from rl.staffing.training import train
from tests.unit.rl.staffing.test_env import VALUES


class Planted:
    """Hours whose cost is an action's distance from ``best``."""

    def __init__(self, best: np.ndarray[Any, Any]) -> None:
        self.best, self.asked = best, 0

    def judge(self, decide: Any) -> list[Judged]:
        self.asked += 1
        rows = {"experts": np.zeros((1, len(NODES))), "pipeline": np.zeros((1, 1))}
        return [Judged("normal", 20.0, float(((decide(rows)[0, :-1] - self.best) ** 2).sum()), 1, 0)]

    def score(self, results: list[Judged]) -> tuple[float, float]:
        return results[0].cost, 0.0


def ran(*costs: float, over: int = 0) -> list[Ran]:
    return [Ran(hour, cost, 10, over) for hour, cost in enumerate(costs)]


@pytest.fixture
def second_a_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU time that only goes on when it is looked at."""
    ticks = iter(range(10_000))
    monkeypatch.setattr(contenders.time, "process_time", lambda: float(next(ticks)))


@pytest.mark.usefixtures("second_a_try")
def test_a_search_comes_near_the_best_rule_and_asks_train_hours_only_of_what_validation_likes() -> None:
    best = action_of(VALUES)
    hours, validation = Planted(best), Planted(best)
    start = float(((action_of(RuleSettings().values()) - best) ** 2).sum())
    rule = calibrated(hours, validation, 10.0, seed=0)  # type: ignore[arg-type]
    assert rule.tried == validation.asked == 600 and hours.asked < 60
    assert rule.score < 0.02 * start and rule.values == pytest.approx(VALUES, rel=0.35, abs=0.35)


@pytest.mark.usefixtures("second_a_try")
def test_the_worse_of_train_and_validation_hours_decides() -> None:
    one, other = action_of(VALUES), action_of(RuleSettings().values())
    rule = calibrated(Planted(one), Planted(other), 10.0, seed=0)  # type: ignore[arg-type]
    apart = float(((one - other) ** 2).sum())
    # Half way each is a quarter of the squared distance away, and no action is nearer to both.
    assert apart / 4 <= rule.score < 0.4 * apart


def test_every_expert_gets_the_same_numbers() -> None:
    rows = {"experts": np.zeros((2, 3 * len(NODES))), "pipeline": np.zeros((2, 5))}
    action = everywhere(rows, action_of(VALUES)).reshape(2, 3, len(NAMES) + 1)
    assert (action[..., :-1] == action_of(VALUES)).all() and (action[..., -1] == 0).all()


def test_cheaper_at_no_more_windows_over_the_slo_wins() -> None:
    rule = [ran(1.0, 2.0), ran(1.0, 2.0)]
    cheaper = verdict([ran(0.9, 1.8), ran(0.9, 1.8)], rule)
    assert cheaper.ratio == pytest.approx(0.9) and cheaper.won and cheaper.certain and cheaper.worth
    slightly = verdict([ran(0.99, 1.98), ran(0.99, 1.98)], rule)
    assert slightly.won and slightly.certain and not slightly.worth
    assert not verdict([ran(0.9, 1.8, over=1), ran(0.9, 1.8)], rule).won
    assert not verdict([ran(1.1, 2.2), ran(1.1, 2.2)], rule).won
    uncertain = verdict([ran(0.5, 3.0), ran(0.5, 3.0)], rule)
    assert uncertain.won and not uncertain.certain
    assert verdict([ran(1.0, over=2)], [ran(1.0, over=3)]).over == 0.2


def test_contenders_on_other_hours_are_not_compared() -> None:
    with pytest.raises(ValueError, match="same hours"):
        verdict([ran(1.0, 2.0)], [ran(1.0)])


def test_shifted_hours_are_those_of_all_other_patterns() -> None:
    def runs(learnt: float) -> dict[tuple[str, int, str], list[Ran]]:
        return {("a", 0, LEARNT): ran(learnt), ("a", 0, CALIBRATED): ran(1.0)}

    found = shifted({"a": runs(9.0), "b": runs(0.5), "c": runs(2.0)}, "a", (0,))
    assert found.ratio == pytest.approx(1.0) and found.low == pytest.approx(0.5) and found.high == pytest.approx(2.0)


def test_what_workers_run_can_be_sent_to_them() -> None:
    """A function of ``__main__`` is another one there, which broke the pool after an hour of making."""
    for function in (make, on_pattern):
        assert not function.__module__.endswith("__main__")
    assert spread(1, {"a": partial(pow, 2, 3), "b": partial(pow, 2, 4)}, "powers") == {"a": 8, "b": 16}


def test_there_are_six_patterns_with_names_of_their_own() -> None:
    assert len({one.name for one in PATTERNS}) == 6


@pytest.mark.parametrize("name", [contenders.MADE, contenders.RULE])
@pytest.mark.parametrize(("stored", "words"), [({"minutes": 3.0}, r"3\.0"), ({}, "an unstated number of")])
def test_what_was_made_in_other_minutes_is_no_result_of_these(
    name: str, stored: dict[str, float], words: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(json.dumps(stored | {"values": {}, "score": 1.0, "tried": 1}))
    with pytest.raises(EvaluationError, match=rf"was made in {words} minutes, not 10"):
        make(Pattern("normal", 5.0), 0, 10.0, tmp_path, tmp_path)


@pytest.mark.slow
def test_both_contenders_are_made_and_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "no-traces").mkdir()
    for name, value in (("SECONDS", 180.0), ("TRAIN_HOURS", 1), ("SEARCH_HOURS", 1), ("VALIDATION_HOURS", 1)):
        monkeypatch.setattr(contenders, name, value)
    pattern = Pattern("normal", 5.0)
    made = make(pattern, 0, 0.001, tmp_path / "no-traces", tmp_path / "out")
    assert made["rule"]["tried"] >= 1 and set(made["rule"]["values"]) == set(NAMES)
    assert made["curve"][0]["best"] and any(entry["windows"] for entry in made["curve"])
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"staffing.toml", "staffing-learnt.toml"}
    monkeypatch.setattr(contenders, "calibrated", None)
    assert make(pattern, 0, 0.001, tmp_path / "no-traces", tmp_path / "out") == json.loads(json.dumps(made))


@pytest.mark.slow
def test_learning_ends_with_its_minutes(tmp_path: Path) -> None:
    (tmp_path / "no-traces").mkdir()
    settings = replace(
        Pattern("normal", 5.0).settings, train_hours=1, validation_hours=1, envs=2, minutes=1e-6, width=16, hidden=16
    )
    assert isinstance(settings, StaffingSettings) and settings.windows > 1000
    learning = train(replace(settings, hours=replace(settings.hours, seconds=180.0)), tmp_path, tmp_path / "no-traces")
    assert [entry["windows"] for entry in learning.curve] == [2]
