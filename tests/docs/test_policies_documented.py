"""``docs/policies.md`` against the code: every policy by name, every setting with its default."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoscaler.policy.kpa import KpaSettings
from autoscaler.settings import POLICY_NAMES
from docs.tables import POLICIES, TABLES

PAGE = (Path(__file__).parents[2] / "docs" / "policies.md").read_text()


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_every_policy_is_in_the_table_and_has_a_section(name: str) -> None:
    headings = [line for line in PAGE.splitlines() if line.startswith("## ")]
    assert f"\n| `{name}` |" in PAGE and any(name in heading for heading in headings)


@pytest.mark.parametrize("name", POLICIES)
def test_every_setting_of_a_policy_is_listed_with_its_default_and_what_it_means(name: str) -> None:
    head, rows = TABLES[name]()
    assert list(head) == ["setting", "default", "meaning"] and rows
    assert [row[0] for row in rows if not row[2].endswith((".", ".)"))] == []


def test_a_default_that_the_table_shows_is_the_code_s() -> None:
    assert {row[0]: row[1] for row in TABLES["kpa"]()[1]}["stable_window_s"] == f"`{KpaSettings.stable_window_s}`"
