"""The policy of docs/own-policy.md, as its reader would run it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from smoe.cli import cli

PAGE = Path(__file__).parents[3] / "docs" / "own-policy.md"


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert code is not None
    (tmp_path / "mine.py").write_text(code.group(1))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def evaluated(folder: Path, policies: str) -> tuple[int, str]:
    options = [
        "--seeds",
        "0",
        "--seconds",
        "300",
        "--no-bound",
        "--workers",
        "1",
        "--out",
        str(folder / "out"),
        "--json",
    ]
    result = CliRunner().invoke(cli, ["lab", "evaluate", "--policies", policies, *options])
    return result.exit_code, result.output + str(result.exception or "")


@pytest.mark.slow
def test_the_pages_policy_runs_next_to_built_in_ones_in_the_simulator(mine: Path) -> None:
    code, printed = evaluated(mine, "static,mine.py:make")
    assert code == 0, printed
    assert '"policy":"mine.py:make"' in printed


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ("other.py:make", "No such file"),
        ("mine.py:nothing", "no attribute 'nothing'"),
        ("broken.py:make", "ZeroDivisionError"),
    ],
)
def test_a_policy_that_cannot_be_loaded_ends_the_command_with_the_reason(mine: Path, policy: str, reason: str) -> None:
    (mine / "broken.py").write_text("1 / 0\n")
    code, printed = evaluated(mine, policy)
    assert code != 0
    assert "cannot be loaded" in printed
    assert reason in printed
