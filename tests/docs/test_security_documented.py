"""``docs/security.md`` against the tests: each promise names tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
DEFINITIONS = "## Who is trusted"


def tables() -> list[list[list[str]]]:
    """Cells of each line of each table, its head first."""
    found = re.findall(r"(?:^\|.*\n)+", PAGE, re.MULTILINE)
    return [[[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()] for table in found]


def test_each_promise_names_its_tests_and_they_are_there() -> None:
    source = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    there = set(re.findall(r"^(?:async )?def (test_\w+)\(", source, re.MULTILINE))
    promises = [row for head, _, *rows in tables() for row in rows if head[-1] == "test"]
    assert len(promises) > 5
    for *_, promise, tests in promises:
        named = re.findall(r"`(test_\w+)`", tests)
        assert named, promise
        assert set(named) <= there, promise


def test_rows_have_the_cells_of_their_table_s_head() -> None:
    for head, _, *rows in tables():
        assert [row for row in rows if len(row) != len(head)] == []


def test_nothing_is_promised_outside_the_tables() -> None:
    """What is there besides: headings, and sentences that lead to the table below them."""
    _, _, promises = PAGE.partition(DEFINITIONS)[2].partition("\n## ")
    prose = re.sub(r"^(?:\|.*|#.*|.*:)\n", "", promises.partition("\n")[2], flags=re.MULTILINE)
    assert prose.split() == []
