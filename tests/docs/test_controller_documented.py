"""``docs/controller.md`` against settings and flags: every one is there, with its default."""

from __future__ import annotations

from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from autoscaler.commands import autoscale
from autoscaler.settings import ControllerSettings

PAGE = (Path(__file__).parents[2] / "docs" / "controller.md").read_text()
SETTINGS = {entry.name: entry for entry in fields(ControllerSettings)}
FLAGS = sorted(flag for option in autoscale.params for flag in option.opts)


def rows() -> dict[str, list[str]]:
    """Setting → flag, default, meaning."""
    lines = [line for line in PAGE.split("## Settings\n", 1)[1].splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {first.strip("`"): rest for first, *rest in cells}


def test_every_setting_is_documented_and_no_other() -> None:
    assert list(rows()) == list(SETTINGS)


@pytest.mark.parametrize("name", SETTINGS)
def test_defaults_are_those_of_the_code(name: str) -> None:
    default = SETTINGS[name].default
    if default is MISSING or default is None or SETTINGS[name].default_factory is not MISSING:
        assert not rows()[name][1].startswith("`") or "/" in rows()[name][1]
    else:
        assert rows()[name][1] == f"`{default}`"


@pytest.mark.parametrize("flag", FLAGS)
def test_every_flag_is_documented(flag: str) -> None:
    assert f"`{flag}`" in PAGE


def test_flags_in_the_table_exist_and_set_the_setting_beside_them() -> None:
    options = {flag: option.name for option in autoscale.params for flag in (*option.opts, *option.secondary_opts)}
    for name, (flag, _, meaning) in rows().items():
        assert meaning.endswith(".")
        if flag != "–":
            assert options[flag.strip("`")] == ("password_file" if name == "password" else name)
