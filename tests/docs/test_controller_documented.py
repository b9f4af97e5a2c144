"""The table of ``docs/controller.md`` against settings and flags: every one is there, with its default and meaning."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import click
import pytest

from autoscaler.commands import autoscale
from autoscaler.settings import ControllerSettings
from docs.tables import TABLES

PAGE = (Path(__file__).parents[2] / "docs" / "controller.md").read_text()
SETTINGS = {entry.name: entry for entry in fields(ControllerSettings)}
FLAGS = sorted(flag for option in autoscale.params if isinstance(option, click.Option) for flag in option.opts)
_, ROWS = TABLES["controller"]()
TEXT = " ".join(cell for row in ROWS for cell in row)


def test_every_setting_is_documented_with_its_default_and_no_other() -> None:
    assert [row[0] for row in ROWS] == list(SETTINGS)
    assert {row[0]: row[2] for row in ROWS}["interval_s"] == f"`{SETTINGS['interval_s'].default}`"
    assert all(row[3].endswith((".", "]")) for row in ROWS)


@pytest.mark.parametrize("flag", FLAGS)
def test_every_flag_is_documented(flag: str) -> None:
    assert flag in TEXT or f"`{flag}`" in PAGE
