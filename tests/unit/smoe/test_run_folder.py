from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from benchmarks.harness.run_folder import remove_leftovers, run_folder

PREFIX = "smoe-test-run-"
HOLD = f"""
import sys
from benchmarks.harness.run_folder import run_folder
with run_folder({PREFIX!r}) as folder:
    (folder / "large").write_bytes(b"x" * 1000)
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_a_run_removes_what_a_killed_one_left_and_leaves_others_alone(tmp_path: Path) -> None:
    foreign = tmp_path / f"{PREFIX}of-somebody-else"
    foreign.mkdir()
    with subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        held = Path(process.stdout.readline().decode().strip())
        assert remove_leftovers(PREFIX) == []
        assert (held / "large").exists()
        os.kill(process.pid, signal.SIGKILL)
    assert held.exists()
    with run_folder(PREFIX) as own:
        assert not held.exists()
        assert own.parent == tmp_path
    assert list(tmp_path.iterdir()) == [foreign]
