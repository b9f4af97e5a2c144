"""The table that ``smoe lab evaluate`` prints: nothing is cut, whatever the terminal's width."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.console import Console

from evaluation.comparison.grid import Grid
from evaluation.comparison.intervals import Interval
from evaluation.comparison.tables import Row
from smoe.commands import evaluate
from smoe.errors import SmoeError


@pytest.mark.parametrize(("width", "intervals"), [(80, False), (200, True)])
@pytest.mark.parametrize("bounded", [False, True])
def test_names_and_values_are_whole_and_intervals_stand_where_there_is_room(
    monkeypatch: pytest.MonkeyPatch, width: int, intervals: bool, bounded: bool
) -> None:
    one = Interval(0.1234, 0.05, 0.25)
    over = {"provisioned": one, "busy": one} if bounded else {"provisioned": None, "busy": None}
    few = Interval(0.05, 0.04, 0.06)
    row = Row("serverlessmoe", "bursty", 30, {"provisioned": one, "busy": one}, one, over, few, one, one, 12.3, 30)
    monkeypatch.setattr(evaluate, "rows", lambda summaries: [row])
    console = Console(width=width, file=io.StringIO(), record=True)
    evaluate.show(console, [], {})
    text = console.export_text()
    heads = ("pattern", "policy", "runs", "provisioned", "busy", "SLO", "windows", "mean", "excess")
    assert all(re.search(rf"\b{head}\b", text) for head in heads), text
    assert "of the windows: serverlessmoe at $0.123 provisioned (bursty)." in " ".join(text.split())
    assert "serverlessmoe" in text and "12.3 %" in text and "…" not in text
    assert ("(5.0–25.0)" in text) == intervals == ("decision P99" in text)


def test_policies_that_changed_nothing_in_any_run_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "rows", lambda summaries: [])
    runs: list[tuple[str, int]] = [("static", 0), ("hpa", 0), ("hpa", 3), ("mine.py:make", 0), ("mine.py:make", 0)]
    runs.append(("constant-per-layer+burst", 0))  # holds its plan
    summaries: list[dict[str, Any]] = [
        {"policy": "bound"},
        *({"policy": policy, "changes": changes} for policy, changes in runs),
    ]
    console = Console(width=200, file=io.StringIO(), record=True)
    evaluate.show(console, summaries, {})
    assert "no decision changed anything under static, mine.py:make: " in console.export_text()


def test_policies_that_failed_are_named_and_those_that_always_did_or_were_left_out_are_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(evaluate, "rows", lambda summaries: [])
    runs = [("static", 0), ("some", 0), ("some", 3), ("all", 10), ("all", 10)]
    summaries: list[dict[str, Any]] = [
        {"policy": policy, "windows": 10, "failed_windows": failed, **({"failure": "ValueError: x"} if failed else {})}
        for policy, failed in runs
    ]
    console = Console(width=200, file=io.StringIO(), record=True)
    evaluate.show(console, summaries, {})
    text = console.export_text()
    assert "some failed in 3 of 20 windows (ValueError: x)" in text and "static failed" not in text
    grid = Grid(("bert-4",), ("bursty",), (0,), ("static", "hpa"), (0,))
    left_out = {"bert-4.bursty.0.0.hpa": "it needs a target", "bert-4.bursty.0.0.bound": "there is none"}
    evaluate.check_all_judged(grid, summaries[:3], left_out, ("static",))
    with pytest.raises(
        SmoeError, match=r"^all failed in every window \(ValueError: x\); hpa was left out, as it needs"
    ):
        evaluate.check_all_judged(grid, summaries, left_out, ("static", "hpa"))
