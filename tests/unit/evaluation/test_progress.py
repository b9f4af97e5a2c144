"""Progress off a terminal: a line a minute on standard error."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from evaluation import progress


def test_off_a_terminal_a_line_a_minute_says_what_is_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 1.0, 61.0, 62.0, 130.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with progress.LongWork(Console(file=io.StringIO())) as bar:
        task = bar.add_task("points", total=8)
        for _ in range(3):
            bar.advance(task)
        bar.update(task, description="requests", advance=3)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(", ")[0] for line in lines] == ["points: 25 %", "requests: 75 %"]


def test_on_a_terminal_there_is_a_bar_and_no_lines(capsys: pytest.CaptureFixture[str]) -> None:
    shown = io.StringIO()
    with progress.LongWork(Console(file=shown, force_terminal=True)) as bar:
        task = bar.add_task("points", total=2)
        bar.advance(task, 2)
    assert "100%" in shown.getvalue()
    assert capsys.readouterr().err == ""
