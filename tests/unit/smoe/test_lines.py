"""The lines that a command ends with."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console
from rich.table import Table

from smoe.commands.lines import print_lines, print_table

LINE = "P95         285 ms, 90% above the SLO of 150 ms: MISSED; 40.0% of all requests were answered within [it]"


def shown(terminal: bool) -> str:
    stream = StringIO()
    print_lines(Console(file=stream, width=40, force_terminal=terminal, color_system=None), [LINE])
    return stream.getvalue()


def test_on_a_terminal_no_word_is_cut_and_lines_go_on_below_the_first_word() -> None:
    lines = shown(True).splitlines()
    assert len(lines) > 2 and max(map(len, lines)) <= 40 and " ".join(shown(True).split()) == " ".join(LINE.split())
    assert all(line[:12].isspace() and not line[12].isspace() for line in lines[1:])


def test_off_a_terminal_a_line_is_one_line() -> None:
    assert shown(False) == f"{LINE}\n"


def test_a_table_wider_than_the_terminal_is_not_cut(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    table = Table(title="t")
    table.add_column("function", no_wrap=True)
    table.add_row("a-pipeline-with-a-long-name-expert-10-3")
    print_table(table)
    assert "a-pipeline-with-a-long-name-expert-10-3" in capsys.readouterr().out
