"""The command line before any command runs."""

from __future__ import annotations

import sys

import pytest
from click.testing import CliRunner

from smoe.cli import COMMANDS, cli
from smoe.lazy import LazyCommand, LazyGroup


def test_help_lists_every_command_and_imports_none_of_them() -> None:
    result = CliRunner().invoke(cli, ["--help"])
    assert result.exit_code == 0
    assert all(name in result.output for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_help_page_worth_reading(name: str) -> None:
    result = CliRunner().invoke(cli, [name, "--help"])
    assert result.exit_code == 0, result.output
    assert len(result.output.splitlines()) > 4


def test_a_missing_optional_package_is_named_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    group = LazyGroup(lazy={"simulate": LazyCommand("optuna", "nothing", "-")})
    result = CliRunner().invoke(group, ["simulate"])
    assert result.exit_code == 2
    assert "smoe simulate needs optuna" in result.output and "smoe[rl]" in result.output
