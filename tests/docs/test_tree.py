"""Rules of the tree's files that no tool checks."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_no_test_module_overwrites_its_own_marks() -> None:
    modules = sorted((ROOT / "tests").rglob("*.py"))
    twice = [path.name for path in modules if f"\n{path.read_text()}".count("\npytestmark = ") > 1]
    assert len(modules) > 100 and twice == []


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_a_checkout_gets_a_client_that_the_makefile_newly_lists(tmp_path: Path) -> None:
    (tmp_path / ".venv/clients").mkdir(parents=True)
    by_age = ["pyproject.toml", "constraints.txt", ".venv/.installed", "Makefile", ".venv/clients/.installed"]
    for age, name in enumerate(by_age):
        (tmp_path / name).write_text((ROOT / name).read_text() if name == "Makefile" else "")
        os.utime(tmp_path / name, (1e9 + age, 1e9 + age))

    def installs() -> bool:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
        command = ["make", "--dry-run", "test-clients", "VENV=.venv"]
        dry = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        return "guidellm==" in dry.stdout

    assert not installs()
    os.utime(tmp_path / "Makefile", (2e9, 2e9))
    assert installs()
