"""When a run is worse than HPA's, and what verdicts and guards come to, by hand."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from benchmarks.guard.verdict import Outcome, by_kind, guard_of, summed_up, without_numbers, worse, worst

HPA = Outcome(cost=100.0, over=4, windows=100)


@pytest.mark.parametrize(
    ("cost", "over", "verdict"),
    [
        pytest.param(100.0, 4, "", id="the same"),
        pytest.param(103.6, 4, "", id="just within the margin of cost"),
        pytest.param(103.7, 4, "cost", id="just beyond it"),
        pytest.param(150.0, 3, "", id="dearer, but with fewer windows over"),
        pytest.param(50.0, 7, "", id="within the margin of windows"),
        pytest.param(50.0, 8, "over λ", id="cheaper, but four more of a hundred are over"),
        pytest.param(110.0, 8, "both", id="dearer and over"),
    ],
)
def test_a_run_is_worse_beyond_3_6_percent(cost: float, over: int, verdict: str) -> None:
    assert worse(Outcome(cost, over, 100), HPA) == verdict


def row(seed: int, policy: Outcome, pattern: str) -> dict[str, Any]:
    return {"seed": seed, "kinds": {"pattern": pattern, "trouble": "none"},
            "outcomes": {"staffing": asdict(policy), "hpa": asdict(HPA)}}  # fmt: skip


ROWS = [
    row(1, Outcome(50.0, 4, 100, {"calls take N": 25}), "slow"),
    row(2, Outcome(120.0, 4, 100, held=10), "bursty"),
    row(3, Outcome(120.0, 2, 100, {"calls take N": 5, "it wanted less": 10}), "bursty"),
    row(4, Outcome(80.0, 54, 100), "bursty"),
]


@pytest.mark.slow
def test_shares_and_causes_of_all_worlds() -> None:
    totals = summed_up(ROWS, "staffing")
    assert (totals["worse"], totals["worse_share"], totals["causes"]) == (2, 0.5, {"cost": 1, "over λ": 1})
    assert totals["as_written_share"] == 0.75  # world 3 costs more and is over less often
    assert (totals["cost"], totals["over"]) == (pytest.approx(0.925), pytest.approx(0.16))
    assert totals["worse_interval"]["low"] == pytest.approx(0.1500, abs=1e-4)  # Wilson's of 2 of 4


def test_worlds_are_counted_by_kind() -> None:
    assert by_kind(ROWS, "staffing") == {
        "pattern": {"slow": [0, 1], "bursty": [2, 3]},
        "trouble": {"none": [2, 4]},
    }


def test_the_guards_share_of_all_windows_by_reason() -> None:
    guard = guard_of(ROWS, "staffing")
    assert (guard["share"], guard["held"], guard["worlds"]) == (0.1, 0.025, 2)
    assert guard["reasons"] == {"calls take N": 0.075, "it wanted less": 0.025}


def test_the_worst_worlds_come_first_and_only_those_that_are_worse() -> None:
    assert [(one["seed"], one["worse"]) for one in worst(ROWS, "staffing")] == [(4, "over λ"), (2, "cost")]
    assert [one["seed"] for one in worst(ROWS, "staffing", count=1)] == [4]


def test_reasons_that_differ_in_numbers_are_one() -> None:
    assert without_numbers("calls take 2.1 times as long, in 12 experts") == without_numbers(
        "calls take 0.3 times as long, in 8 experts"
    )
