"""The table that ``smoe lab evaluate`` prints: nothing is cut, whatever the terminal's width."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.console import Console

from evaluation.comparison.intervals import Interval
from evaluation.comparison.tables import Row
from smoe.commands import evaluate


@pytest.mark.parametrize(("width", "intervals"), [(80, False), (200, True)])
@pytest.mark.parametrize("bounded", [False, True])
def test_names_and_values_are_whole_and_intervals_stand_where_there_is_room(
    monkeypatch: pytest.MonkeyPatch, width: int, intervals: bool, bounded: bool
) -> None:
    one = Interval(0.1234, 0.05, 0.25)
    over = {"provisioned": one, "busy": one} if bounded else {"provisioned": None, "busy": None}
    row = Row("serverlessmoe", "bursty", 30, {"provisioned": one, "busy": one}, one, over, one, one, one, 12.3, 30)
    monkeypatch.setattr(evaluate, "rows", lambda summaries: [row])
    console = Console(width=width, file=io.StringIO(), record=True)
    evaluate.show(console, [], {})
    text = console.export_text()
    heads = ("pattern", "policy", "runs", "provisioned", "busy", "SLO", "windows", "mean", "excess")
    assert all(re.search(rf"\b{head}\b", text) for head in heads), text
    assert "serverlessmoe" in text and "12.3 %" in text and "…" not in text
    assert ("(5.0–25.0)" in text) == intervals == ("decision P99" in text)


def test_policies_that_changed_nothing_in_any_run_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "rows", lambda summaries: [])
    runs: list[tuple[str, int]] = [("static", 0), ("hpa", 0), ("hpa", 3), ("mine.py:make", 0), ("mine.py:make", 0)]
    summaries: list[dict[str, Any]] = [
        {"policy": "bound"},
        *({"policy": policy, "changes": changes} for policy, changes in runs),
    ]
    console = Console(width=200, file=io.StringIO(), record=True)
    evaluate.show(console, summaries, {})
    assert "no decision changed anything under static, mine.py:make: " in console.export_text()
