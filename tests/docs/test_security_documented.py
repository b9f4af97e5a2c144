"""``docs/security.md`` against the tests: each promise names tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()


def rows() -> list[list[str]]:
    """Cells of the tables that have a column of tests, without their heads."""
    tables = re.findall(r"(?:^\|.*\n)+", PAGE, re.MULTILINE)
    lines = [line for table in tables for line in table.splitlines()[2:] if "| test |" in table.splitlines()[0]]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_each_promise_names_its_tests_and_they_are_there() -> None:
    source = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    there = set(re.findall(r"^(?:async )?def (test_\w+)\(", source, re.MULTILINE))
    promises = rows()
    assert len(promises) > 5
    for *_, promise, tests in promises:
        named = re.findall(r"`(test_\w+)`", tests)
        assert named, promise
        assert set(named) <= there, promise
